"""Vector scaling: one scale and one bias for each class."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.inputs import are_numbers
from avuc.calibration.linear_maps import (
    LinearNLL,
    Rows,
    has_converged,
    linear_minimum,
    log_probs,
    warn_unfinished,
    warn_unseen,
)
from avuc.calibration.scaled_logits import MOST_NLL, ScaledLogits, calibrated_nll
from avuc.calibration.temperature import ROUNDS, TemperatureScaling
from avuc.calibration.user_warnings import warn_unit_weights
from avuc.core.errors import InputError


class VectorScaling(Calibrator):
    """Vector scaling with a ridge (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

        p = softmax(a ∘ log softmax(z) + b)
        (a, b) = argmin NLL(a, b) + ridge/(2N) · (‖T a − 1‖² + ‖b‖²),    T from `TemperatureScaling`

    The ridge keeps plain temperature scaling if there are few rows, and it keeps the scales finite for separable data.
    Using log softmax(z) instead of z makes the result the same for logits and for logarithms of probabilities. Unlike a
    temperature, vector scaling can change the predicted class. Logits c z get the temperature c T, but log softmax(c z)
    is not c log softmax(z), so their probabilities differ a little.

    A class that no row is labelled as keeps plain temperature scaling (a = 1/T, b = 0), with a CalibrationWarning,
    because the likelihood alone would make it ever less probable. The other classes are then fitted on their
    conditional probabilities.

    For one sample the problem is strictly convex, except for rows below the NLL floor of 1e-12.

    Args:
        ridge: strength of the ridge.
        tolerance: length of the gradient, in units of the curvature, at which L-BFGS stops.
        max_iterations: limit on the iterations of L-BFGS.

    Learned attributes:
        scale_, bias_: a and b, shape (C,).
        loss_: NLL without the ridge.
        converged_: whether the tolerance was reached.
        temperature_, curve_, at_bound_: of the temperature fit.

    >>> import numpy as np
    >>> logits, labels = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [3.0, 0.0]]), np.array([0, 1, 1, 0])
    >>> scaler = VectorScaling().fit(logits, labels)
    >>> bool(scaler.bias_[0] < 0 < scaler.bias_[1])  # class 0 is predicted too often
    True
    """

    name: ClassVar[str] = "vector"
    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "converged": "flag",
        "n_evaluations": "number",
        "scale": "vector",
        "bias": "vector",
        "curve": "curve",
    }

    loss_: float
    n_evaluations_: float
    converged_: bool
    scale_: Array
    bias_: Array

    def __init__(self, *, ridge: float = 1.0, tolerance: float = 1e-5, max_iterations: int = 500) -> None:
        self.ridge = ridge
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        start = TemperatureScaling().fit(logits, labels, sample_weight)
        self.temperature_: float = start.temperature_
        self.curve_: tuple[Array, Array] = start.curve_
        self.at_bound_: bool = start.at_bound_
        rows = Rows.of(scaled, lambda z: log_probs(z).div_(start.temperature_))
        # θ = (T a − 1, b), which the ridge pulls to 0
        theta = torch.zeros(2, scaled.num_classes, dtype=torch.float64, device=scaled.logits.device)
        strength = torch.full_like(theta, self.ridge / 2 / scaled.total)
        floored = LinearNLL(rows, strength).losses(theta) > MOST_NLL
        passes = 1.0
        # Rows at the floor stay there while the smooth rest is minimised, see TemperatureScaling._descent.
        for _ in range(ROUNDS):
            smooth = rows._replace(weight=rows.weight.masked_fill(floored, 0.0))
            minimum, more = linear_minimum(LinearNLL(smooth, strength), theta, self.tolerance, self.max_iterations)
            theta, before, passes = minimum.theta, floored, passes + more + 1
            floored = LinearNLL(rows, strength).losses(theta) > MOST_NLL
            if torch.equal(floored, before):
                break
        warn_unseen("VectorScaling", scaled)
        warn_unit_weights(scaled)
        self.converged_ = has_converged(minimum, self.tolerance, rows)
        if not self.converged_:
            warn_unfinished("VectorScaling", minimum.length, self.max_iterations)
        self.num_classes_: int = scaled.num_classes
        self.n_evaluations_ = start.n_evaluations_ + passes + 1
        self.scale_ = ((1 + theta[0]) / start.temperature_).cpu().numpy()
        self.bias_ = theta[1].cpu().numpy()
        self.loss_ = calibrated_nll(scaled, self._apply)

    def _apply(self, logits: Tensor) -> Tensor:
        scale, bias = (torch.as_tensor(v, dtype=logits.dtype, device=logits.device) for v in (self.scale_, self.bias_))
        most = torch.finfo(logits.dtype).max
        ruled_out = torch.isneginf(logits)
        log_probs = torch.log_softmax(logits, dim=-1).masked_fill(ruled_out, 0.0).clamp(min=-most)
        # a logit of −inf stays −inf, whatever the sign of its scale; every other stays finite
        return (log_probs * scale + bias).clamp(min=-most, max=most).masked_fill(ruled_out, -math.inf)

    def _check_params(self) -> None:
        if not are_numbers(self.ridge, self.tolerance) or self.ridge < 0 or self.tolerance <= 0:
            raise InputError(f"ridge must be at least 0, tolerance above 0; found {self.ridge!r}, {self.tolerance!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise InputError(f"max_iterations must be a whole number above 0; found {self.max_iterations!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        if len(self.scale_) != self.num_classes_ or len(self.bias_) != self.num_classes_:
            raise InputError(
                f"calibrator JSON: scale and bias must have one entry for each of {self.num_classes_} classes; "
                f"found {len(self.scale_)} and {len(self.bias_)}"
            )
        most = torch.finfo(torch.float32).max
        if max(abs(self.scale_).max(), abs(self.bias_).max()) > most:
            raise InputError(f"calibrator JSON: scale and bias must fit float32, at most {most:.2g}")
