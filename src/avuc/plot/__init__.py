"""Charts of predictions with matplotlib; each function takes `Predictions` and `ax=`, and returns the Axes.

Needs `pip install 'avuc[report]'`. Nothing global is changed: neither rcParams nor pyplot's current figure.
"""

from avuc.plot.boxes import shift_boxes
from avuc.plot.curves import avu_curve, entropy_histogram, risk_coverage
from avuc.plot.diagrams import reliability, uncertainty_reliability
from avuc.plot.fits import temperature_curve

__all__ = [
    "avu_curve",
    "entropy_histogram",
    "reliability",
    "risk_coverage",
    "shift_boxes",
    "temperature_curve",
    "uncertainty_reliability",
]
