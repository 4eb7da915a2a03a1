"""The adapter with the real `Trainer`: loss, epochs, evaluation, checkpoints, gradient accumulation."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, avuc_loss
from avuc.transformers import AvUCObjective, AvUCTrainer, compute_metrics

# short trainings that stay in the warm-up
pytestmark = pytest.mark.filterwarnings("ignore:.*the AvUC term is never used")

Settings = Callable[..., TrainingArguments]
Make = Callable[..., Any]


@pytest.mark.parametrize("tokens", [False, True])
def test_training_evaluates_and_learns_a_threshold(
    settings: Settings, tiny_model: Make, rows: Make, tokens: bool
) -> None:
    args = settings(eval_strategy="epoch", num_train_epochs=3)
    trainer = AvUCTrainer(
        tiny_model(tokens),
        args,
        avuc=AvUCLoss(beta=1.0, warmup_epochs=1),
        train_dataset=rows(32, tokens=tokens),
        eval_dataset=rows(24, tokens=tokens, seed=1),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    avuc = trainer.objective.avuc
    assert not avuc.warming_up
    assert avuc.epoch == 3
    # training predictions count once: one epoch of 32 rows, without the padding, and none of the evaluations
    counted = 32 * 6 - 16 * 2 if tokens else 32
    assert float(avuc.gathered[:, 1].sum()) == counted
    logs = trainer.state.log_history
    assert sum("eval_ece" in entry for entry in logs) == 3
    thresholds = [entry["avuc_threshold"] for entry in logs if "avuc_threshold" in entry]
    assert thresholds
    assert set(thresholds) == {float(avuc.threshold)}


def test_evaluation_gives_the_cross_entropy_and_all_metrics(settings: Settings, tiny_model: Make, rows: Make) -> None:
    data = rows(24, tokens=True)
    trainer = AvUCTrainer(
        tiny_model(tokens=True),
        settings(),
        avuc=AvUCLoss(threshold=0.5),
        eval_dataset=data,
        compute_metrics=compute_metrics,
    )
    figures = trainer.evaluate()
    with torch.no_grad():
        logits = trainer.model.eval()(input_ids=data.ids, attention_mask=data.mask).logits
    expected = np.mean(
        [
            sum(
                -float(logits[n, t].double().log_softmax(-1)[data.labels[n, t]])
                for n in range(24)
                for t in range(6)
                if data.labels[n, t] != -100
            )
            / int((data.labels != -100).sum())
        ]
    )
    assert figures["eval_nll"] == pytest.approx(expected, rel=1e-5)
    assert {"eval_uce", "eval_avu_auc", "eval_aurc", "eval_accuracy", "eval_brier"} <= set(figures)


def step_of(trainer: Trainer, batches: list[dict[str, Tensor]]) -> list[Tensor]:
    """The gradients of one optimiser step over the given micro-batches."""
    items = sum((batch["labels"] != -100).sum() for batch in batches)
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.model.train()
    for batch in batches:
        trainer.training_step(trainer.model, {**batch}, items)
    return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_one_step_has_the_gradient_of_cross_entropy_plus_mean_avuc(
    settings: Settings, tiny_model: Make, rows: Make, parts: int
) -> None:
    """Oracle: the cross-entropy of all labels, plus the mean over the micro-batches of their AvUC losses."""
    data = rows(24, tokens=True)
    batch = {"input_ids": data.ids, "attention_mask": data.mask, "labels": data.labels}
    batches = [{name: values[part::parts] for name, values in batch.items()} for part in range(parts)]
    trainer = AvUCTrainer(
        tiny_model(tokens=True),
        settings(gradient_accumulation_steps=parts, max_grad_norm=0.0),
        avuc=AvUCLoss(beta=2.0, threshold=1.0),
        train_dataset=data,
    )
    found = step_of(trainer, batches)

    model = tiny_model(tokens=True)
    logits = model(input_ids=data.ids, attention_mask=data.mask).logits
    loss = F.cross_entropy(logits.flatten(0, 1), data.labels.flatten())
    for part in range(parts):
        some, classes = logits[part::parts].flatten(0, 1), data.labels[part::parts].flatten()
        loss = loss + 2.0 * avuc_loss(some, classes, 1.0) / parts
    loss.backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3])  # of four batches in an epoch: with 3, the last step has one
def test_the_objective_in_a_plain_trainer_is_the_same(
    settings: Settings, tiny_model: Make, rows: Make, parts: int
) -> None:
    weights = []
    for plain in (False, True):
        avuc = AvUCLoss(beta=1.0, warmup_steps=3)
        common: dict[str, Any] = {"train_dataset": rows(32, tokens=False)}
        args = settings(
            gradient_accumulation_steps=parts, optim="sgd", learning_rate=0.1
        )  # Adam hides the size of a step
        if plain:
            objective = AvUCObjective(avuc)
            trainer = Trainer(tiny_model(), args, compute_loss_func=objective, callbacks=[objective], **common)
        else:
            trainer = AvUCTrainer(tiny_model(), args, avuc=avuc, **common)
        trainer.train()
        assert not avuc.warming_up
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    torch.testing.assert_close(*weights)


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


# 4 steps in an epoch: in the middle of the warm-up, at the end of an epoch, after the warm-up
@pytest.mark.parametrize("warmup", [{"warmup_epochs": 2}, {"warmup_steps": 3, "running": 0.9}])
@pytest.mark.parametrize(("stop", "restore_callbacks"), [(2, False), (2, True), (4, False), (6, False)])
def test_resumed_training_equals_uninterrupted_training(
    settings: Settings,
    tiny_model: Make,
    rows: Make,
    tmp_path: Path,
    stop: int,
    warmup: dict[str, Any],
    restore_callbacks: bool,
) -> None:
    def trainer(name: str, *callbacks: TrainerCallback) -> AvUCTrainer:
        args = settings(
            output_dir=str(tmp_path / name),
            num_train_epochs=3,
            save_strategy="steps",
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            restore_callback_states_from_checkpoint=restore_callbacks,
        )
        return AvUCTrainer(
            tiny_model(dropout=0.1),
            args,
            avuc=AvUCLoss(beta=1.0, **warmup),
            train_dataset=rows(32, tokens=False),
            eval_dataset=rows(8, tokens=False),
            callbacks=[*callbacks],
        )

    whole = trainer("whole")
    whole.train()
    first = trainer("parts", StopAt(stop))
    first.train()
    second = trainer("elsewhere")
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{stop}"))
    assert not whole.objective.avuc.warming_up
    assert float(second.objective.avuc.threshold) == float(whole.objective.avuc.threshold)
    assert second.objective.avuc.epoch == whole.objective.avuc.epoch
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_checkpoint_holds_plain_numbers(settings: Settings, tiny_model: Make, rows: Make, tmp_path: Path) -> None:
    args = settings(save_strategy="steps", save_steps=1, max_steps=1)
    AvUCTrainer(tiny_model(), args, avuc=AvUCLoss(warmup_steps=2), train_dataset=rows(16, tokens=False)).train()
    text = (tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_text()
    stored = json.loads(text)["stateful_callbacks"]["avuc.AvUCLoss"]
    assert stored["threshold"] is None
    assert stored["_extra_state"] == [0, 1]  # epochs and steps
    assert sum(count for _, count in stored["gathered"]) == 8


def test_a_damaged_state_is_refused(settings: Settings, tiny_model: Make, rows: Make, tmp_path: Path) -> None:
    data = rows(16, tokens=False)
    args = settings(save_strategy="steps", save_steps=1, max_steps=1)
    AvUCTrainer(tiny_model(), args, avuc=AvUCLoss(warmup_steps=2), train_dataset=data).train()
    path = tmp_path / "out" / "checkpoint-1" / "trainer_state.json"
    content = json.loads(path.read_text())
    content["stateful_callbacks"]["avuc.AvUCLoss"]["gathered"] = [[1.0]]
    path.write_text(json.dumps(content))
    again = AvUCTrainer(tiny_model(), settings(max_steps=2), avuc=AvUCLoss(warmup_steps=2), train_dataset=data)
    with pytest.raises(InputError, match=r"trainer_state\.json: the entry 'avuc.AvUCLoss' is damaged"):
        again.train(resume_from_checkpoint=str(path.parent))


def test_a_checkpoint_without_our_state_is_reported(
    settings: Settings, tiny_model: Make, rows: Make, tmp_path: Path
) -> None:
    data = rows(16, tokens=False)
    Trainer(tiny_model(), settings(save_strategy="steps", save_steps=1, max_steps=1), train_dataset=data).train()
    trainer = AvUCTrainer(tiny_model(), settings(max_steps=2), avuc=AvUCLoss(warmup_steps=2), train_dataset=data)
    with pytest.warns(UserWarning, match="no AvUC state"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))


def test_warmup_epochs_need_the_callback(settings: Settings, tiny_model: Make, rows: Make) -> None:
    trainer = Trainer(tiny_model(), settings(), compute_loss_func=AvUCObjective(), train_dataset=rows(16, tokens=False))
    with pytest.raises(InputError, match="callbacks=\\[objective\\]"):
        trainer.train()


def test_label_smoothing_is_that_of_trainer(settings: Settings, tiny_model: Make, rows: Make) -> None:
    """Both trainers minimise the same smoothed cross-entropy during the warm-up."""
    weights = []
    for kind, options in ((Trainer, {}), (AvUCTrainer, {"avuc": AvUCLoss(warmup_steps=999)})):
        trainer = kind(
            tiny_model(), settings(label_smoothing_factor=0.2), train_dataset=rows(32, tokens=False), **options
        )
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    torch.testing.assert_close(*weights)


def test_a_warm_up_as_long_as_the_training_is_named(settings: Settings, tiny_model: Make, rows: Make) -> None:
    data = rows(16, tokens=False)
    with pytest.warns(UserWarning, match="never used: its warm-up takes 2 epochs, and the training has 2"):
        AvUCTrainer(
            tiny_model(), settings(num_train_epochs=2), avuc=AvUCLoss(warmup_epochs=2), train_dataset=data
        ).train()
    AvUCTrainer(tiny_model(), settings(num_train_epochs=2), avuc=AvUCLoss(warmup_epochs=1), train_dataset=data).train()
    short = settings(max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    with pytest.warns(UserWarning, match="never used: its warm-up takes 4 batches, and the training has 4"):
        AvUCTrainer(tiny_model(), short, avuc=AvUCLoss(warmup_steps=4), train_dataset=data).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AvUCTrainer(tiny_model(), short, avuc=AvUCLoss(warmup_steps=3), train_dataset=data).train()


def test_a_second_training_counts_the_warm_up_of_the_first(settings: Settings, tiny_model: Make, rows: Make) -> None:
    trainer = AvUCTrainer(
        tiny_model(),
        settings(num_train_epochs=2),
        avuc=AvUCLoss(warmup_epochs=3),
        train_dataset=rows(16, tokens=False),
    )
    with pytest.warns(UserWarning, match="never used"):
        trainer.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one epoch of the warm-up is left, and two are trained
        trainer.train()
    assert not trainer.objective.avuc.warming_up


def test_the_loss_can_be_replaced(settings: Settings, tiny_model: Make, rows: Make) -> None:
    seen = []

    def focal(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.append(int(num_items_in_batch))
        nll = F.cross_entropy(outputs.logits, labels, reduction="none")
        return ((1 - (-nll).exp()) ** 2 * nll).sum() / num_items_in_batch

    trainer = AvUCTrainer(
        tiny_model(),
        settings(max_steps=2),
        avuc=AvUCLoss(threshold=1.0),
        train_dataset=rows(16, tokens=False),
        compute_loss_func=focal,
    )
    trainer.train()
    assert seen == [8, 8]
    with pytest.raises(InputError, match="not both"):
        AvUCTrainer(tiny_model(), settings(), avuc=AvUCObjective(), compute_loss_func=focal)


def test_a_causal_language_model_predicts_the_next_token(settings: Settings) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = GPT2LMHeadModel(config)
    trainer = AvUCTrainer(model, settings(), avuc=AvUCLoss(warmup_steps=100))
    ids = torch.randint(0, 20, (3, 8))
    loss = trainer.compute_loss(model.train(), {"input_ids": ids, "labels": ids})
    torch.testing.assert_close(loss, model(input_ids=ids, labels=ids).loss)


def test_multi_label_models_are_recognised(settings: Settings, tiny_model: Make, rows: Make) -> None:
    """During the warm-up the loss is that of the model itself, BCEWithLogitsLoss."""
    data, model = rows(8, tokens=False), tiny_model()
    model.config.problem_type = "multi_label_classification"
    labels = (torch.arange(24).reshape(8, 3) % 2).float()
    batch = {"input_ids": data.ids, "attention_mask": data.mask, "labels": labels}
    trainer = AvUCTrainer(model, settings(), avuc=AvUCLoss(warmup_steps=1))
    loss = trainer.compute_loss(model.eval(), {**batch})
    torch.testing.assert_close(loss, model(**batch).loss)
    assert float(trainer.objective.avuc.gathered[:, 1].sum()) == 24
    with pytest.raises(InputError, match="leave task='multilabel' out of AvUCLoss"):
        AvUCTrainer(model, settings(), avuc=AvUCLoss(warmup_steps=1, task="multilabel"))
