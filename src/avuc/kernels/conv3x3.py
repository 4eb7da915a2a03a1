"""The 3×3 convolutions of several networks at once: each model has its own weights and its own images.

    y[m, n, oy, ox, co] = Σ_{dy, dx, ci}  x[m, n, s·oy + dy − 1, s·ox + dx − 1, ci] · w[m, co, dy, dx, ci]

padding 1, stride s of 1 or 2, channels last. cuDNN runs such a batch as M small calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from avuc.errors import InputError

__all__ = ["stacked_conv3x3"]


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
    return _forward(x.contiguous(), weight.contiguous(), stride)


@torch.library.custom_op("avuc::conv3x3", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    weight = weight.to(x.dtype)
    return torch.stack(
        [_last(F.conv2d(_first(a), _first(w), stride=stride, padding=1)) for a, w in zip(x, weight, strict=True)]
    )


@torch.library.custom_op("avuc::conv3x3_input_gradient", mutates_args=())
def _input_gradient(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
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
    shape = (grad.shape[4], x.shape[4], 3, 3)
    return torch.stack(
        [
            _last(conv2d_weight(_first(a), shape, _first(g), stride=stride, padding=1))
            for g, a in zip(grad, x, strict=True)
        ]
    ).to(dtype)


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
