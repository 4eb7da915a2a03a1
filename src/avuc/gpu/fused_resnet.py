"""Draws of a CIFAR ResNet through a kernel that runs the whole network for many draws in one launch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from avuc.nets.resnet_cifar import CifarResNet
from avuc.nets.runner import Runner
from avuc.posterior import Draw
from avuc.prediction.backends.generic import AT_ONCE, Source, draws_at_once, parts_of
from avuc.prediction.inputs import Batch, Batches

if TYPE_CHECKING:
    from avuc.gpu.kernels.resnet_forward import ResNetForward

__all__ = ["WholeNet", "kernel"]


def kernel() -> type[ResNetForward]:
    """Imported where it is used: it is of use on a GPU only."""
    from avuc.gpu.kernels.resnet_forward import ResNetForward

    return ResNetForward


class WholeNet:
    """Each draw's folded weights, packed once, as the kernel reads them."""

    at_once = AT_ONCE

    def __init__(self, source: Source, key: nn.Module, net: CifarResNet, memory: int) -> None:
        """`net` with all its weights, `key` what the draws know it by."""
        self.source, self.memory = source, memory
        self.classes, self.text = net.linear.out_features, _text(net)
        self.run = kernel()(net)
        self._runners: dict[nn.Module, Runner] = {key: Runner(net)}
        self._packed: Tensor | None = None  # (draws, numbers); the first `_made` rows are filled
        self._made, self._tried = 0, False
        self._chunk: Tensor | None = None

    @classmethod
    def of(cls, source: Source, draw: Draw, device: torch.device, memory: int) -> WholeNet | None:
        """This way, if one draw can go it; `ready` looks at the others."""
        parts = parts_of(draw)
        if parts is None or not isinstance(parts.key, CifarResNet):
            return None
        net = parts.whole()
        assert isinstance(net, CifarResNet)
        if _changed(net) or kernel().reason_against(net, device) is not None:
            return None
        return cls(source, parts.key, net, memory)

    def begin(self, batches: Batches) -> bool:
        floats = batches.images.dtype in (torch.float32, torch.bfloat16, torch.float16)
        shape = (32, 32, 3) if batches.bytes else (3, 32, 32)
        self.at_once = draws_at_once(batches.size, self.classes, batches.device)
        return (batches.bytes or floats) and batches.image_shape == shape

    def ready(self, draws: range) -> bool:
        if draws.stop <= self._made and self._packed is not None:
            self._chunk = self._packed[draws.start : draws.stop]
            return True
        rows = [] if self._packed is None else list(self._packed[draws.start : self._made])
        for index in draws[len(rows) :]:
            packed = self._pack(index)
            if packed is None:
                return False
            rows.append(packed)
        self._chunk = torch.stack(rows)
        if not self._tried and not self._runs(self._chunk):
            return False
        self._keep(draws, self._chunk)
        return True

    def logits(self, draws: range, batch: Batch) -> Tensor:
        assert self._chunk is not None
        return self.run.logits(batch.stored, self._chunk)

    def _runs(self, packed: Tensor) -> bool:
        """Whether the kernel compiles here: a machine on which it does not still predicts, only slower."""
        from avuc.gpu.kernels.build import KernelError

        try:
            self.run.logits(torch.zeros(1, 32, 32, 3, dtype=torch.uint8, device=packed.device), packed[:1])
        except KernelError as error:
            warnings.warn(f"the net runs without its kernel: {error}", RuntimeWarning, stacklevel=2)
            return False
        self._tried = True
        return True

    def end(self) -> None:
        self._chunk = None

    def _pack(self, index: int) -> Tensor | None:
        parts = parts_of(self.source(index))
        if parts is None:
            return None
        if parts.key not in self._runners:
            net = parts.whole()
            if not isinstance(net, CifarResNet) or _changed(net) or _text(net) != self.text:
                return None
            self._runners[parts.key] = Runner(net)  # a megabyte for each member of an ensemble
        runner = self._runners[parts.key]
        return self.run.pack({**runner.base, **runner.weights(parts.weights)})

    def _keep(self, draws: range, chunk: Tensor) -> None:
        if draws.start > self._made:
            return
        needed = draws.stop * chunk.shape[1] * chunk.element_size()
        if needed > self.memory:
            return
        if self._packed is None or len(self._packed) < draws.stop:
            room = self.memory // (chunk.shape[1] * chunk.element_size())
            grown = chunk.new_empty(min(room, max(draws.stop, 2 * self._made)), chunk.shape[1])
            if self._packed is not None:
                grown[: self._made] = self._packed[: self._made]
            self._packed = grown
        self._packed[draws.start : draws.stop] = chunk
        self._made = draws.stop


def _text(net: CifarResNet) -> str:
    """All that the kernel takes from a net beside the weights that are packed."""
    constants = [(name, value.flatten().tolist()) for name, value in net.normalise.named_buffers()]
    return f"{net!r} {constants}"


def _changed(net: nn.Module) -> bool:
    """Whether somebody has put something between the layers, which the kernel would not know of."""
    return type(net) is not CifarResNet or any(
        layer._forward_hooks or layer._forward_pre_hooks or parametrize.is_parametrized(layer)
        for layer in net.modules()
    )
