"""The backend for any sample: one after the other, folded and compiled where that is possible."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from avuc.methods.dropout import MaskDraw
from avuc.nets.fold import state_of
from avuc.nets.runner import Runner
from avuc.posterior import Draw
from avuc.prediction.arguments import tensor_of
from avuc.prediction.backends.backend import (
    BackendOptions,
    NetWithWeights,
    SampleSource,
    bytes_of,
    net_with_weights,
)
from avuc.prediction.backends.dropout_masks import Shapes, mask_shapes, masked_net, masks_of
from avuc.prediction.inputs import Batch, Batches
from avuc.prediction.outputs import logits_of


class GenericBackend:
    """Runs one sample at a time; supports every sample and every dataset."""

    samples_per_chunk = 1

    def __init__(self, source: SampleSource, options: BackendOptions) -> None:
        """`options.compiled` None means that nothing is compiled; `Predictor` decides before it comes here."""
        self.source: SampleSource = source
        self.options: BackendOptions = options
        self._runners: dict[nn.Module, Runner] = {}  # by network
        self._mask_shapes: dict[nn.Module, Shapes | None] = {}  # of dropout, by network
        self._kept: dict[int, Draw] = {}  # prepared samples, by index
        self._memory_left = options.memory
        self._batches: Batches | None = None
        self._image_shape: tuple[int, ...] = ()
        # only for one positional argument: a mask, for example, may act between the two layers
        self._folded = options.fold_batch_norm
        self._current: Draw | None = None

    @classmethod
    def for_sample(cls, source: SampleSource, first: Draw, options: BackendOptions) -> GenericBackend:
        return cls(source, options)

    def begin(self, batches: Batches) -> bool:
        if self._mask_shapes and self._image_shape != batches.image_shape:
            # dropout masks have the shape of a layer's input, which depends on the size of the image
            self._kept.clear()
            self._mask_shapes.clear()
            self._memory_left = self.options.memory
        folded = self.options.fold_batch_norm and batches.images is not None
        if folded != self._folded:
            self._kept.clear()
            self._runners.clear()
            self._memory_left = self.options.memory
        self._batches, self._image_shape, self._folded = batches, batches.image_shape, folded
        return True

    def ready(self, samples: range) -> bool:
        self._current = self._kept.get(samples[0]) or self._prepare(samples[0])
        return True

    def logits(self, samples: range, batch: Batch) -> Tensor:
        assert self._current is not None
        assert self._batches is not None
        device, dtype = self.options.device, self.options.dtype
        autocast = torch.autocast(device.type, dtype) if dtype is not None else contextlib.nullcontext()
        given, rows = batch.input, len(batch)
        # a compiled function takes batches of one size only, so the last batch is filled up with its first image
        missing = self._batches.size - rows if self.options.compiled else 0
        if missing > 0:
            given = given.map(lambda part: _filled(tensor_of(part), missing))
            rows += missing
        with autocast:
            logits = logits_of(self._current(*given.args, **given.kwargs), rows, self.options.logits)
        return logits[: len(batch)][None]

    def end(self) -> None:
        self._batches = self._current = None

    def _prepare(self, index: int) -> Draw:
        sample = self.source(index)
        found = self._with_masks(sample) if isinstance(sample, MaskDraw) else net_with_weights(sample)
        if found is None:
            return sample  # a function of unknown size: it is not kept
        runner, size = self._runners.get(found.key), 0
        if runner is None:
            self._runners.clear()  # the members of an ensemble follow one another: only one is in use
            runner = Runner(
                found.build(),
                key=found.key,
                folded=self._folded,
                compiled=self.options.compiled or False,
            )
            self._runners[found.key] = runner
            # weights that the network itself holds take no memory of their own
            held = {tensor.data_ptr() for tensor in state_of(found.key).values()}
            size = bytes_of(value for value in runner.base.values() if value.data_ptr() not in held)
        weights = runner.weights(found.weights)
        function = runner.with_folded(weights)
        size += bytes_of(weights.values())
        if size <= self._memory_left:
            self._memory_left -= size
            self._kept[index] = function
        return function

    def _with_masks(self, sample: MaskDraw) -> NetWithWeights | None:
        """Return a dropout sample as a network whose weights include the masks; None if that is not possible."""
        net = sample.net
        if net not in self._mask_shapes:
            assert self._batches is not None
            batch = next(iter(self._batches))
            image = batch.input
            if all(len(part) == len(batch) for _, part in image.arrays() if part.ndim):  # nodes of a graph are not
                image = image[0:1]
            can = masked_net(net) is not None
            self._mask_shapes[net] = mask_shapes(sample, *image.args, **image.kwargs) if can else None
        shapes = self._mask_shapes[net]
        if shapes is None:
            return None

        def build() -> nn.Module:
            made = masked_net(net)
            assert made is not None
            return made

        return NetWithWeights(net, build, masks_of(sample, shapes, self.options.device))


def _filled(tensor: Tensor, missing: int) -> Tensor:
    """Return a tensor with so many copies of its first row added."""
    return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
