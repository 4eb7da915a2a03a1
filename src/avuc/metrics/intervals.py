"""How far a metric would move on other data of the same kind: bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.metrics.statistics import Array, summarise

__all__ = ["Interval", "bootstrap", "paired_bootstrap"]


class Interval(NamedTuple):
    """An estimate and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def bootstrap(
    metric: Callable[..., float], probs: Any, labels: Any, *, replicates: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile interval of any `metric(probs, labels)` over rows drawn with replacement."""
    summarise(probs, labels)
    values = [metric(*(_take(x, rows) for x in (probs, labels))) for rows in _resamples(len(labels), replicates, seed)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(metric(probs, labels)), float(low), float(high))


def paired_bootstrap(
    metric: Callable[..., float],
    probs_a: Any,
    probs_b: Any,
    labels: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of metric(a) − metric(b), both on the same drawn rows."""
    values = []
    for rows in _resamples(len(labels), replicates, seed):
        y = _take(labels, rows)
        values.append(metric(_take(probs_a, rows), y) - metric(_take(probs_b, rows), y))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(metric(probs_a, labels) - metric(probs_b, labels)), float(low), float(high))


def _resamples(rows: int, replicates: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(rows, (rows,), generator=generator) for _ in range(replicates)]


def _take(values: Any, rows: Tensor) -> Tensor | Array:
    return values[rows.to(values.device)] if isinstance(values, Tensor) else np.asarray(values)[rows.numpy()]
