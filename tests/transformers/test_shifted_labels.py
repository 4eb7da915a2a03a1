"""`AvUCTrainer` with causal language models: the first label of a row, which no position predicts, does not count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Trainer,
)

import avuc
from avuc.losses import AvUCLoss, avuc_loss
from avuc.transformers import AvUCObjective, AvUCTrainer, compute_metrics


class InOrder(AvUCTrainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_step_has_the_gradient_of_all_predicted_tokens(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], family: str, parts: int
) -> None:
    """Oracle: the mean cross-entropy of the labels from position 1 on, and the mean AvUC of the micro-batches."""
    data, model, expected = sentences(8), language_model(family), language_model(family)
    args = settings(
        per_device_train_batch_size=8 // parts,
        gradient_accumulation_steps=parts,
        max_steps=1,
        max_grad_norm=0.0,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
    )
    InOrder(model, args, avuc=AvUCLoss(beta=1.0, threshold=1.0), train_dataset=data).train()

    logits, labels = expected(input_ids=data.ids).logits[:, :-1], data.labels[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    for some, classes in zip(logits.chunk(parts), labels.chunk(parts), strict=True):
        loss = loss + avuc_loss(some.flatten(0, 1), classes.flatten(), 1.0) / parts
    loss.backward()
    with torch.no_grad():
        for weight in expected.parameters():
            weight -= 0.5 * weight.grad
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_metrics_are_those_of_the_next_token(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    """`compute_metrics` compared position t with token t, although the trainer had shifted the labels of its loss."""
    data, model = sentences(8), language_model("llama")
    with torch.no_grad():
        logits, labels = model(input_ids=data.ids).logits[:, :-1].double().flatten(0, 1), data.labels[:, 1:].flatten()
    nll = float(F.cross_entropy(logits, labels))
    for function in (compute_metrics, partial(compute_metrics, names=["nll"])):
        trainer = AvUCTrainer(model, settings(), eval_dataset=data, compute_metrics=function)
        assert trainer.evaluate()["eval_nll"] == pytest.approx(nll, rel=1e-5)
    asked = partial(compute_metrics, shift_labels=False)
    trainer = AvUCTrainer(model, settings(), eval_dataset=data, compute_metrics=asked)
    assert trainer.evaluate()["eval_nll"] != pytest.approx(nll, rel=1e-5)

    with pytest.warns(UserWarning, match="predicts the next one: shift them"):
        avuc.predict(model, {"input_ids": data.ids}, data.labels, class_dim=-1, progress=False)
    shifted = F.pad(data.labels[:, 1:], (0, 1), value=-100)
    predictions = avuc.predict(model, {"input_ids": data.ids}, shifted, class_dim=-1, progress=False)
    assert avuc.metrics.evaluate(predictions)["nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize("plain", [False, True])
def test_the_loss_of_an_evaluation_is_the_cross_entropy(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], plain: bool
) -> None:
    data, model = sentences(8), language_model("gpt2")
    objective, args = AvUCObjective(AvUCLoss(threshold=1.0), shift_labels=True), settings(per_device_eval_batch_size=8)
    if plain:
        trainer: Trainer = Trainer(model, args, compute_loss_func=objective, callbacks=[objective], eval_dataset=data)
    else:
        trainer = AvUCTrainer(model, args, avuc=objective, eval_dataset=data)
    with torch.no_grad():
        logits = model.eval()(input_ids=data.ids).logits[:, :-1]
    expected = F.cross_entropy(logits.flatten(0, 1).double(), data.labels[:, 1:].flatten())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_posterior_over_a_language_model_counts_the_same_tokens(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    seen: list[tuple[int, int]] = []

    class Counting(AvUCObjective):
        def _cross_entropy(self, logits: Tensor, labels: Tensor, items: Any) -> Tensor:
            seen.append((int(items), int((labels != -100).sum())))
            return super()._cross_entropy(logits, labels, items)

    posterior = avuc.to_bayesian(language_model("gpt2"))
    objective = Counting(AvUCLoss(threshold=1.0), num_train=100)
    args = settings(per_device_train_batch_size=8, max_steps=1)
    AvUCTrainer(posterior, args, avuc=objective, train_dataset=sentences(8)).train()
    assert seen
    assert all(items == labels for items, labels in seen)


class MyGPT(GPT2LMHeadModel):
    """A language model whose name is not one of Transformers."""


class MyLlama(LlamaForCausalLM):
    """Another one."""


SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
MODELS = {
    "subclass of GPT-2": lambda: MyGPT(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=50)),
    "subclass of Llama": lambda: MyLlama(LlamaConfig(vocab_size=50, **SIZE)),
    "text and images": lambda: LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=LlamaConfig(vocab_size=50, **SIZE),
            vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **SIZE),
            image_token_index=49,
        )
    ),
    "masked tokens": lambda: BertForMaskedLM(BertConfig(vocab_size=50, **SIZE)),  # not shifted
}


@pytest.mark.parametrize("kind", MODELS)
def test_labels_are_shifted_where_the_model_itself_shifts_them(kind: str, settings: Callable[..., Any]) -> None:
    """Else a language model would learn to repeat its input; oracle: the model's own loss."""
    torch.manual_seed(0)
    model, ids = MODELS[kind]().eval(), torch.randint(2, 40, (8, 6))
    with torch.no_grad():
        expected = float(model(input_ids=ids, labels=ids).loss)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    args = settings(per_device_eval_batch_size=8)
    trainer = AvUCTrainer(model, args, avuc=AvUCLoss(threshold=1.0), eval_dataset=rows)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
