"""Vector scaling: one scale and one bias for each class."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.inputs import are_numbers
from avuc.calibration.linear_maps import unseen_classes, warn_unfinished, warn_unseen
from avuc.calibration.scaled_logits import MOST_NLL, ScaledLogits
from avuc.calibration.temperature import ROUNDS, TemperatureScaling
from avuc.core.errors import InputError

BLOCK_ELEMENTS = 1 << 18


class VectorScaling(Calibrator):
    """Vector scaling with a ridge (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

        p = softmax(a ∘ log softmax(z) + b)
        (a, b) = argmin NLL(a, b) + ridge/(2N) · (‖T a − 1‖² + ‖b‖²),    T from `TemperatureScaling`

    The ridge keeps plain temperature scaling if there are few rows, and it keeps the scales finite for separable data.
    Using log softmax(z) instead of z makes the result the same for logits and for logarithms of probabilities. Unlike a
    temperature, vector scaling can change the predicted class.

    A class that no row is labelled as keeps plain temperature scaling (a = 1/T, b = 0), with a CalibrationWarning,
    because the likelihood alone would make it ever less probable. The other classes are then fitted on their
    conditional probabilities.

    For one sample the problem is strictly convex, except for rows below the NLL floor of 1e-12. L-BFGS with a strong
    Wolfe line search stops when no derivative exceeds `tolerance`.

    Args:
        ridge: strength of the ridge.
        tolerance: largest derivative at the minimum.
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

    def __init__(self, *, ridge: float = 1.0, tolerance: float = 1e-7, max_iterations: int = 500) -> None:
        self.ridge = ridge
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        start = TemperatureScaling().fit(logits, labels, sample_weight)
        # θ = (T a − 1, b), which the ridge pulls to 0
        theta = torch.zeros(2, scaled.num_classes, dtype=torch.float64, device=scaled.logits.device)
        unseen = unseen_classes(scaled)
        floored = _evaluate(scaled, theta, start.temperature_, None, unseen).floored
        # Rows at the floor stay there while the smooth rest is minimised, see TemperatureScaling._descent.
        for _ in range(ROUNDS):
            largest = self._minimise(scaled, theta, start.temperature_, floored, unseen)
            before, at_end = floored, _evaluate(scaled, theta, start.temperature_, None, unseen)
            floored, self.loss_ = at_end.floored, at_end.value
            if torch.equal(floored, before):
                break
        if bool(unseen.any()):
            self.loss_ = _evaluate(scaled, theta, start.temperature_, None).value
            warn_unseen("VectorScaling", scaled)
        self.converged_ = largest <= 10 * self.tolerance
        if not self.converged_:
            warn_unfinished("VectorScaling", largest, self.max_iterations)
        self.temperature_, self.curve_, self.at_bound_ = start.temperature_, start.curve_, start.at_bound_
        self.num_classes_, self.n_evaluations_ = scaled.num_classes, start.n_evaluations_ + scaled.passes
        self.scale_ = ((1 + theta[0]) / start.temperature_).cpu().numpy()
        self.bias_ = theta[1].cpu().numpy()

    def _minimise(
        self, scaled: ScaledLogits, theta: Tensor, temperature: float, floored: Tensor, unseen: Tensor
    ) -> float:
        """Move θ to the minimum with these rows at the floor, and return the largest remaining derivative."""
        optimiser = torch.optim.LBFGS(
            [theta],
            max_iter=self.max_iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        penalty = self.ridge / scaled.total

        def closure() -> float:
            result = _evaluate(scaled, theta, temperature, floored, unseen)
            theta.grad = result.gradient + penalty * theta
            return result.value + penalty / 2 * float((theta * theta).sum())

        optimiser.step(closure)
        closure()
        assert theta.grad is not None
        return float(theta.grad.abs().max())

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


class _Evaluation(NamedTuple):
    value: float
    gradient: Tensor
    floored: Tensor


def _evaluate(
    scaled: ScaledLogits, theta: Tensor, temperature: float, floored: Tensor | None, left_out: Tensor | None = None
) -> _Evaluation:
    """Return the mean NLL, its gradient in θ, and the rows below the floor of the likelihood.

    p is the mean of the softmax over S samples. With r_s the share of sample s in p_y = 1/S Σ_s p_{s,y},
    ∂(−log p_y)/∂(logits of sample s) = r_s (p_s − e_y).

    Args:
        scaled: logits and labels.
        theta: (2, C), θ = (T a − 1, b).
        temperature: T.
        floored: (N,) rows that count as the floor and have no gradient; None: the rows below the floor at this θ.
        left_out: (C,) classes that are excluded; probabilities are conditional on the other classes.
    """
    loss, gradient, below = 0.0, torch.zeros_like(theta), torch.zeros_like(scaled.impossible)
    step = max(1, BLOCK_ELEMENTS // (scaled.samples * scaled.num_classes))
    for start in range(0, scaled.rows, step):
        rows = slice(start, start + step)
        base = torch.log_softmax(scaled.logits[:, rows].double(), dim=-1)
        ruled_out = torch.isneginf(base)
        base = base.masked_fill_(ruled_out, 0.0) / temperature
        if left_out is not None:
            fewer = ruled_out | left_out
            ruled_out = torch.where(fewer.all(-1, keepdim=True), ruled_out, fewer)  # some class must be left
        log_probs = torch.log_softmax((base * (1 + theta[0]) + theta[1]).masked_fill_(ruled_out, -math.inf), dim=-1)
        labels = scaled.labels[rows]
        at_label = labels.expand(scaled.samples, -1).unsqueeze(-1)
        chosen = log_probs.gather(-1, at_label).squeeze(-1)
        joint = torch.logsumexp(chosen, dim=0)
        losses = math.log(scaled.samples) - joint
        below[rows] = losses > MOST_NLL
        held = below[rows] if floored is None else floored[rows]
        losses, part = losses.where(~held, MOST_NLL), torch.where(held, 0.0, (chosen - joint).exp())
        if scaled.weight is not None:
            losses, part = losses * scaled.weight[rows], part * scaled.weight[rows]
        loss += float(losses.sum())
        share = part.unsqueeze(-1)
        residual = log_probs.exp_().scatter_add_(-1, at_label, -torch.ones_like(share)).mul_(share)
        gradient[0] += (residual * base).sum(dim=(0, 1))
        gradient[1] += residual.sum(dim=(0, 1))
    scaled.rows_read += scaled.rows
    return _Evaluation(loss / scaled.total, gradient / scaled.total, below)
