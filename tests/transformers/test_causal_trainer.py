"""`use_linear_avuc` under `Trainer`: accumulation, evaluation, checkpoints, logs, and what it refuses."""

from __future__ import annotations

import copy
import functools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback

from avuc import metrics
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, avuc_loss
from avuc.transformers import AvUCTrainer, compute_metrics, use_linear_avuc
from avuc.transformers.causal_callback import KEY

# short trainings that stay in the warm-up
pytestmark = pytest.mark.filterwarnings("ignore:.*the AvUC term is never used")

WORDS = 37
FIGURES = {"accuracy", "nll", "ece", "uce", "avu", "entropy_right", "entropy_wrong"}


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_step_with_accumulation(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], family: str
) -> None:
    """The loss is that of all tokens, plus AvUC of each micro-batch weighted by its share of the tokens."""
    model, data = language_model(family).double(), sentences(6)
    plain = copy.deepcopy(model)
    args = settings(max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=3, optim="sgd")
    args.learning_rate, args.max_grad_norm = 0.1, 0.0
    callback = use_linear_avuc(model, threshold=1.0, beta=2.0)
    trainer = InOrder(model, args, train_dataset=data, callbacks=[callback])
    trainer.train()

    # of some models, such as GPT-2, Trainer also counts the first label of each row; that of transformers 4.51 always
    first = 0 if getattr(trainer, "_loss_shifts_labels", False) else 1
    total = int((data.labels[:, 1 - first :] != -100).sum())
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        logits = plain(input_ids=data.ids[rows]).logits[:, :-1].reshape(-1, WORDS)
        labels = data.labels[rows, 1:].reshape(-1)
        share = int((labels != -100).sum()) / total
        own = F.cross_entropy(logits, labels, reduction="sum") / total
        (own + 2.0 * share * avuc_loss(logits, labels, 1.0, variant="monotone")).backward()
    with torch.no_grad():
        for weight in plain.parameters():
            weight -= 0.1 * weight.grad
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_the_plain_kind_trains_as_the_model_alone(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], family: str
) -> None:
    """Also for GPT-2, of which Trainer counts the first label of each row: Transformers divides by that number, too."""
    runs = []
    for ours in (True, False):
        model = language_model(family).double()
        callbacks = [use_linear_avuc(model, kind="plain")] if ours else []
        args = settings(num_train_epochs=1, per_device_train_batch_size=3, gradient_accumulation_steps=2, optim="sgd")
        data = {"train_dataset": sentences(16), "eval_dataset": sentences(5, seed=1)}
        trainer = InOrder(model, args, callbacks=callbacks, **data)
        trainer.train()
        runs.append((weights(model), trainer.evaluate()["eval_loss"]))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-5, atol=1e-7)  # Transformers rounds logits
    assert runs[0][1] == pytest.approx(runs[1][1], rel=1e-5)


