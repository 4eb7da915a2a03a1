"""Differences that a calibrated model would show by chance, for the verdict on one model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avuc.evaluation.result import EvaluationResult


def gap_by_chance(result: EvaluationResult) -> float:
    """Return how far accuracy and mean confidence may differ by chance.

    A bootstrap of the accuracy alone would say 0 if every row is right. A calibrated model has a standard error of at
    most sqrt(c (1 - c) / n), where c is its mean confidence.
    """
    accuracy, confidence = result.metrics["accuracy"], min(1.0, result.confidence)
    low, high = result.intervals.get("accuracy", (accuracy, accuracy))
    noise = max(high - accuracy, accuracy - low) if math.isfinite(high - low) else 0.0
    return max(noise, 1.96 * math.sqrt(confidence * (1 - confidence) / max(1, result.n)))


def ece_may_be_chance(result: EvaluationResult) -> bool:
    """Return whether a calibrated model may have this ECE by chance on this number of rows.

    Without an interval, this is whether it is below twice the ECE of a calibrated model whose rows fill all bins.
    """
    low = result.intervals.get("ece", (math.nan, math.nan))[0]
    if math.isfinite(low):
        return low <= 0
    return result.metrics["ece"] <= 0.8 * math.sqrt(result.bins / max(1, result.n))


def worse_than_guessing(result: EvaluationResult) -> bool:
    """Return whether the accuracy is below that of random guesses, 1/C, by more than chance."""
    accuracy, guessing = result.metrics["accuracy"], 1 / max(1, result.num_classes)
    low, high = result.intervals.get("accuracy", (math.nan, math.nan))
    if not math.isfinite(low):  # three standard errors of guesses
        high = accuracy + 3 * math.sqrt(guessing * (1 - guessing) / max(1, result.n))
    return high < guessing
