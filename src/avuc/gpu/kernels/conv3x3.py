"""3×3 convolutions of several models at once; each model has its own weights and its own images.

    y[m, n, oy, ox, co] = Σ_{dy, dx, ci}  x[m, n, s·oy + dy − 1, s·ox + dx − 1, ci] · w[m, co, dy, dx, ci]

with padding 1, stride s of 1 or 2, channels last. cuDNN needs M small calls for such a batch, far below the memory's
speed. On a GPU, bf16 activations in the shapes of a CIFAR ResNet use conv3x3.cu, which rounds float32 weights to bf16,
sums in float32 and gives the same bits every time. Everything else uses torch, one model after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from avuc.core.errors import InputError
from avuc.gpu.kernels.conv3x3_launch import kernels_on, partial_sums, unsupported_reason


def stacked_conv3x3(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Return the convolution (M, N, H/stride, W/stride, Cout), differentiable in x and weight.

    Args:
        x: (M, N, H, W, Cin).
        weight: (M, Cout, 3, 3, Cin).
        stride: 1 or 2.

    >>> stacked_conv3x3(torch.ones(2, 1, 4, 4, 3), torch.ones(2, 5, 3, 3, 3)).shape
    torch.Size([2, 1, 4, 4, 5])
    """
    _check(x, weight, stride)
    y: Tensor = _forward(x.contiguous(), weight.contiguous(), stride)
    return y


def stacked_conv3x3_sums(x: Tensor, weight: Tensor, stride: int = 1) -> tuple[Tensor, Tensor]:
    """Return the convolution y, and Σ y and Σ y² over images and pixels (M, 2, Cout) for batch normalisation.

    The kernels compute the sums while they write y, so y is not read again.

    >>> y, sums = stacked_conv3x3_sums(torch.ones(2, 1, 4, 4, 3), torch.ones(2, 5, 3, 3, 3))
    >>> bool((sums[:, 0] == y.sum((1, 2, 3))).all())
    True
    """
    _check(x, weight, stride)
    y, partials = _forward_sums(x.contiguous(), weight.contiguous(), stride)
    return y, partials.sum(1)


def _check(x: Tensor, weight: Tensor, stride: int) -> None:
    if x.dim() != 5 or weight.dim() != 5 or weight.shape != (x.shape[0], weight.shape[1], 3, 3, x.shape[4]):
        raise InputError(
            "stacked_conv3x3 takes x of shape (M, N, H, W, Cin) and weight of shape (M, Cout, 3, 3, Cin);"
            f" found {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if stride not in (1, 2):
        raise InputError(f"stacked_conv3x3 takes a stride of 1 or 2, found {stride}")


def _fast(x: Tensor, x_shape: Sequence[int], weight_shape: Sequence[int], stride: int) -> bool:
    return x.is_cuda and unsupported_reason(x_shape, weight_shape, stride, x.dtype, x.device) is None


@torch.library.custom_op("avuc::conv3x3", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    if _fast(x, x.shape, weight.shape, stride):
        return kernels_on(x.device).forward(_aligned(x), _readable(weight), stride)[0]
    weight = weight.to(x.dtype)
    return torch.stack(
        [_last(F.conv2d(_first(a), _first(w), stride=stride, padding=1)) for a, w in zip(x, weight, strict=True)]
    )


@torch.library.custom_op("avuc::conv3x3_sums", mutates_args=())
def _forward_sums(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return y, and sums of y and y² over parts of the images (M, parts, 2, Cout); the caller adds up the parts."""
    if _fast(x, x.shape, weight.shape, stride):
        return kernels_on(x.device).forward(_aligned(x), _readable(weight), stride, sums=True)
    y = _forward(x, weight, stride)
    wide = y.to(_wide(y.dtype))
    return y, torch.stack([wide.sum((1, 2, 3)), wide.square().sum((1, 2, 3))], 1)[:, None]


@torch.library.custom_op("avuc::conv3x3_input_gradient", mutates_args=())
def _input_gradient(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    x_shape = (grad.shape[0], grad.shape[1], height, width, weight.shape[4])
    if _fast(grad, x_shape, weight.shape, stride) and x_shape[4] != 3:
        return kernels_on(grad.device).input_gradient(_aligned(grad), _readable(weight), stride)
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
        return kernels_on(x.device).weight_gradient(_aligned(grad), _aligned(x), stride, kept).to(dtype)
    shape = (grad.shape[4], x.shape[4], 3, 3)
    return torch.stack(
        [
            _last(conv2d_weight(_first(a), shape, _first(g), stride=stride, padding=1))
            for g, a in zip(grad, x, strict=True)
        ]
    ).to(dtype)


def _aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor whose address is a multiple of 16 bytes, as the kernels need it."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _readable(weight: Tensor) -> Tensor:
    return _aligned(weight if weight.dtype in (torch.float32, torch.bfloat16) else weight.float())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _first(channels_last: Tensor) -> Tensor:
    return channels_last.permute(0, 3, 1, 2)


def _last(channels_first: Tensor) -> Tensor:
    return channels_first.permute(0, 2, 3, 1)


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    m, n, height, width, _ = x.shape
    return x.new_empty((m, n, (height - 1) // stride + 1, (width - 1) // stride + 1, weight.shape[1]))


@_forward_sums.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    m, n, height, width, _ = x.shape
    parts = partial_sums(x.shape, weight.shape, stride, x.device) if _fast(x, x.shape, weight.shape, stride) else 1
    y = x.new_empty((m, n, (height - 1) // stride + 1, (width - 1) // stride + 1, weight.shape[1]))
    return y, x.new_empty((m, parts, 2, weight.shape[1]), dtype=_wide(x.dtype))


@_input_gradient.register_fake
def _(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], height, width, weight.shape[4]))


@_weight_gradient.register_fake
def _(grad: Tensor, x: Tensor, stride: int, dtype: torch.dtype) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[4], 3, 3, x.shape[4]), dtype=dtype)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, ctx.stride = inputs
    y = output[0] if isinstance(output, tuple) else None
    ctx.save_for_backward(x, weight, y)
    ctx.set_materialize_grads(False)  # if the sums have no gradient, y need not be read


def _backward(ctx, grad, of_sums=None):  # type: ignore[no-untyped-def]
    x, weight, y = ctx.saved_tensors
    if of_sums is not None:  # the parts are added up, so each has the same gradient
        by_sum, by_square = (of_sums[:, 0, i, None, None, None, :] for i in range(2))
        through = by_sum + 2 * by_square * y
        grad = (through if grad is None else grad + through).to(y.dtype)
    if grad is None:
        return None, None, None
    grad = grad.contiguous()
    by_input = by_weight = None
    if ctx.needs_input_grad[0]:
        by_input = _input_gradient(grad, weight, ctx.stride, x.shape[2], x.shape[3])
    if ctx.needs_input_grad[1]:
        by_weight = _weight_gradient(grad, x, ctx.stride, weight.dtype)
    return by_input, by_weight, None


for _name in ("avuc::conv3x3", "avuc::conv3x3_sums"):
    torch.library.register_autograd(_name, _backward, setup_context=_remember)
