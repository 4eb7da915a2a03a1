"""`use_linear_avuc` on tiny models: loss and gradients are those of the logits, which are never made."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from avuc.core.errors import InputError
from avuc.losses import avuc_loss
from avuc.losses.ua_clm import ua_clm_loss
from avuc.transformers import LinearAvUCCallback, use_linear_avuc

FAMILIES = ("gpt2", "llama", "gemma2", "qwen2", "qwen3")
WORDS = 37


def batch(rows: int = 3, length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, WORDS, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, :4] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def materialised(model: Any, rows: dict[str, Tensor], kind: str, variant: Any, threshold: float, beta: float) -> Tensor:
    """The loss from the logits of a model that is left as it was."""
    given = {name: value for name, value in rows.items() if name != "labels"}
    logits = model(**given).logits[:, :-1].reshape(-1, WORDS)
    labels = rows["labels"][:, 1:].reshape(-1)
    loss = F.cross_entropy(logits, labels)
    if kind == "avuc":
        loss = loss + beta * avuc_loss(logits, labels, threshold, variant=variant)
    elif kind == "ua_clm":
        loss = loss + beta * ua_clm_loss(logits, labels, variant=variant)
    return loss


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


class LargestTensor(TorchDispatchMode):
    """Notes every tensor that any operation makes, backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("kind", "variant"), [("avuc", "monotone"), ("ua_clm", "paper"), ("plain", "monotone")])
def test_loss_and_gradients_are_those_of_the_logits(
    language_model: Callable[..., Any], family: str, kind: Any, variant: Any
) -> None:
    model, rows = language_model(family).double().train(), batch()
    plain = copy.deepcopy(model)
    use_linear_avuc(model, kind=kind, variant=variant, threshold=1.5, beta=0.7, chunk_size=10)
    found, wanted = model(**rows).loss, materialised(plain, rows, kind, variant, 1.5, 0.7)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-9, atol=1e-12)
    assert len(gradients(model)) == len(list(model.parameters()))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_never_made(language_model: Callable[..., Any], family: str) -> None:
    words = 700  # much wider than anything else in the model
    model = language_model(family, vocab_size=words).train()
    rows = {name: value.repeat(8, 1) for name, value in batch().items()}
    logits = rows["labels"].numel() * words
    with LargestTensor() as watch:
        model(**rows).loss.backward()
    assert watch.elements >= logits
    use_linear_avuc(model, threshold=1.5, chunk_size=50)
    with LargestTensor() as watch:
        outputs = model(**rows)
        outputs.loss.backward()
    assert outputs.logits is None
    assert watch.elements < logits / 5
    with LargestTensor() as watch, torch.no_grad():
        model.eval()(**rows)
    assert watch.elements < logits / 5


