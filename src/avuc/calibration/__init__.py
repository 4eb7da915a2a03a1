"""Calibrators: `fit(logits, labels)`, then `transform(logits)`; logits (N, C) or Monte Carlo logits (S, N, C).

scaled.py       logits read at any temperature in one pass
search.py       searches on an interval: Newton's, Brent's, secants
temperature.py  TemperatureScaling (NLL)
cautious.py     CautiousTemperatureScaling
avu.py          AvUTemperatureScaling, AUAvUTemperatureScaling
vector.py       VectorScaling
check.py        check_calibrator: is it better than leaving the scores alone?
base.py         parameters and JSON;  inputs.py  what may come in
"""

from avuc.calibration.avu import AUAvUTemperatureScaling, AvUTemperatureScaling
from avuc.calibration.base import CalibrationWarning, Calibrator
from avuc.calibration.cautious import CautiousTemperatureScaling
from avuc.calibration.check import CalibratorCheck, check_calibrator
from avuc.calibration.inputs import logits_from_probs
from avuc.calibration.temperature import TemperatureScaling
from avuc.calibration.vector import VectorScaling

__all__ = [
    "CALIBRATORS",
    "AUAvUTemperatureScaling",
    "AvUTemperatureScaling",
    "CalibrationWarning",
    "Calibrator",
    "CalibratorCheck",
    "CautiousTemperatureScaling",
    "TemperatureScaling",
    "VectorScaling",
    "check_calibrator",
    "logits_from_probs",
]

CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "cautious": CautiousTemperatureScaling,
    "avuts": AvUTemperatureScaling,
    "auavuts": AUAvUTemperatureScaling,
    "vector": VectorScaling,
}
"""Every calibrator by the name that `avuc calibrate --method` and the JSON files use."""

Calibrator.calibrators = CALIBRATORS
