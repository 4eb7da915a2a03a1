"""AvUCLoss as a part of the model that DistributedDataParallel wraps: two ranks learn what one process learns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss

ROWS, FEATURES, CLASSES, EPOCHS = 24, 6, 4, 3
# each rank's share of the batches of an epoch: unequal, and once nothing
CUTS = [12, 5, 24, 17]
RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "static graph": {"ddp": {"static_graph": True}},
    "no broadcast": {"ddp": {"broadcast_buffers": False}},
    "steps": {"loss": {"warmup_steps": EPOCHS * len(CUTS)}},
    "half": {"half": True},
    "resumed": {"resume": True},
    "steps, resumed": {"loss": {"warmup_steps": EPOCHS * len(CUTS)}, "resume": True},
}


class Model(nn.Module):
    """A network that returns its loss, as many training loops have it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, affine=False).eval(), nn.Linear(8, CLASSES))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.loss = AvUCLoss(**(options or {"warmup_epochs": EPOCHS}), beta=1.0)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.net.eval()
        logits = self.net(inputs)
        loss: Tensor = logits.square().sum() + self.loss(logits, labels)
        return loss


def data(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    return inputs, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def train(model: nn.Module, loss: AvUCLoss, rank: int | None, resume: bool) -> tuple[Tensor, Tensor]:
    """The learned threshold, and the gradient of the first layer in the loss after the warm-up."""
    for epoch in range(EPOCHS):
        for number, cut in enumerate(CUTS):
            share = {None: slice(None), 0: slice(0, cut), 1: slice(cut, None)}[rank]
            model(*(x[share] for x in data(10 * epoch + number))).backward()
        loss.epoch_end()
        if resume and epoch == 1:
            # the first rank's checkpoint, loaded by all of them
            state: list[Any] = [loss.state_dict()]
            dist.broadcast_object_list(state, src=0)
            loss.load_state_dict(state[0])
    share = {None: slice(None), 0: slice(0, 5), 1: slice(5, None)}[rank]
    model.zero_grad()
    model(*(x[share] for x in data(99))).backward()
    first = next(iter(model.parameters())).grad
    assert first is not None
    return loss.threshold.clone(), first.clone()


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results: dict[str, Any] = {}
    for name, run in RUNS.items():
        model = Model(**run.get("loss", {}))
        if run.get("half"):
            model.loss.half()
        wrapped = DistributedDataParallel(model, **run.get("ddp", {}))
        results[name] = train(wrapped, model.loss, rank, run.get("resume", False))
    # every rank on its own
    alone = Model(warmup_epochs=1, group=False)
    wrapped = DistributedDataParallel(alone)
    share = slice(0, 7) if rank == 0 else slice(7, None)
    for seed in range(3):
        wrapped(*(x[share] for x in data(seed)))
    alone.loss.epoch_end()
    results["alone"] = alone.loss.threshold.clone()
    results["second"] = [second_derivative(loss) for loss in (avuc_loss, soft, area, exact)]
    only_first = dist.new_group([0])
    results["member"] = called(lambda: avuc_loss(torch.ones(2, 3), torch.tensor([0, 1]), 0.5, group=only_first))
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def soft(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    return avuc_loss(logits, labels, threshold, variant="soft")


def area(logits: Tensor, labels: Tensor, _: float) -> Tensor:
    return auavuc_loss(logits, labels)


def exact(logits: Tensor, labels: Tensor, _: float) -> Tensor:
    return auavuc_loss(logits, labels, points=None)


def second_derivative(loss: Any) -> str:
    logits = torch.randn(6, CLASSES, generator=torch.Generator().manual_seed(3)).requires_grad_()
    value = loss(logits, torch.arange(6) % CLASSES, 0.9)
    return called(lambda: torch.autograd.grad(value, logits, create_graph=True))


def called(function: Callable[[], Any]) -> str:
    try:
        function()
    except InputError as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., None]) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("ranks")
    run_ranks(rank_main, 2, str(out))
    return [torch.load(Path(out) / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_learn_the_threshold_of_one_process(name: str, found: list[dict[str, Any]]) -> None:
    model = Model(**RUNS[name].get("loss", {}))
    threshold, gradient = train(model, model.loss, None, resume=False)
    for result in found:
        torch.testing.assert_close(result[name][0], threshold, rtol=1e-6, atol=0)
        # DDP's mean over ranks halves the sum of squares beside the loss
        other = _squares_gradient() / 2
        torch.testing.assert_close(result[name][1] + other, gradient, rtol=1e-4, atol=1e-4)


def _squares_gradient() -> Tensor:
    model = Model()
    logits = model.net.eval()(data(99)[0])
    return torch.autograd.grad(logits.square().sum(), next(iter(model.parameters())))[0]


def test_a_rank_on_its_own_keeps_its_own_threshold(found: list[dict[str, Any]]) -> None:
    for rank, share in enumerate((slice(0, 7), slice(7, None))):
        model = Model(warmup_epochs=1)
        for seed in range(3):
            model(*(x[share] for x in data(seed)))
        model.loss.epoch_end()
        torch.testing.assert_close(found[rank]["alone"], model.loss.threshold)
    assert found[0]["alone"] != found[1]["alone"]


def test_second_derivatives_over_ranks_are_refused(found: list[dict[str, Any]]) -> None:
    for result in found:
        for message in result["second"]:
            assert message.startswith("avuc: a second derivative")
            assert "group=False" in message


def test_a_process_outside_the_group_is_refused(found: list[dict[str, Any]]) -> None:
    """torch.distributed gives it a world size of −1, which turned the gradient round."""
    assert found[0]["member"] == "no error"
    assert "not a member of `group`" in found[1]["member"]
