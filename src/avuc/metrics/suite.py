"""The whole suite: the explicit list of metrics, and all of them from one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from avuc.metrics import calibration, proper, selective
from avuc.metrics.avu import (
    Threshold,
    area,
    avu,
    avu_auc,
    cells,
    counts_at,
    p_accurate_given_certain,
    p_uncertain_given_inaccurate,
    thresholds_between,
)
from avuc.metrics.statistics import Statistics, bin_edges, group, summarise

__all__ = ["METRICS", "evaluate"]

# name -> metric(probs, labels, ...) -> float; a new metric is one line here
METRICS: dict[str, Callable[..., float]] = {
    "accuracy": proper.accuracy,
    "nll": proper.nll,
    "brier": proper.brier,
    "ece": calibration.ece,
    "classwise_ece": calibration.classwise_ece,
    "adaptive_ece": calibration.adaptive_ece,
    "debiased_ece": calibration.debiased_ece,
    "mce": calibration.mce,
    "uce": calibration.uce,
    "avu": avu,
    "avu_auc": avu_auc,
    "p_accurate_given_certain": p_accurate_given_certain,
    "p_uncertain_given_inaccurate": p_uncertain_given_inaccurate,
    "aurc": selective.aurc,
    "mean_entropy": proper.mean_entropy,
}


class HasProbabilities(Protocol):
    """What is read of `avuc.Predictions`."""

    @property
    def probs(self) -> Any: ...
    @property
    def labels(self) -> Any: ...


def evaluate(predictions: HasProbabilities, *, threshold: Threshold = "auto", bins: int = 15) -> dict[str, float]:
    """Every metric of `METRICS`, each equal to its own function, from one pass over the probabilities.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> evaluate(Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1])))["accuracy"]
    0.5
    """
    return from_statistics(summarise(predictions.probs, predictions.labels, bins=bins), threshold=threshold, bins=bins)


def from_statistics(statistics: Statistics, *, threshold: Threshold = "auto", bins: int = 15) -> dict[str, float]:
    """The suite from per-row statistics made with the same `bins`."""
    rows, right = len(statistics), statistics.correct
    # two sorts serve the bins, the ranks and the thresholds
    sure, unsure = group(statistics.confidence, right), group(statistics.entropy, right)
    stated = sure.values * (sure.right + sure.wrong)
    by_confidence = calibration.grouped_table(sure, sure.right, bin_edges(bins, statistics.dtype))
    share = unsure._replace(values=statistics.share_of_maximum(unsure.values))
    by_uncertainty = calibration.grouped_table(share, unsure.wrong, bin_edges(bins))
    counts = counts_at(statistics, threshold)
    assert statistics.classwise is not None
    values = {
        "accuracy": right.mean(),
        "nll": statistics.nll.mean(),
        "brier": statistics.brier.mean(),
        "ece": calibration.expected_gap(by_confidence),
        "classwise_ece": calibration.classwise_gap(statistics.classwise, rows),
        "adaptive_ece": calibration.equal_mass_gap(sure.right, sure.wrong, stated, bins),
        "debiased_ece": calibration.debiased_gap(by_confidence),
        "mce": calibration.maximum_gap(by_confidence),
        "uce": calibration.expected_gap(by_uncertainty),
        "avu": counts.avu,
        "avu_auc": area(cells(unsure, thresholds_between(unsure.values[0], unsure.values[-1])).avu),
        "p_accurate_given_certain": counts.accurate_given_certain,
        "p_uncertain_given_inaccurate": counts.uncertain_given_inaccurate,
        "aurc": selective.risk_area(sure),
        "mean_entropy": statistics.entropy.mean(),
    }
    return {name: float(value) for name, value in values.items()}
