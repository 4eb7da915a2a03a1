"""The 3×3 convolutions of several networks at once: each model has its own weights and its own images.

    y[m, n, oy, ox, co] = Σ_{dy, dx, ci}  x[m, n, s·oy + dy − 1, s·ox + dx − 1, ci] · w[m, co, dy, dx, ci]

padding 1, stride s of 1 or 2, channels last. cuDNN runs such a batch as M small calls, far from the memory's speed.
On a GPU, bf16 images in the shapes of a CIFAR ResNet go through conv3x3.cu, which rounds float32 weights to bf16, sums
in float32 and gives the same bits every time; everything else goes through torch, model by model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from avuc.errors import InputError
from avuc.kernels import build

__all__ = ["reason_against", "stacked_conv3x3"]

SOURCE = "conv3x3.cu"
Shape = tuple[int, int, int, int]  # height and width of x, channels in, channels out, stride


@dataclass(frozen=True)
class Tuning:
    """How a kernel is cut into blocks: see the defines in conv3x3.cu."""

    warps: int = 8
    images: int = 1
    buffers: int = 2
    min_blocks: int = 2
    tiles: int = 2
    split: int = 1
    waves: int = 1  # blocks for each place on the GPU

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


def stacked_conv3x3(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """x (M, N, H, W, Cin), weight (M, Cout, 3, 3, Cin) -> (M, N, H/stride, W/stride, Cout), differentiable in both.

    >>> stacked_conv3x3(torch.ones(2, 1, 4, 4, 3), torch.ones(2, 5, 3, 3, 3)).shape
    torch.Size([2, 1, 4, 4, 5])
    """
    if x.dim() != 5 or weight.dim() != 5 or weight.shape != (x.shape[0], weight.shape[1], 3, 3, x.shape[4]):
        raise InputError(
            "stacked_conv3x3 takes x of shape (M, N, H, W, Cin) and weight of shape (M, Cout, 3, 3, Cin);"
            f" found {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if stride not in (1, 2):
        raise InputError(f"stacked_conv3x3 takes a stride of 1 or 2, found {stride}")
    y: Tensor = _forward(x.contiguous(), weight.contiguous(), stride)
    return y


def reason_against(
    x_shape: Sequence[int], weight_shape: Sequence[int], stride: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why x of this dtype does not go through the fast kernels; None where it does."""
    if (reason := build.reason_against(device)) is not None:
        return reason
    if dtype != torch.bfloat16:
        return f"{dtype} is not torch.bfloat16"
    if x_shape[2] != x_shape[3] or (x_shape[2], x_shape[4], weight_shape[1], stride) not in TUNINGS:
        return f"no kernel for {x_shape[4]} -> {weight_shape[1]} channels of {x_shape[2]}x{x_shape[3]}, stride {stride}"
    if x_shape[1] == 0:
        return "there are no images"
    return None


class Program(Protocol):
    def launch(
        self, name: str, *, grid: tuple[int, int, int], block: int, args: Sequence[build.Argument], shared: int = 0
    ) -> None: ...