def test_the_threshold_is_learned_in_the_warm_up(language_model: Callable[..., Any]) -> None:
    model = language_model().train()
    callback = use_linear_avuc(model, warmup_steps=2, beta=0.5)
    plain, us = copy.deepcopy(model), []
    plain._linear_avuc.undo()
    for seed in (1, 2):
        rows = batch(seed=seed)
        assert callback.threshold != callback.threshold  # NaN
        # AvUC is 0, evaluation and forward passes without gradients do not count
        torch.testing.assert_close(model(**rows).loss, materialised(plain, rows, "plain", None, 0.0, 0.0))
        with torch.no_grad():
            model.eval()(**batch(seed=9))
            model.train()(**batch(seed=8))
            probs = plain(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits[:, :-1].softmax(-1)
        kept = rows["labels"][:, 1:] != -100
        u, right = -(probs * probs.log()).sum(-1)[kept], (probs.argmax(-1) == rows["labels"][:, 1:])[kept]
        us.append((u, right))
    u, right = (torch.cat(parts) for parts in zip(*us, strict=True))
    assert right.any()
    middle = (u[right].mean() + u[~right].mean()).item() / 2
    assert callback.threshold == pytest.approx(middle, rel=1e-5)
    wanted = materialised(plain, batch(), "avuc", "monotone", middle, 0.5)
    torch.testing.assert_close(model(**batch()).loss, wanted)


def test_evaluation_is_the_cross_entropy(language_model: Callable[..., Any]) -> None:
    model, rows = language_model().eval(), batch()
    own = model(**rows)
    use_linear_avuc(model, threshold=1.5, beta=9.0)
    found = model(**rows)
    torch.testing.assert_close(found.loss, own.loss)
    assert found.logits is None
    torch.testing.assert_close(model(**rows, skip_logits=False).logits, own.logits)
    torch.testing.assert_close(model(**rows, skip_logits=False).loss, own.loss)
    model._linear_avuc.undo()
    use_linear_avuc(model, threshold=1.5, eval_logits=True)
    torch.testing.assert_close(model(**rows).logits, own.logits)
    assert model(**rows, skip_logits=True).logits is None
    assert model.train()(**rows).logits is None


def test_arguments_of_the_model(language_model: Callable[..., Any]) -> None:
    model, rows = language_model("llama").train(), batch()
    own = copy.deepcopy(model)
    use_linear_avuc(model, kind="plain")
    wanted = own(**rows).loss
    ids, mask, labels = rows["input_ids"], rows["attention_mask"], rows["labels"]
    as_tuple = model(ids, mask, None, None, None, labels, return_dict=False)
    assert isinstance(as_tuple, tuple)
    torch.testing.assert_close(as_tuple[0], wanted)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(**rows, shift_labels=shifted).loss, wanted)
    with pytest.warns(UserWarning, match="callbacks="):
        found = model(**rows, num_items_in_batch=torch.tensor(100)).loss
    torch.testing.assert_close(found, own(**rows, num_items_in_batch=torch.tensor(100)).loss)
    other = labels.masked_fill(labels == -100, -7)
    torch.testing.assert_close(model(**(rows | {"labels": other}), ignore_index=-7).loss, wanted)
    states = model(**rows, output_hidden_states=True).hidden_states
    assert len(states) == 3
    with pytest.raises(InputError, match="labels"):
        model(**rows, logits_to_keep=2)


def test_no_label_is_a_loss_of_zero(language_model: Callable[..., Any]) -> None:
    model, rows = language_model().train(), batch()
    use_linear_avuc(model, threshold=1.0)
    rows["labels"] = torch.full_like(rows["labels"], -100)
    loss = model(**rows).loss
    loss.backward()
    assert loss.item() == 0
    assert all(not grad.any() for grad in gradients(model).values())


def test_generation_is_unchanged_and_undo_restores(language_model: Callable[..., Any]) -> None:
    model, rows = language_model("gemma2").eval(), batch()
    prompt = rows["input_ids"][:, :3]
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    words, own = model.generate(prompt, **options), model(**rows)
    signature = inspect.signature(model.forward)
    callback = use_linear_avuc(model, threshold=1.5)
    assert isinstance(callback, LinearAvUCCallback)
    assert inspect.signature(model.forward) == signature
    assert torch.equal(model.generate(prompt, **options), words)
    torch.testing.assert_close(model(rows["input_ids"], rows["attention_mask"]).logits, own.logits)
    callback.undo()
    assert "forward" not in vars(model)
    assert not model.lm_head._forward_pre_hooks
    torch.testing.assert_close(model(**rows).logits, own.logits)
    use_linear_avuc(model, threshold=1.5).undo()


def test_undo_inside_the_wrapper_of_accelerate(language_model: Callable[..., Any]) -> None:
    """Accelerate takes the function of the method and binds a wrapper of it to the model."""
    model, rows = language_model().eval(), batch()
    callback = use_linear_avuc(model, threshold=1.5)
    function = model.forward.__func__
    model.forward = type(callback._patched)(lambda self, *args, **kwargs: function(self, *args, **kwargs), model)
    assert model(**rows).logits is None
    callback.undo()
    assert model(**rows).logits is not None


