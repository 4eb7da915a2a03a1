"""Calibrator, threshold and conformal sets that a method learns on validation data, for its other evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.study.store.store import Store


@dataclass(frozen=True)
class ValidationFit:
    """Fits of a method on validation data, and the entropies of clean images; all other evaluations need them.

    Args:
        calibrator: the fitted calibrator as JSON.
        threshold: the uncertainty threshold.
        clean_entropy: entropy of each clean test image.
        conformal: fitted conformal sets, JSON by method; None in files of older versions.
    """

    calibrator: str | None = None
    threshold: float | None = None
    clean_entropy: NDArray[np.float32] | None = None
    conformal: Mapping[str, str] | None = None

    def needed_calibrator(self, method: str) -> str:
        """Return the calibrator; refuse if `method` has not learned it yet."""
        if self.calibrator is None:
            raise _missing(method, "calibrator")
        return self.calibrator

    def needed_threshold(self, method: str) -> float:
        """Return the threshold; refuse if `method` has not learned it yet."""
        if self.threshold is None:
            raise _missing(method, "threshold")
        return self.threshold


def validation_fit(store: Store, method: str, seed: int) -> ValidationFit:
    """Read what a method has learned so far."""
    return ValidationFit(
        store.calibrator(method, seed),
        store.threshold(method, seed),
        store.clean_entropy(method, seed),
        store.conformal_fits(method, seed),
    )


def _missing(method: str, what: str) -> InputError:
    return InputError(f"{method}: its {what} is learned on validation data, which is not evaluated yet")
