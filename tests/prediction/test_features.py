"""Models with the same layers before the last one share their features; nothing else does, and nothing changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.methods import LLSVI, Objective, Vanilla
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.predictor import Predictor
from avuc.study import run
from avuc.study import worker as study_worker
from avuc.train import TrainSettings

RAN: list[int] = []  # rows of each pass


class Net(nn.Module):
    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, num_classes)

        self.names, self.signs, self.power = (
            np.array(["a", "b"]),
            torch.ones(5),
            1.0,
        )  # neither a buffer nor shown by repr

    def forward(self, x: Tensor) -> Tensor:
        RAN.append(len(x))
        return self.last(torch.relu(self.norm(self.first(x))) ** self.power * self.signs)


def posteriors() -> list[nn.Module]:
    """Two with one trunk; then with another weight, another statistic, and another attribute of two kinds."""
    torch.manual_seed(0)
    net, nets = Net(), []
    for change in range(6):
        other = copy.deepcopy(net)
        nn.init.normal_(other.last.weight)
        if change == 2:
            with torch.no_grad():
                other.first.bias[0] += 1e-3
        if change == 3:
            other.norm.running_mean[0] += 1e-3
        if change == 4:
            other.signs[0] = -1
        if change == 5:
            other.power = 2.0
        nets.append(to_bayesian(other, layers="last", initial_std=0.3).eval())
    return nets


def shared(store: FeatureStore, model: nn.Module, dtype: torch.dtype | None = None) -> Predictor:
    predictor = Predictor(model, samples=4, batch_size=3, dtype=dtype)
    predictor.share_features(store)
    return predictor


def rows_run(predictor: Predictor, x: object, expected: Tensor) -> int:
    RAN.clear()
    assert torch.equal(predictor.logits(x), expected)
    return sum(RAN)


def test_only_the_same_trunk_is_shared() -> None:
    x, store, models = torch.randn(7, 4), FeatureStore(), posteriors()
    alone = [Predictor(model, samples=4, batch_size=3).logits(x) for model in models]
    assert [rows_run(shared(store, model), x, logits) for model, logits in zip(models, alone, strict=True)] == [
        7,
        0,
        7,
        7,
        7,
        7,
    ]
    # the first two are still there
    assert [rows_run(shared(store, model), x, logits) for model, logits in zip(models, alone, strict=True)] == [0] * 6
    half = Predictor(models[0], samples=4, batch_size=3, dtype=torch.bfloat16).logits(x)
    assert rows_run(shared(store, models[0], torch.bfloat16), x, half) == 7


def test_other_data_and_changed_data() -> None:
    x, store, (first, second, *_) = torch.randn(7, 4), FeatureStore(), posteriors()

    def both(data: object) -> list[int]:
        return [
            rows_run(shared(store, model), data, Predictor(model, samples=4, batch_size=3).logits(data))
            for model in (first, second)
        ]

    assert both(x) == [7, 0]
    assert both(x.clone()) == [7, 0]
    x[3] += 1  # written into
    assert both(x) == [7, 0]
    x[3] += 1
    assert both(x) == [7, 0]
    assert both(x.numpy()) == [7, 7]  # nobody could say whether an array has changed
    with torch.inference_mode():
        frozen = torch.randn(7, 4)
    assert both(frozen) == [7, 7]
    for memory, rows in ((1, 7), (7 * 5 * 4, 0)):
        store = FeatureStore(memory)
        assert both(x) == [7, rows]


def test_a_model_that_changes_has_other_features() -> None:
    x, store, (first, second, *_) = torch.randn(7, 4), FeatureStore(), posteriors()
    one, two = shared(store, first), shared(store, second)
    one.logits(x)
    with torch.no_grad():
        second.module.first.weight += 1
    assert rows_run(two, x, Predictor(second, samples=4, batch_size=3).logits(x)) == 7


def test_a_plain_network_shares_features_if_it_is_asked_to() -> None:
    torch.manual_seed(0)
    x, store, net = torch.randn(7, 4), FeatureStore(), Net().eval()
    shared(store, to_bayesian(net, layers="last", initial_std=0.3).eval()).logits(x)
    alone = Predictor(net, batch_size=3).logits(x)
    for plain, model, rows in ((True, net, 0), (False, net, 7), (True, nn.Sequential(net, nn.LogSoftmax(-1)), 14)):
        predictor = Predictor(model, batch_size=3)
        predictor.share_features(store, plain=plain)
        RAN.clear()
        found = predictor.logits(x)
        # where the last layer's output is not the network's, one batch shows it; then all of them run
        assert sum(RAN) == (rows if rows < 14 else 7 + 3)
        torch.testing.assert_close(found, alone if model is net else alone.log_softmax(-1))


class InPlace(Net):
    """Returns the output of its last layer, changed in place."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        logits *= 10
        return logits


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def test_logits_that_change_in_place_are_those_of_the_network() -> None:
    torch.manual_seed(0)
    x, net = torch.randn(7, 4), InPlace().eval()
    posterior = to_bayesian(net, layers="last", initial_std=1e-6).eval()
    torch.testing.assert_close(Predictor(posterior, samples=2).logits(x)[0], net(x).detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [Tied, lambda: Net().bfloat16(), lambda: nn.Flatten()], ids=["tied", "half", "none"])
