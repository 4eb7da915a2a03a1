"""Structured matrix scaling: a matrix and a bias, with a ridge around temperature scaling."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, CalibrationWarning, Calibrator
from avuc.calibration.inputs import are_numbers
from avuc.calibration.scaled_logits import ScaledLogits, calibrated_nll
from avuc.calibration.temperature import TemperatureScaling
from avuc.core.errors import InputError

# the logarithm of the smallest normal float32: log-probabilities below it count as this
LOWEST = -87.33654475


class MatrixScaling(Calibrator):
    """Structured matrix scaling, SMS (Berta et al. 2025), close to `sms` of probmetrics, which smooths T as well.

        p = softmax((I + M) x + b),    x = log softmax(z/T),    T from `TemperatureScaling`
        (M, b) = argmin NLL(M, b) + ridge/N · (C ‖b‖² + C ‖diag M‖² + C(C − 1) ‖M − diag M‖²)

    With few rows or many classes the ridge keeps plain temperature scaling. For one sample the problem is strictly
    convex; L-BFGS with a strong Wolfe line search solves it in float64. A fit takes time in N C², so it is for up to
    some hundred classes. It can change the predicted class.

    Args:
        ridge: strength of the ridge.
        tolerance: largest derivative at the minimum.
        max_iterations: limit on the iterations of L-BFGS.

    Learned attributes:
        matrix_: (C · C,), I + M, row after row.
        bias_: (C,), b.
        loss_: NLL without the ridge.
        converged_: whether the tolerance was reached.
        temperature_, curve_, at_bound_: of the temperature fit.

    >>> logits, labels = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0], [3.0, 0.0]]), np.array([0, 1, 1, 0])
    >>> scaler = MatrixScaling().fit(logits, labels)
    >>> scaler.matrix_.shape, scaler.converged_
    ((4,), True)
    """

    name: ClassVar[str] = "matrix"
    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "converged": "flag",
        "n_evaluations": "number",
        "matrix": "vector",
        "bias": "vector",
        "curve": "curve",
    }

    loss_: float
    n_evaluations_: float
    converged_: bool
    matrix_: Array
    bias_: Array

    def __init__(self, *, ridge: float = 1.0, tolerance: float = 1e-7, max_iterations: int = 500) -> None:
        self.ridge = ridge
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        start = TemperatureScaling().fit(logits, labels, sample_weight)
        self.temperature_, self.curve_, self.at_bound_ = start.temperature_, start.curve_, start.at_bound_
        self.num_classes_ = scaled.num_classes
        theta, largest = self._minimised(scaled)
        self.converged_ = largest <= 10 * self.tolerance
        if not self.converged_:
            warnings.warn(
                f"MatrixScaling stopped with a derivative of {largest:.1e} after at most {self.max_iterations} "
                "iterations; raise max_iterations or tolerance",
                CalibrationWarning,
                stacklevel=3,
            )
        matrix = torch.eye(scaled.num_classes, dtype=torch.float64, device=theta.device) + theta[:, :-1]
        self.matrix_, self.bias_ = matrix.flatten().cpu().numpy(), theta[:, -1].cpu().numpy().copy()
        self.loss_ = calibrated_nll(scaled, self._apply)
        self.n_evaluations_ = start.n_evaluations_ + scaled.passes

    def _minimised(self, scaled: ScaledLogits) -> tuple[Tensor, float]:
        """Return θ = (M, b), (C, C + 1), and the largest remaining derivative."""
        classes, device = scaled.num_classes, scaled.logits.device
        x = self._features(scaled.logits.double())
        ruled_out = torch.isneginf(scaled.logits)
        at = scaled.labels.expand(scaled.samples, -1).unsqueeze(-1)
        # no weights change a row whose true class is impossible
        weight = torch.ones(scaled.rows, dtype=torch.float64, device=device) if scaled.weight is None else scaled.weight
        weight = weight.masked_fill(scaled.impossible, 0.0) / scaled.total
        strength = torch.full(
            (classes, classes + 1), float(classes * (classes - 1)), dtype=torch.float64, device=device
        )
        strength[:, -1] = classes
        strength.fill_diagonal_(classes)
        strength *= self.ridge / scaled.total
        theta = torch.zeros_like(strength, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [theta],
            max_iter=self.max_iterations,
            max_eval=2 * self.max_iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            optimiser.zero_grad()
            with torch.enable_grad():
                out = (x + x @ theta[:, :-1].T + theta[:, -1]).masked_fill(ruled_out, LOWEST * 1e3)
                chosen = torch.log_softmax(out, dim=-1).gather(-1, at).squeeze(-1)
                rows = math.log(scaled.samples) - torch.logsumexp(chosen, dim=0)
                loss = (rows * weight).sum() + (strength * theta * theta).sum()
                loss.backward()
            scaled.rows_read += scaled.rows
            return float(loss.detach())

        optimiser.step(closure)
        closure()
        assert theta.grad is not None
        return theta.detach(), float(theta.grad.abs().max())

    def _features(self, logits: Tensor) -> Tensor:
        top = (logits - logits.amax(dim=-1, keepdim=True)).clamp(min=torch.finfo(logits.dtype).min / 2)
        return torch.log_softmax(top / self.temperature_, dim=-1).clamp(min=LOWEST)

    def _apply(self, logits: Tensor) -> Tensor:
        wide, size = logits.double(), self.num_classes_
        matrix, bias = (torch.as_tensor(part, device=logits.device) for part in (self.matrix_, self.bias_))
        result = self._features(wide) @ matrix.reshape(size, size).T + bias
        return result.to(logits.dtype).masked_fill(torch.isneginf(logits), -math.inf)

    def _check_params(self) -> None:
        if not are_numbers(self.ridge, self.tolerance) or self.ridge < 0 or self.tolerance <= 0:
            raise InputError(f"ridge must be at least 0, tolerance above 0; found {self.ridge!r}, {self.tolerance!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise InputError(f"max_iterations must be a whole number above 0; found {self.max_iterations!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        if len(self.matrix_) != self.num_classes_**2 or len(self.bias_) != self.num_classes_:
            raise InputError(f"calibrator JSON: matrix and bias must be those of {self.num_classes_} classes")
        if max(np.abs(self.matrix_).max(), np.abs(self.bias_).max()) > 1e30:
            raise InputError("calibrator JSON: matrix and bias must be at most 1e30")
