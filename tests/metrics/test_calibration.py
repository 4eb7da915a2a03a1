from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as peer
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import (
    adaptive_ece,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    reliability_curve,
    uce,
    uncertainty_reliability_curve,
)

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def slow_bins(values: list[float], events: list[bool], bins: int) -> list[tuple[int, float, float]]:
    """(rows, mean value, event rate) of each bin that holds any, by the definition ((l−1)/L, l/L], 0 in the first."""
    out = []
    for b in range(1, bins + 1):
        inside = [i for i, v in enumerate(values) if (b - 1) / bins < v <= b / bins or (b == 1 and v == 0)]
        if inside:
            n = len(inside)
            out.append((n, sum(values[i] for i in inside) / n, sum(events[i] for i in inside) / n))
    return out


def slow(probs: np.ndarray, labels: np.ndarray, bins: int) -> dict[str, float]:
    n, c = probs.shape
    confidence = [max(row) for row in probs.tolist()]
    right = [max(range(c), key=row.__getitem__) == y for row, y in zip(probs.tolist(), labels.tolist(), strict=True)]
    u = [-sum(p * math.log(p) for p in row if p > 0) / (math.log(c) if c > 1 else 1) for row in probs.tolist()]
    top = slow_bins(confidence, right, bins)
    square = sum(m / n * ((a - v) ** 2 - a * (1 - a) / (m - 1)) for m, v, a in top if m > 1)
    each = [
        sum(m / n * abs(a - v) for m, v, a in slow_bins(probs[:, k].tolist(), (labels == k).tolist(), bins))
        for k in range(c)
    ]
    return {
        "ece": sum(m / n * abs(a - v) for m, v, a in top),
        "mce": max(abs(a - v) for _, v, a in top),
        "debiased_ece": math.sqrt(max(0, square)),
        "uce": sum(m / n * abs(e - v) for m, v, e in slow_bins(u, [not r for r in right], bins)),
        "classwise_ece": sum(each) / c,
    }


METRICS = {"ece": ece, "mce": mce, "debiased_ece": debiased_ece, "uce": uce, "classwise_ece": classwise_ece}


@given(st.integers(1, 40), st.integers(2, 6), st.sampled_from([1, 2, 7, 15]), st.integers(0, 99))
def test_against_loops(n: int, c: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.full(c, 0.4), n), rng.integers(0, c, n)
    want = slow(probs, labels, bins)
    for name, metric in METRICS.items():
        assert metric(probs, labels, bins=bins) == pytest.approx(want[name], abs=1e-12), name


@pytest.mark.parametrize("bins", [3, 10, 15])
def test_awkward_rows_against_loops(bins: int, awkward: World) -> None:
    # eight classes of probability 1/8: 1/C is on no edge of these bins, and u/log C is exactly 1 within rounding
    probs, labels = awkward(120, 8)
    want = slow(probs, labels, bins)
    for name in ("ece", "mce", "debiased_ece", "classwise_ece"):
        assert METRICS[name](probs, labels, bins=bins) == pytest.approx(want[name], abs=1e-12), name


@pytest.mark.parametrize(("n", "c"), [(600, 3), (1500, 10), (500, 200)])
def test_against_netcal_and_torchmetrics(n: int, c: int, world: World) -> None:
    netcal = pytest.importorskip("netcal.metrics")
    probs, labels = world(n, c, sharpen=1.5)
    assert ece(probs, labels) == pytest.approx(netcal.ECE(15).measure(probs, labels), abs=1e-9)
    assert mce(probs, labels) == pytest.approx(netcal.MCE(15).measure(probs, labels), abs=1e-9)
    p, y = torch.from_numpy(probs), torch.from_numpy(labels)
    for metric, norm in ((ece, "l1"), (mce, "max")):
        assert metric(probs, labels) == pytest.approx(
            peer.multiclass_calibration_error(p, y, c, n_bins=15, norm=norm).item(), abs=1e-6
        )


def test_classwise_against_netcal_one_class_at_a_time(world: World) -> None:
    netcal = pytest.importorskip("netcal.metrics")
    probs, labels = world(800, 4, sharpen=1.5)
    each = [netcal.ECE(15).measure(probs[:, k], (labels == k).astype(int)) for k in range(4)]
    assert classwise_ece(probs, labels) == pytest.approx(np.mean(each), abs=1e-9)


