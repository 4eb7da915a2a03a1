"""Modules that run in a way that cannot use sampled weights: one line when they are converted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from avuc import to_bayesian
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss
from avuc.transformers import AvUCTrainer

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
IDS = torch.randint(1, 50, (4, 8), generator=torch.Generator().manual_seed(0))


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **SIZE))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*TorchScript:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 3)))  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match=r"TorchScript.*before torch\.jit\.script"):
        to_bayesian(scripted)


def test_gradient_checkpointing_of_layers_with_sampled_weights() -> None:
    model = bert()
    model.gradient_checkpointing_enable()
    with pytest.raises(InputError, match=r"'bert.encoder.layer.0' uses gradient checkpointing.*_disable\(\)"):
        to_bayesian(model)
    model.gradient_checkpointing_disable()
    to_bayesian(model)(input_ids=IDS).logits.sum().backward()


def test_gradient_checkpointing_before_the_last_layer_works() -> None:
    """The layers that run again have no sampled weights, so the gradient is that without checkpointing."""
    gradients = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model = bert()
        if enabled:
            model.gradient_checkpointing_enable()
        posterior = to_bayesian(model, layers="last").train()
        torch.manual_seed(1)
        posterior(input_ids=IDS).logits.sum().backward()
        weight = posterior.module.bert.encoder.layer[0].output.dense.weight
        gradients.append(torch.cat([posterior.mu.grad, posterior.rho.grad, weight.grad.flatten()]))
    torch.testing.assert_close(*gradients)


def test_gradient_checkpointing_of_the_whole_pass_works() -> None:
    posterior = to_bayesian(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    x, gradients = torch.rand(6, 4), []
    for run in (posterior.run, lambda *inputs: checkpoint(posterior.run, *inputs, use_reentrant=False)):
        posterior.zero_grad()
        weights = posterior.weights(posterior.noise(torch.Generator().manual_seed(0)))
        run(weights, x).square().sum().backward()
        gradients.append(torch.cat([posterior.mu.grad, posterior.rho.grad]))
    assert torch.equal(*gradients)


def test_a_trainer_with_gradient_checkpointing(tmp_path) -> None:
    arguments = TrainingArguments(str(tmp_path), gradient_checkpointing=True, report_to=[], use_cpu=True)
    with pytest.raises(InputError, match=r"AvUCTrainer: gradient_checkpointing .*leave it out"):
        AvUCTrainer(to_bayesian(bert()), arguments, avuc=AvUCLoss(warmup_steps=1))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("option", "remedy"), [({"max_norm": 0.5}, "set max_norm to None"), ({"sparse": True}, "False")]
)
def test_embeddings_that_cannot_be_sampled(kind: type[nn.Module], option: dict, remedy: str) -> None:
    net = nn.Sequential(kind(7, 5, **option), nn.Linear(5, 3))
    with pytest.raises(InputError, match=rf"to_bayesian: '0' has {next(iter(option))}=.*{remedy}"):
        to_bayesian(net)
    assert to_bayesian(net, layers="last")(torch.randint(7, (2, 4))).isfinite().all()
