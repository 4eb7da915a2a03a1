"""Send the epochs of `fit` to TensorBoard, MLflow or Weights & Biases."""

from avuc.trackers.mlflow import mlflow
from avuc.trackers.tensorboard import tensorboard
from avuc.trackers.tracker import Tracker
from avuc.trackers.wandb import wandb

__all__ = ["Tracker", "mlflow", "tensorboard", "wandb"]
