"""Figures of a model in training on held-out data."""

from __future__ import annotations

import torch

from avuc import metrics
from avuc.data.tensors import MemoryData
from avuc.posterior import Posterior
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.predictor import Predictor
from avuc.training.settings import TrainSettings


def validate(
    posterior: Posterior,
    data: MemoryData,
    settings: TrainSettings,
    seed: int,
    threshold: float | None,
    features: FeatureStore | None,
) -> dict[str, float]:
    """Return NLL, accuracy and AvU on held-out data.

    Args:
        posterior: the posterior of the models in their current state.
        data: the held-out data.
        settings: settings of the training.
        seed: seed of the posterior samples.
        threshold: uncertainty threshold of AvU; None to learn it from these predictions.
        features: where models with the same frozen trunk share its features; None without one.
    """
    # the precision of the training steps; on a GPU there is a kernel for CIFAR ResNets in bfloat16
    half = data.device.type == "cuda" and settings.precision == "bfloat16"
    predictor = Predictor(
        posterior,
        samples=max(settings.validation_draws, posterior.num_draws or 1),
        seed=seed,
        dtype=torch.bfloat16 if half else None,
        compiled=None if half else False,
        memory=0,
    )
    if features is not None:
        predictor.share_features(features)
    predictions = predictor(data.inputs, data.labels)
    probs, labels = predictions.probs, predictions.labels
    return {
        "validation_nll": metrics.nll(probs, labels),
        "validation_accuracy": metrics.accuracy(probs, labels),
        "validation_avu": metrics.avu(probs, labels, threshold="auto" if threshold is None else threshold),
    }