def test_first_labels_that_trainer_counts_scale_the_whole_loss(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    """Of GPT-2, cross-entropy and AvUC become smaller by the same factor; `eval_token_nll` is the mean in any case."""
    model, data = language_model("gpt2"), sentences(8)
    data.labels = data.ids.clone()  # every first label counts: 8 of 8, of which 7 are predicted
    trainer = Trainer(model, settings(per_device_eval_batch_size=8), eval_dataset=data)
    own = trainer.evaluate()["eval_loss"]
    callback = use_linear_avuc(model, threshold=1.0)
    trainer.add_callback(callback)
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(own, rel=1e-5)
    with torch.no_grad():
        logits = model.eval()(input_ids=data.ids).logits[:, :-1].flatten(0, 1)
    labels = data.labels[:, 1:].flatten()
    expected = F.cross_entropy(logits, labels)
    assert found["eval_token_nll"] == pytest.approx(float(expected), rel=1e-5)
    expected = expected + avuc_loss(logits, labels, 1.0, variant="monotone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for the callback in Trainer
        scaled = model.train()(input_ids=data.ids, labels=data.labels, num_items_in_batch=torch.tensor(64)).loss
    assert float(scaled.detach()) == pytest.approx(float(expected) * 7 / 8, rel=1e-5)


def test_a_resumed_run_is_the_uninterrupted_one(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], tmp_path: Path
) -> None:
    """The checkpoint lies in the middle of the warm-up."""
    args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}
    results = []
    for folder, start in (("whole", None), ("parts", tmp_path / "whole" / "checkpoint-2")):
        model = language_model("llama")
        callback = use_linear_avuc(model, warmup_steps=4)
        options = settings(**args, output_dir=str(tmp_path / folder))
        trainer = InOrder(model, options, train_dataset=sentences(24), callbacks=[callback])
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
        results.append((callback.threshold, weights(model)))
    (threshold, whole), (again, parts) = results
    assert math.isfinite(threshold)
    assert again == threshold
    torch.testing.assert_close(parts, whole)
    saved = json.loads((tmp_path / "whole" / "checkpoint-6" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"][KEY]["threshold"] == pytest.approx(threshold)


def test_what_is_logged(language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]) -> None:
    model, held_out = language_model("llama"), sentences(10, seed=5)
    callback = use_linear_avuc(model, warmup_steps=2)
    args = settings(max_steps=4, eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=4)
    args.metric_for_best_model = "eval_token_ece"
    trainer = InOrder(model, args, train_dataset=sentences(32), eval_dataset=held_out, callbacks=[callback])
    trainer.train()
    history = trainer.state.log_history
    steps = [entry for entry in history if "loss" in entry]
    assert {f"token_{name}" for name in FIGURES - {"avu"}} <= steps[0].keys()
    assert [("token_avu" in entry, "avuc_threshold" in entry) for entry in steps] == [
        (False, False),
        (False, True),
        (True, True),
        (True, True),
    ]
    (evaluated,) = (entry for entry in history if "eval_loss" in entry)
    assert trainer.state.best_metric == evaluated["eval_token_ece"]
    model.eval()(input_ids=held_out.ids[:2], labels=held_out.labels[:2])  # does not count
    found = trainer.evaluate()

    callback.undo()
    with torch.no_grad():
        logits = model.eval()(input_ids=held_out.ids).logits[:, :-1]
    kept = held_out.labels[:, 1:] != -100
    probs, labels = logits[kept].softmax(dim=-1), held_out.labels[:, 1:][kept]
    assert found["eval_token_nll"] == pytest.approx(metrics.nll(probs, labels), rel=1e-5)
    assert found["eval_token_ece"] == pytest.approx(metrics.ece(probs, labels), rel=1e-4)
    assert found["eval_token_uce"] == pytest.approx(metrics.uce(probs, labels), rel=1e-4)
    assert found["eval_token_avu"] == pytest.approx(metrics.avu(probs, labels, threshold=callback.threshold))
    assert found["eval_token_accuracy"] == pytest.approx(metrics.accuracy(probs, labels))
    assert found["eval_token_entropy_wrong"] > 0


def test_trackers_see_the_figures_if_the_callback_is_in_front(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    seen: list[set[str]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append({*logs})

    model = language_model("llama")
    callback = use_linear_avuc(model)
    trainer = Trainer(model, settings(max_steps=1), train_dataset=sentences(8), callbacks=[Tracker()])
    trainer.callback_handler.callbacks.insert(0, callback)
    trainer.train()
    assert "token_ece" in seen[0]


def test_evaluation_with_logits_and_prediction(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    model, held_out = language_model("gemma2"), sentences(8, seed=5)
    callback = use_linear_avuc(model, threshold=1.0, eval_logits=True)
    figures = functools.partial(compute_metrics, names=["ece", "accuracy"], shift_labels=True)
    trainer = Trainer(model, settings(), eval_dataset=held_out, compute_metrics=figures, callbacks=[callback])
    found = trainer.evaluate()
    assert found["eval_ece"] == pytest.approx(found["eval_token_ece"], rel=1e-4)
    assert found["eval_accuracy"] == pytest.approx(found["eval_token_accuracy"])
    predicted = trainer.predict(held_out)
    assert predicted.predictions.shape == (8, 8, WORDS)
    assert predicted.metrics["test_token_ece"] == pytest.approx(found["eval_token_ece"])


def test_adapters_bfloat16_and_gradient_checkpointing(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    model = get_peft_model(
        language_model("llama"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    callback = use_linear_avuc(model, warmup_steps=2)
    args = settings(max_steps=4, bf16=True, gradient_checkpointing=True, learning_rate=1e-2)
    args.gradient_checkpointing_kwargs = {"use_reentrant": False}
    head = model.get_output_embeddings().weight.clone()
    trainer = Trainer(model, args, train_dataset=sentences(32), callbacks=[callback])
    trainer.train()
    assert math.isfinite(callback.threshold)
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    assert torch.equal(model.get_output_embeddings().weight, head)
    callback.undo()  # accelerate has wrapped the forward pass
    assert model.eval()(**sentences(2)[0:2]).logits is not None


def test_refused_settings(language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]) -> None:
    def train(model: Any, callback: Any, trainer: Any = Trainer, options: Any = None, **kwargs: Any) -> None:
        args = settings(max_steps=1, **(options or {}))
        trainer(model, args, train_dataset=sentences(8), callbacks=[callback], **kwargs).train()

    model = language_model("llama")
    callback = use_linear_avuc(model)
    with pytest.raises(InputError, match="label_smoothing_factor=0"):
        train(model, callback, options={"label_smoothing_factor": 0.1})
    with pytest.raises(InputError, match="without labels"):
        train(model, callback, compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs.logits.sum())
    with pytest.raises(InputError, match="AvUCTrainer"):
        train(model, callback, AvUCTrainer, avuc=AvUCLoss(threshold=1.0))
    parallel = Trainer(model, settings(max_steps=1), train_dataset=sentences(8), callbacks=[callback])
    parallel.args._n_gpu = 2
    with pytest.raises(InputError, match="torchrun"):
        callback.on_train_begin(parallel.args, parallel.state, parallel.control, model=model)
    with pytest.raises(InputError, match="another model"):
        train(language_model("llama"), callback)
    original = callback.forward
    model.forward = original
    with pytest.raises(InputError, match="another forward pass"):
        train(model, callback)
    model.forward = callback._patched
    callback.undo()
    with pytest.raises(InputError, match=r"undo\(\) was called"):
        train(model, callback)


def test_a_checkpoint_without_the_state(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any], tmp_path: Path
) -> None:
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    Trainer(language_model("llama"), settings(**args), train_dataset=sentences(16)).train()
    model = language_model("llama")
    trainer = Trainer(model, settings(**args), train_dataset=sentences(16), callbacks=[use_linear_avuc(model)])
    start = str(tmp_path / "out" / "checkpoint-1")
    with pytest.warns(UserWarning, match="the warm-up starts again"):
        trainer.train(resume_from_checkpoint=start)
    state = json.loads((tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_text())
    state["stateful_callbacks"][KEY] = {"gathered": "nonsense"}
    (tmp_path / "out" / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="is damaged"):
        trainer.train(resume_from_checkpoint=start)


def test_a_warm_up_as_long_as_the_training_is_named(
    language_model: Callable[..., Any], sentences: Any, settings: Callable[..., Any]
) -> None:
    model = language_model("gpt2")
    callback = use_linear_avuc(model, warmup_steps=2)
    with pytest.warns(UserWarning, match="use_linear_avuc: the AvUC term is never used: its warm-up takes 2 batches"):
        Trainer(model, settings(max_steps=2), train_dataset=sentences(16), callbacks=[callback]).train()
    callback.undo()
    plain = use_linear_avuc(model, kind="plain", warmup_steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(model, settings(max_steps=2), train_dataset=sentences(16), callbacks=[plain]).train()


def test_other_kinds_have_no_term_to_miss(language_model: Callable[..., Any]) -> None:
    """Their warm-up gives a threshold for the figures only."""
    model = language_model("gpt2")
    callback = use_linear_avuc(model, kind="plain", warmup_steps=1000)
    ids = torch.tensor([[1, 2, 3, 4]])
    for _ in range(100):
        model.train()(input_ids=ids, labels=ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback.undo()
        assert callback.avuc._progress is not None
        assert callback.avuc._progress.reason() == ""
