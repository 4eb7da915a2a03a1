"""Cautious temperature scaling: slightly underconfident on clean data, so as to be less overconfident under shift."""

from __future__ import annotations

import math
from typing import ClassVar

from avuc.calibration.inputs import are_numbers
from avuc.calibration.scalar_search import Minimum, decreasing_root
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.calibration.temperature import BOUNDS, TemperatureScaling
from avuc.calibration.user_warnings import warn
from avuc.core.errors import InputError


class CautiousTemperatureScaling(TemperatureScaling):
    """Temperature scaling whose T is raised until the mean confidence is `caution` below the accuracy.

        T = min {T ≥ T_NLL : mean confidence(T) ≤ accuracy − caution},    T_NLL from `TemperatureScaling`

    Nearly every network is overconfident under a shift, by an amount that clean data do not show. This calibrator gives
    up about `caution` of ECE on clean data and removes about as much overconfidence elsewhere. T_NLL is kept if its
    confidence is already low enough. If no T in `bounds` lowers the confidence enough (up to
    400 T_NLL for the default bounds), T_NLL is kept, too, and a CalibrationWarning says so.

    Args:
        caution: intended gap between accuracy and mean confidence, from 0 to 1.
        bounds: smallest and largest T.
        tolerance: precision of log T.

    Learned attributes, besides those of `TemperatureScaling`:
        likeliest_: T_NLL, the T of largest likelihood.

    >>> logits, labels = [[2.0, 0.0]] * 10, [0] * 8 + [1] * 2
    >>> scaler = CautiousTemperatureScaling(caution=0.05).fit(logits, labels)
    >>> confidence = 1 / (1 + math.exp(-2.0 / scaler.temperature_))
    >>> round(confidence, 4)  # right in 8 of 10
    0.75
    """

    name: ClassVar[str] = "cautious"
    learned: ClassVar[dict[str, str]] = {**TemperatureScaling.learned, "likeliest": "number"}

    likeliest_: float

    def __init__(
        self, caution: float = 0.01, *, bounds: tuple[float, float] = (0.05, 20.0), tolerance: float = 1e-6
    ) -> None:
        super().__init__(bounds=bounds, tolerance=tolerance)
        self.caution = caution

    @property
    def ece_allowance(self) -> float:
        return float(self.caution)

    def _store(self, scaled: ScaledLogits, minimum: Minimum) -> None:
        super()._store(scaled, minimum)
        self.likeliest_ = self.temperature_
        self.temperature_: float = self._raised(scaled, self.likeliest_, self._may_widen and not minimum.at_bound)
        if self.temperature_ != self.likeliest_:
            self.loss_: float = scaled.nll(self.temperature_)
            self.at_bound_: bool = False
        self.n_evaluations_: float = scaled.passes

    def _raised(self, scaled: ScaledLogits, start: float, may_widen: bool) -> float:
        def surplus(x: float) -> float:
            """Return how far the mean confidence is above the wanted one."""
            read = scaled.at(math.exp(x))
            return read.mean(read.confidence) - read.mean(read.correct) + self.caution

        low, high = math.log(start), math.log(self._limits[1])
        first, last = surplus(low), surplus(high)
        if first <= 0:
            return start
        further = low + math.log(BOUNDS[1] / BOUNDS[0])
        if last > 0 and may_widen and further > high:
            low, first, high, last = high, last, further, surplus(further)
        if last > 0:
            warn(
                f"no temperature up to {math.exp(high):g} makes the mean confidence {self.caution:g} less than the "
                f"accuracy; temperature_ = {start:.4g} is that of largest likelihood"
            )
            return start
        return math.exp(decreasing_root(surplus, low, high, first, last, self.tolerance))

    def _check_params(self) -> None:
        super()._check_params()
        if not are_numbers(self.caution) or not 0 <= self.caution < 1:
            raise InputError(f"caution must be a share of 1, at least 0; found {self.caution!r}")

    def _check_learned(self) -> None:
        super()._check_learned()
        if not 0 < self.likeliest_ <= self.temperature_:
            raise InputError(
                f"calibrator JSON: likeliest must be above 0 and at most temperature ({self.temperature_}); "
                f"found {self.likeliest_}"
            )
