"""The backend for CIFAR ResNets on a GPU: one kernel runs the whole network for many samples in one launch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from avuc.nets.resnet_cifar import CifarResNet
from avuc.nets.runner import Runner
from avuc.posterior import Draw
from avuc.prediction.backends.backend import (
    SAMPLES_PER_CHUNK,
    BackendOptions,
    SampleSource,
    net_with_weights,
    samples_per_chunk,
)
from avuc.prediction.inputs import Batch, Batches

if TYPE_CHECKING:
    from avuc.gpu.kernels.resnet_forward import ResNetForward


def kernel() -> type[ResNetForward]:
    """Return the kernel's class, imported when it is first needed."""
    from avuc.gpu.kernels.resnet_forward import ResNetForward

    return ResNetForward


class FusedResNetBackend:
    """Packs the folded weights of each sample once, in the order in which the kernel reads them."""

    samples_per_chunk: int = SAMPLES_PER_CHUNK

    def __init__(self, source: SampleSource, key: nn.Module, net: CifarResNet, memory: int) -> None:
        """`net` has all weights, and `key` identifies it in the samples."""
        self.source: SampleSource = source
        self.memory: int = memory
        self.classes: int = net.linear.out_features
        self.description: str = _description(net)
        self.run: ResNetForward = kernel()(net)
        self._runners: dict[nn.Module, Runner] = {key: Runner(net)}
        self._packed: Tensor | None = None  # (samples, numbers); only the first `_kept` rows are filled
        self._kept, self._compiles = 0, False
        self._chunk: Tensor | None = None

    @classmethod
    def for_sample(cls, source: SampleSource, first: Draw, options: BackendOptions) -> FusedResNetBackend | None:
        """Return this backend if it supports the first sample and the options; `ready` checks the other samples."""
        if options.dtype != torch.bfloat16 or options.compiled is not None or not options.fold_batch_norm:
            return None
        found = net_with_weights(first)
        if found is None or not isinstance(found.key, CifarResNet):
            return None
        net = found.build()
        assert isinstance(net, CifarResNet)
        if _is_modified(net) or kernel().unsupported_reason(net, options.device) is not None:
            return None
        return cls(source, found.key, net, options.memory)

    def begin(self, batches: Batches) -> bool:
        if batches.images is None or batches.arguments.exact:
            return False
        floats = batches.images.dtype in (torch.float32, torch.bfloat16, torch.float16)
        shape = (32, 32, 3) if batches.bytes else (3, 32, 32)
        self.samples_per_chunk = samples_per_chunk(batches.size, self.classes, batches.device)
        return (batches.bytes or floats) and batches.image_shape == shape

    def ready(self, samples: range) -> bool:
        if samples.stop <= self._kept and self._packed is not None:
            self._chunk = self._packed[samples.start : samples.stop]
            return True
        rows = [] if self._packed is None else list(self._packed[samples.start : self._kept])
        for index in samples[len(rows) :]:
            packed = self._pack(index)
            if packed is None:
                return False
            rows.append(packed)
        self._chunk = torch.stack(rows)
        if not self._compiles and not self._try(self._chunk):
            return False
        self._keep(samples, self._chunk)
        return True

    def logits(self, samples: range, batch: Batch) -> Tensor:
        assert self._chunk is not None
        return self.run.logits(batch.stored, self._chunk)

    def end(self) -> None:
        self._chunk = None

    def _try(self, packed: Tensor) -> bool:
        """Return whether the kernel compiles on this machine; if not, warn: prediction goes on with another backend."""
        from avuc.gpu.kernels.build import KernelError

        try:
            self.run.logits(torch.zeros(1, 32, 32, 3, dtype=torch.uint8, device=packed.device), packed[:1])
        except KernelError as error:
            warnings.warn(f"the network runs without its kernel: {error}", RuntimeWarning, stacklevel=2)
            return False
        self._compiles = True
        return True

    def _pack(self, index: int) -> Tensor | None:
        found = net_with_weights(self.source(index))
        if found is None:
            return None
        if found.key not in self._runners:
            net = found.build()
            if not isinstance(net, CifarResNet) or _is_modified(net) or _description(net) != self.description:
                return None
            self._runners[found.key] = Runner(net)  # one megabyte for each member of an ensemble
        runner = self._runners[found.key]
        return self.run.pack({**runner.base, **runner.weights(found.weights)})

    def _keep(self, samples: range, chunk: Tensor) -> None:
        """Keep the packed weights for the next dataset if they follow those already kept and fit into the memory."""
        if samples.start > self._kept:
            return
        row_bytes = chunk.shape[1] * chunk.element_size()
        if samples.stop * row_bytes > self.memory:
            return
        if self._packed is None or len(self._packed) < samples.stop:
            rows = min(self.memory // row_bytes, max(samples.stop, 2 * self._kept))
            grown = chunk.new_empty(rows, chunk.shape[1])
            if self._packed is not None:
                grown[: self._kept] = self._packed[: self._kept]
            self._packed = grown
        self._packed[samples.start : samples.stop] = chunk
        self._kept = samples.stop


def _description(net: CifarResNet) -> str:
    """Describe everything that the kernel takes from a network besides the packed weights."""
    constants = [(name, value.flatten().tolist()) for name, value in net.normalise.named_buffers()]
    return f"{net!r} {constants}"


def _is_modified(net: nn.Module) -> bool:
    """Return whether the network has hooks, parametrisations, forward functions of single layers or another class.

    The kernel would ignore them.
    """
    return type(net) is not CifarResNet or any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in vars(layer)
        or parametrize.is_parametrized(layer)
        for layer in net.modules()
    )
