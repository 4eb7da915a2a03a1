"""A prediction whose entropy is the threshold is certain everywhere, whoever computed the entropy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from avuc import metrics
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.losses import AvUCLoss, avuc_loss
from avuc.losses.quadrants import SampleStatistics, avuc_quadrants, quadrants_of
from avuc.losses.softmax_statistics import softmax_statistics, traceable
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.streaming import StreamingMetrics
from avuc.predictions import Predictions
from avuc.uncertainty import ABSOLUTE_ROUNDING, RELATIVE_ROUNDING, entropy, highest_certain

CASES = [(2, 1.0), (3, 8.0), (10, 3.0), (10, 0.1), (10, 30.0), (100, 4.0), (1000, 4.0)]


def batch(classes: int, scale: float, n: int) -> tuple[Tensor, Tensor]:
    """float32 logits, and labels that make every prediction right."""
    logits = scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(classes))
    return logits, logits.argmax(-1)


def entropies(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The same entropies, from every place that computes them."""
    probs = logits.softmax(-1)
    return {
        "loss": softmax_statistics(logits).entropy,
        "compiled loss": traceable(logits).entropy,
        "loss, float64": softmax_statistics(logits.double()).entropy,
        "draws": entropy(logits.expand(3, -1, -1).softmax(-1).mean(0)),
        "function": entropy(probs),
        "predictions": Predictions.from_logits(logits, labels).entropy,
        "metrics": torch.from_numpy(prediction_statistics(probs, labels).entropy),
        "metrics, float64": torch.from_numpy(prediction_statistics(logits.double().softmax(-1), labels).entropy),
        "calibration": ScaledLogits(logits[None], labels).at(1.0).entropy,
        "calibration, draws": ScaledLogits(logits.expand(3, -1, -1), labels).at(1.0).entropy,
    }


@pytest.mark.parametrize(("classes", "scale"), [*CASES, (20_000, 3.0), (20_000, 20.0)])
def test_rounding_is_well_below_the_allowance(classes: int, scale: float) -> None:
    found = entropies(*batch(classes, scale, 20_000 if classes <= 100 else 2_000 if classes <= 1000 else 100))
    every = torch.stack([u.double() for u in found.values()])
    low, high = every.amin(0), every.amax(0)
    assert ((high - low) < 0.5 * (RELATIVE_ROUNDING * low + ABSOLUTE_ROUNDING)).all()


SIDES: dict[str, Callable[[Tensor, Tensor, float], bool]] = {
    # a right and certain prediction alone has AvU 1 and loss 0, a right and uncertain one AvU 0 and a large loss
    "loss": lambda z, y, t: avuc_loss(z, y, t).item() == 0,
    "loss, threshold as float32": lambda z, y, t: avuc_loss(z, y, torch.tensor(t)).item() == 0,
    "loss, float64": lambda z, y, t: avuc_loss(z.double(), y, t).item() == 0,
    "loss, draws": lambda z, y, t: avuc_loss(z.expand(3, -1, -1), y, t).item() == 0,
    "cells": lambda z, y, t: avuc_quadrants(z.softmax(-1), y, t).au.item() == 0,
    "metrics": lambda z, y, t: metrics.avu(z.softmax(-1), y, threshold=t) == 1,
    "metrics, float64": lambda z, y, t: metrics.avu(z.double().softmax(-1).numpy(), y.numpy(), threshold=t) == 1,
    "predictions": lambda z, y, t: metrics.evaluate(Predictions.from_logits(z, y), threshold=t)["avu"] == 1,
    "calibration": lambda z, y, t: calibrated(z, y, t),
}


def calibrated(logits: Tensor, labels: Tensor, threshold: float) -> bool:
    columns = ScaledLogits(logits[None], labels).at(1.0)
    rows = SampleStatistics(columns.confidence, columns.entropy, columns.correct, torch.ones(1), logits.shape[1])
    return quadrants_of(rows, threshold, "monotone").au.item() == 0


@pytest.mark.parametrize(("classes", "scale"), CASES)
def test_a_prediction_at_its_threshold_is_certain(classes: int, scale: float) -> None:
    n = 25
    logits, labels = batch(classes, scale, n)
    for source, u in entropies(logits, labels).items():
        for row in range(n):
            one, answer, threshold = logits[row : row + 1], labels[row : row + 1], float(u[row])
            for place, certain in SIDES.items():
                assert certain(one, answer, threshold), f"threshold from {source}, compared in {place}, row {row}"


@pytest.mark.parametrize(("classes", "scale"), CASES)
def test_a_prediction_well_above_the_threshold_is_uncertain(classes: int, scale: float) -> None:
    """The allowance is no more than rounding."""
    logits, labels = batch(classes, scale, 40)
    for row, u in enumerate(softmax_statistics(logits.double()).entropy.tolist()):
        if u > 1e-4:
            for place, certain in SIDES.items():
                assert not certain(logits[row : row + 1], labels[row : row + 1], u * (1 - 2e-5) - 4e-6), place


def test_whole_batches_at_thousands_of_thresholds() -> None:
    """Loss and metrics split a batch alike at the entropy of any of its rows. Rows that happen to lie at the end of
    the allowance, within float32 rounding, are the only ones that may differ; the row of the threshold never does."""
    logits, labels = batch(10, 3.0, 300)
    counted = torch.from_numpy(prediction_statistics(logits.softmax(-1), labels).entropy)
    in_loss = softmax_statistics(logits).entropy
    differ = thresholds = 0
    for u in entropies(logits, labels).values():
        for row in range(300):
            end = highest_certain(float(u[row]))
            other = (counted <= end) != (in_loss <= end)
            assert not other[row]
            assert ((counted - end).abs() < 1e-6)[other].all()
            differ, thresholds = differ + int(other.sum()), thresholds + 1
    assert thresholds == 3000
    assert differ <= 3


def test_streaming_and_intervals_agree_with_the_function() -> None:
    logits, labels = batch(10, 3.0, 50)
    probs = logits.softmax(-1)
    for row, threshold in enumerate(softmax_statistics(logits).entropy.tolist()):
        one, answer = probs[row : row + 1], labels[row : row + 1]
        streaming = StreamingMetrics(10, threshold=threshold)
        streaming.update(one, answer)
        assert streaming.compute()["avu"] == 1
    threshold = float(softmax_statistics(logits).entropy[7])
    found = metrics.intervals(Predictions(probs, labels), threshold=threshold, replicates=50)
    assert found["avu"].value == metrics.avu(probs, labels, threshold=threshold)


def test_a_threshold_learned_from_one_prediction_calls_it_certain() -> None:
    for dtype in (torch.float32, torch.float64):
        for seed in range(300):
            logits = 3 * torch.randn(1, 7, generator=torch.Generator().manual_seed(seed)).to(dtype)
            labels = logits.argmax(-1)
            module = AvUCLoss(warmup_steps=1)
            module(logits, labels)
            assert module(logits, labels).item() == 0
            assert metrics.avu(logits.softmax(-1), labels, threshold=float(module.threshold)) == 1
