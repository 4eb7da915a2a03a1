"""Ways to run draws over images: each gives the same logits, and asks for as little as the draws allow.

    WholeNet    the whole network in one kernel, many draws at a time (bfloat16, CIFAR ResNets on a GPU)
    LastLayer   draws that differ in the last linear layer only: everything before it runs once for all draws
    Plain       one draw after the other: folded and compiled where it can be, else as it is

What a draw is made of does not depend on the images, so a way keeps it for the next set, within a bound of memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from avuc.bayes import WeightDraw
from avuc.methods.dropout import MaskDraw
from avuc.nets.runner import Runner
from avuc.posterior import Draw, NetDraw
from avuc.prediction.backends.dropout_masks import Shapes, mask_shapes, masked_net, masks_of
from avuc.prediction.checks import logits_of
from avuc.prediction.inputs import Batch, Batches

__all__ = ["AT_ONCE", "Parts", "Plain", "Way", "bytes_of", "draws_at_once", "parts_of"]

Source = Callable[[int], Draw]
# draws in one chunk: enough that launches cost nothing, few enough that the next are made while these run
AT_ONCE = 16
# logits of one chunk, as numbers: 256 MiB on a GPU, a core's cache elsewhere
CHUNK_NUMBERS = {"cuda": 1 << 26}
CHUNK_NUMBERS_ELSEWHERE = 1 << 20


class Way(Protocol):
    at_once: int  # draws in one chunk, at most

    def begin(self, batches: Batches) -> bool:
        """A new set of images; False where this way cannot take it."""

    def ready(self, draws: range) -> bool:
        """Make these draws; False where one of them cannot go this way."""

    def logits(self, draws: range, batch: Batch) -> Tensor:
        """(draws, images, classes), of the draws that were made ready last."""

    def end(self) -> None:
        """Let go of this set's images."""


class Parts(NamedTuple):
    """A draw as a net with some weights replaced."""

    key: nn.Module  # the same for all draws of one net
    whole: Callable[[], nn.Module]
    weights: Mapping[str, Tensor]


def parts_of(draw: Draw) -> Parts | None:
    if isinstance(draw, WeightDraw) and not draw.bayesian.recurrent:
        layout = draw.bayesian.layout
        # a Bayesian module's own net lacks the weights that are drawn
        return Parts(draw.bayesian.module, draw.bayesian.mean_module, layout.by_place(layout.views(draw.weights)))
    if isinstance(draw, nn.Module):
        draw = NetDraw(draw, {})  # a draw is a function of the image, and a net is one in evaluation mode only
    if isinstance(draw, NetDraw):
        net = draw.net
        return Parts(net, lambda: net, draw.weights)
    return None


def draws_at_once(rows: int, classes: int, device: torch.device) -> int:
    most = CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS_ELSEWHERE)
    return max(1, min(AT_ONCE, most // (rows * classes)))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class Plain:
    """One draw after the other."""

    at_once = 1

    def __init__(
        self,
        source: Source,
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        folded: bool,
        compiled: bool | str,
        memory: int,
    ) -> None:
        self.source, self.device, self.dtype = source, device, dtype
        self.folded, self.compiled, self.memory = folded, compiled, memory
        self._runners: dict[nn.Module, Runner] = {}  # by net
        self._thinned: dict[nn.Module, Shapes | None] = {}  # the masks' shapes, by net
        self._kept: dict[int, Draw] = {}
        self._room = memory
        self._batches: Batches | None = None
        self._image_shape: tuple[int, ...] = ()
        self._function: Draw | None = None

    def begin(self, batches: Batches) -> bool:
        if self._thinned and self._image_shape != batches.image_shape:
            self._kept.clear()
            self._thinned.clear()
            self._room = self.memory
        self._batches, self._image_shape = batches, batches.image_shape
        return True

    def ready(self, draws: range) -> bool:
        self._function = self._kept.get(draws[0]) or self._made(draws[0])
        return True

    def logits(self, draws: range, batch: Batch) -> Tensor:
        assert self._function is not None
        assert self._batches is not None
        autocast = torch.autocast(self.device.type, self.dtype) if self.dtype is not None else contextlib.nullcontext()
        images = batch.input
        # a compiled function sees batches of one size only, so the last one is filled up
        missing = self._batches.size - len(images) if self.compiled else 0
        if missing > 0:
            images = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        with autocast:
            logits = logits_of(self._function(images), len(images))
        return logits[: len(batch)][None]

    def end(self) -> None:
        self._batches = self._function = None

    def _made(self, index: int) -> Draw:
        draw = self.source(index)
        parts = self._thin(draw) if isinstance(draw, MaskDraw) else parts_of(draw)
        if parts is None:
            return draw  # somebody's own function: nobody knows how large it is
        runner, size = self._runners.get(parts.key), 0
        if runner is None:
            self._runners.clear()  # an ensemble's members follow one another: only one is in use
            runner = Runner(parts.whole(), key=parts.key, folded=self.folded, compiled=self.compiled)
            self._runners[parts.key] = runner
            size = bytes_of(runner.base.values())
        weights = runner.weights(parts.weights)
        function = runner.with_folded(weights)
        size += bytes_of(weights.values())
        if size <= self._room:
            self._room -= size
            self._kept[index] = function
        return function

    def _thin(self, draw: MaskDraw) -> Parts | None:
        """A thinned network as a net with masks, where folding and compiling it pays."""
        net = draw.net
        if net not in self._thinned:
            assert self._batches is not None
            shapes = mask_shapes(draw, next(iter(self._batches)).input[:1]) if masked_net(net) is not None else None
            self._thinned[net] = shapes
        shapes = self._thinned[net]
        if shapes is None:
            return None

        def whole() -> nn.Module:
            made = masked_net(net)
            assert made is not None
            return made

        return Parts(net, whole, masks_of(draw, shapes, self.device))
