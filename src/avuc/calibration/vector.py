"""Vector scaling: a scale and a bias for each class."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from avuc.calibration.base import Array, CalibrationWarning, Calibrator
from avuc.calibration.inputs import are_numbers
from avuc.calibration.scaled import MOST_NLL, ScaledLogits
from avuc.calibration.temperature import ROUNDS, TemperatureScaling
from avuc.core.errors import InputError

BLOCK_ELEMENTS = 1 << 18


class VectorScaling(Calibrator):
    """softmax(a ∘ log softmax(z) + b) with the a, b (C each) that minimise the penalised mean NLL (Guo et al. 2017).

        NLL(a, b) + ridge/(2N) · (‖T a − 1‖² + ‖b‖²),        T the NLL temperature

    so few rows leave plain temperature scaling in place, and separable data cannot send the scales to infinity. A class
    without a row in the labels keeps plain temperature scaling (a = 1/T, b = 0), with a warning: the likelihood alone
    would make it ever less probable. The other classes are then fitted on their probabilities given that it is one of
    them. Acting on log softmax(z) instead of z makes the result the same for logits and for logarithms of
    probabilities. For a single draw the problem is strictly convex, except for rows below the floor of the NLL, 1e-12.
    L-BFGS with a strong Wolfe line search, no learning rate, no randomness, stops where no derivative exceeds
    `tolerance`. Unlike a temperature it can change the predicted class.

    Learned: `scale_`, `bias_`, `loss_` (the NLL without penalty), `converged_`, and what the temperature fit learned:
    `temperature_`, `curve_`, `at_bound_`.

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

    def _fit(self, logits: Any, labels: Any) -> None:
        scaled = ScaledLogits.read(logits, labels)
        start = TemperatureScaling().fit(logits, labels)
        # θ = (T a − 1, b): what the ridge pulls to 0
        theta = torch.zeros(2, scaled.num_classes, dtype=torch.float64, device=scaled.logits.device)
        unseen = torch.bincount(scaled.labels, minlength=scaled.num_classes) == 0
        floored = _evaluate(scaled, theta, start.temperature_, None, unseen).floored
        # Rows at the floor are held there while the smooth rest is minimised: see TemperatureScaling._descent.
        for _ in range(ROUNDS):
            largest = self._minimise(scaled, theta, start.temperature_, floored, unseen)
            before, at_end = floored, _evaluate(scaled, theta, start.temperature_, None, unseen)
            floored, self.loss_ = at_end.floored, at_end.value
            if torch.equal(floored, before):
                break
        if bool(unseen.any()):
            self.loss_ = _evaluate(scaled, theta, start.temperature_, None).value
            # a class that is ruled out in every row stays so: no warning
            warn_unseen(unseen & ~torch.isneginf(scaled.logits).flatten(0, 1).all(0))
        self.converged_ = largest <= 10 * self.tolerance
        if not self.converged_:
            warnings.warn(
                f"VectorScaling stopped with a derivative of {largest:.1e} after at most "
                f"{self.max_iterations} iterations; raise max_iterations or tolerance",
                CalibrationWarning,
                stacklevel=3,
            )
        self.temperature_, self.curve_, self.at_bound_ = start.temperature_, start.curve_, start.at_bound_
        self.num_classes_, self.n_evaluations_ = scaled.num_classes, start.n_evaluations_ + scaled.passes
        self.scale_ = ((1 + theta[0]) / start.temperature_).cpu().numpy()
        self.bias_ = theta[1].cpu().numpy()

    def _minimise(
        self, scaled: ScaledLogits, theta: Tensor, temperature: float, floored: Tensor, unseen: Tensor
    ) -> float:
        """Move θ to the minimum with these rows at the floor; returns the largest derivative that is left."""
        optimiser = torch.optim.LBFGS(
            [theta],
            max_iter=self.max_iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        penalty = self.ridge / scaled.rows

        def closure() -> float:
            found = _evaluate(scaled, theta, temperature, floored, unseen)
            theta.grad = found.gradient + penalty * theta
            return found.value + penalty / 2 * float((theta * theta).sum())

        optimiser.step(closure)
        closure()
        assert theta.grad is not None
        return float(theta.grad.abs().max())

    def _apply(self, logits: Tensor) -> Tensor:
        scale, bias = (torch.as_tensor(v, dtype=logits.dtype, device=logits.device) for v in (self.scale_, self.bias_))
        most = torch.finfo(logits.dtype).max
        ruled_out = torch.isneginf(logits)
        log_probs = torch.log_softmax(logits, dim=-1).masked_fill(ruled_out, 0.0).clamp(min=-most)
        # a class that is ruled out stays ruled out, whatever the sign of its scale; any other stays finite
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


def warn_unseen(unseen: Tensor) -> None:
    """Say which classes have no row, so that nothing was learned about them."""
    places = unseen.nonzero().flatten().tolist()
    if not places:
        return
    shown = " or ".join(str(place) for place in places[:8]) + (", …" if len(places) > 8 else "")
    warnings.warn(
        f"VectorScaling: no row is labelled class {shown}, so plain temperature scaling is kept there; fit on rows of "
        "every class",
        CalibrationWarning,
        stacklevel=4,
    )


class _Evaluation(NamedTuple):
    value: float
    gradient: Tensor
    floored: Tensor


def _evaluate(
    scaled: ScaledLogits, theta: Tensor, temperature: float, floored: Tensor | None, left_out: Tensor | None = None
) -> _Evaluation:
    """Mean NLL of the mean of the draws' softmaxes, its gradient in θ, and the rows below the floor of the likelihood.

    With r_s the share of draw s in p_y = 1/S Σ_s p_{s,y}: ∂(−log p_y)/∂(logits of draw s) = r_s (p_s − e_y).
    The rows in `floored` (None: the rows that are below the floor at this θ) count as the floor, and have no gradient.
    The probabilities are those given that the class is none of the classes `left_out` (C, bool).
    """
    loss, gradient, below = 0.0, torch.zeros_like(theta), torch.zeros_like(scaled.impossible)
    step = max(1, BLOCK_ELEMENTS // (scaled.draws * scaled.num_classes))
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
        at_label = labels.expand(scaled.draws, -1).unsqueeze(-1)
        chosen = log_probs.gather(-1, at_label).squeeze(-1)
        joint = torch.logsumexp(chosen, dim=0)
        losses = math.log(scaled.draws) - joint
        below[rows] = losses > MOST_NLL
        held = below[rows] if floored is None else floored[rows]
        loss += float(losses.where(~held, MOST_NLL).sum())
        share = torch.where(held, 0.0, (chosen - joint).exp()).unsqueeze(-1)
        residual = log_probs.exp_().scatter_add_(-1, at_label, -torch.ones_like(share)).mul_(share)
        gradient[0] += (residual * base).sum(dim=(0, 1))
        gradient[1] += residual.sum(dim=(0, 1))
    scaled.rows_read += scaled.rows
    return _Evaluation(loss / scaled.rows, gradient / scaled.rows, below)
