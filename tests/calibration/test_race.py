"""The cross-validation of several calibrators: equal to a plain loop; clear losers stop; groups stay together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.calibration import CALIBRATORS, TemperatureScaling
from avuc.calibration.metric_change import mean_and_error
from avuc.calibration.race import NONE, Race, Rows, choose

FAST = ("temperature", "smoothed", "vector", "isotonic")


def overconfident(rows: int, classes: int = 3, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=generator)
    return Rows(3 * (torch.randn(rows, classes, generator=generator) + torch.eye(classes)[labels]).double(), labels)


def run(rows: Rows, names: tuple[str, ...] = FAST, folds: int = 5, seed: int = 0) -> Race:
    race = Race(rows, folds, seed)
    race.run({name: CALIBRATORS[name]() for name in names})
    return race


def test_the_same_as_a_plain_loop() -> None:
    rows, folds = overconfident(203), 4
    race = run(rows, ("temperature",), folds)
    order = torch.randperm(203, generator=torch.Generator().manual_seed(0)).tolist()
    sizes = [51, 51, 51, 50]
    losses = {}
    for fold in range(folds):
        held = order[sum(sizes[:fold]) : sum(sizes[: fold + 1])]
        rest = [row for row in range(203) if row not in held]
        scaler = TemperatureScaling().fit(rows.logits[rest], rows.labels[rest])
        for row in held:
            scores = [float(value) / scaler.temperature_ for value in rows.logits[row]]
            total = sum(math.exp(score) for score in scores)
            losses[row] = math.log(total) - scores[int(rows.labels[row])]
    expected = [losses[row] for row in range(203)]
    assert race.runners["temperature"].nll == pytest.approx(expected, abs=1e-9)
    assert race.mean("temperature") == pytest.approx(sum(expected) / 203, abs=1e-9)
    none = [
        math.log(sum(math.exp(float(v)) for v in z)) - float(z[y])
        for z, y in zip(rows.logits, rows.labels, strict=True)
    ]
    difference = [one - other for one, other in zip(expected, none, strict=True)]
    mean = sum(difference) / 203
    error = math.sqrt(sum((one - mean) ** 2 for one in difference) / 202 / 203)
    assert race.difference("temperature", NONE) == pytest.approx((mean, error), rel=1e-9)


def test_a_clear_loser_is_stopped_and_named() -> None:
    class Uniform(TemperatureScaling):
        def _apply(self, logits: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(logits)

    race = Race(overconfident(600), 5, 0)
    race.run({"temperature": TemperatureScaling(), "uniform": Uniform()})
    assert race.runners["uniform"].folds == 1
    assert race.runners["uniform"].note == "stopped after 1 of 5 folds: temperature is better"
    assert race.finished == [NONE, "temperature"]
    assert np.isfinite(race.runners["temperature"].nll).all()


def test_no_calibrator_is_never_stopped() -> None:
    race = run(overconfident(600), ("temperature",))
    assert race.difference("temperature", NONE)[0] < -3 * race.difference("temperature", NONE)[1]
    assert race.runners[NONE].folds == 5


def test_a_method_that_cannot_take_the_rows_is_named() -> None:
    class Picky(TemperatureScaling):
        def _fit(self, *args: object) -> None:
            from avuc.core.errors import InputError

            raise InputError("only for cats")

    race = Race(overconfident(100), 5, 0)
    race.run({"picky": Picky(), "temperature": TemperatureScaling()})
    assert race.runners["picky"].note == "only for cats"
    assert race.finished == [NONE, "temperature"]
    assert math.isnan(race.table()[1].nll)


def test_rows_of_one_group_are_held_out_together() -> None:
    groups = torch.arange(100) // 7
    parts = Rows(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), None, groups).parts(5, 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(100))
    for one in parts:
        others = [int(g) for other in parts if other is not one for g in groups[other]]
        assert not set(groups[one].tolist()) & set(others)


def test_repeated_rows_count_as_groups_not_as_evidence() -> None:
    values = np.array([1.0, 4.0, 2.0])
    repeated, groups = np.repeat(values, 10), np.repeat(np.arange(3), 10)
    assert mean_and_error(repeated, None, groups) == pytest.approx(mean_and_error(values))
    assert mean_and_error(repeated)[1] < mean_and_error(values)[1] / 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=8), st.integers(0, 99))
def test_a_weight_of_two_moves_the_mean_like_a_second_row(weights: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=len(weights))
    mean, _ = mean_and_error(values, np.array(weights, dtype=float))
    assert mean == pytest.approx(np.repeat(values, weights).mean())


def test_one_row_has_no_standard_error() -> None:
    assert mean_and_error(np.array([2.0])) == (2.0, math.inf)
    assert math.isnan(mean_and_error(np.array([]))[0])


def staged(**nll: list[float]) -> Race:
    """Return a race with these losses of its rows."""
    rows = Rows(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    race = Race(rows, 2, 0)
    race.run({name: TemperatureScaling() for name in nll if name != NONE})
    for name, values in nll.items():
        race.runners[name].nll = np.array(values)
    return race


def test_the_one_standard_error_rule() -> None:
    # complex − simple is −0.3, 0.1, −0.3, 0.1, with the standard error 0.1155
    race = staged(none=[3.0] * 4, simple=[1.0] * 4, complex=[0.7, 1.1, 0.7, 1.1])
    names = ["simple", "complex"]
    assert race.difference("complex", "simple") == pytest.approx((-0.1, 0.11547), abs=1e-5)
    assert choose(race, names, 1.0) == ("simple", "complex")
    assert choose(race, names, 0.8) == ("complex", "complex")
    assert choose(race, names, 0.0) == ("complex", "complex")


@pytest.mark.parametrize("errors", [0.0, 1.0])
def test_a_tie_goes_to_the_first(errors: float) -> None:
    race = staged(none=[1.0] * 4, simple=[1.0] * 4, complex=[1.0] * 4)
    assert choose(race, ["simple", "complex"], errors) == ("simple", "simple")
    assert choose(race, ["complex", "simple"], errors) == ("complex", "complex")
