"""Batch normalisation, shortcut and relu of several CIFAR ResNets, forward and backward.

The functions and their arguments are those of `avuc.gpu.stacked.layers`, which runs everywhere. Here each function is
one or two launches of norm.cu, for bf16 activations (M, N, H, W, C) on a GPU. Sums are float32 and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.gpu.kernels import build

SOURCE = "norm.cu"
CHANNELS = (16, 32, 64)
THREADS = 512
RESIDENT = 1024  # threads on a multiprocessor at the same time, with 64 registers each
LEAST_TURNS = 4  # iterations of a block that writes sums; every block of the next pass reads all sums
MOST_NUMBERS = 2**33  # vectors of 8 numbers are counted with 32 bits


def norm(
    x: Tensor, sums: Tensor, affine: Tensor, eps: float, before: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of `Normed`. `sums` may be in parts (M, parts, 2, C), which the kernel adds up."""
    return _kernels(x.device).norm(x, sums, affine, eps, before)


def norm_gradient(grad: Tensor, x: Tensor, affine: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `norm` without shortcut."""
    return _kernels(x.device).norm_gradient(grad, x, affine, kept)


def block_gradient(
    direct: Tensor, through: Tensor | None, output: Tensor, x: Tensor, affine: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `norm` with a shortcut."""
    return _kernels(x.device).block_gradient(direct, through, output, x, affine, kept)


def unsupported_reason(x: Tensor, before: Tensor | None = None) -> str | None:
    """Return why the kernels do not support activations x with a shortcut from `before`, or None if they do."""
    if (reason := build.unsupported_reason(x.device)) is not None:
        return reason
    if x.dtype != torch.bfloat16:
        return f"{x.dtype} is not torch.bfloat16"
    if x.dim() != 5 or x.shape[4] not in CHANNELS:
        return f"no kernel for activations of shape {tuple(x.shape)}"
    if not 0 < x.numel() < MOST_NUMBERS:
        return f"{x.numel()} numbers are none or too many"
    if before is not None and (before.dtype != x.dtype or _shortcut(before, x) is None or _too_narrow(before, x)):
        return f"no kernel for a shortcut from {tuple(before.shape)} to {tuple(x.shape)}"
    return None


def _shortcut(larger: Tensor, smaller: Tensor | None) -> str | None:
    """Return the kind of shortcut between these shapes: "none", "same", or "other" for option A (half the pixels in
    each direction, twice the channels). None if there is no such shortcut."""
    if smaller is None:
        return "none"
    if smaller.shape == larger.shape:
        return "same"
    models, images, height, width, channels = larger.shape
    halved = (models, images, -(-height // 2), -(-width // 2), 2 * channels)
    return "other" if smaller.shape == halved else None


def _too_narrow(before: Tensor, x: Tensor) -> bool:
    """Return whether the channels that option A pads are not whole vectors of 8."""
    return before.shape != x.shape and x.shape[4] < 32


@dataclass(frozen=True)
class Kernels:
    """The kernels on one device.

    Args:
        program: compiles a source with defines.
        processors: number of multiprocessors of the GPU.
    """

    program: Callable[[str, Mapping[str, int]], build.Program]
    processors: int

    def norm(
        self, x: Tensor, sums: Tensor, affine: Tensor, eps: float, before: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = "none" if before is None else _known(_shortcut(before, x), before, x)
        x, before = _ready(x), x if before is None else _ready(before)
        sums = sums.float().contiguous().view(len(x), -1, 2, x.shape[4])
        count = x[0].numel() // x.shape[4]
        out, moments, kept = torch.empty_like(x), _pairs(x), _pairs(x)
        sizes = [_vectors(x), *x.shape[2:4], *before.shape[2:4]]
        of_all: list[build.Argument] = [*_rows(affine), sums, sums.shape[1], eps, count / max(count - 1, 1)]
        self._launch(f"normalise_{kind}", x, self._blocks(x), [x, before, *of_all, out, moments, kept, *sizes])
        return out, moments, kept

    def norm_gradient(self, grad: Tensor, x: Tensor, affine: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        grad, x, kept, sums = _ready(grad), _ready(x), kept.contiguous(), self._sums(x)
        self._launch("reduce", x, sums.shape[1], [grad, x, *_rows(affine), kept, sums, _vectors(x)])
        return self._apply("apply_relu", grad, x, affine, kept, sums)

    def block_gradient(
        self, direct: Tensor, through: Tensor | None, output: Tensor, x: Tensor, affine: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = _known(_shortcut(output, through), output, through)
        # the gradient of average pooling is the same in every pixel
        pooled = direct.stride(2) == direct.stride(3) == 0
        direct = _ready(direct[:, :, 0, 0] if pooled else direct)
        x, output, kept, sums = _ready(x), _ready(output), kept.contiguous(), self._sums(x)
        through = output if through is None else _ready(through)
        given = torch.empty_like(x)
        sizes = [_vectors(x), *x.shape[2:4], *through.shape[2:4]]
        of_all: list[build.Argument] = [direct, int(pooled), through, output, x, kept, given, sums, *sizes]
        self._launch(f"enter_{kind}", x, sums.shape[1], of_all)
        return given, *self._apply("apply", given, x, affine, kept, sums)

    def _apply(
        self, name: str, grad: Tensor, x: Tensor, affine: Tensor, kept: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        in_x, in_affine = torch.empty_like(x), _pairs(x)
        of_all: list[build.Argument] = [
            grad,
            x,
            *_rows(affine),
            kept,
            sums,
            sums.shape[1],
            in_x,
            in_affine,
            _vectors(x),
        ]
        self._launch(name, x, self._blocks(x), of_all)
        return in_x, in_affine

    def _blocks(self, x: Tensor, turns: int = 1) -> int:
        """Return the number of blocks per model: at most what fits on the GPU at once, each with `turns` iterations."""
        resident = self.processors * (RESIDENT // THREADS) // x.shape[0]
        return max(1, min(resident, -(-_vectors(x) // (THREADS * turns))))

    def _sums(self, x: Tensor) -> Tensor:
        return x.new_empty((x.shape[0], self._blocks(x, LEAST_TURNS), 2, x.shape[4]), dtype=torch.float32)

    def _launch(self, name: str, x: Tensor, blocks: int, args: list[build.Argument]) -> None:
        channels = x.shape[4]
        program = self.program(SOURCE, {"CHANNELS": channels, "THREADS": THREADS})
        shared = 4 * (4 * THREADS + 4 * channels)  # see `totals` and `constants`
        program.launch(name, grid=(blocks, x.shape[0], 1), block=THREADS, args=args, shared=shared)


@cache
def _kernels(device: torch.device) -> Kernels:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Kernels(lambda source, defines: build.program(source, defines, device), processors)


def _known(kind: str | None, larger: Tensor, smaller: Tensor | None) -> str:
    if kind is None:
        shapes = f"{tuple(larger.shape)} and {tuple(smaller.shape) if smaller is not None else None}"
        raise InputError(
            f"a shortcut keeps the shape or is option A (half the pixels, twice the channels); found {shapes}"
        )
    return kind


def _vectors(x: Tensor) -> int:
    """Return the number of vectors of a model; a vector is 8 channels of one pixel."""
    return x[0].numel() // 8


def _pairs(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], 2, x.shape[4]), dtype=torch.float32)


def _rows(affine: Tensor) -> tuple[Tensor, int, int]:
    """Return scales and shifts with the strides of models and rows; `affine` may be part of a larger tensor."""
    if affine.dtype != torch.float32 or affine.stride(2) != 1:
        affine = affine.float().contiguous()
    return affine, affine.stride(0), affine.stride(1)


def _ready(x: Tensor) -> Tensor:
    """Return a contiguous bf16 tensor whose address is a multiple of 16 bytes, as the kernels need it."""
    x = x.to(torch.bfloat16).contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
