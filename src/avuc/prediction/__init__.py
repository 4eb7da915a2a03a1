"""From a posterior and images to `Predictions`: `predict` in one call, `Predictor` for many datasets."""

from avuc.prediction.predict import predict
from avuc.prediction.predictor import Predictor

__all__ = ["Predictor", "predict"]
