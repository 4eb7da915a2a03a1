"""Training: `fit_calibrated`, the default; `fit` a method to data, `fit_many` several at once, and their settings."""

from avuc.training.default import Calibrated, fit_calibrated
from avuc.training.fit import fit, fit_many
from avuc.training.run import Fitted, Job
from avuc.training.settings import TrainSettings

__all__ = ["Calibrated", "Fitted", "Job", "TrainSettings", "fit", "fit_calibrated", "fit_many"]