def test_a_copy_of_the_model_has_its_own_state(language_model: Callable[..., Any]) -> None:
    model, rows = language_model().train(), batch()
    use_linear_avuc(model, warmup_steps=1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    wanted = other(**rows).loss
    assert not other._linear_avuc.avuc.warming_up
    assert model._linear_avuc.avuc.warming_up
    assert wanted.item() != pytest.approx(model(**rows).loss.item())


def test_adapters_on_other_layers(language_model: Callable[..., Any]) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    models = []
    for before in (True, False):
        model = language_model("llama")
        if before:
            use_linear_avuc(model, threshold=1.5)
        torch.manual_seed(0)
        model = get_peft_model(model, config)
        if not before:
            use_linear_avuc(model, threshold=1.5)
        models.append(model.double().train())
    plain = language_model("llama")
    torch.manual_seed(0)
    plain = get_peft_model(plain, config).double().train()
    wanted = materialised(plain, batch(), "avuc", "monotone", 1.5, 1.0)
    wanted.backward()
    for model in models:
        loss = model(**batch()).loss
        loss.backward()
        torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-9, atol=1e-12)
        assert all("lora" in name for name in gradients(model))


def test_a_new_output_layer_is_used(language_model: Callable[..., Any]) -> None:
    model, rows = language_model("llama"), batch()
    use_linear_avuc(model, kind="plain")
    model.resize_token_embeddings(50, mean_resizing=False)
    loss = model(**rows).loss
    model._linear_avuc.undo()
    torch.testing.assert_close(loss, model(**rows).loss)
    assert model.lm_head.weight.shape[0] == 50


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_gradient_checkpointing(language_model: Callable[..., Any], family: str) -> None:
    model = language_model(family).double().train()
    plain = copy.deepcopy(model)
    use_linear_avuc(model, threshold=1.5)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(**batch()).loss.backward()
    materialised(plain, batch(), "avuc", "monotone", 1.5, 1.0).backward()
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-9, atol=1e-12)


def test_bfloat16_autocast(language_model: Callable[..., Any]) -> None:
    model = language_model("llama").train()
    plain = copy.deepcopy(model)
    exact = materialised(plain, batch(), "avuc", "monotone", 1.5, 1.0).item()
    use_linear_avuc(model, threshold=1.5)
    with torch.autocast("cpu", torch.bfloat16):
        loss, rounded = model(**batch()).loss, materialised(plain, batch(), "avuc", "monotone", 1.5, 1.0)
    loss.backward()
    rounded.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=2e-2)
    assert rounded.item() == pytest.approx(exact, rel=2e-2)
    for name, grad in gradients(plain).items():
        assert F.cosine_similarity(gradients(model)[name].flatten(), grad.flatten(), dim=0) > 0.98


def test_a_model_in_bfloat16(language_model: Callable[..., Any]) -> None:
    model = language_model("gemma2").train()
    exact = materialised(model, batch(), "avuc", "monotone", 1.5, 1.0).item()
    callback = use_linear_avuc(model.bfloat16(), threshold=1.5)
    assert callback.logits.softcap == 3.0
    assert model(**batch()).loss.item() == pytest.approx(exact, rel=3e-2)


def test_compiled(language_model: Callable[..., Any]) -> None:
    """Later steps run what the first ones compiled."""
    model = language_model("llama", num_hidden_layers=1).train()
    callback = use_linear_avuc(model, threshold=1.5)
    loss = model(**batch()).loss
    counter = CompileCounterWithBackend("aot_eager")
    compiled, frames = torch.compile(model, backend=counter), []
    for _ in range(5):
        found = compiled(**batch()).loss
        found.backward()
        frames.append(counter.frame_count)
    torch.testing.assert_close(found, loss)
    assert frames[2] == frames[-1]
    assert callback._tokens.pop(torch.device("cpu"))["token_nll"] > 0
