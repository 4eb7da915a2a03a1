"""Temperature scaling mixed with the uniform distribution, and with the uncalibrated probabilities."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array
from avuc.calibration.inputs import are_numbers
from avuc.calibration.scalar_search import Minimum, brent_minimum
from avuc.calibration.scaled_logits import ScaledLogits, calibrated_nll
from avuc.calibration.temperature import GRID_ELEMENTS, TemperatureScaling
from avuc.calibration.user_warnings import warn_unit_weights
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

# largest number of Newton steps for the weights of a mixture; ten are usual
MOST_STEPS = 100
# log T of a fold is looked for up to this far from that of all rows, to this precision
NEAR, NEAR_TOLERANCE = 0.5, 1e-2


class MixedTemperatureScaling(TemperatureScaling):
    """p = w₁ softmax(z/T) + w₂ softmax(z) + w₃/C; subclasses say how the weights w are found."""

    def mixture(self) -> tuple[float, float, float]:
        """Return w₁, w₂ and w₃."""
        raise NotImplementedError

    def _mix(self, scaled: ScaledLogits) -> None:
        """Learn what `mixture` needs; T is known."""
        raise NotImplementedError

    @property
    def is_identity(self) -> bool:
        return super().is_identity and self.mixture()[2] == 0

    def _fit_at(self, scaled: ScaledLogits, start: TemperatureScaling) -> None:
        """Learn everything but `loss_` after the temperature."""
        self.temperature_: float = start.temperature_
        self.curve_: tuple[Array, Array] = start.curve_
        self.at_bound_: bool = start.at_bound_
        self.num_classes_: int = scaled.num_classes
        self.n_evaluations_ = start.n_evaluations_
        self._mix(scaled)

    def _store(self, scaled: ScaledLogits, minimum: Minimum) -> None:
        super()._store(scaled, minimum)
        self._mix(scaled)
        self.loss_: float = calibrated_nll(scaled, self._apply)
        self.n_evaluations_: float = scaled.passes

    def _apply(self, logits: Tensor) -> Tensor:
        tempered, plain, uniform = self.mixture()
        terms = []
        if tempered > 0:
            terms.append(torch.log_softmax(super()._apply(logits), dim=-1) + math.log(tempered))
        if plain > 0:
            terms.append(torch.log_softmax(logits, dim=-1) + math.log(plain))
        if uniform > 0:
            terms.append(torch.full_like(logits, math.log(uniform / logits.shape[-1])))
        mixed = torch.logsumexp(torch.stack(terms), dim=0) if len(terms) > 1 else terms[0]
        # an impossible class stays impossible; its share of w₃ goes to the others
        mixed = mixed.clamp(min=torch.finfo(logits.dtype).min)
        return mixed.masked_fill(torch.isneginf(logits), -math.inf)


class SmoothedTemperatureScaling(MixedTemperatureScaling):
    """Temperature scaling with Laplace smoothing (Berta et al. 2025, https://arxiv.org/abs/2501.19195).

        p = (1 − ε) softmax(z/T) + ε/C,    ε = pseudo_count / (N + pseudo_count),    T from `TemperatureScaling`

    With `joint=True`, T and ε are those of lowest −1/N Σ_i log p_i[label_i] − pseudo_count/N · log ε. That suits
    probabilities of exactly 0, as those of nearest neighbours: T alone would have to make up for a few rows.

    With the default of 1 this is `ts-mix` of probmetrics. One confident mistake costs at most −log(ε/C), so the NLL on
    other data cannot explode when the N rows of the fit are all right.

    Args:
        pseudo_count: how many rows the uniform distribution counts as.
        joint: whether ε is found together with T.
        bounds: smallest and largest T.
        tolerance: precision of log T.

    Learned attributes, besides those of `TemperatureScaling`:
        smoothing_: ε. N is the sum of the weights if the fit has `sample_weight`.

    >>> logits, labels = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), np.array([0, 1, 1])
    >>> scaler = SmoothedTemperatureScaling().fit(logits, labels)
    >>> scaler.predict_proba(logits)[0].round(4)  # 3/4 · (2/3, 1/3) + 1/4 · (1/2, 1/2)
    array([0.625, 0.375])
    """

    name: ClassVar[str] = "smoothed"
    learned: ClassVar[dict[str, str]] = {**TemperatureScaling.learned, "smoothing": "number"}
    later_params: ClassVar[dict[str, Any]] = {"joint": False}

    smoothing_: float

    def __init__(
        self,
        pseudo_count: float = 1.0,
        *,
        joint: bool = False,
        bounds: tuple[float, float] = (0.05, 20.0),
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(bounds=bounds, tolerance=tolerance)
        self.pseudo_count = pseudo_count
        self.joint = joint

    def mixture(self) -> tuple[float, float, float]:
        return 1 - self.smoothing_, 0.0, self.smoothing_

    def _search(self, scaled: ScaledLogits) -> Minimum:
        if not self.joint:
            return super()._search(scaled)
        few = scaled.subsample(GRID_ELEMENTS)
        loss = partial(self._loss, scaled)
        return self._grid_and_brent(loss, loss if few is scaled else partial(self._loss, few))

    def _fit_near(self, scaled: ScaledLogits, temperature: float) -> None:
        if not self.joint:
            super()._fit_near(scaled, temperature)
            return
        x, low, high = math.log(temperature), *(math.log(bound) for bound in self._limits)
        left, right = max(x - NEAR, low), min(x + NEAR, high)
        middle = x if left < x < right else (left + right) / 2
        loss = partial(self._loss, scaled)
        minimum = brent_minimum(lambda t: loss(math.exp(t)), left, middle, right, max(self.tolerance, NEAR_TOLERANCE))
        if min(minimum.x - left, right - minimum.x) < 3 * NEAR_TOLERANCE:
            self._fit_scaled(scaled)
            return
        self.curve_ = np.empty(0), np.empty(0)
        self._store(scaled, minimum)

    def _grid(self) -> Array:
        # the objective is smooth in T and slower than an NLL, so a coarser grid is used
        return super()._grid()[::4] if self.joint else super()._grid()

    def _floored(self, scaled: ScaledLogits) -> int:
        return 0 if self.joint else super()._floored(scaled)

    def _loss(self, scaled: ScaledLogits, temperature: float) -> float:
        return self._best(scaled, temperature)[1]

    def _best(self, scaled: ScaledLogits, temperature: float) -> tuple[float, float]:
        """Return ε at this temperature, and what is minimised."""
        # a true class of −inf stays impossible at every ε
        possible = ~scaled.impossible
        chosen = scaled.nll_rows(temperature).neg().exp()[possible].cpu().numpy()
        weight = None if scaled.weight is None else scaled.weight[possible].cpu().numpy()
        return best_smoothing(chosen, scaled.num_classes, self.pseudo_count, weight)

    def _mix(self, scaled: ScaledLogits) -> None:
        if self.joint:
            self.smoothing_ = self._best(scaled, self.temperature_)[0]
        else:
            self.smoothing_ = self.pseudo_count / (scaled.total + self.pseudo_count)
        if self.pseudo_count:
            warn_unit_weights(scaled)

    def _check_params(self) -> None:
        super()._check_params()
        if not are_numbers(self.pseudo_count) or self.pseudo_count < 0:
            raise InputError(f"pseudo_count must be a number of rows, at least 0; found {self.pseudo_count!r}")
        if not isinstance(self.joint, bool):
            raise InputError(f"joint must be True or False; found {self.joint!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        if not 0 <= self.smoothing_ < 1:
            raise InputError(f"calibrator JSON: smoothing must be at least 0 and below 1; found {self.smoothing_}")


class EnsembleTemperatureScaling(MixedTemperatureScaling):
    """Ensemble temperature scaling, ETS (Zhang et al. 2020, https://arxiv.org/abs/2003.07329).

        p = w₁ softmax(z/T) + w₂ softmax(z) + w₃/C,    T from `TemperatureScaling`
        w = argmin −1/N Σ_i log p_i[label_i]    over w ≥ 0, w₁ + w₂ + w₃ = 1

    The problem in w is convex. Newton's method looks at every face of the simplex, and stops when the NLL is certain
    to be within `tolerance` of its minimum. Like a temperature, the mixture keeps the order of the classes. Logits c z
    get the temperature c T, but softmax(c z) is another part of the mixture, unless w₂ = 0.

    Args:
        bounds: smallest and largest T.
        tolerance: precision of log T and of the NLL.

    Learned attributes, besides those of `TemperatureScaling`:
        weights_: (3,), w₁, w₂ and w₃.

    >>> logits = np.array([[9.0, 0.0]] * 10 + [[1.0, 0.0]] * 10)
    >>> labels = np.array([0] * 9 + [1] + [0] * 7 + [1] * 3)
    >>> scaler = EnsembleTemperatureScaling().fit(logits, labels)
    >>> scaler.predict_proba(logits)[[0, -1], 0].round(2)  # right in 9 and 7 of 10; temperature alone: 0.91, 0.57
    array([0.9 , 0.69])
    """

    name: ClassVar[str] = "ets"
    learned: ClassVar[dict[str, str]] = {**TemperatureScaling.learned, "weights": "vector"}

    weights_: Array

    def __init__(self, *, bounds: tuple[float, float] = (0.05, 20.0), tolerance: float = 1e-6) -> None:
        super().__init__(bounds=bounds, tolerance=tolerance)

    def mixture(self) -> tuple[float, float, float]:
        tempered, plain, uniform = self.weights_.tolist()
        return tempered, plain, uniform

    def _mix(self, scaled: ScaledLogits) -> None:
        # a true class of −inf stays impossible at every weight
        possible = ~scaled.impossible
        columns = [scaled.nll_rows(t).neg().exp() for t in (self.temperature_, 1.0)]
        columns.append(torch.full_like(columns[0], 1 / scaled.num_classes))
        weight = None if scaled.weight is None else scaled.weight[possible].cpu().numpy()
        self.weights_ = mixture_weights(torch.stack(columns, -1)[possible].cpu().numpy(), weight, self.tolerance)

    def _check_learned(self) -> None:
        super()._check_learned()
        right = len(self.weights_) == 3 and self.weights_.min() >= 0 and abs(self.weights_.sum() - 1) < 1e-6
        if not right:
            raise InputError("calibrator JSON: weights must be three numbers of at least 0 with the sum 1")


def best_smoothing(
    chosen: Array, classes: int, pseudo_count: float = 1.0, weight: Array | None = None
) -> tuple[float, float]:
    """Return the ε of lowest −1/N Σ_i log((1 − ε) p_i + ε/C) − pseudo_count/N · log ε, and that value.

    The problem is convex; Newton's method is kept inside the interval where the slope changes its sign.

    Args:
        chosen: (N,) probabilities p of the labels.
        classes: C.
        pseudo_count: how many rows the uniform distribution counts as.
        weight: (N,) weights of the rows; None: all rows count the same.

    >>> round(best_smoothing(np.array([0.9, 0.9, 0.0]), 2, pseudo_count=0.0)[0], 4)  # 2 · 0.4/(0.9 − 0.4 ε) = 1/ε
    0.75
    """
    count = np.ones(len(chosen)) if weight is None else weight
    total = max(float(count.sum()), 1e-300)
    apart = chosen - 1 / classes
    low, high, e = 0.0, 1.0, (pseudo_count + 0.5) / (total + pseudo_count + 1)
    for _ in range(MOST_STEPS):
        ratio = apart / np.maximum(chosen - e * apart, 1e-300)
        slope = float(count @ ratio) - pseudo_count / e
        low, high = (low, e) if slope > 0 else (e, high)
        new = e - slope / max(float(count @ (ratio * ratio)) + pseudo_count / (e * e), 1e-300)
        new = new if low < new < high else (low + high) / 2
        done = abs(new - e) <= 1e-4 * e
        e = new
        if done or e < 1e-15:
            break
    mixed = np.maximum(chosen - e * apart, NLL_FLOOR)
    return e, -(float(count @ np.log(mixed)) + pseudo_count * math.log(e)) / total


def mixture_weights(likelihoods: Array, weight: Array | None = None, tolerance: float = 1e-6) -> Array:
    """Return the weights w (K,) of largest mean log Σ_k w_k L_ik.

    With r_ik = L_ik / Σ_j w_j L_ij, the mean log-likelihood is within log max_k mean_i r_ik of its maximum.

    Args:
        likelihoods: (N, K), L; every row has a number above 0.
        weight: (N,) weights of the rows; None: all rows count the same.
        tolerance: allowed distance of the mean log-likelihood to its maximum.

    >>> mixture_weights(np.array([[0.9, 0.5], [0.8, 0.5]]))
    array([1., 0.])
    """
    rows, parts = likelihoods.shape
    w = np.full(parts, 1 / parts)
    if not rows:
        return np.asarray(np.eye(parts)[0])
    share = np.full(rows, 1 / rows) if weight is None else weight / weight.sum()
    mixed = likelihoods @ w
    for _ in range(MOST_STEPS):
        ratio = likelihoods / mixed[:, None]
        slope = share @ ratio
        if math.log(slope.max()) <= tolerance / 10:
            break
        target = _best_on_simplex(ratio.T @ (share[:, None] * ratio), slope)
        step, before = 1.0, share @ np.log(mixed)
        while step > 1e-9:
            moved = w + step * (target - w)
            mixed = likelihoods @ moved
            if mixed.min() > 0 and share @ np.log(mixed) >= before:
                break
            step /= 2
        else:
            mixed = likelihoods @ w
            break
        w = moved
    return np.asarray(w / w.sum())


def _best_on_simplex(hessian: Array, slope: Array) -> Array:
    """Return argmin ½ xᵀHx − 2 slope·x on the simplex, from the stationary point of each of its faces."""
    parts = len(slope)
    best, lowest = np.asarray(np.eye(parts)[0]), math.inf
    for size in range(1, parts + 1):
        for face in map(list, combinations(range(parts), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size], system[size, size] = hessian[np.ix_(face, face)], 0
            x = np.zeros(parts)
            x[face] = np.linalg.lstsq(system, np.append(2 * slope[face], 1.0), rcond=None)[0][:size]
            value = float(x @ hessian @ x / 2 - 2 * slope @ x)
            if x.min() >= 0 and abs(x.sum() - 1) < 1e-9 and value < lowest:
                best, lowest = x, value
    return best
