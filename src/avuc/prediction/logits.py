"""Logits of a posterior's samples, kept in memory to fit calibrators on them."""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.data.tensors import MemoryData, each
from avuc.posterior import Posterior
from avuc.prediction.predictor import Predictor

MOST_KEPT_NUMBERS = 1 << 28  # 1 GiB of float32
FEWEST_KEPT_SAMPLES = 8


def kept_logits(model: Posterior | Predictor, data: MemoryData, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return logits (S, M, C) and their labels (M,), on the CPU. The samples are those of `predict`, in order.

    If all of them would need more than 1 GiB there are fewer samples; below eight samples, evenly spaced rows of the
    data are used.

    Args:
        model: a posterior, or a `Predictor` with the same seed.
        data: images with labels.
        samples: number of posterior samples, at most.
        seed: seed of the samples.
    """
    predictor = predictor_for(model, seed)
    first = each(data.inputs, lambda array: array[:1])
    classes = predictor.labelled_logits(first, torch.zeros_like(data.labels[:1]), 1)[0].shape[2]
    num_draws, rows = predictor.posterior.num_draws, data.num_labelled
    wanted = samples if num_draws is None else min(samples, num_draws)
    kept = max(min(wanted, FEWEST_KEPT_SAMPLES), min(wanted, MOST_KEPT_NUMBERS // max(1, rows * classes)))
    # if examples have many labels each, fewer examples are kept
    most_rows = max(1, MOST_KEPT_NUMBERS * len(data) // max(1, kept * classes * rows))
    if len(data) > most_rows:
        data = data.subset((torch.arange(most_rows) * len(data)).div(most_rows, rounding_mode="floor"))
    return predictor.labelled_logits(data.inputs, data.labels, kept)


def predictor_for(model: Posterior | Predictor, seed: int) -> Predictor:
    """Return `model` if it is a `Predictor` with this seed, else a new one that keeps no samples."""
    if not isinstance(model, Predictor):
        return Predictor(model, seed=seed, memory=0)
    if model.seed != seed:
        raise InputError(f"the predictor has seed {model.seed}, expected seed {seed}")
    return model
