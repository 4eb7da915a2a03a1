"""A temperature that leans towards doubt: calibrated on clean data but for a stated amount, for the sake of others."""

from __future__ import annotations

import math
from typing import ClassVar

from avuc.calibration.inputs import are_numbers
from avuc.calibration.scaled import ScaledLogits
from avuc.calibration.search import Minimum, falling_root
from avuc.calibration.temperature import TemperatureScaling, warn
from avuc.core.errors import InputError


class CautiousTemperatureScaling(TemperatureScaling):
    """The T of largest likelihood, raised until the mean confidence is `caution` below the accuracy.

    A shift makes nearly every network surer than it is right, by an amount that clean data do not tell. This gives away
    a stated amount of calibration where it is plentiful (`caution` 0.01: about 0.01 of ECE on clean data), and takes
    about as much overconfidence away from everything else. A network that is less sure than that by likelihood alone
    keeps the likelihood's T, and so does one that no T in `bounds` makes that unsure (then one CalibrationWarning).

    Learned, besides what `TemperatureScaling` learns: `likeliest_`, the T of largest likelihood.

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
    def given_away(self) -> float:
        return float(self.caution)

    def _keep(self, scaled: ScaledLogits, found: Minimum) -> None:
        super()._keep(scaled, found)
        self.likeliest_ = self.temperature_
        self.temperature_ = self._raised(scaled, self.likeliest_)
        if self.temperature_ != self.likeliest_:
            self.loss_, self.at_bound_ = scaled.nll(self.temperature_), False
        self.n_evaluations_ = scaled.passes

    def _raised(self, scaled: ScaledLogits, start: float) -> float:
        def surplus(x: float) -> float:
            """How much surer than wanted."""
            read = scaled.columns(math.exp(x))
            return float(read.confidence.mean() - read.correct.double().mean()) + self.caution

        low, high = math.log(start), math.log(self.bounds[1])
        first, last = surplus(low), surplus(high)
        if first <= 0:
            return start
        if last > 0:
            warn(
                f"no temperature up to {self.bounds[1]:g} makes the mean confidence {self.caution:g} less than the "
                f"accuracy; temperature_ = {start:.4g} is that of largest likelihood"
            )
            return start
        return math.exp(falling_root(surplus, low, high, first, last, self.tolerance))

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
