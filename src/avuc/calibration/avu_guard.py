"""The guard of AvU temperature scaling: a temperature must not make NLL, ECE or UCE worse than they are at T = 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from avuc.calibration.scaled_logits import ScaledLogits, ScaledPredictions
from avuc.metrics.binning import bin_index, bin_table
from avuc.metrics.calibration import expected_gap

BINS = 15
# share of the gain in NLL over T = 1 that the guard keeps
KEPT = 0.5


def no_worse_than_one(rows: ScaledLogits, likeliest: float) -> Callable[[float], bool]:
    """Return a function of log T: are NLL, ECE and UCE of these rows no worse than at T = 1?

    If T is further from 1 than `likeliest`, it must also keep the share `KEPT` of the gain in NLL.

    Args:
        rows: the logits.
        likeliest: the temperature with about the lowest NLL.
    """
    at_one = rows.at(1.0)
    before, nll = _gaps(at_one, rows.num_classes), at_one.mean(at_one.nll)
    far, kept = math.log(likeliest), nll - KEPT * max(0.0, nll - rows.nll(likeliest))

    def no_worse(x: float) -> bool:
        read = rows.at(math.exp(x))
        beyond = x * far > 0 and abs(x) > abs(far)
        likely = read.mean(read.nll) <= (kept if beyond else nll)
        return likely and bool(np.all(_gaps(read, rows.num_classes) <= before))

    return no_worse


def _gaps(columns: ScaledPredictions, num_classes: int) -> Any:
    """Return ECE and UCE."""
    right = columns.correct.cpu().numpy()
    weight = None if columns.weight is None else columns.weight.cpu().numpy()
    confidence = columns.confidence.cpu().numpy()
    uncertainty = columns.entropy.cpu().numpy() / math.log(max(num_classes, 2))
    return np.array([_gap(confidence, right, weight), _gap(uncertainty, ~right, weight)])


def _gap(stated: Any, happened: Any, weight: Any) -> float:
    return float(expected_gap(bin_table(bin_index(stated, BINS), stated, happened, BINS, weight)))
