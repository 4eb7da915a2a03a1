"""Training: `fit_calibrated` with default settings, `fit` for one method, `fit_many` for several models at once."""

from avuc.training.calibrated import Calibrated
from avuc.training.default import fit_calibrated
from avuc.training.fit import fit, fit_many
from avuc.training.fitted import Fitted
from avuc.training.run import Job
from avuc.training.settings import TrainSettings

__all__ = ["Calibrated", "Fitted", "Job", "TrainSettings", "fit", "fit_calibrated", "fit_many"]
