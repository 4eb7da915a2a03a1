"""avuc: make a classifier know when it is wrong, and measure how well it does.

Needs torch and NumPy only. `import avuc` loads neither: every name below, and every package such as `avuc.metrics` or
`avuc.train`, is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from avuc._old_names import install

__version__ = "0.1.0"

install()

if TYPE_CHECKING:
    from avuc import (
        bayes,
        calibration,
        conformal,
        data,
        deploy,
        evaluation,
        losses,
        methods,
        metrics,
        nets,
        plot,
        shifts,
        study,
        train,
        uncertainty,
    )
    from avuc.bayes import BayesianModule, Moped, Normal, to_bayesian
    from avuc.calibration import AvUTemperatureScaling, TemperatureScaling, VectorScaling
    from avuc.core.errors import InputError, MissingExtra
    from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss, elbo_loss, linear_avuc
    from avuc.losses.quadrants import Cells, Quadrants, avuc_cells, avuc_quadrants  # noqa: F401  # names of 0.1.0
    from avuc.posterior import Posterior
    from avuc.prediction.predict import predict
    from avuc.prediction.predictor import Predictor
    from avuc.predictions import MultiLabelPredictions, Predictions

__all__ = [
    "AvUCLoss",
    "AvUTemperatureScaling",
    "BayesianModule",
    "InputError",
    "MissingExtra",
    "Moped",
    "MultiLabelPredictions",
    "Normal",
    "Posterior",
    "Predictions",
    "Predictor",
    "Quadrants",
    "TemperatureScaling",
    "VectorScaling",
    "auavuc_loss",
    "avuc_loss",
    "avuc_quadrants",
    "bayes",
    "calibration",
    "conformal",
    "data",
    "deploy",
    "elbo_loss",
    "evaluation",
    "linear_avuc",
    "losses",
    "methods",
    "metrics",
    "nets",
    "plot",
    "predict",
    "shifts",
    "study",
    "to_bayesian",
    "train",
    "uncertainty",
]

# packages that need a library of their own: found as attributes too, but not loaded by `from avuc import *`
_ADAPTERS = ("lightning", "sklearn", "torchmetrics", "trackers", "transformers")

_HOME = {
    "AvUCLoss": "losses",
    "AvUTemperatureScaling": "calibration",
    "BayesianModule": "bayes",
    "Cells": "losses.quadrants",
    "InputError": "core.errors",
    "MissingExtra": "core.errors",
    "Moped": "bayes",
    "MultiLabelPredictions": "predictions",
    "Normal": "bayes",
    "Posterior": "posterior",
    "Predictions": "predictions",
    "Predictor": "prediction.predictor",
    "Quadrants": "losses.quadrants",
    "TemperatureScaling": "calibration",
    "VectorScaling": "calibration",
    "auavuc_loss": "losses",
    "avuc_cells": "losses.quadrants",
    "avuc_loss": "losses",
    "avuc_quadrants": "losses.quadrants",
    "elbo_loss": "losses",
    "linear_avuc": "losses",
    "predict": "prediction.predict",
    "to_bayesian": "bayes",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        value: object = getattr(import_module(f"avuc.{_HOME[name]}"), name)
    elif name in __all__ or name in _ADAPTERS:
        value = import_module(f"avuc.{name}")
    else:
        raise AttributeError(f"module 'avuc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ADAPTERS, "__version__"])
