"""Dirichlet calibration: a linear map of log-probabilities, with its off-diagonal entries and its bias kept small."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array
from avuc.calibration.inputs import are_numbers
from avuc.calibration.linear_maps import LinearNLL, Rows, linear_minimum, unseen_classes
from avuc.calibration.scaled_logits import MOST_NLL, ScaledLogits, calibrated_nll
from avuc.calibration.structured import LinearScaling, WithMatrix
from avuc.calibration.temperature import TemperatureScaling
from avuc.calibration.user_warnings import warn
from avuc.core.errors import InputError

# from the strongest to the weakest; the search ends when the held-out NLL has risen twice
STRENGTHS = (1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
FOLDS = 3
# where there is nothing to choose by
DEFAULT_STRENGTH = 1.0
# log-probabilities of the rows that choose a strength
CHOICE_ELEMENTS = 1 << 19
# precision of the fits that only choose a strength
ROUGH = 1e-3
# a higher NLL of the fit than that of temperature scaling by less than this is rounding
LEAST_HARM = 1e-5


class DirichletCalibration(WithMatrix):
    """Dirichlet calibration with ODIR regularisation (Kull et al. 2019, https://arxiv.org/abs/1910.12656).

        p = softmax(W x + b),    x = log max(softmax(z), 1e-12)
        (W, b) = argmin NLL(W, b) + strength · (Σ_{i ≠ j} W_ij² + Σ_i b_i²)

    If the probabilities of each class follow a Dirichlet distribution, a map of this form is right. The diagonal is
    free. L-BFGS starts at temperature scaling. A pass over the rows takes time in N C². It can change the predicted
    class. A class that no row is labelled as keeps plain temperature scaling, with a CalibrationWarning, and the other
    classes are fitted on their conditional probabilities; if that has a higher NLL than temperature scaling, all
    classes keep temperature scaling. The floor of 1e-12 and the regularisation do not scale with the logits, so c z
    has another result than z; of huge logits every x is 0 or log 1e-12: apply a temperature first.

    Args:
        strength: λ and μ of the authors' code, which has one for the matrix and one for the bias. Default None: the
            best of 100, 10, …, 0.0001 by 3-fold cross-validation on the rows of the fit (on a sample of about 500,000
            log-probabilities if there are more); 100 if there are fewer rows than classes.
        tolerance: length of the gradient, in units of the curvature, at which L-BFGS stops.
        max_iterations: limit on the iterations of L-BFGS.

    Learned attributes:
        matrix_: (C · C,), W, row after row.
        bias_: (C,), b.
        strength_: the strength that was used.
        loss_: NLL without the regularisation.
        converged_: whether the tolerance was reached.
        temperature_: 1, because there is none.

    >>> import numpy as np
    >>> logits, labels = np.array([[2.0, 0.0], [0.0, 2.0]] * 10), np.array([0, 1] * 5 + [1, 1] * 5)
    >>> scaler = DirichletCalibration(strength=0.01).fit(logits, labels)
    >>> scaler.predict_proba(logits[:1]).round(2)  # class 0 is right in half of the rows, not in 88 %
    array([[0.5, 0.5]])
    """

    name: ClassVar[str] = "dirichlet"
    learned: ClassVar[dict[str, str]] = {**LinearScaling.learned, "matrix": "vector", "strength": "number"}

    strength_: float

    def __init__(self, *, strength: float | None = None, tolerance: float = 1e-5, max_iterations: int = 1000) -> None:
        self.strength = strength
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def _prepare(self, scaled: ScaledLogits) -> None:
        self._start = 1 / self.temperature_
        self.temperature_: float = 1.0
        self.at_bound_: bool = False
        self.curve_: tuple[Array, Array] = np.empty(0), np.empty(0)

    def _warn_unseen(self, scaled: ScaledLogits, start: TemperatureScaling) -> None:
        """Warn, and keep temperature scaling if the map is worse because these classes have no part in its fit."""
        unseen = int(unseen_classes(scaled).sum())
        if not unseen or self.loss_ <= start.loss_ + LEAST_HARM:
            super()._warn_unseen(scaled, start)
            return
        worse, scale = self.loss_, 1 / start.temperature_
        self.matrix_ = (np.eye(self.num_classes_) * scale).reshape(-1)
        self.bias_: Array = np.zeros(self.num_classes_)
        self.loss_ = calibrated_nll(scaled, self._apply, self._block)
        warn(
            f"DirichletCalibration: {unseen} of {self.num_classes_} classes have none of the {scaled.rows} rows, and "
            f"the fit to the others has an NLL of {worse:.4g}, temperature scaling {self.loss_:.4g}, which is kept; "
            "fit on rows of every class"
        )

    def _features(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, dim=-1).clamp(min=-MOST_NLL)

    def _ridge(self, rows: Rows, total: float) -> tuple[Tensor, Tensor]:
        classes = rows.x.shape[-1]
        unit_ridge = torch.ones(classes, classes + 1, dtype=torch.float64, device=rows.x.device).fill_diagonal_(0.0)
        theta = torch.zeros_like(unit_ridge).fill_diagonal_(self._start - 1)
        del self._start
        chosen = (
            self._chosen(rows.sample(CHOICE_ELEMENTS), unit_ridge, theta) if self.strength is None else self.strength
        )
        self.strength_ = float(chosen)
        return unit_ridge * self.strength_, theta

    def _chosen(self, rows: Rows, unit_ridge: Tensor, start: Tensor) -> float:
        """Return the strength with the lowest held-out NLL."""
        if len(rows.labels) < len(start):
            return STRENGTHS[0]
        fold = _folds(rows)
        parts = [fold == number for number in range(FOLDS)]
        parts = [part for part in parts if bool(part.any()) and not bool(part.all())]
        if not parts:
            return DEFAULT_STRENGTH
        thetas, best, lowest, risen = [start] * len(parts), DEFAULT_STRENGTH, math.inf, 0
        for strength in STRENGTHS:
            held_out = 0.0
            for number, part in enumerate(parts):
                fit = LinearNLL(rows.some(~part), unit_ridge * strength)
                thetas[number] = linear_minimum(fit, thetas[number], ROUGH, self.max_iterations)[0].theta
                weight = float(rows.weight[part].sum())
                held_out += weight * LinearNLL(rows.some(part), unit_ridge).likelihood(thetas[number])[0]
            risen = 0 if held_out < lowest else risen + 1
            if held_out < lowest:
                best, lowest = strength, held_out
            if risen == 2:
                break
        return best

    def _check_params(self) -> None:
        super()._check_params()
        if self.strength is not None and (not are_numbers(self.strength) or self.strength < 0):
            raise InputError(f"strength must be None or at least 0; found {self.strength!r}")


def _folds(rows: Rows) -> Tensor:
    """Return a fold (N,) for each row by its content: equal rows have the same fold, and their order is irrelevant."""
    digest = (rows.x.double() ** 2).sum((0, 2))
    return (digest * 1e4 % 1.0 * FOLDS).long().clamp(max=FOLDS - 1)
