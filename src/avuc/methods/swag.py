"""SWAG (Maddox et al. 2019, arXiv:1902.02476): a Gaussian fitted to the weights of the last training epochs.

From `start` on, the weights θ_i at the end of each epoch are collected: their mean θ̄, their variance and the last
`rank` deviations D_i = θ_i − θ̄_i (θ̄_i is the mean so far). With z₁, z₂ ~ N(0, I) and K deviations, a sample is

    θ = θ̄ + √½ · std ∘ z₁ + D z₂ / √(2(K − 1)).

The learning rate should stay high and constant from `start` on: weights that no longer change have no spread.

Batch-norm statistics depend on the weights. With training images, each sample measures them again on `bn_images` of
these (the authors use the whole training set). Without, a sample uses the mean statistics of the collected epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.numbers import check_settings
from avuc.core.private_copy import changed_by_eval
from avuc.core.shared_functions import independent_copy
from avuc.methods.batch_norm import evenly_spaced, measure_statistics
from avuc.methods.method import Method
from avuc.posterior import NetDraw, Posterior


@dataclass(frozen=True)
class SWAG(Method):
    """A Gaussian fitted to the weights of the last epochs: θ = θ̄ + √½ · std ∘ z₁ + D z₂ / √(2(K − 1)).

    Args:
        start: fraction of the epochs after which weights are collected (default 0.75).
        rank: largest number K of deviations that are kept (default 20).
        bn_images: number of training images that measure batch-norm statistics for each sample (default 2048; 0: use
            the mean statistics of the collected epochs).

    >>> method = SWAG(start=0.5)
    >>> model = method.build(nn.Linear(4, 3))
    >>> for epoch in range(4):
    ...     method.epoch_end(model, epoch, epochs=4)
    >>> method.posterior([model]).draw(torch.Generator().manual_seed(0))(torch.zeros(8, 4)).shape
    torch.Size([8, 3])
    """

    name = "swag"
    start: float = 0.75
    rank: int = 20
    bn_images: int = 2048

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 <= self.start < 1 or self.rank < 2 or self.bn_images < 0:
            raise InputError(
                "swag: start is a share of the epochs in [0, 1), rank at least 2, bn_images at least 0; found "
                f"{self.start}, {self.rank}, {self.bn_images}"
            )

    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        return SWAGModel(independent_copy(net), self.rank)

    def check_epochs(self, epochs: int) -> None:
        if self._collects(epochs - 2, epochs):
            return
        fewest = next(n for n in itertools.count(int(2 / (1 - self.start))) if self._collects(n - 2, n))
        raise InputError(
            f"swag: with start={self.start}, {epochs} epochs collect fewer than the 2 sets of weights that it needs; "
            f"train for at least {fewest} epochs{', or use a smaller start' if epochs > 1 else ''}"
        )

    def epoch_end(self, model: nn.Module, epoch: int, epochs: int) -> None:
        if self._collects(epoch, epochs):
            _swag(model).collect()

    def _collects(self, epoch: int, epochs: int) -> bool:
        return epoch >= self.start * epochs

    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        some = evenly_spaced(images, self.bn_images) if images is not None and self.bn_images else None
        return SWAGPosterior(_swag(self.one(models)), some)


class SWAGModel(nn.Module):
    """A net with the mean, variance and deviations of its collected weights, all in its `state_dict`."""

    mean: Tensor
    squares: Tensor
    deviations: Tensor
    statistics: Tensor
    count: Tensor

    def __init__(self, net: nn.Module, rank: int) -> None:
        super().__init__()
        named = net.named_parameters()
        imaginary = [name for name, weight in named if weight.is_complex()]
        if imaginary:
            raise InputError(
                f"swag: {imaginary[0]!r} is complex, and its Gaussian is over real weights; keep real and imaginary "
                "parts as two parameters"
            )
        changed = changed_by_eval(net, from_training=True)
        if changed:
            raise InputError(
                f"swag: eval() changes the network's {changed!r}, as if adapters are merged into the weights, and "
                "would not change sampled weights; switch that off, for example with merge_weights=False of loralib"
            )
        self.net = net
        weights, statistics = self._weights(), self._statistics()
        self.register_buffer("mean", torch.zeros_like(weights))
        self.register_buffer("squares", torch.zeros_like(weights))  # Σ (θ_i − θ̄)²
        self.register_buffer("deviations", torch.zeros(rank, len(weights), dtype=weights.dtype, device=weights.device))
        self.register_buffer("statistics", torch.zeros_like(statistics))  # mean of the buffers
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the net's current weights by Welford's update, because Σθ² − n θ̄² would cancel in float32."""
        weights = self._weights()
        self.count += 1
        count = int(self.count)
        before = weights - self.mean
        self.mean += before / count
        after = weights - self.mean
        self.squares += before * after
        self.deviations[(count - 1) % len(self.deviations)] = after
        now = self._statistics()
        mean = self.statistics + (now - self.statistics) / count
        # infinity has no mean; a causal mask of attention stays as it is
        self.statistics.copy_(torch.where(mean.isfinite(), mean, now))

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the weights of one sample and the mean statistics, by their names in the net."""
        count, dtype = int(self.count), self.mean.dtype
        columns = min(count, len(self.deviations))
        noise = torch.randn(len(self.mean) + columns, generator=generator, device=generator.device, dtype=dtype)
        z1, z2 = noise.to(self.mean.device).split([len(self.mean), columns])
        spread = (self.squares / count).sqrt() * z1 / 2**0.5
        theta = self.mean + spread + z2 @ self.deviations[:columns] / (2 * (columns - 1)) ** 0.5
        return {
            **_named(theta, dict(self.net.named_parameters())),
            **_named(self.statistics.clone(), self._buffers_to_average()),  # a forward pass may write to buffers
        }

    def _buffers_to_average(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.net.named_buffers() if buffer.is_floating_point()}

    def _weights(self) -> Tensor:
        # reshape, not view: weights may be in channels_last format
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.net.parameters()])

    def _statistics(self) -> Tensor:
        none = next(self.net.parameters()).detach().new_zeros(0)
        return torch.cat([none, *(buffer.reshape(-1) for buffer in self._buffers_to_average().values())])


class SWAGPosterior(nn.Module):
    """Gaussian over a net's weights. With `images`, each sample measures its batch-norm statistics on them."""

    num_draws: int | None = None
    images: Tensor | None
    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(self, model: SWAGModel, images: Tensor | None = None) -> None:
        super().__init__()
        if int(model.count) < 2:
            raise InputError(
                f"SWAG has collected {int(model.count)} sets of weights and needs at least 2: "
                "train for more epochs, or start to collect earlier"
            )
        self.model = model
        self.register_buffer("images", images, persistent=False)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> NetDraw:
        weights = self.model.draw(generator)
        if self.images is not None:
            weights |= measure_statistics(self.model.net, weights, self.images)
        return NetDraw(self.model.net, weights)


def _named(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view_as(value).to(value.dtype) for (name, value), part in zip(like.items(), parts, strict=True)}


def _swag(model: nn.Module) -> SWAGModel:
    if not isinstance(model, SWAGModel):
        raise InputError(f"expected the SWAGModel that build made, found {type(model).__name__}")
    return model
