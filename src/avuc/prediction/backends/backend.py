"""`Backend`: how samples of a posterior are run over batches of images.

All backends return the same logits, up to rounding. They differ in speed and in which samples they support:

    SharedTrunkBackend   samples that differ only in the last linear layer: everything before it runs once
    FusedResNetBackend   a CIFAR ResNet in one GPU kernel, many samples per launch (in avuc/gpu, bfloat16)
    GenericBackend       any sample, one after the other; folded and compiled where that is possible, and samples of
                         `to_bayesian` then in fixed memory (static_net.py, weight_buffers.py)

The weights of a sample do not depend on the images. A backend therefore keeps them for the next dataset, up to a limit
of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from avuc.bayes import WeightDraw
from avuc.posterior import Draw, NetDraw
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.inputs import Batch, Batches
from avuc.prediction.outputs import Logits

# index of a sample → the sample
SampleSource = Callable[[int], Draw]
# samples in one chunk: enough to hide the cost of launches, few enough to prepare the next chunk while this one runs
SAMPLES_PER_CHUNK = 16
# number of logits in one chunk: 256 MiB on a GPU, the cache of one core elsewhere
CHUNK_NUMBERS = {"cuda": 1 << 26}
CHUNK_NUMBERS_ELSEWHERE = 1 << 20


@dataclass(frozen=True)
class BackendOptions:
    """What the user of `Predictor` asked for.

    Attributes:
        device: where the samples run.
        dtype: type for autocast; None runs in the type of the weights.
        fold_batch_norm: whether batch normalisation may be folded into convolutions.
        compiled: as in `predict`; None means that the backend decides.
        memory: bytes of sampled weights to keep for the next dataset.
        logits: returns the logits from the network's output; None: they are found.
        features: where features before the last layer are kept for other models; None: nowhere.
        share_plain: whether a plain network uses `features`, too.
    """

    device: torch.device
    dtype: torch.dtype | None
    fold_batch_norm: bool
    compiled: bool | str | None
    memory: int
    logits: Logits | None = None
    features: FeatureStore | None = None
    share_plain: bool = False


class Backend(Protocol):
    """Runs samples over one dataset after another: `begin`, then for each chunk `ready` and `logits`, then `end`."""

    samples_per_chunk: int  # the most samples that `ready` takes at a time

    def begin(self, batches: Batches) -> bool:
        """Start with a dataset. Return False if this backend does not support it."""

    def ready(self, samples: range) -> bool:
        """Prepare the samples with these indices. Return False if this backend does not support one of them."""

    def logits(self, samples: range, batch: Batch) -> Tensor:
        """Return the logits (samples, images, …) of the samples that were prepared last."""

    def end(self) -> None:
        """Release the dataset."""


class BackendClass(Protocol):
    """A class of backends for some kinds of samples."""

    def for_sample(self, source: SampleSource, first: Draw, options: BackendOptions) -> Backend | None:
        """Return a backend if it supports the first sample and the options, else None; `ready` checks the rest."""


class NetWithWeights(NamedTuple):
    """A sample in the form of a network and the weights that replace its own.

    Attributes:
        key: the same module for all samples of one network.
        build: returns the complete network, with all weights.
        weights: the sampled weights, by name.
    """

    key: nn.Module
    build: Callable[[], nn.Module]
    weights: Mapping[str, Tensor]


def net_with_weights(sample: Draw) -> NetWithWeights | None:
    """Return a sample as a network with replaced weights; None if it is some other function."""
    if isinstance(sample, WeightDraw) and not sample.bayesian.recurrent:
        layout = sample.bayesian.layout
        # the network inside a Bayesian module lacks the weights that are sampled: `mean_module` has all
        weights = layout.by_all_names(layout.views(sample.weights))
        return NetWithWeights(sample.bayesian.module, sample.bayesian.mean_module, weights)
    if isinstance(sample, nn.Module):
        sample = NetDraw(sample, {})  # runs it in evaluation mode
    if isinstance(sample, NetDraw):
        net = sample.net
        return NetWithWeights(net, lambda: net, sample.weights)
    return None


def samples_per_chunk(images: int, classes: int, device: torch.device) -> int:
    """Return how many samples to run at a time over batches of so many images, so that the logits fit."""
    numbers = CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS_ELSEWHERE)
    return max(1, min(SAMPLES_PER_CHUNK, numbers // (images * classes)))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory of the tensors in bytes."""
    return sum(tensor.nbytes for tensor in tensors)
