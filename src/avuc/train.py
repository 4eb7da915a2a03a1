"""Training: `fit` a method to data, `fit_many` several at once, and the settings they take."""

from avuc.training.fit import fit, fit_many
from avuc.training.run import Fitted, Job
from avuc.training.settings import TrainSettings

__all__ = ["Fitted", "Job", "TrainSettings", "fit", "fit_many"]
