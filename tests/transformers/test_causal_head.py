"""What `use_linear_avuc` finds between output layer and loss, and what it refuses in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, CohereConfig, CohereForCausalLM, MixtralConfig, MixtralForCausalLM

from avuc.core.errors import InputError
from avuc.transformers import use_linear_avuc


def batch() -> dict[str, Tensor]:
    ids = torch.arange(3, 21).reshape(2, 9)
    return {"input_ids": ids, "labels": ids}


def test_other_factors_of_the_logits() -> None:
    sizes = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    model = CohereForCausalLM(CohereConfig(**sizes, logit_scale=0.3))
    wanted = model(**batch()).loss
    assert use_linear_avuc(model, kind="plain").logits == (0.3, None)
    torch.testing.assert_close(model(**batch()).loss, wanted)


def test_the_balance_of_experts_stays_in_the_loss() -> None:
    sizes = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "bos_token_id": 0}
    config = MixtralConfig(**sizes, output_router_logits=True, router_aux_loss_coef=0.5, eos_token_id=1)
    model = MixtralForCausalLM(config).train()
    own = model(**batch())
    assert own.aux_loss > 0
    use_linear_avuc(model, kind="plain")
    torch.testing.assert_close(model(**batch()).loss, own.loss)


@pytest.mark.parametrize("options", [{"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_on_the_output_layer_is_refused(language_model: Callable[..., Any], options: Any) -> None:
    options = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | options
    with pytest.raises(InputError, match="adapter"):
        use_linear_avuc(get_peft_model(language_model("llama"), LoraConfig(**options)))
    model = language_model("llama")
    use_linear_avuc(model)
    with pytest.raises(InputError, match="adapter"):
        get_peft_model(model, LoraConfig(**options))(**batch())


def test_refused_models(language_model: Callable[..., Any], tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="has no output embeddings; use AvUCTrainer"):
        use_linear_avuc(tiny_model())
    with pytest.raises(InputError, match="give a model of Transformers"):
        use_linear_avuc(torch.nn.Linear(2, 2))
    masked = BertForMaskedLM(BertConfig(vocab_size=37, hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(InputError, match="not the cross-entropy of the next token"):
            use_linear_avuc(masked.to(dtype))
    model = language_model()
    model.config.is_encoder_decoder = True
    with pytest.raises(InputError, match="encoder-decoder"):
        use_linear_avuc(model)
    model = language_model()
    use_linear_avuc(model)
    with pytest.raises(InputError, match="call undo"):
        use_linear_avuc(model)
    with pytest.raises(InputError, match="meta device"):
        use_linear_avuc(language_model("llama").to("meta"))
    model = language_model("llama")
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(InputError, match=r"must be an nn\.Linear"):
        use_linear_avuc(model)


def test_refused_output_layers(language_model: Callable[..., Any]) -> None:
    model = language_model("llama")
    model.lm_head.weight.device_mesh = "as a DTensor has"
    with pytest.raises(InputError, match="split over processes"):
        use_linear_avuc(model)
    model = language_model("llama")
    use_linear_avuc(model)
    model.lm_head.weight = torch.nn.Parameter(torch.empty(0))  # as ZeRO-3 leaves it
    with pytest.raises(InputError, match="split over processes"):
        model(**batch())
    model = language_model("llama")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(InputError, match="leave it out of the quantisation"):
        use_linear_avuc(model)


def test_a_model_that_changes_its_logits_is_refused(language_model: Callable[..., Any]) -> None:
    model = language_model("llama")
    model.lm_head.register_forward_hook(lambda module, given, out: out.clamp(max=5.0))
    with pytest.raises(InputError, match="changes its logits"):
        use_linear_avuc(model)
    model = language_model("gemma2", final_logit_softcapping=None)
    model.register_forward_hook(lambda module, given, out: type(out)(**(dict(out) | {"logits": out.logits**3})))
    with pytest.raises(InputError, match="changes its logits"):
        use_linear_avuc(model)
    model = language_model("llama")
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: 0.9 * logits.logsumexp(-1).mean()
    with pytest.raises(InputError, match="not the cross-entropy"):
        use_linear_avuc(model)
    model.register_forward_hook(lambda module, given, out: type(out)(logits=out.logits))
    with pytest.raises(InputError, match="not the cross-entropy"):
        use_linear_avuc(model)
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ece"}, "kind"),
        ({"variant": "hard"}, "variant"),
        ({"kind": "ua_clm", "variant": "soft"}, "variant"),
        ({"beta": -1.0}, "beta"),
        ({"beta": float("nan")}, "beta"),
        ({"warmup_steps": 0}, "warmup_steps"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"backend": "cuda"}, "backend"),
        ({"threshold": float("nan")}, "threshold"),
    ],
)
def test_refused_options(language_model: Callable[..., Any], options: Any, message: str) -> None:
    model = language_model()
    with pytest.raises(InputError, match=message):
        use_linear_avuc(model, **options)
    assert "forward" not in vars(model)


def test_the_search_leaves_no_trace(language_model: Callable[..., Any]) -> None:
    model = language_model("llama").train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    use_linear_avuc(model).undo()
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())
