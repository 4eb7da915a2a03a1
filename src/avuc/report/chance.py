"""Differences that a calibrated model would show by chance, and doubts, for the verdict on one model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from avuc.report.numbers import distinct, percent

if TYPE_CHECKING:
    from avuc.evaluation.result import EvaluationResult

# a model with these few rows, or with a smaller gap, may simply be bad
LEAST_ROWS, MUCH_TOO_SURE = 100, 0.4


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


def order_doubts(result: EvaluationResult) -> list[str]:
    """Return a sentence if scores and labels probably do not match: the model is sure, and right as often as guesses.

    A model that is right less often than guesses is doubted even if it is not sure.
    """
    accuracy, guessing = result.metrics["accuracy"], 1 / max(1, result.num_classes)
    low = result.intervals.get("accuracy", (math.nan, math.nan))[0]
    if not math.isfinite(low):
        low = accuracy - 2 * math.sqrt(guessing * (1 - guessing) / max(1, result.n))
    sure = result.n >= LEAST_ROWS and result.confidence - accuracy > MUCH_TOO_SURE
    if not worse_than_guessing(result) and not (sure and low <= guessing):
        return []
    right, guesses = distinct(accuracy, guessing)
    return [
        f"It is right {right} of the time, and random guesses would be {guesses} of the time: check that scores and "
        "labels have the same order of classes and rows, and that a larger score means a more probable class."
    ]


def class_doubts(result: EvaluationResult) -> list[str]:
    """Return a sentence if one of two classes gets too much probability, which ECE does not show.

    ECE joins the bins of p and 1 − p. If class 1 is too probable in both, the errors cancel.
    """
    by_class, ece = result.metrics["classwise_ece"], result.metrics["ece"]
    low, high = (result.intervals.get(name, (math.nan, math.nan))[i] for name, i in (("classwise_ece", 0), ("ece", 1)))
    if result.num_classes > 2 or result.per_label or not (by_class > ece + 0.05 and low > high):
        return []
    return [
        f"However, the probabilities of the classes are wrong by {percent(by_class)} on average: one class gets too "
        "much, the other too little, as after class weights or resampling in training. A temperature does not repair "
        "this; calibrate with --method vector."
    ]
