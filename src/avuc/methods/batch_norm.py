"""Batch normalisation of drawn weights: its statistics belong to the weights they were measured with.

In training each draw of the weights is normalised by the statistics of its own batch. In evaluation a net uses running
averages, which are those of no draw in particular: where draws differ much (a wide posterior), every one of them is
normalised wrongly. `OwnStatistics` measures them again for each draw, once, on training images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from avuc.bayes import BayesianModule, WeightDraw
from avuc.core.errors import InputError
from avuc.core.fingerprint import structure
from avuc.data.arrays import as_input
from avuc.nets.fold import state_of
from avuc.posterior import Draw, NetDraw, Posterior

__all__ = ["OwnStatistics", "measured_again", "spread_out"]

BATCH = 256


class OwnStatistics(nn.Module):
    """A posterior over the weights of a net, each draw with statistics of batch normalisation of its own.

    images: training images, uint8 (N, H, W, C) or as the net takes them; 2,048 are plenty (`spread_out`).

    >>> from avuc.bayes import to_bayesian
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    >>> posterior = OwnStatistics(to_bayesian(net), torch.randint(256, (64, 8, 8, 1), dtype=torch.uint8))
    >>> posterior.draw(torch.Generator().manual_seed(0))(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    images: Tensor

    def __init__(self, posterior: Posterior, images: Tensor) -> None:
        super().__init__()
        if not isinstance(posterior, BayesianModule) or posterior.recurrent:
            raise InputError(
                f"own statistics need a posterior over the weights of a net (SVI, Radial …), not {_kind(posterior)}"
            )
        if not len(images):
            raise InputError("own statistics are measured on training images; found none")
        self.posterior = posterior
        # what the draws are known by: its tensors are never used, its layers are those of the posterior's own net
        self.net, self._made_from = posterior.mean_module(), structure(posterior.module)
        self.register_buffer("images", images, persistent=False)

    @property
    def num_draws(self) -> int | None:
        return None

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> Draw:
        drawn, made_from = self.posterior.draw(generator), structure(self.posterior.module)
        assert isinstance(drawn, WeightDraw)
        if made_from != self._made_from:  # a layer, a hook or an attribute has changed since
            self.net, self._made_from = self.posterior.mean_module(), made_from
        net = self.net
        layout = self.posterior.layout
        weights = {**state_of(self.posterior.module), **layout.by_place(layout.views(drawn.weights))}
        known = state_of(net)
        weights = {name: value.detach() for name, value in weights.items() if name in known}
        return NetDraw(net, weights | measured_again(net, weights, self.images))


def spread_out(images: Tensor, count: int) -> Tensor:
    """`count` of the images, evenly spread, so that a sorted training set is represented too."""
    return images[:: max(1, len(images) // count)][:count]


@torch.no_grad()
def measured_again(net: nn.Module, weights: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    """The running statistics of batch normalisation with these weights: the mean over batches of the images."""
    scratch = copy.deepcopy(net).eval()
    for name, value in (*scratch.named_parameters(), *scratch.named_buffers()):
        if name in weights:
            value.copy_(weights[name])
    layers = {
        name: layer
        for name, layer in scratch.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats
    }
    if not layers:
        return {}
    for layer in layers.values():
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean
        layer.train()
    for batch in images.split(BATCH):
        if len(batch) > 1 or len(images) == 1:
            scratch(as_input(batch) if batch.dtype == torch.uint8 else batch)
    wanted = {f"{layer}.{kind}" for layer in layers for kind in ("running_mean", "running_var")}
    return {name: buffer for name, buffer in scratch.named_buffers() if name in wanted}


def _kind(posterior: object) -> str:
    return type(posterior).__name__
