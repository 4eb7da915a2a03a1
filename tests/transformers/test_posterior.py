"""A posterior over the weights of a LoRA adapter, and of a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from avuc import predict, to_bayesian
from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, elbo_loss
from avuc.metrics import evaluate
from avuc.posterior import sample_generator, seeded_generator
from avuc.transformers import AvUCObjective, AvUCTrainer, compute_metrics

# short trainings that stay in the warm-up
pytestmark = pytest.mark.filterwarnings("ignore:.*the AvUC term is never used")

Settings = Callable[..., TrainingArguments]
Make = Callable[..., Any]


@pytest.fixture
def adapter(tiny_model: Make) -> BayesianModule:
    lora = LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    return to_bayesian(get_peft_model(tiny_model(), lora), layers=lambda name, module: "lora_" in name, initial_std=0.1)


def test_only_the_adapter_is_random(adapter: BayesianModule, rows: Make) -> None:
    assert [slot.name.split(".")[-3] for slot in adapter.layout.slots] == ["lora_A", "lora_B"] * 2
    trainable = {name for name, weight in adapter.named_parameters() if weight.requires_grad}
    assert {"mu", "rho"} < trainable
    assert all("classifier" in name for name in trainable - {"mu", "rho"})
    data = rows(4, tokens=False)
    first, second = (adapter(input_ids=data.ids, attention_mask=data.mask).logits for _ in range(2))
    assert not torch.equal(first, second)


def test_the_elbo_falls_and_the_base_model_stays(adapter: BayesianModule, rows: Make) -> None:
    data = rows(32, tokens=False)
    frozen = {name: p.clone() for name, p in adapter.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.Adam([p for p in adapter.parameters() if p.requires_grad], lr=0.02)
    losses = []
    torch.manual_seed(0)
    for _ in range(30):
        logits = adapter(input_ids=data.ids, attention_mask=data.mask).logits
        loss = elbo_loss(logits, data.labels, adapter.kl(), num_train=32)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    after = dict(adapter.named_parameters())
    assert frozen
    assert all(torch.equal(value, after[name]) for name, value in frozen.items())


def test_a_sample_of_the_adapter_is_a_function(adapter: BayesianModule, rows: Make) -> None:
    data = rows(4, tokens=False)
    inputs = {"input_ids": data.ids, "attention_mask": data.mask}
    one, same, other = (adapter.draw(seeded_generator(seed))(**inputs).logits for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_trainer_minimises_elbo_plus_avuc(adapter: BayesianModule, settings: Settings, rows: Make) -> None:
    """Oracle: the logged loss of each step is cross-entropy + KL/num_train, recomputed with the same noise."""
    data = rows(16, tokens=False)
    args = settings(per_device_train_batch_size=16, num_train_epochs=1, learning_rate=0.0)
    trainer = AvUCTrainer(
        adapter, args, avuc=AvUCLoss(warmup_steps=100), train_dataset=data, compute_metrics=compute_metrics
    )
    adapter.generator = torch.Generator().manual_seed(5)
    trainer.train()
    adapter.generator = torch.Generator().manual_seed(5)
    logits = adapter.train()(input_ids=data.ids, attention_mask=data.mask).logits
    expected = F.cross_entropy(logits, data.labels) + adapter.kl() / 16
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert "eval_ece" in trainer.evaluate(rows(8, tokens=False, seed=1))


class Stream(IterableDataset):
    """Rows without a length."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


def test_the_number_of_predictions_can_be_given(
    adapter: BayesianModule, tiny_model: Make, settings: Settings, rows: Make
) -> None:
    """Token classifiers have a mean over tokens, and a stream has no length: num_train is an argument."""
    data = rows(16, tokens=True)
    posterior, known = to_bayesian(tiny_model(tokens=True), initial_std=0.1), int((data.labels != -100).sum())
    objective = AvUCObjective(AvUCLoss(warmup_steps=100), num_train=known)
    args = settings(per_device_train_batch_size=16, max_steps=1, learning_rate=0.0)
    posterior.generator = torch.Generator().manual_seed(5)
    trainer = AvUCTrainer(posterior, args, avuc=objective, train_dataset=Stream(data))
    trainer.train()
    posterior.generator = torch.Generator().manual_seed(5)
    logits = posterior.train()(input_ids=data.ids, attention_mask=data.mask).logits
    expected = F.cross_entropy(logits.flatten(0, 1), data.labels.flatten()) + posterior.kl() / known
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    plain = AvUCTrainer(adapter, args, avuc=AvUCLoss(warmup_steps=9), train_dataset=Stream(rows(16, tokens=False)))
    with pytest.raises(InputError, match=r"has no length; give it: .*num_train"):
        plain.train()
    with pytest.raises(InputError, match="num_train is the number of predictions"):
        AvUCObjective(num_train=0)


