"""Batch normalisation with sampled weights: statistics must belong to the weights they are used with.

In training, each sample of the weights is normalised by the statistics of its own batch. In evaluation mode a network
uses running averages over all samples seen in training, which fit no single sample. If the samples differ much (a wide
posterior), every sample is normalised wrongly. `PerDrawBatchNorm` measures the statistics again for each sample, once,
on training images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from avuc.bayes import BayesianModule, WeightDraw
from avuc.core.errors import InputError
from avuc.core.fingerprint import structure
from avuc.core.private_copy import deep_copy
from avuc.data.arrays import as_input
from avuc.nets.fold import state_of
from avuc.posterior import Draw, NetDraw, Posterior

BATCH = 256


class PerDrawBatchNorm(nn.Module):
    """A posterior over the weights of a network; each sample has its own statistics of batch normalisation.

    Args:
        posterior: a `BayesianModule` (SVI, Radial …).
        images: training images, uint8 (N, H, W, C) or as the network takes them. 2,048 are enough; `evenly_spaced`
            selects them.

    >>> from avuc.bayes import to_bayesian
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    >>> posterior = PerDrawBatchNorm(to_bayesian(net), torch.randint(256, (64, 8, 8, 1), dtype=torch.uint8))
    >>> posterior.draw(torch.Generator().manual_seed(0))(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    images: Tensor
    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(self, posterior: Posterior, images: Tensor) -> None:
        super().__init__()
        if not isinstance(posterior, BayesianModule) or posterior.recurrent:
            raise InputError(
                "PerDrawBatchNorm needs a posterior over the weights of a network (SVI, Radial …), found "
                f"{type(posterior).__name__}"
            )
        if not len(images):
            raise InputError("PerDrawBatchNorm measures statistics on training images, found none")
        self.posterior = posterior
        # the network that all samples refer to: every tensor in it is replaced, only its layers are used
        self.net: nn.Module = posterior.mean_module()
        self._structure: object = structure(posterior.module)
        self.register_buffer("images", images, persistent=False)

    @property
    def num_draws(self) -> int | None:
        return None

    def __getstate__(self) -> dict[str, Any]:
        # the structure may hold functions, which cannot be pickled; a copy looks at its own at the first sample
        return {**self.__dict__, "_structure": None}

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> Draw:
        sample, now = self.posterior.draw(generator), structure(self.posterior.module)
        assert isinstance(sample, WeightDraw)
        if now != self._structure:  # a layer, a hook or an attribute has changed
            self.net, self._structure = self.posterior.mean_module(), now
        net = self.net
        layout = self.posterior.layout
        weights = {**state_of(self.posterior.module), **layout.by_all_names(layout.views(sample.weights))}
        names = state_of(net)
        weights = {name: value.detach() for name, value in weights.items() if name in names}
        return NetDraw(net, weights | measure_statistics(net, weights, self.images))


def evenly_spaced(images: Tensor, count: int) -> Tensor:
    """Return `count` of the images at equal distances, so that every class of a sorted dataset is represented."""
    total = len(images)
    return images if total <= count else images[torch.arange(count, device=images.device) * total // count]


def tracks_statistics(layer: nn.Module) -> bool:
    """Return whether a layer normalises by running averages over batches."""
    return isinstance(layer, _NormBase) and layer.track_running_stats


@torch.no_grad()
def measure_statistics(net: nn.Module, weights: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    """Return the running statistics of batch normalisation for a network with these weights, by name.

    They are means over batches of the images. Each batch is spread over all images: in a batch of one class of a sorted
    dataset the variance would be too small. Layers that the network's own `train()` keeps in evaluation mode are left
    out, because training used their running statistics. The network is not changed.
    """
    if not any(map(tracks_statistics, net.modules())):  # before the copy, which takes time for each sample
        return {}
    scratch = deep_copy(net).train()
    layers: dict[str, Any] = {
        name: layer for name, layer in scratch.named_modules() if tracks_statistics(layer) and layer.training
    }
    scratch.eval()
    for name, value in (*scratch.named_parameters(), *scratch.named_buffers()):
        if name in weights:
            value.copy_(weights[name])
    for layer in layers.values():
        layer.reset_running_stats()
        layer.momentum = None  # torch then takes the mean over batches, except of instance normalisation
        if isinstance(layer, _InstanceNorm):
            layer.register_forward_pre_hook(_count_batch)
        layer.train()
    batches = -(-len(images) // BATCH)
    for start in range(batches):
        batch = images[start::batches]
        # a network may change its input in place, such as x -= mean, and the next sample needs the images again
        scratch(as_input(batch) if batch.dtype == torch.uint8 else batch.clone())
    wanted = {f"{layer}.{kind}" for layer in layers for kind in ("running_mean", "running_var")}
    return {name: buffer for name, buffer in scratch.named_buffers() if name in wanted}


def _count_batch(layer: Any, _: Any) -> None:
    """Let running statistics become the mean over batches, as torch does for batch normalisation without momentum."""
    layer.num_batches_tracked += 1
    layer.momentum = 1 / int(layer.num_batches_tracked)
