"""Calibrators: `fit(logits, labels)` on held-out data, then `transform(logits)`.

Logits are (N, C), or (S, N, C) for S posterior samples. Dense (N, C, *spatial) and binary (N,) logits are taken, too.

temperature.py       TemperatureScaling: minimises the negative log-likelihood
cautious.py          CautiousTemperatureScaling: slightly underconfident on purpose
avu.py               AvUTemperatureScaling, AUAvUTemperatureScaling
structured.py        structured vector and matrix scaling
dirichlet.py         Dirichlet calibration
venn_abers.py        Venn–Abers calibration of each class
linear_maps.py       likelihood and gradient of linear maps of log-probabilities;  minimise.py: L-BFGS;  curvature.py
mixtures.py          temperature scaling with Laplace smoothing, and an ensemble of temperatures
vector.py            VectorScaling: a scale and a bias for each class
one_vs_rest.py       isotonic regression and histogram binning of each class;  pooling.py: isotonic regression itself
multilabel.py        MultiLabelCalibrator: a temperature for each label of a multi-label model
auto.py              AutoCalibrator: a mixture of them for the given rows;  race.py, fold_fits.py: its cross-validation
auto_rules.py        when it has too few rows, and what it says;  blend.py: the mixture
cross_validation.py  check_calibrator: is it better than no calibrator?  metric_change.py: changes with intervals
scale.py             temperatures outside the default range
layouts.py           rows from logits of any layout, and back
base.py              the base class, parameters and JSON;  inputs.py: checks of logits and labels
estimator.py         predict_proba, predict and score, as scikit-learn expects them
scaled_logits.py     logits at any temperature, in one pass;  scalar_search.py: minimum and root on an interval
"""

from avuc.calibration.auto import AutoCalibrator
from avuc.calibration.avu import AUAvUTemperatureScaling, AvUTemperatureScaling
from avuc.calibration.base import CalibrationWarning, Calibrator
from avuc.calibration.blend import BlendedCalibrator
from avuc.calibration.cautious import CautiousTemperatureScaling
from avuc.calibration.cross_validation import CalibratorCheck as CalibratorCheck
from avuc.calibration.cross_validation import check_calibrator
from avuc.calibration.dirichlet import DirichletCalibration
from avuc.calibration.inputs import logits_from_probs
from avuc.calibration.mixtures import EnsembleTemperatureScaling, SmoothedTemperatureScaling
from avuc.calibration.multilabel import MultiLabelCalibrator
from avuc.calibration.one_vs_rest import HistogramBinning, IsotonicCalibration
from avuc.calibration.structured import MatrixScaling, StructuredVectorScaling
from avuc.calibration.temperature import TemperatureScaling
from avuc.calibration.vector import VectorScaling
from avuc.calibration.venn_abers import VennAbersCalibration

__all__ = [
    "CALIBRATORS",
    "AUAvUTemperatureScaling",
    "AutoCalibrator",
    "AvUTemperatureScaling",
    "CalibrationWarning",
    "Calibrator",
    "CautiousTemperatureScaling",
    "MultiLabelCalibrator",
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
    "smoothed": SmoothedTemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
    "matrix": MatrixScaling,
    "structured-vector": StructuredVectorScaling,
    "dirichlet": DirichletCalibration,
    "venn-abers": VennAbersCalibration,
}
"""Every calibrator by the name that `avuc calibrate --method` and the JSON files use."""

# `Calibrator.load` also reads these two, which are not methods of `avuc calibrate`
Calibrator.calibrators = {
    **CALIBRATORS,
    MultiLabelCalibrator.name: MultiLabelCalibrator,
    BlendedCalibrator.name: BlendedCalibrator,
}
