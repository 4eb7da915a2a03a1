"""After training: whether the running averages of batch normalisation fit single samples of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from avuc.bayes import BayesianModule
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.arrays import as_input
from avuc.data.tensors import MemoryData
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced, tracks_statistics
from avuc.posterior import Posterior, seeded_generator
from avuc.training.fitted import Fitted
from avuc.training.run import Data, Run, Say

# by how much statistics of its own must lower the NLL of a sample, in nats
GAIN = 0.5


def warn_about_averages(runs: Sequence[Run], results: Sequence[Fitted], data: Data, say: Say) -> None:
    """Warn of each trained model of which one sample is much better with batch-norm statistics of its own.

    Args:
        runs: the trainings; those of several processes, and finished ones that were only read back, are not looked at.
        results: their models.
        data: training data; streams of files are not looked at.
        say: prints a line.
    """
    for run, fitted in zip(runs, results, strict=True):
        settings = run.job.settings
        if not run.trained or run.ranks.size > 1 or not isinstance(data, MemoryData) or settings.freeze_trunk:
            continue
        found = nll_of_one_sample(fitted.posterior, data, min(settings.batch_size, 256))
        if found is None or not found[0] > found[1] + GAIN:
            continue
        name = "" if run.job.directory is None else f"{run.job.directory.name}: "
        say(
            f"warning: {name}the running averages of batch normalisation do not fit single samples of the weights: on "
            f"training images one sample has an NLL of {found[0]:.2f}, and {found[1]:.2f} with statistics of its own. "
            "Measure them for each sample: PerDrawBatchNorm, or bn_images = 2048 in a study"
        )


@torch.no_grad()
def nll_of_one_sample(posterior: Posterior, data: MemoryData, count: int) -> tuple[float, float] | None:
    """Return the NLL of one sample with running averages and with statistics of its own; None if that cannot be."""
    if not isinstance(posterior, BayesianModule) or posterior.recurrent or not isinstance(data.inputs, Tensor):
        return None
    if not any(map(tracks_statistics, posterior.modules())) or data.labels.is_floating_point():
        return None
    inputs, labels = evenly_spaced(data.inputs, count), evenly_spaced(data.labels, count).long()
    images = as_input(inputs) if inputs.dtype == torch.uint8 else inputs
    values = []
    for model in (posterior, PerDrawBatchNorm(posterior, inputs)):
        # a network may change its input in place, and these can be the user's data
        logits = model.draw(seeded_generator(0, device=images.device))(images.clone())
        if logits.ndim != labels.ndim + 1 or logits.shape[1] <= int(labels.max()):
            return None
        values.append(float(F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX)))
    return values[0], values[1]