@dataclass(frozen=True)
class Kernels:
    """The three kernels on one device: how to get a program, and how many multiprocessors there are to fill."""

    program: Callable[[str, Mapping[str, int]], Program]
    processors: int

    def forward(self, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        models, images, side, _, _ = x.shape
        y = x.new_empty((models, images, side // stride, side // stride, weight.shape[1]))
        self._run(FORWARD, (side, x.shape[4], weight.shape[1], stride), (x, weight, y), weight.dtype)
        return y

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
        groups = self._blocks(models, images, TUNINGS[shape][WEIGHT_GRADIENT])
        weight = grad.new_empty((models, grad.shape[4], 3, 3, c_in), dtype=dtype)
        partials = grad.new_empty((models, groups, weight[0].numel()), dtype=torch.float32)
        program = self._run(WEIGHT_GRADIENT, shape, (grad, x, partials), dtype)
        columns = -(-weight[0].numel() // 128)
        program.launch(
            "add_partials", grid=(columns, models, 1), block=256, args=[partials, weight, groups], shared=4096
        )
        return weight

    def _blocks(self, models: int, images: int, tuning: Tuning) -> int:
        """For each model: as many as fill the GPU, of equal work."""
        groups = -(-images // tuning.images)
        places = max(1, self.processors * tuning.min_blocks * tuning.waves // (models * tuning.split))
        return -(-groups // -(-groups // places))

    def _run(self, which: int, shape: Shape, args: tuple[Tensor, Tensor, Tensor], weight_dtype: torch.dtype) -> Program:
        side, c_in, c_out, stride = shape
        tuning = TUNINGS[shape][which]
        names = {"SIDE": side, "C_IN": c_in, "C_OUT": c_out, "STRIDE": stride, "PASS": which}
        floats = int(weight_dtype == torch.float32)
        program = self.program(SOURCE, {**names, "WEIGHT_FLOAT": floats, **tuning.defines()})
        models, images = args[0].shape[:2]
        program.launch(
            ("forward", "input_gradient", "weight_gradient")[which],
            grid=(self._blocks(models, images, tuning), models, tuning.split if which == WEIGHT_GRADIENT else 1),
            block=32 * tuning.warps,
            args=[*args, images],
            shared=_shared_bytes(which, shape, tuning),
        )
        return program


def _shared_bytes(which: int, shape: Shape, tuning: Tuning) -> int:
    side, c_in, c_out, stride = shape

    def tile(width: int, channels: int) -> int:
        return (width * (width + 1) + 1) * channels * 2

    x, grad = (
        tile(side, max(16, c_in)),
        tile(side // stride, c_out // (tuning.split if which == WEIGHT_GRADIENT else 1)),
    )
    held = (x, grad, x + grad)[which] * tuning.images * tuning.buffers
    # the warps of a block meet in the same memory: half of them leave their sums at once
    meeting = tuning.warps // 2 * 32 * 4 * (24 if c_in == 3 else 72) if which == WEIGHT_GRADIENT else 0
    return max(held, meeting)


@cache
def _kernels(device: torch.device) -> Kernels:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Kernels(lambda source, defines: build.program(source, defines, device), processors)


def _fast(x: Tensor, x_shape: Sequence[int], weight_shape: Sequence[int], stride: int) -> bool:
    return x.is_cuda and reason_against(x_shape, weight_shape, stride, x.dtype, x.device) is None


@torch.library.custom_op("avuc::conv3x3", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    if _fast(x, x.shape, weight.shape, stride):
        return _kernels(x.device).forward(_aligned(x), _readable(weight), stride)
    weight = weight.to(x.dtype)
    return torch.stack(
        [_last(F.conv2d(_first(a), _first(w), stride=stride, padding=1)) for a, w in zip(x, weight, strict=True)]
    )


@torch.library.custom_op("avuc::conv3x3_input_gradient", mutates_args=())
def _input_gradient(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    x_shape = (grad.shape[0], grad.shape[1], height, width, weight.shape[4])
    if _fast(grad, x_shape, weight.shape, stride) and x_shape[4] != 3:
        return _kernels(grad.device).input_gradient(_aligned(grad), _readable(weight), stride)
    weight = weight.to(grad.dtype)
    shape = (grad.shape[1], weight.shape[4], height, width)
    return torch.stack(
        [
            _last(conv2d_input(shape, _first(w), _first(g), stride=stride, padding=1))
            for g, w in zip(grad, weight, strict=True)
        ]
    )


@torch.library.custom_op("avuc::conv3x3_weight_gradient", mutates_args=())
def _weight_gradient(grad: Tensor, x: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    weight_shape = (grad.shape[0], grad.shape[4], 3, 3, x.shape[4])
    if grad.dtype == x.dtype and _fast(x, x.shape, weight_shape, stride):
        kept = dtype if dtype == torch.bfloat16 else torch.float32
        return _kernels(x.device).weight_gradient(_aligned(grad), _aligned(x), stride, kept).to(dtype)
    shape = (grad.shape[4], x.shape[4], 3, 3)
    return torch.stack(
        [
            _last(conv2d_weight(_first(a), shape, _first(g), stride=stride, padding=1))
            for g, a in zip(grad, x, strict=True)
        ]
    ).to(dtype)


def _aligned(tensor: Tensor) -> Tensor:
    """The kernels read 16 bytes at a time; a view may start anywhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _readable(weight: Tensor) -> Tensor:
    return _aligned(weight if weight.dtype in (torch.float32, torch.bfloat16) else weight.float())


def _first(channels_last: Tensor) -> Tensor:
    return channels_last.permute(0, 3, 1, 2)


def _last(channels_first: Tensor) -> Tensor:
    return channels_first.permute(0, 2, 3, 1)


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    m, n, height, width, _ = x.shape
    return x.new_empty((m, n, (height - 1) // stride + 1, (width - 1) // stride + 1, weight.shape[1]))


@_input_gradient.register_fake
def _(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], height, width, weight.shape[4]))


@_weight_gradient.register_fake
def _(grad: Tensor, x: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[4], 3, 3, x.shape[4]), dtype=dtype)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    by_input = by_weight = None
    if ctx.needs_input_grad[0]:
        by_input = _input_gradient(grad, weight, ctx.stride, x.shape[2], x.shape[3])
    if ctx.needs_input_grad[1]:
        by_weight = _weight_gradient(grad, x, ctx.stride, weight.dtype)
    return by_input, by_weight, None


torch.library.register_autograd("avuc::conv3x3", _backward, setup_context=_remember)
