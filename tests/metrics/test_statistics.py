"""What may come in, in which form, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.core.errors import InputError
from avuc.metrics import METRICS
from avuc.metrics import statistics as module
from avuc.metrics.binning import bin_index
from avuc.metrics.statistics import prediction_statistics

World = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.mark.parametrize("name", METRICS)
def test_every_kind_of_array_gives_the_same(name: str, awkward: World, tmp_path: Path) -> None:
    probs, labels = awkward(60, 5)
    metric, want = METRICS[name], METRICS[name](probs, labels)
    np.save(tmp_path / "p.npy", probs)
    forms = [
        (torch.from_numpy(probs), torch.from_numpy(labels)),
        (torch.from_numpy(probs).requires_grad_(), torch.from_numpy(labels).int()),
        (probs.tolist(), labels.tolist()),
        (np.asfortranarray(probs), labels.astype(np.uint8)),
        (probs.astype(">f8"), labels.astype(float)),
        (np.load(tmp_path / "p.npy", mmap_mode="r"), labels),
        (torch.from_numpy(probs).T.contiguous().T, labels),
    ]
    for form in forms:
        assert metric(*form) == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats(dtype: torch.dtype, world: World) -> None:
    probs, labels = world(500, 10)
    narrow = torch.from_numpy(probs).to(dtype)
    # what the same numbers give in float64, but for the bins' edges, which follow the dtype: bfloat16 has 128
    # confidences between 1/2 and 1, so many lie on an edge
    loose = 0.03 if dtype == torch.bfloat16 else 0.005
    for name, metric in METRICS.items():
        tolerance = loose if name in ("ece", "mce", "classwise_ece", "debiased_ece") else 0
        assert metric(narrow, labels) == pytest.approx(metric(narrow.double(), labels), abs=tolerance), name
    if dtype == torch.float16:
        assert metrics.ece(narrow.numpy(), labels) == metrics.ece(narrow, labels)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below_in_every_precision(dtype: type) -> None:
    probs = np.array([[0.8, 0.2]], dtype=dtype)
    curve = metrics.reliability_curve(probs, [0], bins=5)
    assert curve.rows.tolist() == [0, 0, 0, 1, 0]


def test_bins_are_open_below_and_closed_above() -> None:
    values = np.array([0, 1e-9, 0.25, np.nextafter(0.25, 1), 0.5, 0.75, 1, 1.0000001])
    assert bin_index(values, 4).tolist() == [0, 0, 0, 1, 1, 2, 3, 3]


def test_blocks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch, awkward: World) -> None:
    probs, labels = awkward(101, 4)
    whole = {name: metric(probs, labels) for name, metric in METRICS.items()}
    monkeypatch.setattr(module, "BLOCK", 28)
    for name, metric in METRICS.items():
        assert metric(probs, labels) == pytest.approx(whole[name], abs=1e-13)
    for name in ("confidence", "entropy", "nll", "brier", "correct", "predicted", "labels"):
        monkeypatch.setattr(module, "BLOCK", 28)
        pieces = getattr(prediction_statistics(probs, labels), name)
        monkeypatch.setattr(module, "BLOCK", 1 << 18)
        np.testing.assert_array_equal(pieces, getattr(prediction_statistics(probs, labels), name))


GOOD = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.zeros((0, 2)), [], "no samples"),
        (np.zeros((3, 0)), [0, 0, 0], r"\(N, C\)"),
        (np.ones((3, 1)), [0, 0, 0], r"as \(N,\)"),
        (np.ones(()), 0, r"\(N, C\)"),
        (np.full((2, 3, 2), 0.5), [0, 0, 0], "average the samples"),
        (GOOD, [0, 1], r"shape \(3,\)"),
        (GOOD, np.eye(2)[[0, 1, 0]], "one-hot"),
        (GOOD, [0, 1, 2], r"0…1 for 2 classes, found 2"),
        (GOOD, [0, 1, -1], r"found -1"),
        (GOOD, [0, 1, 0.5], r"whole class numbers, found 0.5"),
        (GOOD, [0, 1, np.nan], "labels contain NaN"),
        (GOOD, ["a", "b", "c"], "dtype"),
        (GOOD + np.array([[0, 0], [0, np.nan], [0, 0]]), [0, 1, 0], r"NaN \(row 1\)"),
        (GOOD + np.array([[0, 0], [0, 0], [np.inf, 0]]), [0, 1, 0], r"infinity \(row 2\)"),
        ([[2.0, -1.0]], [0], r"not be negative \(row 0\)"),
        ([[3.0, 1.0]], [0], "softmax if these are logits"),
        ([[0.5 + 0j, 0.5]], [0], "real numbers"),
        (torch.tensor([[0.5 + 0j, 0.5]]), [0], "real numbers"),
    ],
)
def test_refusals(probs: object, labels: object, message: str) -> None:
    for metric in (metrics.accuracy, metrics.ece, metrics.avu_curves):
        with pytest.raises(InputError, match=message):
            metric(probs, labels)


def test_a_bad_row_far_down_is_named(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    probs, labels = world(50, 3)
    probs[41, 2] = np.nan
    monkeypatch.setattr(module, "BLOCK", 30)
    with pytest.raises(InputError, match="row 41"):
        metrics.nll(probs, labels)


@pytest.mark.gpu
def test_cuda_agrees(awkward: World) -> None:
    probs, labels = awkward(3000, 20)
    there = torch.from_numpy(probs).cuda(), torch.from_numpy(labels).cuda()
    for name, metric in METRICS.items():
        assert metric(*there) == pytest.approx(metric(probs, labels), abs=1e-9), name