def test_plain_networks_without_such_a_last_layer_run_as_before(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = make().eval()
    x = torch.randn(7, 4).to(next((p.dtype for p in net.parameters()), torch.float32))
    if isinstance(net, Net):
        net.signs = net.signs.bfloat16()
    alone, predictor = Predictor(net).logits(x), Predictor(net)
    predictor.share_features(FeatureStore(), plain=True)
    assert torch.equal(predictor.logits(x), alone)


def test_a_last_layer_with_a_forward_of_its_own_is_not_multiplied_by_hand() -> None:
    torch.manual_seed(0)
    x, net = torch.randn(7, 4), Net().eval()
    net.last.forward = lambda features: 2 * nn.functional.linear(features, net.last.weight)  # type: ignore[method-assign]
    alone, predictor = Predictor(net).logits(x), Predictor(net)
    predictor.share_features(FeatureStore(), plain=True)
    assert torch.equal(predictor.logits(x), alone)


@pytest.mark.parametrize("sharing", [True, False])
def test_a_study_runs_a_frozen_trunk_once_for_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: bool
) -> None:
    """Four posteriors around one network, and that network: the trunk runs once for each of three sets."""
    if not sharing:
        monkeypatch.setattr(study_worker, "FeatureStore", lambda: FeatureStore(0))
    torch.manual_seed(2)
    RAN.clear()
    net, x = Net(), torch.randn(40, 4)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    last = {"method": LLSVI(moped=True, delta=0.2), "train": TrainSettings(**SETTINGS, freeze_trunk=True)}
    store = run(
        methods={
            "LL-SVI": last,
            "LL-SVI-AvUC": {**last, "objective": Objective("avuc", warmup_epochs=1)},
            "As it is": {"method": Vanilla(), "skip_training": True},
        },
        data={name: (x + shift, labels) for shift, name in enumerate(("train", "validation", "test"))},
        net=net,
        shifts=[noise],
        severities=[5],
        seeds=[0, 1],
        samples=3,
        train=TrainSettings(**SETTINGS),
        out=tmp_path,
        device="cpu",
        progress=False,
    )
    FIGURES[sharing] = sorted(row for row in store.rows() if row[4] in ("nll", "accuracy", "ece", "avu_auc"))
    store.close()
    assert FIGURES[sharing] == FIGURES.get(not sharing, FIGURES[sharing])
    assert len(FIGURES[sharing]) == 3 * 2 * 3 * 4
    # in training, the four share one pass over the 40 validation rows, and no step runs the trunk
    assert RAN.count(40) == 1 + (3 if sharing else 18)
    # the training rows, and their first batch three times more; before, 8 rows try the functions, one of them alone,
    # and the first batch of each of four networks is checked
    assert sum(RAN) - 40 * RAN.count(40) == 40 + 3 * 10 + 4 * 8 + 1 + 4 * 10


FIGURES: dict[bool, list[tuple[object, ...]]] = {}
SETTINGS = {"epochs": 2, "batch_size": 10, "milestones": (), "factors": (), "pad": 0, "validate_every": 2}


def noise(batch: Tensor, generator: torch.Generator) -> Tensor:
    return batch + torch.randn(batch.shape, generator=generator)
