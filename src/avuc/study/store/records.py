"""The records of one training and of one evaluation, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.study.grid import ModelKey, TestSet


@dataclass(frozen=True)
class Trained:
    """One training.

    Args:
        key: the model.
        history: one record for each epoch and ensemble member.
        epochs: how many epochs were trained.
        seconds: how long that took.
        threshold: the uncertainty threshold that the AvUC loss learned; None without one.
        prints: digests of the training data, by name.
    """

    key: ModelKey
    history: list[dict[str, Any]]
    epochs: int
    seconds: float
    threshold: float | None
    prints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricsAndCurves:
    """The metrics and curves of one method on one set of images.

    Args:
        metrics: value by name of the metric.
        curves: what figures are drawn from, by name.
        entropy: predictive entropy of each image, shape (N,).
        rows: number of images N.
        samples: posterior samples behind each prediction.
    """

    metrics: dict[str, float]
    curves: dict[str, Any]
    entropy: NDArray[np.float32] = field(repr=False)
    rows: int = 0
    samples: int = 1


@dataclass(frozen=True)
class Evaluation:
    """One method with one seed on one set of images: a row of the table `cells` and everything that belongs to it.

    Args:
        method, seed, test_set: what was evaluated.
        result: its metrics and curves.
        seconds: how long it took.
        calibrator: the fitted calibrator as JSON, on the validation set only.
        keep_entropy: store the entropies, which detection metrics of the other sets need (clean images only).
        shown: data about single images for the report.
        picture: one image of the set as PNG.
        prints: digests of the images, by name.
    """

    method: str
    seed: int
    test_set: TestSet
    result: MetricsAndCurves
    seconds: float = 0.0
    calibrator: str | None = None
    keep_entropy: bool = field(default=False, repr=False)
    shown: dict[str, Any] | None = field(default=None, repr=False)
    picture: bytes | None = field(default=None, repr=False)
    prints: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.method, self.seed, self.test_set.shift, self.test_set.severity
