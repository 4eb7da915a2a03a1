"""Training on the features of a frozen trunk gives the result of running the trunk in every step."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.data import Dataset
from avuc.methods import LLSVI, SVI, SWAG, Ensemble, Method, Objective, Vanilla
from avuc.train import TrainSettings, fit, fit_many
from avuc.training import feature_steps as module
from avuc.training import fit as loop
from avuc.training.feature_steps import FeatureSteps
from avuc.training.fitted import Fitted
from avuc.training.model_trainer import ModelTrainer
from avuc.training.run import Job

SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 1e-2,
    "milestones": (2,),
    "factors": (0.1,),
    "pad": 0,
    "flip": False,
    "freeze_trunk": True,
}
ROWS = 40  # two whole batches and a part of one
AVUC = Objective("avuc", warmup_epochs=1, variant="monotone")


RAN: list[int] = []  # rows of each pass of a trunk


class Net(nn.Module):
    def __init__(self, start: int = 0) -> None:
        super().__init__()
        torch.manual_seed(start)
        self.first, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        RAN.append(len(x))
        return self.last(self.drop(F.relu(self.norm(self.first(x))).flatten(1)))  # type: ignore[no-any-return]


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % 3
    images = torch.randint(0, 90, (ROWS, 6, 6, 1), generator=generator) + 80 * labels[:, None, None, None]
    return Dataset(images.to(torch.uint8), labels, 3)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each training used features."""
    found: list[bool] = []

    def spied(*args: Any, **options: Any) -> tuple[list[FeatureSteps], list[ModelTrainer]]:
        steps, others = module.feature_steps(*args, **options)
        found.append(bool(steps))
        return steps, others

    monkeypatch.setattr(loop, "feature_steps", spied)
    return found


def weights_of(fitted: Fitted) -> dict[str, Tensor]:
    return {
        f"{index}.{name}": value
        for index, model in enumerate(fitted.models)
        for name, value in model.state_dict().items()
    }


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (Vanilla(), Objective()),
        (LLSVI(moped=True, delta=0.2), AVUC),
        (LLSVI(moped=True, delta=0.2, train_draws=3), Objective(kl_weight=0.1)),
        (LLSVI(estimator="flipout"), AVUC),
        (SVI(moped=True, delta=0.2), Objective()),
        (Ensemble(members=2), Objective()),
    ],
    ids=["plain", "posterior", "samples", "flipout", "all trained weights", "ensemble"],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_same_as_with_the_trunk(
    method: Method, objective: Objective, precision: str, data: Dataset, used: list[bool], monkeypatch: Any
) -> None:
    settings = TrainSettings(**SETTINGS, precision=precision)  # type: ignore[arg-type]

    def net(generator: torch.Generator) -> Net:
        return Net(generator.initial_seed() % 1000)

    def trained() -> Fitted:
        return fit(method, net, data, objective=objective, settings=settings, seed=3, validation=data, progress=False)

    fast = trained()
    monkeypatch.setattr(module, "MEMORY", 0)
    slow = trained()
    assert used == [True, False]
    start = weights_of(fit(method, net, data, settings=TrainSettings(**{**SETTINGS, "learning_rate": 1e-30}), seed=3))
    moved = 0
    for name, value in weights_of(fast).items():
        # bfloat16 rounds products of other shapes differently
        close = 1e-5 if precision == "float32" else 2e-3
        torch.testing.assert_close(value, weights_of(slow)[name], rtol=close, atol=close, msg=name)
        moved += not torch.allclose(value, start[name], atol=1e-3)
    assert moved >= len(fast.models)
    assert fast.threshold == (None if slow.threshold is None else pytest.approx(slow.threshold, rel=1e-2))
    for one, other in zip(fast.history, slow.history, strict=True):
        assert one["nll"] == pytest.approx(other["nll"], rel=1e-2)
        assert one["validation_nll"] == pytest.approx(other["validation_nll"], rel=1e-2)


def test_the_trunk_runs_once_for_all_models_that_share_it(data: Dataset) -> None:
    """Three seeds around one network, and one with another trunk: two passes, and
    three more of the first batch, which look for trunks that need their batches."""
    nets = [Net(), Net(), Net(), Net()]
    with torch.no_grad():
        nets[3].first.bias[0] += 1e-3  # type: ignore[index]
    settings = TrainSettings(**SETTINGS)
    jobs = [
        Job(LLSVI(moped=True, delta=0.2), net, data, AVUC, settings, validation=data, seed=seed)
        for seed, net in enumerate(nets)
    ]
    RAN.clear()
    fitted = fit_many(jobs, progress=False)
    # validation takes all rows at once, in each of three epochs; the last batch of the trunks has 8 rows;
    # before, the first batch is checked once for each network
    assert [RAN.count(rows) for rows in (ROWS, 16, 8)] == [2 * 1, 2 * (3 + 2) + len(nets), 2]
    alone = fit(
        jobs[2].method, nets[2], data, objective=AVUC, settings=settings, validation=data, seed=2, progress=False
    )
    for name, value in weights_of(alone).items():
        torch.testing.assert_close(value, weights_of(fitted[2])[name], rtol=1e-6, atol=1e-7, msg=name)


def test_models_that_stop_early_do_not_run_the_trunk_again(data: Dataset) -> None:
    """Each model that stops changes who trains together. The first one stops when validation gets worse."""
    net, settings = Net(), TrainSettings(**{**SETTINGS, "epochs": 8, "learning_rate": 0.5, "patience": 1})
    jobs = [
        Job(LLSVI(moped=True, delta=0.2), net, data, Objective(), settings, validation=data, seed=seed)
        for seed in range(4)
    ]
    RAN.clear()
    fitted = fit_many(jobs, progress=False)
    assert len({one.epochs for one in fitted}) > 1
    assert [RAN.count(rows) for rows in (ROWS, 16, 8)] == [1, 3 + 2 + 1, 1]


