"""AvUCLoss under torch.func: the same values, gradients and learned threshold as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc.losses import AvUCLoss

OPTIONS: dict[str, dict[str, Any]] = {
    "epochs": {"warmup_epochs": 1},
    "steps": {"warmup_steps": 1},
    "threshold": {"threshold": 0.5},
    "running": {"threshold": 0.5, "running": 0.5},
}


def batch(members: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (members, 8, 3) if members else (8, 3)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, 3, shape[:-1], generator=generator)


def by_autograd(loss: AvUCLoss, logits: Tensor, labels: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, labels)
    return torch.autograd.grad(value, leaf)[0] if value.requires_grad else torch.zeros_like(logits)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_and_state_are_those_without_torch_func(name: str, transform: Any) -> None:
    logits, labels = batch()
    ours, plain = AvUCLoss(**OPTIONS[name]), AvUCLoss(**OPTIONS[name])
    for _ in range(3):
        expected = by_autograd(plain, logits, labels)
        torch.testing.assert_close(transform(lambda z: ours(z, labels))(logits), expected)
        ours.epoch_end()
        plain.epoch_end()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value)
    assert not ours.warming_up
    assert float(expected.abs().max()) > 0


def test_vmap_over_members_gathers_all_of_them() -> None:
    """For example the members of an ensemble: one threshold, learned from the predictions of all."""
    logits, labels = batch(members=4)
    ours, plain = AvUCLoss(warmup_steps=1), AvUCLoss(warmup_epochs=1)
    torch.vmap(torch.func.grad(ours))(logits, labels)
    for z, y in zip(logits, labels, strict=True):
        plain(z, y)
    plain.epoch_end()
    torch.testing.assert_close(ours.threshold, plain.threshold)
    each = torch.stack([by_autograd(plain, z, y) for z, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(torch.vmap(torch.func.grad(ours))(logits, labels), each)


def test_vmap_with_running_quadrants_averages_over_members() -> None:
    logits, labels = batch(members=4)
    ours = AvUCLoss(threshold=0.5, running=0.5)
    torch.vmap(ours)(logits, labels)
    each = []
    for z, y in zip(logits, labels, strict=True):
        plain = AvUCLoss(threshold=0.5, running=0.5)
        plain(z, y)
        each.append(plain.state_dict()["averages"])
    torch.testing.assert_close(ours.state_dict()["averages"], torch.stack(each).mean(dim=0))


def test_functional_call_of_a_model_that_contains_the_loss() -> None:
    """A training step in the style of torch.func: gradients in all parameters, through a module with the loss in it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.avuc = nn.Linear(3, 3).double(), AvUCLoss(warmup_steps=1)

        def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
            logits = self.net(inputs)
            loss: Tensor = nn.functional.cross_entropy(logits, labels) + self.avuc(logits, labels)
            return loss

    inputs, labels = batch()
    model = Model()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    step = torch.func.grad(lambda weights: torch.func.functional_call(model, weights, (inputs, labels)))
    step(parameters)
    assert not model.avuc.warming_up
    found = step(parameters)
    model(inputs, labels).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


@pytest.mark.parametrize("variant", ["paper", "stopgrad", "monotone", "soft"])
def test_two_passes_with_torch_func(variant: Any) -> None:
    logits, labels = batch()
    loss = AvUCLoss(threshold=0.5, variant=variant)
    expected = torch.func.grad(lambda z: loss(z, labels))(logits)
    total = loss.total(zip(logits.split(3), labels.split(3), strict=True))
    parts = [
        torch.func.grad(lambda z, y=y: loss(z, y, total=total))(z)
        for z, y in zip(logits.split(3), labels.split(3), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-10)
