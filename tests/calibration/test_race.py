"""The cross-validation of several calibrators: equal to a plain loop; clear losers stop; groups stay together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.calibration import CALIBRATORS, TemperatureScaling
from avuc.calibration.blend import blend_weights
from avuc.calibration.metric_change import mean_and_error
from avuc.calibration.race import BLEND, NONE, Race, choose
from avuc.calibration.rows import Rows

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
    dealt = sorted(order, key=lambda row: int(rows.labels[row]))  # stratified: by label, one fold after the other
    losses = {}
    for fold in range(folds):
        held = dealt[fold::folds]
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


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mixture_of_a_fold_has_weights_of_the_other_folds(weighted: bool) -> None:
    rows = overconfident(90)
    rows = Rows(rows.logits, rows.labels, torch.rand(90).double() + 0.1 if weighted else None)
    race = run(rows, ("temperature", "vector"), 3)
    names = [NONE, "temperature", "vector"]
    weights = race.blend(names, 5.0)
    assert weights.sum() == pytest.approx(1)
    chosen = np.exp(-np.stack([race.runners[name].nll for name in names], 1))
    for part in race.parts:
        rest = [row for row in range(90) if row not in part.tolist()]
        some = blend_weights(chosen[rest], 5.0, None if rows.weight is None else rows.weight[rest].numpy())
        expected = -np.log(chosen[part.numpy()] @ some)
        assert race.runners[BLEND].nll[part.numpy()] == pytest.approx(expected, abs=5e-3)


def figures_of(race: Race, probs: torch.Tensor) -> list[float]:
    """NLL, Brier score and ECE in plain loops."""
    n, total = len(race.rows), [0.0, 0.0]
    bins: dict[int, float] = {}
    for p, y in zip(probs.tolist(), race.rows.labels.tolist(), strict=True):
        total[0] -= math.log(p[y]) / n
        total[1] += sum((value - (k == y)) ** 2 for k, value in enumerate(p)) / n
        place = max(math.ceil(max(p) * 15) - 1, 0)
        bins[place] = bins.get(place, 0.0) + ((p.index(max(p)) == y) - max(p)) / n
    return [*total, sum(map(abs, bins.values()))]


class Shifted(TemperatureScaling):
    """A temperature that is right for these rows, and a constant error on top."""

    shift = 0.0

    def _apply(self, logits: torch.Tensor) -> torch.Tensor:
        return super()._apply(logits) + self.shift * torch.tensor([1.0, 0.0, -1.0], dtype=logits.dtype)


@pytest.mark.parametrize(("shift", "outcome"), [(0.0, "whole"), (2.5, "part"), (9.0, "refused")])
def test_the_guard_compares_three_figures_and_takes_less_of_a_candidate(
    shift: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shifted, "shift", shift)
    rows = overconfident(400)
    if outcome == "refused":  # nothing can be won
        rows = Rows(rows.logits / 3, rows.labels)
    race = Race(rows, 3, 0)
    race.run({"shifted": Shifted()}, stop=False)
    none, raw = race.runners[NONE].probs, race.runners["shifted"].probs
    before = figures_of(race, none)
    shares = (1.0, 0.7, 0.5, 0.3, 0.1)
    harmless = [
        share
        for share in shares
        if all(a <= b for a, b in zip(figures_of(race, (1 - share) * none + share * raw), before, strict=True))
    ]
    assert race.admit("shifted", shares) == bool(harmless)
    assert {"whole": 1.0 in harmless, "part": 0.1 in harmless and 1.0 not in harmless, "refused": not harmless}[outcome]
    runner = race.runners["shifted"]
    assert runner.share == (harmless[0] if harmless else 1.0)
    assert race.figures("shifted") == pytest.approx(figures_of(race, runner.probs), abs=1e-9)
    remark = {"whole": "", "part": "% of it, the rest none: alone it makes ", "refused": "refused: it makes NLL and "}
    assert remark[outcome] in runner.remark
