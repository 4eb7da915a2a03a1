"""Calibrators: `fit(logits, labels)` on held-out data, then `transform(logits)`.

Logits are (N, C), or (S, N, C) for S posterior samples.

temperature.py       TemperatureScaling: minimises the negative log-likelihood
cautious.py          CautiousTemperatureScaling: slightly underconfident on purpose
avu.py               AvUTemperatureScaling, AUAvUTemperatureScaling
vector.py            VectorScaling: a scale and a bias for each class
cross_validation.py  check_calibrator: is it better than no calibrator?
base.py              the base class, parameters and JSON;  inputs.py: checks of logits and labels
estimator.py         predict_proba, predict and score, as scikit-learn expects them
scaled_logits.py     logits at any temperature, in one pass;  scalar_search.py: minimum and root on an interval
"""

from avuc.calibration.avu import AUAvUTemperatureScaling, AvUTemperatureScaling
from avuc.calibration.base import CalibrationWarning, Calibrator
from avuc.calibration.cautious import CautiousTemperatureScaling
from avuc.calibration.cross_validation import CalibratorCheck, check_calibrator
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