def test_adaptive_against_sorted_slices_and_netcal(world: World) -> None:
    probs, labels = world(1500, 5, sharpen=1.5)
    confidence, right = probs.max(1), probs.argmax(1) == labels
    order = np.argsort(confidence)
    slices = [abs(confidence[s].mean() - right[s].mean()) for s in np.split(order, 15)]
    assert adaptive_ece(probs, labels) == pytest.approx(np.mean(slices), abs=1e-12)
    # netcal cuts at quantiles of the values: the same bins up to one row at each border
    theirs = pytest.importorskip("netcal.metrics").ECE(15, equal_intervals=False).measure(probs, labels)
    assert adaptive_ece(probs, labels) == pytest.approx(theirs, abs=2 / 1500)


def test_adaptive_cuts_rows_into_shares(world: World) -> None:
    """Repeating every row L times makes N divisible by L and changes nothing: the share of a row is a repeated row."""
    probs, labels = world(37, 4)
    again = np.repeat(probs, 15, 0), np.repeat(labels, 15)
    confidence, right = again[0].max(1), again[0].argmax(1) == again[1]
    order = np.argsort(confidence, kind="stable")
    slices = [abs(confidence[s].mean() - right[s].mean()) for s in np.split(order, 15)]
    assert adaptive_ece(probs, labels) == pytest.approx(np.mean(slices), abs=1e-12)
    assert adaptive_ece(*again) == pytest.approx(np.mean(slices), abs=1e-12)


def test_where_torchmetrics_differs() -> None:
    """A confidence of exactly 1 goes to a bin of its own there, beyond the last, and leaves (14/15, 1]."""
    probs = np.array([[1.0, 0.0], [0.95, 0.05]])
    p, y = torch.from_numpy(probs), torch.tensor([1, 0])
    assert ece(probs, y) == pytest.approx(abs(1.95 - 1) / 2)
    theirs = peer.multiclass_calibration_error(p, y, 2, n_bins=15).item()
    assert theirs == pytest.approx((1 + 0.05) / 2, abs=1e-6)


def test_debiased_is_nearly_unbiased_where_the_plug_in_is_not(world: World) -> None:
    plain, squares = [], []
    for seed in range(60):
        probs, labels = world(300, 10, seed)
        table = reliability_curve(probs, labels)
        gap = np.nan_to_num(table.observed - table.stated)
        plain.append((table.rows * gap**2).sum() / 300)
        # the metric cuts the square at 0; the mean of what it cuts is what shows that it has no bias
        noise = np.where(table.rows > 1, np.nan_to_num(table.observed * (1 - table.observed)), 0)
        squares.append(
            (table.rows * np.where(table.rows > 1, gap**2 - noise / np.maximum(table.rows - 1, 1), 0)).sum() / 300
        )
        assert debiased_ece(probs, labels) == pytest.approx(math.sqrt(max(0, squares[-1])), abs=1e-12)
    assert np.mean(plain) > 0.005
    assert abs(np.mean(squares)) < 0.001


def test_curves(awkward: World) -> None:
    probs, labels = awkward(300, 4)
    for curve, metric in ((reliability_curve, ece), (uncertainty_reliability_curve, uce)):
        out = curve(probs, labels, bins=10)
        assert out.rows.sum() == 300
        assert np.isnan(out.stated).tolist() == (out.rows == 0).tolist() == np.isnan(out.observed).tolist()
        held = out.rows > 0
        assert ((out.low[held] <= out.stated[held]) & (out.stated[held] <= out.high[held] + 1e-12)).all()
        gap = np.nansum(out.rows * np.abs(out.observed - out.stated)) / 300
        assert gap == pytest.approx(metric(probs, labels, bins=10), abs=1e-12)


@pytest.mark.parametrize("metric", [*METRICS.values(), adaptive_ece, reliability_curve])
def test_no_bins(metric: Callable[..., float]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        metric([[0.5, 0.5]], [0], bins=0)
