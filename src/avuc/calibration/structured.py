"""Structured vector and matrix scaling: linear maps of log-probabilities with a ridge around temperature scaling."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.inputs import are_numbers
from avuc.calibration.linear_maps import (
    PRODUCT_ELEMENTS,
    LinearNLL,
    Rows,
    Search,
    has_converged,
    linear_minimum,
    smoothed_log_probs,
    warn_unfinished,
    warn_unseen,
)
from avuc.calibration.scaled_logits import BLOCK_ELEMENTS, ScaledLogits, calibrated_nll
from avuc.calibration.temperature import CURVE_ELEMENTS, TemperatureScaling
from avuc.calibration.user_warnings import warn_unit_weights
from avuc.core.errors import InputError

# the logarithm of the smallest normal float32
LOWEST = -87.33654475
# logits that differ by less, on average, count as equal
LEAST_DISTANCE = 1e-4


class LinearScaling(Calibrator):
    """p = softmax(W x + b); subclasses say what x is, the form of W, and its ridge."""

    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "converged": "flag",
        "n_evaluations": "number",
        "bias": "vector",
        "curve": "curve",
    }

    loss_: float
    n_evaluations_: float
    converged_: bool
    bias_: Array
    # ε in x = log((1 − ε) softmax(z/T) + ε/C)
    smoothing_: float = 0.0
    # logits that are calibrated at once
    _block: ClassVar[int] = BLOCK_ELEMENTS
    # set by the constructor
    tolerance: float
    max_iterations: int

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        start = TemperatureScaling(bounds=start_bounds(scaled)).fit(logits, labels, sample_weight)
        self._fit_at(scaled, start)
        self.loss_ = calibrated_nll(scaled, self._apply, self._block)
        self._warn_unseen(scaled, start)

    def _fit_at(self, scaled: ScaledLogits, start: TemperatureScaling, search: Search | None = None) -> None:
        """Learn everything but `loss_` after the temperature; `search` is that on nearly the same rows."""
        self.temperature_: float = start.temperature_
        self.curve_: tuple[Array, Array] = start.curve_
        self.at_bound_: bool = start.at_bound_
        self.num_classes_: int = scaled.num_classes
        self._prepare(scaled)
        rows = Rows.of(scaled, self._features)
        strength, theta = self._ridge(rows, scaled.total)
        nll = LinearNLL(rows, strength)
        minimum, passes = linear_minimum(nll, theta, self.tolerance, self.max_iterations, search)
        self.converged_ = has_converged(minimum, self.tolerance, rows)
        if not self.converged_:
            warn_unfinished(type(self).__name__, minimum.length, self.max_iterations)
        self._keep(minimum.theta)
        self.n_evaluations_ = start.n_evaluations_ + passes + 1

    def _warn_unseen(self, scaled: ScaledLogits, start: TemperatureScaling) -> None:
        """Warn about classes without a row; `start` is the temperature of the same rows."""
        warn_unseen(type(self).__name__, scaled)

    def _prepare(self, scaled: ScaledLogits) -> None:
        """Learn what `_features` needs besides the temperature."""

    def _features(self, logits: Tensor) -> Tensor:
        """Return x of logits (..., C)."""
        raise NotImplementedError

    def _ridge(self, rows: Rows, total: float) -> tuple[Tensor, Tensor]:
        """Return the ridge, of the shape of θ, and the θ at which the search starts."""
        raise NotImplementedError

    def _keep(self, theta: Tensor) -> None:
        """Store θ as learned attributes."""
        raise NotImplementedError

    def _linear(self, x: Tensor) -> Tensor:
        """Return W x + b of x (..., C) in float64."""
        raise NotImplementedError

    def _apply(self, logits: Tensor) -> Tensor:
        most = torch.finfo(logits.dtype).max
        result = self._linear(self._features(logits.double())).clamp(min=-most, max=most)
        return result.to(logits.dtype).masked_fill(torch.isneginf(logits), -math.inf)

    def _check_params(self) -> None:
        if not are_numbers(self.tolerance) or self.tolerance <= 0:
            raise InputError(f"tolerance must be above 0; found {self.tolerance!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise InputError(f"max_iterations must be a whole number above 0; found {self.max_iterations!r}")

    def _check_size(self, name: str, length: int) -> None:
        """Raise InputError unless the attribute and the bias are those of so many classes, and not huge."""
        weights: Array = getattr(self, f"{name}_")
        if len(weights) != length or len(self.bias_) != self.num_classes_:
            raise InputError(f"calibrator JSON: {name} and bias must be those of {self.num_classes_} classes")
        if max(abs(weights).max(), abs(self.bias_).max()) > 1e30:
            raise InputError(f"calibrator JSON: {name} and bias must be at most 1e30")


class StructuredScaling(LinearScaling):
    """Structured scaling (Berta et al. 2025): x = log((1 − ε) softmax(z/T) + ε/C), ε = 1/(N + 1)."""

    learned: ClassVar[dict[str, str]] = {**LinearScaling.learned, "smoothing": "number"}

    def __init__(self, *, ridge: float = 1.0, tolerance: float = 1e-5, max_iterations: int = 500) -> None:
        self.ridge = ridge
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def _prepare(self, scaled: ScaledLogits) -> None:
        self.smoothing_: float = 1 / (scaled.total + 1)
        warn_unit_weights(scaled)

    def _features(self, logits: Tensor) -> Tensor:
        if self.smoothing_ == 0:
            top = logits - logits.amax(dim=-1, keepdim=True)
            return (top / self.temperature_).log_softmax(-1).clamp(min=LOWEST)
        return smoothed_log_probs(logits, self.temperature_, self.smoothing_)

    def _check_params(self) -> None:
        super()._check_params()
        if not are_numbers(self.ridge) or self.ridge < 0:
            raise InputError(f"ridge must be at least 0; found {self.ridge!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        if "smoothing" in self.optional:
            self.smoothing_ = self.smoothing_ or 0.0
        elif self.smoothing_ == 0:
            raise InputError("calibrator JSON: smoothing must be above 0; found 0")
        if not 0 <= self.smoothing_ < 1:
            raise InputError(f"calibrator JSON: smoothing must be above 0 and below 1; found {self.smoothing_}")


class StructuredVectorScaling(StructuredScaling):
    """Structured vector scaling, SVS (Berta et al. 2025, https://arxiv.org/abs/2511.03685), `svs` of probmetrics.

        p = softmax(a ∘ x + b),    x = log((1 − ε) softmax(z/T) + ε/C),    ε = 1/(N + 1)
        (a, b) = argmin NLL(a, b) + ridge · C/N · (‖a − 1‖² + ‖b‖²),    T from `TemperatureScaling`

    The ridge grows with the number of classes, so with few rows plain temperature scaling is kept. It can change the
    predicted class. A class that no row is labelled as keeps a = 1 and b = 0, with a CalibrationWarning, and the other
    classes are fitted on their conditional probabilities.

    Args:
        ridge: strength of the ridge.
        tolerance: length of the gradient, in units of the curvature, at which L-BFGS stops.
        max_iterations: limit on the iterations of L-BFGS.

    Learned attributes:
        scale_, bias_: a and b, shape (C,).
        smoothing_: ε.
        loss_: NLL without the ridge.
        converged_: whether the tolerance was reached.
        temperature_, curve_, at_bound_: of the temperature fit.

    >>> import numpy as np
    >>> logits, labels = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [3.0, 0.0]]), np.array([0, 1, 1, 0])
    >>> scaler = StructuredVectorScaling().fit(logits, labels)
    >>> bool(scaler.bias_[0] < 0 < scaler.bias_[1])  # class 0 is predicted too often
    True
    """

    name: ClassVar[str] = "structured-vector"
    learned: ClassVar[dict[str, str]] = {**StructuredScaling.learned, "scale": "vector"}

    scale_: Array

    def _ridge(self, rows: Rows, total: float) -> tuple[Tensor, Tensor]:
        classes = rows.x.shape[-1]
        shape = torch.zeros(2, classes, dtype=torch.float64, device=rows.x.device)
        return torch.full_like(shape, self.ridge * classes / total), shape

    def _keep(self, theta: Tensor) -> None:
        self.scale_ = (1 + theta[0]).cpu().numpy()
        self.bias_: Array = theta[1].cpu().numpy().copy()

    def _linear(self, x: Tensor) -> Tensor:
        scale, bias = (torch.as_tensor(part, device=x.device) for part in (self.scale_, self.bias_))
        return x * scale + bias

    def _check_learned(self) -> None:
        super()._check_learned()
        self._check_size("scale", self.num_classes_)


class WithMatrix(LinearScaling):
    """W is a matrix."""

    _block: ClassVar[int] = PRODUCT_ELEMENTS

    matrix_: Array

    def _keep(self, theta: Tensor) -> None:
        matrix = torch.eye(len(theta), dtype=torch.float64, device=theta.device) + theta[:, :-1]
        self.matrix_ = matrix.flatten().cpu().numpy()
        self.bias_: Array = theta[:, -1].cpu().numpy().copy()

    def _linear(self, x: Tensor) -> Tensor:
        matrix, bias = (torch.as_tensor(part, device=x.device) for part in (self.matrix_, self.bias_))
        return x @ matrix.reshape(len(bias), len(bias)).T + bias

    def _check_learned(self) -> None:
        super()._check_learned()
        self._check_size("matrix", self.num_classes_**2)


class MatrixScaling(WithMatrix, StructuredScaling):
    """Structured matrix scaling, SMS (Berta et al. 2025, https://arxiv.org/abs/2511.03685), `sms` of probmetrics.

        p = softmax((I + M) x + b),    x = log((1 − ε) softmax(z/T) + ε/C),    ε = 1/(N + 1)
        (M, b) = argmin NLL(M, b) + ridge/N · (C ‖b‖² + C ‖diag M‖² + C(C − 1) ‖M − diag M‖²)

    T is that of `TemperatureScaling`. With few rows or many classes the ridge keeps plain temperature scaling. A pass
    over the rows takes time in N C². It can change the predicted class. A class that no row is labelled as is treated
    as by `StructuredVectorScaling`.

    Args:
        ridge: strength of the ridge.
        tolerance: length of the gradient, in units of the curvature, at which L-BFGS stops.
        max_iterations: limit on the iterations of L-BFGS.

    Learned attributes:
        matrix_: (C · C,), I + M, row after row.
        bias_: (C,), b.
        smoothing_: ε.
        loss_: NLL without the ridge.
        converged_: whether the tolerance was reached.
        temperature_, curve_, at_bound_: of the temperature fit.

    >>> import numpy as np
    >>> logits, labels = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [3.0, 0.0]]), np.array([0, 1, 1, 0])
    >>> scaler = MatrixScaling().fit(logits, labels)
    >>> scaler.matrix_.shape, scaler.converged_
    ((4,), True)
    """

    name: ClassVar[str] = "matrix"
    learned: ClassVar[dict[str, str]] = {**StructuredScaling.learned, "matrix": "vector"}
    # files of the first version have no smoothing: ε = 0, and no log-probability is below LOWEST
    optional: ClassVar[tuple[str, ...]] = ("smoothing",)

    def _ridge(self, rows: Rows, total: float) -> tuple[Tensor, Tensor]:
        classes = rows.x.shape[-1]
        theta = torch.zeros(classes, classes + 1, dtype=torch.float64, device=rows.x.device)
        strength = torch.full_like(theta, self.ridge * classes * (classes - 1) / total)
        strength[:, -1] = self.ridge * classes / total
        return strength.fill_diagonal_(self.ridge * classes / total), theta


def start_bounds(scaled: ScaledLogits) -> tuple[float, float]:
    """Return the range of a temperature from which other fits start: lower ones where the logits hardly differ.

    The lower end of the default range is multiplied by the mean distance of the largest logit of a row to the mean of
    its logits, if that is below 1. Probabilities of boosted stumps can be nearly uniform and have the right order.
    """
    few = scaled.subsample(CURVE_ELEMENTS).logits.double()
    possible = torch.isfinite(few)
    mean = torch.where(possible, few, 0.0).sum(-1) / possible.sum(-1)
    distance = float((few.amax(-1) - mean).mean())
    low, high = TemperatureScaling().bounds
    return low * min(1.0, max(distance, LEAST_DISTANCE)), high
