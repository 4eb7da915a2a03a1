"""Temperature scaling: divide the logits by the T > 0 that makes the labels most likely."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, CalibrationWarning, Calibrator
from avuc.calibration.inputs import are_numbers, without_overflow
from avuc.calibration.scaled import ScaledLogits
from avuc.calibration.search import Minimum, bounded_minimum, convex_minimum
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

# steps of the grid that count as near its end
NEAR_END = 3
# in log T: a rough loss has no minimum of its own so close to the end of the range
NEAR_BOUND = 0.02
# points of the coarse grid, and of the curve that is kept; odd, so that T = 1 is one of them in the default range
GRID_POINTS = 41
# the grid reads every row up to this many logits, and evenly spaced rows beyond
GRID_ELEMENTS = 1 << 19
# Newton's method needs the curve for nothing but a start: half the points, half the rows
CURVE_ELEMENTS = 1 << 18
# Newton's method starts on about this many logits
START_ELEMENTS = 1 << 21
# most searches while rows still arrive at the floor of the likelihood or leave it
ROUNDS = 20


class TemperatureScaling(Calibrator):
    """softmax(z/T) with the T in `bounds` that minimises the mean negative log-likelihood (Guo et al. 2017).

    For a single draw the loss is convex in 1/T: Newton's method starts on a sample of the rows and finishes on all of
    them, usually in two passes. With draws, logits (S, N, C), p is the mean of softmax(z_s/T): not convex, so a grid in
    log T comes first and Brent's method refines the best point. Either way log T is exact to `tolerance`.

    Learned: `temperature_`; `loss_` at it; `curve_`, temperatures and losses over the whole range (from evenly spaced
    rows where there are more than 262,144 logits; 524,288 where
    it is searched by grid); `at_bound_`, true where the loss still falls at the end of the range
    (then one CalibrationWarning says so); `n_evaluations_`, how many times the data was read.

    >>> logits, labels = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), np.array([0, 1, 1])
    >>> scaler = TemperatureScaling().fit(logits, labels)
    >>> round(scaler.temperature_, 4)  # right twice in three: 4/T = log 2
    5.7708
    >>> scaler.transform(logits)[0].round(4)
    array([0.6931, 0.    ])
    """

    name: ClassVar[str] = "temperature"
    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "n_evaluations": "number",
        "curve": "curve",
    }

    loss_: float
    n_evaluations_: float

    def __init__(
        self, objective: str = "nll", *, bounds: tuple[float, float] = (0.05, 20.0), tolerance: float = 1e-6
    ) -> None:
        self.objective = objective
        self.bounds = bounds
        self.tolerance = tolerance

    @staticmethod
    def identity(num_classes: int, loss: float = 0.0) -> TemperatureScaling:
        """The calibrator that leaves every score as it is, T = 1; `loss` is its NLL where that is known.

        >>> TemperatureScaling.identity(2).transform(np.array([[3.0, -1.0]]))
        array([[ 3., -1.]])
        """
        scaler = TemperatureScaling()
        scaler.temperature_, scaler.loss_, scaler.num_classes_ = 1.0, float(loss), num_classes
        scaler.at_bound_, scaler.n_evaluations_, scaler.curve_ = False, 0.0, (np.empty(0), np.empty(0))
        return scaler

    def _fit(self, logits: Any, labels: Any) -> None:
        scaled = ScaledLogits.read(logits, labels)
        if scaled.draws == 1:
            found = self._newton(scaled)
        else:
            found = self._grid_and_brent(scaled.nll, scaled.sample(GRID_ELEMENTS).nll)
        self._keep(scaled, found)
        self._say(scaled, found.at_bound)

    def _apply(self, logits: Tensor) -> Tensor:
        scaled = logits / self.temperature_
        return scaled if self.temperature_ >= 1 else without_overflow(scaled, logits, self.temperature_)

    def _newton(self, scaled: ScaledLogits) -> Minimum:
        few = scaled.sample(CURVE_ELEMENTS)
        temperatures = self._grid()[::2]
        self.curve_ = (temperatures, np.array([few.nll(t) for t in temperatures]))
        near = temperatures[int(np.argmin(self.curve_[1]))] if np.ptp(self.curve_[1]) > 0 else self._neutral()
        start, sample = 1 / near, scaled.sample(START_ELEMENTS)
        if sample is not scaled:
            start = self._descent(sample, start, 1e-3).x
        found = self._descent(scaled, start, self.tolerance)
        found = found._replace(x=-math.log(found.x))
        step = math.log(temperatures[1] / temperatures[0])
        if abs(found.x - math.log(near)) > 1.5 * step and few.nll(math.exp(found.x)) > float(self.curve_[1].min()):
            # the floor can make a second valley, and Newton's method may have left the deeper one
            other = self._grid_and_brent(scaled.nll, few.nll)
            found = min(found, other, key=lambda minimum: minimum.value)
        scaled.rows_read += sum(s.rows_read for s in {few, sample} if s is not scaled)
        return found

    def _descent(self, scaled: ScaledLogits, start: float, tolerance: float) -> Minimum:
        """The lowest minimum in s = 1/T that Newton's method reaches from `start`.

        Rows at the floor are held there while the convex rest is minimised, then the rows at the floor are found again:
        no such round raises the loss. Where rows are at the floor from the start, a second search holds none at first.
        """
        begin = [scaled.floored(1 / start)]
        if not torch.equal(begin[0], scaled.impossible):
            begin.append(scaled.impossible)
        return min((self._rounds(scaled, start, held, tolerance) for held in begin), key=lambda found: found.value)

    def _rounds(self, scaled: ScaledLogits, start: float, held: Tensor, tolerance: float) -> Minimum:
        low, high = 1 / self.bounds[1], 1 / self.bounds[0]
        for _ in range(ROUNDS):
            found = convex_minimum(partial(scaled.derivatives, floored=held), start, low, high, tolerance)
            start, before, held = found.x, held, scaled.floored(1 / found.x)
            if torch.equal(held, before):
                break
        return found

    def _grid_and_brent(
        self,
        loss: Callable[[float], float],
        coarse: Callable[[float], float],
        *,
        rough: bool = False,
        jumps: bool = False,
    ) -> Minimum:
        """Minimise over log T: the best of a grid under `coarse`, then refined under `loss`.

        `rough`: the loss jumps a little as rows cross a threshold. A minimum next to the end of the range is then taken
        for the end, unless the end is clearly higher. `jumps`: the loss consists of such jumps only, and the same holds
        for the last steps of the grid.
        """
        temperatures = self._grid()
        losses = np.array([coarse(t) for t in temperatures])
        self.curve_ = (temperatures, losses)
        if np.ptp(losses) <= 1e-12 * abs(losses[0]):
            # no temperature is better than another
            return Minimum(math.log(self._neutral()), float(losses[0]), False)
        x, best, end = np.log(temperatures).tolist(), int(np.argmin(losses)), len(losses) - 1
        near_end = 0 if best <= NEAR_END else end if best >= end - NEAR_END else None
        if jumps and near_end is not None and losses[near_end] - losses[best] <= 0.01 * np.ptp(losses):
            return Minimum(x[near_end], loss(temperatures[near_end]), True)
        if coarse != loss and loss(temperatures[best]) > loss(temperatures[neutral := len(x) // 2]):
            # the sample misleads
            best = neutral
        tried = {best}
        while True:
            left, right = max(best - 1, 0), min(best + 1, end)
            middle = x[best] if left < best < right else (x[left] + x[right]) / 2
            found = bounded_minimum(lambda t: loss(math.exp(t)), x[left], middle, x[right], self.tolerance / 3)
            edge = left if found.x < middle else right
            if rough and edge in (0, end) and abs(found.x - x[edge]) < NEAR_BOUND:
                at_end = loss(temperatures[edge])
                if at_end - found.value <= NEAR_BOUND * float(np.ptp(losses)):
                    return Minimum(x[edge], at_end, True)
            if abs(found.x - x[edge]) > 10 * self.tolerance:
                return found
            if edge in (0, end):
                return Minimum(x[edge], loss(temperatures[edge]), True)
            if edge in tried:
                return found
            # the sample's best point was not next to the best point of all rows
            tried.add(best := edge)

    def _keep(self, scaled: ScaledLogits, found: Minimum) -> None:
        low, high = self.bounds
        self.temperature_ = math.exp(found.x)
        # exp(log 20) is not 20
        for bound in (low, high):
            if abs(found.x - math.log(bound)) < 1e-12:
                self.temperature_ = bound
        self.temperature_ = min(max(self.temperature_, low), high)
        self.loss_, self.at_bound_ = found.value, found.at_bound
        self.num_classes_, self.n_evaluations_ = scaled.num_classes, scaled.passes

    def _say(self, scaled: ScaledLogits, at_bound: bool) -> None:
        """Warn of what makes the temperature doubtful, once it is final."""
        low, high = self.bounds
        if impossible := int(scaled.impossible.sum()):
            warn(
                f"{impossible} of {scaled.rows} rows give the true class a logit of −inf; no temperature changes that, "
                "so they have no say in the fit (logits_from_probs keeps them in)"
            )
        elif not at_bound and (floored := int(scaled.floored(self.temperature_).sum())):
            warn(
                f"{floored} of {scaled.rows} rows give the true class a probability below {NLL_FLOOR:g} at T = "
                f"{self.temperature_:.4g}; each counts as {NLL_FLOOR:g}, in the fit and in NLL alike"
            )
        if at_bound:
            end = self.curve_[0][int(np.argmin(self.curve_[1]))]
            warn(
                f"the loss of {type(self).__name__}({self._describe()}) has no minimum inside {low:g} … {high:g}: it "
                f"still falls at T = {end:g}, the end of that range, so temperature_ = {self.temperature_:.4g} comes "
                "from the range and not from the data; look at curve_"
            )

    def _describe(self) -> str:
        return f"objective={self.objective!r}"

    def _grid(self) -> Array:
        low, high = self.bounds
        grid = np.exp(np.linspace(math.log(low), math.log(high), GRID_POINTS))
        grid[[0, -1]] = low, high
        return grid

    def _neutral(self) -> float:
        """T = 1, or the nearest the range allows: the answer where the data prefer none."""
        return min(max(1.0, self.bounds[0]), self.bounds[1])

    def _check_params(self) -> None:
        if self.objective not in self._objectives():
            raise InputError(
                f"{type(self).__name__}: objective must be one of {self._objectives()}; found {self.objective!r}"
            )
        two = isinstance(self.bounds, (tuple, list)) and len(self.bounds) == 2 and are_numbers(*self.bounds)
        if not (two and 0 < self.bounds[0] < self.bounds[1]):
            raise InputError(f"bounds must be two temperatures, 0 < low < high; found {self.bounds!r}")
        if not (are_numbers(self.tolerance) and 0 < self.tolerance <= 0.1):
            raise InputError(f"tolerance must be above 0 and at most 0.1 (in log T); found {self.tolerance!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        low, high = self.bounds
        if not low <= self.temperature_ <= high:
            raise InputError(
                f"calibrator JSON: temperature must be inside its bounds, {low:g} … {high:g}; found {self.temperature_}"
            )

    def _objectives(self) -> tuple[str, ...]:
        return ("nll",)


def warn(message: str) -> None:
    warnings.warn(message, CalibrationWarning, stacklevel=5)
