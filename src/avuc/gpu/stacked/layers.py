"""Batch normalisation, shortcut and relu of several CIFAR ResNets at once, forward and backward, as pure functions.

Activations have the shape (M, N, H, W, C): M models, N images of each, channels last. `affine`, `moments` and `kept`
have the shape (M, 2, C). Statistics and sums are float32 or better for any dtype of the activations. The functions are
written for a compiler, which makes two or three kernels of each. The gradients are written out, so that what is fused
does not depend on autograd.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.data.arrays import as_input
from avuc.data.augmentation import Augmentation


class Normed(NamedTuple):
    """The output of `norm`, and what is needed later."""

    output: Tensor
    moments: Tensor  # mean and unbiased variance, for the running statistics
    kept: Tensor  # mean and 1/√(variance + eps), for the gradient


def prepared(
    augmentation: Augmentation,
    images: Tensor,
    indices: Tensor,
    drawn: Tensor,
    mean: Tensor | None,
    std: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the images `indices` (M, N), augmented and normalised: the input of the first convolution."""
    batch = as_input(augmentation.apply(images, indices.reshape(-1), drawn)).permute(0, 2, 3, 1)
    if mean is not None and std is not None:
        batch = (batch - mean) / std
    return batch.to(dtype).view(*indices.shape, *batch.shape[1:])


def norm(x: Tensor, sums: Tensor, affine: Tensor, eps: float, before: Tensor | None = None) -> Normed:
    """Return relu(batch normalisation of x + shortcut from `before`), with statistics by model and channel.

    `sums` (M, 2, C) holds Σx and Σx².
    """
    wide = _wide(x)
    count = x.shape[1] * x.shape[2] * x.shape[3]
    mean = sums[:, 0] / count
    variance = (sums[:, 1] / count - mean * mean).clamp_min(0)
    deviation = torch.rsqrt(variance + eps)
    kept = torch.stack((mean, deviation), 1)
    scale, shift = _line(affine, kept)
    out = wide * scale + shift
    if before is not None:
        out = out + _shortcut(before, x.shape)
    unbiased = variance * (count / max(count - 1, 1))
    return Normed(torch.relu(out).to(x.dtype), torch.stack((mean, unbiased), 1), kept)


def norm_gradient(grad: Tensor, x: Tensor, affine: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `norm` without shortcut with respect to x and `affine`."""
    scale, shift = _line(affine, kept)
    # computing the sign again is cheaper than reading the output
    return _norm_gradient(torch.where(_wide(x) * scale + shift > 0, _wide(grad), 0), x, affine, kept)


def block_gradient(
    direct: Tensor, through: Tensor | None, output: Tensor, x: Tensor, affine: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `norm` with a shortcut, with respect to the sum before the relu, x and `affine`.

    The next block reads the output twice: `direct` is the gradient from its branch, `through` that from its shortcut.
    """
    total = _wide(direct)
    if through is not None:
        total = total + _shortcut_gradient(_wide(through), output.shape)
    entering = torch.where(output > 0, total, 0).to(output.dtype)
    return entering, *_norm_gradient(_wide(entering), x, affine, kept)


def _norm_gradient(given: Tensor, x: Tensor, affine: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviation = _each(kept[:, 0]), _each(kept[:, 1])
    count = x.shape[1] * x.shape[2] * x.shape[3]
    standard = (_wide(x) - mean) * deviation
    # two sums, so that the first one has enough parallel work for a GPU
    in_bias = given.sum((2, 3)).sum(1)
    in_weight = (given * standard).sum((2, 3)).sum(1)
    in_x = (given - (_each(in_bias) + standard * _each(in_weight)) / count) * (_each(affine[:, 0]) * deviation)
    return in_x.to(x.dtype), torch.stack((in_weight, in_bias), 1)


def pooled(x: Tensor) -> Tensor:
    return _wide(x).mean((2, 3)).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _each(by_channel: Tensor) -> Tensor:
    """Return (M, C) in a shape that multiplies activations."""
    return by_channel[:, None, None, None, :]


def _line(affine: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and shift of batch normalisation, x·scale + shift."""
    scale = affine[:, 0] * kept[:, 1]
    return _each(scale), _each(affine[:, 1] - kept[:, 0] * scale)


def _shortcut(x: Tensor, shape: torch.Size) -> Tensor:
    """Return the shortcut: the identity, or option A (every second pixel, channels padded with zeros)."""
    if x.shape == shape:
        return x
    extra = shape[4] - x.shape[4]
    return F.pad(x[:, :, ::2, ::2], (extra // 2, extra - extra // 2))


def _shortcut_gradient(grad: Tensor, shape: torch.Size) -> Tensor:
    if grad.shape == shape:
        return grad
    models, rows, height, width, channels = shape
    first = (grad.shape[4] - channels) // 2
    small = grad[..., first : first + channels]
    twice = small[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2, -1)
    large = twice.reshape(models, rows, 2 * grad.shape[2], 2 * grad.shape[3], channels)[:, :, :height, :width]
    down, right = (torch.arange(size, device=grad.device).remainder(2) == 0 for size in (height, width))
    return torch.where((down[:, None] & right)[:, :, None], large, 0)