def with_softmax(net: Net) -> nn.Module:
    return nn.Sequential(net, nn.LogSoftmax(-1))


def with_hook(net: Net) -> nn.Module:
    net.last.register_forward_hook(lambda _, __, output: 2 * output)
    return net


def with_noise(net: Net) -> nn.Module:
    net.norm.register_forward_hook(lambda _, __, output: output + torch.randn_like(output))
    return net


class Noisy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand_like(x))


def with_batch_statistics() -> nn.Module:
    net = Net()
    net.norm = nn.BatchNorm2d(4, track_running_stats=False)
    return net


class AcrossTheBatch(Net):
    """The features of an example depend on the other examples of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class InPlace(Net):
    """Changes the logits in place, so that the last layer's output is the network's, but not as it was made."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        logits /= 4
        return logits


class UsesTheLastLayer(Net):
    """The trunk uses a weight that is trained."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.last.bias.mean())


class ByPosition(Net):
    """The features of an example depend on its place in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x[:1])


class Counting(Net):
    """The features change from pass to pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x * (self.passes < 6))


class OwnCall(Net):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x / 2)  # type: ignore[no-any-return]


def with_own_forward() -> nn.Module:
    net = Net()
    net.forward = types.MethodType(lambda self, x: Net.forward(self, x / 2), net)  # type: ignore[method-assign]
    return net


class Scaled(Vanilla):
    """A method of the user's own that changes the inputs."""

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        return super().logits(model, images / 2)


class Positions(nn.Module):
    """Its last layer gets more than one row for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1, 2))).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "method", "changes"),
    [
        (Net, Vanilla(), {"flip": True}),
        (Net, Vanilla(), {"pad": 1}),
        (Net, Vanilla(), {"augmentation": "augmix"}),
        (lambda: with_softmax(Net()), Vanilla(), {}),
        (lambda: with_hook(Net()), Vanilla(), {}),
        (lambda: with_noise(Net()), Vanilla(), {}),
        (Noisy, Vanilla(), {}),
        (with_batch_statistics, Vanilla(), {}),
        (AcrossTheBatch, Vanilla(), {}),
        (InPlace, Vanilla(), {}),
        (UsesTheLastLayer, Vanilla(), {}),
        (ByPosition, Vanilla(), {}),
        (Counting, Vanilla(), {}),
        (OwnCall, Vanilla(), {}),
        (with_own_forward, Vanilla(), {}),
        (Net, Scaled(), {}),
        (Positions, Vanilla(), {}),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), SWAG(start=0.3, bn_images=0), {}),
    ],
    ids=[
        "flips",
        "crops",
        "augmix",
        "softmax",
        "hook",
        "noise",
        "random trunk",
        "batch norm",
        "batch",
        "in place",
        "last weights",
        "position",
        "counter",
        "own call",
        "own forward",
        "own method",
        "positions",
        "swag",
    ],
)
def test_otherwise_the_trunk_runs_in_every_step(
    make: Callable[[], nn.Module],
    method: Method,
    changes: dict[str, Any],
    data: Dataset,
    used: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = TrainSettings(**{**SETTINGS, **changes})
    found = []
    for without in (False, True):
        torch.manual_seed(0)
        if without:
            monkeypatch.setattr(module, "feature_steps", lambda trainers, *args, **options: ([], list(trainers)))
        found.append(weights_of(fit(method, make(), data, settings=settings, progress=False)))
    assert used == [False, False]
    # looking for features has changed nothing
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


class Activated(Net):
    """`repr` and weights are the same for every function."""

    def __init__(self, function: Callable[[Tensor], Tensor], scale: float) -> None:
        super().__init__()
        self.function, self._scale = function, scale
        self.register_buffer("shift", torch.full((), scale), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self._scale * self.function(x) + self.shift)


def test_jobs_with_other_trunks_do_not_share_features(data: Dataset) -> None:
    """They differ in a function and in private and other values that are no weights: each ends as it ends alone."""
    nets = [Activated(torch.tanh, 1.0), Activated(torch.square, 1.0), Activated(torch.tanh, 2.0)]
    settings = TrainSettings(**SETTINGS)
    jobs = [Job(LLSVI(moped=True, delta=0.2), net, data, AVUC, settings, validation=data, seed=3) for net in nets]
    for job, together in zip(jobs, fit_many(jobs, progress=False), strict=True):
        (alone,) = fit_many([job], progress=False)
        assert together.history[-1]["validation_nll"] == alone.history[-1]["validation_nll"]
        for name, value in weights_of(alone).items():
            assert torch.equal(value, weights_of(together)[name]), name


def test_a_network_of_one_layer_has_no_trunk(used: list[bool]) -> None:
    x = torch.randn(ROWS, 5)
    fit(Vanilla(), nn.Linear(5, 3), (x, torch.arange(ROWS) % 3), settings=TrainSettings(**SETTINGS), progress=False)
    assert used == [False]


def test_the_network_is_whole_after_training_and_after_an_error(data: Dataset) -> None:
    net = Net()
    fitted = fit(Vanilla(), net, data, settings=TrainSettings(**SETTINGS), progress=False).models[0]
    assert "forward" not in vars(fitted)
    with pytest.raises(RuntimeError, match="stop"), module.last_layer_only(net):  # noqa: PT012
        assert net(torch.ones(2, 64)).shape == (2, 3)
        raise RuntimeError("stop")
    assert net(torch.ones(2, 1, 6, 6)).shape == (2, 3)
