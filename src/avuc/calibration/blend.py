"""A mixture of fitted calibrators, with weights that cross-validation has found."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.core.errors import InputError

# steps of the EM algorithm for the weights, which is stopped early where they no longer change
MOST_STEPS = 100


class BlendedCalibrator(Calibrator):
    """p = Σ_k w_k p_k, the weighted mean of the probabilities of several calibrators.

    `AutoCalibrator` makes it. If one of them changes nothing and has the weight w, then no row has an NLL that is more
    than −log w above that without a calibrator.

    Learned attributes:
        parts_: the calibrators.
        weights_: (K,), their weights, with the sum 1.
        loss_: NLL of held-out rows, from the cross-validation that has found the weights.

    >>> from avuc.calibration.temperature import TemperatureScaling
    >>> one = TemperatureScaling.identity(2)
    >>> BlendedCalibrator.of([one, one], np.array([0.25, 0.75])).predict_proba([[0.0, 0.0]])
    array([[0.5, 0.5]])
    """

    name: ClassVar[str] = "blend"
    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "weights": "vector",
        "parts": "calibrators",
        "curve": "curve",
    }

    loss_: float
    weights_: Array
    parts_: list[Calibrator]

    def __init__(self) -> None:
        pass

    @classmethod
    def of(cls, parts: list[Calibrator], weights: Array, loss: float = 0.0) -> BlendedCalibrator:
        """Return the mixture of fitted calibrators.

        Args:
            parts: the calibrators, of the same classes.
            weights: (K,) weights, with the sum 1.
            loss: NLL of held-out rows, if it is known.
        """
        mixture = cls()
        mixture.parts_, mixture.weights_, mixture.loss_ = parts, weights, float(loss)
        mixture.num_classes_, mixture.temperature_, mixture.at_bound_ = parts[0].num_classes_, 1.0, False
        mixture.curve_ = np.empty(0), np.empty(0)
        return mixture

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        raise InputError("a blend is not fitted itself; AutoCalibrator().fit(logits, labels) makes it")

    def _apply(self, logits: Tensor) -> Tensor:
        terms = [
            torch.log_softmax(part._apply(logits), dim=-1) + math.log(weight)
            for part, weight in zip(self.parts_, self.weights_.tolist(), strict=True)
        ]
        mixed = torch.logsumexp(torch.stack(terms), dim=0).clamp(min=torch.finfo(logits.dtype).min)
        return mixed.masked_fill(torch.isneginf(logits), -math.inf)

    def _check_params(self) -> None:
        """Nothing to check."""

    def _check_learned(self) -> None:
        super()._check_learned()
        weights = self.weights_
        if len(weights) != len(self.parts_) or not weights.min() > 0 or abs(weights.sum() - 1) > 1e-6:
            raise InputError("calibrator JSON: weights must be a number above 0 for each of parts, with the sum 1")
        for part in self.parts_:
            fitted = hasattr(part, "temperature_") and not part.multilabel and not isinstance(part, BlendedCalibrator)
            if not fitted or part.num_classes_ != self.num_classes_:
                raise InputError(f"calibrator JSON: parts must be fitted calibrators of {self.num_classes_} classes")


def blend_weights(chosen: Array, prior: float, weight: Array | None = None, start: Array | None = None) -> Array:
    """Return the weights w of largest Σ_i log Σ_k w_k P_ik + prior/K · Σ_k log w_k, by the EM algorithm.

    Args:
        chosen: (N, K) probabilities of the labels of held-out rows, above 0.
        prior: how many rows the uniform weights count as.
        weight: (N,) weights of the rows; None: all rows count the same.
        start: (K,) weights to start from, above 0; None: equal ones.

    >>> blend_weights(np.array([[0.9, 0.5], [0.8, 0.5]]), prior=0.0).round(3)
    array([1., 0.])
    """
    rows, parts = chosen.shape
    w = np.full(parts, 1 / parts) if start is None else start
    count = np.ones(rows) if weight is None else weight
    for _ in range(MOST_STEPS):
        new = w * ((count / (chosen @ w)) @ chosen) + prior / parts
        new /= new.sum()
        change, w = abs(new - w).max(), new
        if change < 1e-4:
            break
    return np.asarray(w)