@pytest.mark.parametrize("tokens", [True, False])
def test_rows_with_several_labels_need_the_number_of_labels(
    tiny_model: Make, rows: Make, settings: Settings, tokens: bool
) -> None:
    data, posterior = rows(16, tokens=tokens), to_bayesian(tiny_model(tokens=tokens), initial_std=0.1)
    args = settings(max_steps=2, per_device_train_batch_size=16)
    trainer = AvUCTrainer(posterior, args, avuc=AvUCLoss(threshold=1.0), train_dataset=data)
    if tokens:
        labels = int((data.labels != -100).sum())
        message = rf"the KL is divided by the 16 rows .* {labels} in the first 16 rows, .*num_train"
        with pytest.warns(UserWarning, match=message) as caught:
            trainer.train()
        assert len(caught) == 1
    else:
        trainer.train()  # a warning would be an error


def test_a_posterior_survives_a_checkpoint(
    adapter: BayesianModule, settings: Settings, rows: Make, tmp_path: Path
) -> None:
    args = settings(save_strategy="steps", save_steps=2, max_steps=2)
    AvUCTrainer(adapter, args, avuc=AvUCLoss(warmup_steps=1), train_dataset=rows(16, tokens=False)).train()
    learned = adapter.mu.detach().clone()
    with torch.no_grad():
        adapter.mu.zero_()
    again = AvUCTrainer(
        adapter, settings(max_steps=2), avuc=AvUCLoss(warmup_steps=1), train_dataset=rows(16, tokens=False)
    )
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert torch.equal(adapter.mu, learned)


def test_predict_takes_tokens_with_their_mask(adapter: BayesianModule, rows: Make) -> None:
    """Oracle: the mean softmax of the same samples, drawn one by one."""
    data = rows(12, tokens=False)
    inputs = {"input_ids": data.ids, "attention_mask": data.mask}
    found = predict(adapter, inputs, data.labels, samples=5, seed=3, progress=False)
    with torch.no_grad():
        each = [adapter.draw(sample_generator(3, s))(**inputs).logits.double().softmax(-1) for s in range(5)]
    torch.testing.assert_close(found.probs.double(), torch.stack(each).mean(0), rtol=0, atol=1e-6)
    assert found.samples == 5
    assert float(found.mutual_information.mean()) > 0
    assert torch.equal(found.labels, data.labels)
    # a Dataset of rows as Trainer takes it
    same = predict(adapter, data, samples=5, seed=3, progress=False)
    torch.testing.assert_close(same.probs, found.probs, rtol=0, atol=1e-6)


def test_predict_takes_token_classifiers(tiny_model: Make, rows: Make) -> None:
    data, model = rows(10, tokens=True), tiny_model(tokens=True)
    found = predict(model, data, class_dim=-1, progress=False)
    with torch.no_grad():
        logits = model.eval()(input_ids=data.ids, attention_mask=data.mask).logits
    kept = data.labels != -100
    assert len(found) == int(kept.sum())
    torch.testing.assert_close(found.probs, logits[kept].softmax(-1), rtol=0, atol=1e-6)
    expected = compute_metrics((logits.numpy(), data.labels.numpy()))
    assert evaluate(found)["ece"] == pytest.approx(expected["ece"], abs=1e-6)


def test_weight_decay_leaves_rho_alone(adapter: BayesianModule, rows: Make, settings: Settings) -> None:
    trainer = AvUCTrainer(adapter, settings(weight_decay=0.1), train_dataset=rows(8, tokens=False))
    groups = trainer.create_optimizer().param_groups
    decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    assert (decay[id(adapter.mu)], decay[id(adapter.rho)]) == (0.1, 0.0)
