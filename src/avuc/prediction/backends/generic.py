"""The backend that supports every sample: it runs them one after the other, folded and compiled where possible."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.core.caller import warn_caller
from avuc.methods.dropout import MaskDraw
from avuc.nets.fold import state_of
from avuc.nets.runner import MODE, Runner
from avuc.posterior import Draw
from avuc.prediction.arguments import Arguments, tensor_of
from avuc.prediction.backends.backend import (
    BackendOptions,
    NetWithWeights,
    SampleSource,
    bytes_of,
    net_with_weights,
    samples_per_chunk,
)
from avuc.prediction.backends.dropout_masks import Shapes, mask_shapes, masked_net, masks_of, runs
from avuc.prediction.backends.static_net import StaticNet
from avuc.prediction.inputs import Batch, Batches
from avuc.prediction.outputs import logits_of


class GenericBackend:
    """Runs one sample at a time; supports every sample and every dataset."""

    samples_per_chunk: int = 1  # more once it is known how large the logits of a compiled network are

    def __init__(
        self, source: SampleSource, options: BackendOptions, bayesian: BayesianModule | None = None, seed: int = 0
    ) -> None:
        """Create the backend; if `options.compiled` is None, nothing is compiled (`Predictor` has decided already).

        Args:
            source: returns the samples.
            options: the options of the prediction.
            bayesian: the posterior, if `source` returns its own samples; they can then be drawn in another form.
            seed: of the samples, for `bayesian`.
        """
        self.source: SampleSource = source
        self.options: BackendOptions = options
        self.bayesian: BayesianModule | None = bayesian
        self.seed: int = seed
        self.limit: int = 1  # how many samples will run
        self.fills: bool = True  # whether rows may be added to a batch
        self._compiled: bool | str = options.compiled or False
        self._static: StaticNet | None = None
        self._static_tried = False
        self._failure: str | None = None  # the compiler's error, until the user has been warned about it
        self._runners: dict[nn.Module, Runner] = {}  # by network
        self._mask_shapes: dict[nn.Module, Shapes | None] = {}  # shapes of dropout masks, by network
        self._kept: dict[int, Draw] = {}  # prepared samples, by index
        self._memory_left = options.memory
        self._batches: Batches | None = None
        self._image_shape: tuple[int, ...] = ()
        # only for one positional argument: another one, such as a mask, may act between the two layers
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
            self._drop()
        self._batches, self._image_shape, self._folded = batches, batches.image_shape, folded
        self.samples_per_chunk = 1
        return True

    def ready(self, samples: range) -> bool:
        if len(samples) == 1:
            with _plain_tensors():
                self._use(samples[0])
        return True

    def logits(self, samples: range, batch: Batch) -> Tensor:
        per_sample = []
        with _plain_tensors():
            for index in samples:
                if len(samples) > 1:
                    self._use(index)
                per_sample.append(self._logits(index, batch))
        assert self._batches is not None
        if self._static is not None and len(self._batches) == 1:
            # the sums over several samples take as many launches as those of one
            self.samples_per_chunk = samples_per_chunk(1, per_sample[0].numel(), self.options.device)
        return per_sample[0][None] if len(per_sample) == 1 else torch.stack(per_sample)

    def _use(self, index: int) -> None:
        """Select this sample for the next calls."""
        try:
            if not self._static_tried and self.bayesian is not None and self._compiled in (True, MODE):
                self._static_tried = True
                self._static = self._static_net(self.bayesian)
            if self._static is not None:
                self._static.ready(index, index + 1 if index + 1 < self.limit else None)
                return
        except Exception as error:
            self._stop_compiling(error)
        self._current = self._kept.get(index) or self._prepare(index)

    def _logits(self, index: int, batch: Batch) -> Tensor:
        assert self._batches is not None
        device, dtype = self.options.device, self.options.dtype
        autocast = torch.autocast(device.type, dtype) if dtype is not None else contextlib.nullcontext()
        arguments, rows = batch.input, len(batch)
        # A compiled function takes batches of one size, so the last batch is filled up with its first image. Inputs
        # without a row for each example (nodes of a graph) stay as they are.
        missing = self._batches.filled - rows if self._compiled and self.fills else 0
        if missing > 0 and all(array.ndim and len(array) == rows for _, array in arguments.arrays()):
            arguments = arguments.map(lambda part: _filled(tensor_of(part), missing))
            rows += missing
        with autocast:
            logits = logits_of(self._output(index, arguments), rows, self.options.logits)
        if self._static is not None:
            logits = logits.clone()  # the next call overwrites it
        return logits[: len(batch)]

    def end(self) -> None:
        if self._static is not None:
            self._static.end()
        self._batches = self._current = None

    def _output(self, index: int, arguments: Arguments) -> Any:
        """Return the network's output. If compiling fails, the network runs uncompiled, and a warning says why."""
        try:
            output = self._run(arguments)
        except Exception as error:
            if not self._compiled:
                raise
            compiled = self._compiled
            self._stop_compiling(error)
            self._use(index)
            try:
                output = self._run(arguments)
            except Exception:  # the network's own error, for this input
                self._drop()
                self._compiled, self._failure = compiled, None
                raise
        if self._failure is not None:
            warn_caller(f"the network runs without torch.compile, which failed: {self._failure}")
            self._failure = None
        return output

    def _run(self, arguments: Arguments) -> Any:
        if self._static is not None:
            return self._static(arguments)
        assert self._current is not None
        return self._current(*arguments.args, **arguments.kwargs)

    def _stop_compiling(self, error: Exception) -> None:
        self._drop()
        self._compiled = False
        self._failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def _drop(self) -> None:
        """Drop everything that was prepared."""
        if self._static is not None:
            self._static.end()
        self._static, self._static_tried = None, False
        self._kept.clear()
        self._runners.clear()
        self._memory_left = self.options.memory

    def _static_net(self, bayesian: BayesianModule) -> StaticNet | None:
        if bayesian.recurrent:
            return None
        runner = Runner(bayesian.mean_module(), key=bayesian.module, folded=self._folded, compiled=MODE)
        if not StaticNet.supports(bayesian, runner):
            return None
        assert self._batches is not None
        arguments = next(iter(self._batches)).input
        return StaticNet(bayesian, runner, self.options.dtype, self.seed, self.options.memory, arguments)

    def _prepare(self, index: int) -> Draw:
        sample = self.source(index)
        net = self._with_masks(sample) if isinstance(sample, MaskDraw) else net_with_weights(sample)
        if net is None:
            return sample  # a function of unknown size: it is not kept
        runner, size = self._runners.get(net.key), 0
        if runner is None:
            self._runners.clear()  # the members of an ensemble run one after the other, so only one runner is in use
            runner = Runner(
                net.build(),
                key=net.key,
                folded=self._folded,
                compiled=self._compiled,
            )
            self._runners[net.key] = runner
            # weights that the network itself holds take no memory of their own
            held = {tensor.data_ptr() for tensor in state_of(net.key).values()}
            size = bytes_of(value for value in runner.base.values() if value.data_ptr() not in held)
        weights = runner.weights(net.weights)
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
            masked = masked_net(net)
            can = masked is not None and runs(masked, *image.args, **image.kwargs)
            self._mask_shapes[net] = mask_shapes(sample, *image.args, **image.kwargs) if can else None
        shapes = self._mask_shapes[net]
        if shapes is None:
            return None

        def build() -> nn.Module:
            built = masked_net(net)
            assert built is not None
            return built

        return NetWithWeights(net, build, masks_of(sample, shapes, self.options.device))


@contextlib.contextmanager
def _plain_tensors() -> Iterator[None]:
    """Switch off gradients and inference mode; a later call outside could not write to inference tensors."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _filled(tensor: Tensor, missing: int) -> Tensor:
    """Return a tensor with `missing` copies of its first row added."""
    return torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
