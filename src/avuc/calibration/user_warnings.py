"""Warnings about a fit, issued at the line that called `fit`."""

from __future__ import annotations

from avuc.calibration.base import CalibrationWarning
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.core.caller import warn_caller

# weights of more than MOST_UNIT_ROWS rows with a sum up to UNIT_TOTAL look as if they were normalised to the sum 1
MOST_UNIT_ROWS, UNIT_TOTAL = 10, 2.0


def warn(message: str) -> None:
    """Issue a CalibrationWarning at the line that called `fit`."""
    warn_caller(message, CalibrationWarning)


def warn_unit_weights(scaled: ScaledLogits) -> None:
    """Warn that weights with a sum of about 1 count as one row, where a number of rows is the strength of a prior."""
    if scaled.weight is not None and scaled.rows > MOST_UNIT_ROWS and scaled.total <= UNIT_TOTAL:
        warn(
            f"the weights of {scaled.rows} rows have the sum {scaled.total:.3g}, so they count as that many rows, and "
            f"little is learned from them; multiply them by {scaled.rows / scaled.total:.3g}"
        )
