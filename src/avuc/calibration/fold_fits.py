"""Fits of several calibrators on the folds of the same rows, which share what they have in common."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from avuc.calibration.base import Calibrator
from avuc.calibration.linear_maps import Search, warn_unseen
from avuc.calibration.mixtures import SmoothedTemperatureScaling
from avuc.calibration.scaled_logits import ScaledLogits, calibrated_nll
from avuc.calibration.structured import MatrixScaling, StructuredVectorScaling, start_bounds
from avuc.calibration.temperature import TemperatureScaling


class FoldFits:
    """Calibrators that begin with a temperature share one per fold; its search starts at the temperature of all rows.

    Linear maps start at the minimum of the last fold, with its curvature. Other calibrators are fitted as usual. The
    fits set no `loss_`.

    Args:
        logits: (N, C) or (S, N, C), all rows.
        labels: (N,).
        weight: (N,) or None.

    >>> import torch
    >>> logits, labels = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1, 0])
    >>> fits = FoldFits(logits, labels, None)
    >>> fits.next_fold(logits[:3], labels[:3], None)
    >>> fits.fit("smoothed", SmoothedTemperatureScaling()).smoothing_
    0.25
    """

    def __init__(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> None:
        self._all = logits, labels, weight
        self._first: tuple[ScaledLogits, TemperatureScaling] | None = None
        self._searches: dict[str, Search] = {}
        self._joint: SmoothedTemperatureScaling | None = None

    def next_fold(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> None:
        """Set the rows that the next fits use."""
        self._known = logits, labels, weight
        self._scaled: ScaledLogits | None = None

    def fit(self, name: str, calibrator: Calibrator) -> Calibrator:
        """Return a new calibrator with the same parameters, fitted on the rows of this fold.

        Args:
            name: key under which the search of the last fold is kept.
            calibrator: only its class and parameters are used.
        """
        fitted = type(calibrator)(**calibrator.get_params())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows warns
            # subclasses of these classes may have a fit of their own, so the type must match exactly
            if isinstance(fitted, StructuredVectorScaling | MatrixScaling) and type(fitted) in LINEAR:
                scaled = self._start()
                fitted._fit_at(scaled, self._temperature, self._searches.setdefault(name, Search()))
            elif type(fitted) is SmoothedTemperatureScaling and not fitted.joint and fitted.bounds == self._bounds():
                scaled = self._start()
                fitted._fit_at(scaled, self._temperature)
            elif type(fitted) is SmoothedTemperatureScaling and fitted.joint:
                if self._joint is None:
                    self._joint = self._all_rows(fitted)
                fitted._range = self._joint._range
                fitted._fit_near(_scaled(*self._known), self._joint.temperature_)
            else:
                logits, labels, weight = self._known
                fitted.fit(logits, labels, *(() if weight is None else (weight,)))
        return fitted

    def finish(self, calibrators: Mapping[str, Calibrator]) -> dict[str, Calibrator]:
        """Return new calibrators fitted on the current rows. These are all rows, so their fits warn the user.

        Args:
            calibrators: by name; only their classes and parameters are used.
        """
        logits, labels, weight = self._known
        weights = () if weight is None else (weight,)
        fitted: dict[str, Calibrator] = {}
        for name, calibrator in calibrators.items():
            fitted[name] = new_calibrator = type(calibrator)(**calibrator.get_params())
            if isinstance(new_calibrator, StructuredVectorScaling | MatrixScaling) and type(new_calibrator) in LINEAR:
                new = self._scaled is None
                scaled = self._start_all()
                new_calibrator._fit_at(scaled, self._temperature, self._searches.get(name))
                new_calibrator.loss_ = calibrated_nll(scaled, new_calibrator._apply, new_calibrator._block)
                if new:
                    warn_unseen(type(new_calibrator).__name__, scaled)
            elif self._joint is not None and self._same(new_calibrator) and len(labels) == len(self._all[1]):
                fitted[name] = self._joint
                self._joint._warn_user(_scaled(*self._known), self._joint.at_bound_)
            else:
                new_calibrator.fit(logits, labels, *weights)
        return fitted

    def _same(self, calibrator: Calibrator) -> bool:
        assert self._joint is not None
        return type(calibrator) is SmoothedTemperatureScaling and calibrator.get_params() == self._joint.get_params()

    def _all_rows(self, calibrator: SmoothedTemperatureScaling) -> SmoothedTemperatureScaling:
        fitted = SmoothedTemperatureScaling(**calibrator.get_params())
        fitted._fit_scaled(_scaled(*self._all))
        return fitted

    def _start_all(self) -> ScaledLogits:
        """Return the current rows, which are all rows; their temperature is fitted once, with its warnings."""
        logits, labels, weight = self._known
        if self._scaled is None and self._first is not None and len(labels) == len(self._all[1]):
            self._scaled, self._temperature = self._first
            self._temperature._warn_user(self._scaled, self._temperature.at_bound_)
        elif self._scaled is None:
            self._scaled = _scaled(*self._known)
            self._temperature = TemperatureScaling(bounds=start_bounds(self._scaled))
            self._temperature.fit(logits, labels, *(() if weight is None else (weight,)))
        return self._scaled

    def _start(self) -> ScaledLogits:
        """Return the current rows; their temperature is fitted once."""
        bounds = self._bounds()
        assert self._first is not None
        if self._scaled is None:
            self._scaled, self._temperature = _scaled(*self._known), TemperatureScaling(bounds=bounds)
            self._temperature._range = self._first[1]._range
            self._temperature._fit_near(self._scaled, self._first[1].temperature_)
        return self._scaled

    def _bounds(self) -> tuple[float, float]:
        """Return the range of the temperature; the temperature of all rows is fitted once."""
        if self._first is None:
            everything = _scaled(*self._all)
            self._first = everything, TemperatureScaling(bounds=start_bounds(everything))
            self._first[1]._fit_scaled(everything)
        return self._first[1].bounds


LINEAR = (StructuredVectorScaling, MatrixScaling)


def _scaled(logits: Tensor, labels: Tensor, weight: Tensor | None) -> ScaledLogits:
    return ScaledLogits(logits if logits.ndim == 3 else logits.unsqueeze(0), labels, weight)
