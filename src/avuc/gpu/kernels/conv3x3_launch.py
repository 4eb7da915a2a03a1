"""Launches of conv3x3.cu: how the work is split into blocks for each layer shape of a CIFAR ResNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from avuc.gpu.kernels import build

SOURCE = "conv3x3.cu"
Shape = tuple[int, int, int, int]  # height and width of x, channels in, channels out, stride


@dataclass(frozen=True)
class Tuning:
    """How the work of a kernel is split into blocks; the defines in conv3x3.cu explain the values."""

    warps: int = 8
    images: int = 1
    buffers: int = 2
    min_blocks: int = 2
    tiles: int = 2
    split: int = 1
    waves: int = 1  # blocks per block that fits on the GPU at once

    def defines(self) -> dict[str, int]:
        names = ("warps", "images", "buffers", "min_blocks", "tiles", "split")
        return {name.upper(): getattr(self, name) for name in names}


FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
TUNINGS: dict[Shape, tuple[Tuning, Tuning, Tuning]] = {
    (32, 3, 16, 1): (Tuning(), Tuning(), Tuning(buffers=1)),
    (32, 16, 16, 1): (Tuning(), Tuning(), Tuning(buffers=1)),
    (32, 16, 32, 2): (
        Tuning(warps=4, min_blocks=3),
        Tuning(images=2, tiles=1),
        Tuning(warps=4, buffers=1, min_blocks=3),
    ),
    (16, 32, 32, 1): (Tuning(images=2), Tuning(images=2), Tuning()),
    (16, 32, 64, 2): (Tuning(warps=4, images=2, min_blocks=3), Tuning(images=4, tiles=1), Tuning(images=2, buffers=1)),
    (8, 64, 64, 1): (Tuning(images=2, tiles=1), Tuning(images=2, tiles=1), Tuning(images=2, split=2)),
}


def unsupported_reason(
    x_shape: Sequence[int], weight_shape: Sequence[int], stride: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return why the kernels do not support x and weight, or None if they do."""
    if (reason := build.unsupported_reason(device)) is not None:
        return reason
    if dtype != torch.bfloat16:
        return f"{dtype} is not torch.bfloat16"
    if x_shape[2] != x_shape[3] or (x_shape[2], x_shape[4], weight_shape[1], stride) not in TUNINGS:
        return f"no kernel for {x_shape[4]} -> {weight_shape[1]} channels of {x_shape[2]}x{x_shape[3]}, stride {stride}"
    if x_shape[1] == 0:
        return "there are no images"
    return None


class Program(Protocol):
    """Compiled kernels: `build.Program`, or the tests' emulator."""

    def launch(
        self, name: str, *, grid: tuple[int, int, int], block: int, args: Sequence[build.Argument], shared: int = 0
    ) -> None: ...


@dataclass(frozen=True)
class Kernels:
    """The three kernels on one device.

    Args:
        program: compiles a source with defines.
        processors: number of multiprocessors of the GPU.
    """

    program: Callable[[str, Mapping[str, int]], Program]
    processors: int

    def forward(self, x: Tensor, weight: Tensor, stride: int, sums: bool = False) -> tuple[Tensor, Tensor]:
        """Return y and, with `sums`, the sums of y and y² over each block's images (M, blocks, 2, Cout)."""
        models, images, side, _, c_in = x.shape
        shape = (side, c_in, weight.shape[1], stride)
        y = x.new_empty((models, images, side // stride, side // stride, weight.shape[1]))
        blocks = self.blocks(models, images, TUNINGS[shape][FORWARD]) if sums else 0
        partials = x.new_empty((models, blocks, 2, weight.shape[1]), dtype=torch.float32)
        self._run(FORWARD, shape, (x, weight, y, partials), weight.dtype, {"SUMS": int(sums)})
        return y, partials

    def input_gradient(self, grad: Tensor, weight: Tensor, stride: int) -> Tensor:
        models, images, side, _, _ = grad.shape
        x = grad.new_empty((models, images, side * stride, side * stride, weight.shape[4]))
        self._run(
            INPUT_GRADIENT, (side * stride, weight.shape[4], weight.shape[1], stride), (grad, weight, x), weight.dtype
        )
        return x

    def weight_gradient(self, grad: Tensor, x: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
        models, images, side, _, c_in = x.shape
        shape = (side, c_in, grad.shape[4], stride)
        groups = self.blocks(models, images, TUNINGS[shape][WEIGHT_GRADIENT])
        weight = grad.new_empty((models, grad.shape[4], 3, 3, c_in), dtype=dtype)
        partials = grad.new_empty((models, groups, weight[0].numel()), dtype=torch.float32)
        program = self._run(WEIGHT_GRADIENT, shape, (grad, x, partials), dtype)
        columns = -(-weight[0].numel() // 128)
        program.launch(
            "add_partials", grid=(columns, models, 1), block=256, args=[partials, weight, groups], shared=4096
        )
        return weight

    def blocks(self, models: int, images: int, tuning: Tuning) -> int:
        """Return the number of blocks per model: enough to fill the GPU, with equal work."""
        groups = -(-images // tuning.images)
        resident = max(1, self.processors * tuning.min_blocks * tuning.waves // (models * tuning.split))
        return -(-groups // -(-groups // resident))

    def _run(
        self,
        which: int,
        shape: Shape,
        args: Sequence[Tensor],
        weight_dtype: torch.dtype,
        more: Mapping[str, int] | None = None,
    ) -> Program:
        side, c_in, c_out, stride = shape
        tuning = TUNINGS[shape][which]
        names = {"SIDE": side, "C_IN": c_in, "C_OUT": c_out, "STRIDE": stride, "PASS": which}
        floats = int(weight_dtype == torch.float32)
        program = self.program(SOURCE, {**names, "WEIGHT_FLOAT": floats, **tuning.defines(), **(more or {})})
        models, images = args[0].shape[:2]
        program.launch(
            ("forward", "input_gradient", "weight_gradient")[which],
            grid=(self.blocks(models, images, tuning), models, tuning.split if which == WEIGHT_GRADIENT else 1),
            block=32 * tuning.warps,
            args=[*args, images],
            shared=shared_bytes(which, shape, tuning),
        )
        return program


def shared_bytes(which: int, shape: Shape, tuning: Tuning) -> int:
    side, c_in, c_out, stride = shape

    def tile(width: int, channels: int) -> int:
        return (width * (width + 1) + 1) * channels * 2

    x, grad = (
        tile(side, max(16, c_in)),
        tile(side // stride, c_out // (tuning.split if which == WEIGHT_GRADIENT else 1)),
    )
    held = (x, grad, x + grad)[which] * tuning.images * tuning.buffers
    # the warps of a block add up their sums in the same memory, half of them at a time
    meeting = tuning.warps // 2 * 32 * 4 * (24 if c_in == 3 else 72) if which == WEIGHT_GRADIENT else 0
    return max(held, meeting)


@cache
def kernels_on(device: torch.device) -> Kernels:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Kernels(lambda source, defines: build.program(source, defines, device), processors)


def partial_sums(x_shape: Sequence[int], weight_shape: Sequence[int], stride: int, device: torch.device) -> int:
    """Return the number of blocks of a model, each of which writes its own sums."""
    tuning = TUNINGS[x_shape[2], x_shape[4], weight_shape[1], stride][FORWARD]
    return kernels_on(device).blocks(x_shape[0], x_shape[1], tuning)
