"""From a posterior and images to `Predictions`: `predict` in one call, `Predictor` for many datasets."""

from avuc.prediction.predict import predict as predict
from avuc.prediction.predictor import Predictor as Predictor
