"""Temperature scaling: divide the logits by the temperature T that minimises the negative log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.inputs import are_numbers, without_overflow
from avuc.calibration.scalar_search import Minimum, grid_minimum, newton_minimum
from avuc.calibration.scale import HIGHEST, LOWEST, MARGINS, has_events, is_doubtful, minimum_by_scale
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.calibration.user_warnings import warn
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

# The default range. Where the likelihood still falls at its end, other ranges are searched, at most the widest.
BOUNDS, WIDE_BOUNDS, WIDEST_BOUNDS = (0.05, 20.0), (0.05e-4, 20e4), (LOWEST * MARGINS[0], HIGHEST * MARGINS[1])
# points of the coarse grid and of `curve_`; odd, so that T = 1 is one of them in the default range
GRID_POINTS = 41
# the grid uses all rows up to this many logits, and evenly spaced rows beyond
GRID_ELEMENTS = 1 << 19
# Newton's method needs the curve only for a start: half the points, half the rows
CURVE_ELEMENTS = 1 << 18
START_ELEMENTS = 1 << 21  # Newton's method starts on about this many logits
# largest number of searches while the set of rows at the floor of the likelihood still changes
ROUNDS = 20


class TemperatureScaling(Calibrator):
    """Temperature scaling (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

        p = softmax(z/T),    T = argmin over `bounds` of −1/N Σ_i log p_i[label_i]

    With posterior samples z_s, p is the mean over s of softmax(z_s/T). For one sample the loss is convex in 1/T, and
    Newton's method usually needs two passes over the data. For several samples a grid in log T finds the region of the
    minimum, and Brent's method refines it.

    Args:
        objective: "nll", the only one here.
        bounds: smallest and largest T. The default, 0.05 to 20, is left if the likelihood has its maximum outside, as
            for logits that hardly differ or are huge: logits c z then get the temperature c T. With fewer than 10 right
            or 10 wrong rows only a higher T is looked for: few mistakes are no reason for more confidence.
        tolerance: precision of log T.

    Learned attributes:
        temperature_: T.
        loss_: mean negative log-likelihood at T.
        curve_: temperatures and losses over the whole range; from evenly spaced rows if there are more than 262,144
            logits (524,288 with several samples).
        at_bound_: whether the loss still falls at the end of the range; a CalibrationWarning says so.
        n_evaluations_: number of passes over the data.

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
    _range: tuple[float, float] | None = None  # the range of the last search, if it is not `bounds`

    def __init__(
        self, objective: str = "nll", *, bounds: tuple[float, float] = BOUNDS, tolerance: float = 1e-6
    ) -> None:
        self.objective = objective
        self.bounds = bounds
        self.tolerance = tolerance

    @staticmethod
    def identity(num_classes: int, loss: float = 0.0) -> TemperatureScaling:
        """Return a calibrator that changes nothing, T = 1.

        Args:
            num_classes: number of classes.
            loss: NLL of the uncalibrated logits, if it is known.

        >>> TemperatureScaling.identity(2).transform(np.array([[3.0, -1.0]]))
        array([[ 3., -1.]])
        """
        scaler = TemperatureScaling()
        scaler.temperature_, scaler.loss_, scaler.num_classes_ = 1.0, float(loss), num_classes
        scaler.at_bound_, scaler.n_evaluations_, scaler.curve_ = False, 0.0, (np.empty(0), np.empty(0))
        return scaler

    @property
    def is_identity(self) -> bool:
        """Whether `transform` changes nothing; only after a fit."""
        return self.temperature_ == 1

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        self._warn_user(scaled, self._fit_scaled(scaled).at_bound)

    def _fit_scaled(self, scaled: ScaledLogits) -> Minimum:
        self._range = None
        minimum = self._search(scaled)
        if self._may_widen and is_doubtful(scaled, minimum, self.curve_[1]):
            plain = type(self) is TemperatureScaling and scaled.samples == 1
            minimum = self._wider(scaled, minimum) if plain else minimum
            if self._range is None:
                minimum = minimum_by_scale(self, scaled, minimum, lambda: self._search(scaled))
        self._store(scaled, minimum)
        return minimum

    def _search(self, scaled: ScaledLogits) -> Minimum:
        """Return the minimum in the range of the search."""
        if scaled.samples == 1:
            return self._newton(scaled)
        return self._grid_and_brent(scaled.nll, scaled.subsample(GRID_ELEMENTS).nll)

    @property
    def _limits(self) -> tuple[float, float]:
        return self._range or self.bounds

    @property
    def _may_widen(self) -> bool:
        return tuple(self.bounds) == BOUNDS

    def _wider(self, scaled: ScaledLogits, minimum: Minimum) -> Minimum:
        """Return the minimum in `WIDE_BOUNDS`; if there is none inside, return `minimum`.

        The mistakes of huge logits are at the floor at every T in `BOUNDS`, so the minimum there may not be the lowest.
        Without wrong rows T goes to 0, also if all of them are at the floor; so no more rows may reach the floor.
        """
        if not has_events(scaled):
            return minimum
        wide = TemperatureScaling(bounds=WIDE_BOUNDS, tolerance=self.tolerance)
        other = wide._newton(scaled)
        floored = [int(scaled.floored(t).sum()) for t in (math.exp(other.x), 1.0)]
        if other.at_bound or other.value >= minimum.value * (1 - 1e-9) or floored[0] > floored[1]:
            return minimum
        self.curve_, self._range = wide.curve_, WIDE_BOUNDS
        return other

    def _fit_near(self, scaled: ScaledLogits, temperature: float) -> None:
        """Fit without a curve and without warnings; T is near `temperature`."""
        if scaled.samples == 1:
            minimum = self._descent(scaled, 1 / temperature, self.tolerance)
            minimum = minimum._replace(x=-math.log(minimum.x))
            self.curve_ = np.empty(0), np.empty(0)
        else:
            minimum = self._grid_and_brent(scaled.nll, scaled.subsample(GRID_ELEMENTS).nll)
        self._store(scaled, minimum)

    def _apply(self, logits: Tensor) -> Tensor:
        scaled = logits / self.temperature_
        return scaled if self.temperature_ >= 1 else without_overflow(scaled, logits, self.temperature_)

    def _newton(self, scaled: ScaledLogits) -> Minimum:
        few = scaled.subsample(CURVE_ELEMENTS)
        temperatures = self._grid()[::2]
        self.curve_: tuple[Array, Array] = (temperatures, np.array([few.nll(t) for t in temperatures]))
        near = temperatures[int(np.argmin(self.curve_[1]))] if np.ptp(self.curve_[1]) > 0 else self._neutral()
        start, sample = 1 / near, scaled.subsample(START_ELEMENTS)
        if sample is not scaled:
            start = self._descent(sample, start, 1e-3).x
        minimum = self._descent(scaled, start, self.tolerance)
        minimum = minimum._replace(x=-math.log(minimum.x))
        step = math.log(temperatures[1] / temperatures[0])
        if abs(minimum.x - math.log(near)) > 1.5 * step and few.nll(math.exp(minimum.x)) > float(self.curve_[1].min()):
            # the floor can cause a second minimum, and Newton's method may have found the higher one
            other = self._grid_and_brent(scaled.nll, few.nll)
            minimum = min(minimum, other, key=lambda each: each.value)
        scaled.rows_read += sum(s.rows_read for s in {few, sample} if s is not scaled)
        return minimum

    def _descent(self, scaled: ScaledLogits, start: float, tolerance: float) -> Minimum:
        """Return the lowest minimum in s = 1/T that Newton's method reaches from `start`.

        Rows at the floor stay there while the rest, which is convex, is minimised; then the rows at the floor are
        determined again. No such round raises the loss. If rows are at the floor at the start, a second search begins
        with none of them at the floor.
        """
        begin = [scaled.floored(1 / start)]
        if not torch.equal(begin[0], scaled.impossible):
            begin.append(scaled.impossible)
        return min((self._rounds(scaled, start, held, tolerance) for held in begin), key=lambda each: each.value)

    def _rounds(self, scaled: ScaledLogits, start: float, held: Tensor, tolerance: float) -> Minimum:
        low, high = 1 / self._limits[1], 1 / self._limits[0]
        for _ in range(ROUNDS):
            minimum = newton_minimum(partial(scaled.derivatives, floored=held), start, low, high, tolerance)
            start, before, held = minimum.x, held, scaled.floored(1 / minimum.x)
            if torch.equal(held, before):
                break
        return minimum

    def _grid_and_brent(
        self,
        loss: Callable[[float], float],
        coarse: Callable[[float], float],
        *,
        rough: bool = False,
        jumps: bool = False,
    ) -> Minimum:
        """Minimise over log T, and keep the curve of the grid; the arguments are those of `grid_minimum`."""
        temperatures = self._grid()
        self.curve_ = temperatures, np.array([coarse(t) for t in temperatures])
        same = coarse == loss
        return grid_minimum(loss, self.curve_, same, self._neutral(), self.tolerance, rough=rough, jumps=jumps)

    def _store(self, scaled: ScaledLogits, minimum: Minimum) -> None:
        low, high = self._limits
        self.temperature_: float = math.exp(minimum.x)
        # exp(log 20) is not 20
        for bound in (low, high):
            if abs(minimum.x - math.log(bound)) < 1e-12:
                self.temperature_ = bound
        self.temperature_ = min(max(self.temperature_, low), high)
        self.loss_ = minimum.value
        self.at_bound_: bool = minimum.at_bound
        self.num_classes_: int = scaled.num_classes
        self.n_evaluations_ = scaled.passes

    def _warn_user(self, scaled: ScaledLogits, at_bound: bool) -> None:
        """Warn if the final temperature is doubtful."""
        low, high = self.bounds
        if impossible := int(scaled.impossible.sum()):
            warn(
                f"{impossible} of {scaled.rows} rows give the true class a logit of −inf; no temperature changes that, "
                "so they have no say in the fit (logits_from_probs keeps them in)"
            )
        elif not at_bound and (floored := self._floored(scaled)):
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

    def _floored(self, scaled: ScaledLogits) -> int:
        """Return how many rows the user is warned of, because their loss is that of the floor."""
        return int(scaled.floored(self.temperature_).sum())

    def _describe(self) -> str:
        return f"objective={self.objective!r}"

    def _grid(self) -> Array:
        points, (low, high) = GRID_POINTS, self._limits
        if self._range is not None:  # with points as near to each other; every second and fourth one are a grid, too
            points = 8 * math.ceil(math.log(high / low) / math.log(BOUNDS[1] / BOUNDS[0]) * (GRID_POINTS - 1) / 8) + 1
        grid = np.exp(np.linspace(math.log(low), math.log(high), points))
        grid[[0, -1]] = low, high
        return grid

    def _neutral(self) -> float:
        """Return T = 1, or the nearest T in the range: the result if all temperatures are equally good."""
        return min(max(1.0, self._limits[0]), self._limits[1])

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
        low, high = WIDEST_BOUNDS if self._may_widen else self.bounds
        if not low <= self.temperature_ <= high:
            raise InputError(
                f"calibrator JSON: temperature must be inside its bounds, {low:g} … {high:g}; found {self.temperature_}"
            )

    def _objectives(self) -> tuple[str, ...]:
        return ("nll",)
