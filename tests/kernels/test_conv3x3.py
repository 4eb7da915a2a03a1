"""Convolutions of several models at once, against conv2d in float64 model by model."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from avuc.errors import InputError
from avuc.kernels import conv3x3
from avuc.kernels.conv3x3 import stacked_conv3x3

# (height, channels in, channels out, stride): every convolution of a CIFAR ResNet
SHAPES = [(32, 3, 16, 1), (32, 16, 16, 1), (32, 16, 32, 2), (16, 32, 32, 1), (16, 32, 64, 2), (8, 64, 64, 1)]


def reference(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    rows = []
    for a, w in zip(x, weight, strict=True):
        y = F.conv2d(a.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=1)
        rows.append(y.permute(0, 2, 3, 1))
    return torch.stack(rows)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(4, 6), (5, 3)])
def test_plain_equals_conv2d(stride: int, size: tuple[int, int]) -> None:
    x, weight = drawn(3, 2, *size, 4), drawn(3, 5, 3, 3, 4, seed=1)
    torch.testing.assert_close(stacked_conv3x3(x, weight, stride), reference(x, weight, stride))


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients(stride: int) -> None:
    x, weight = drawn(2, 2, 4, 5, 3).requires_grad_(), drawn(2, 4, 3, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, w: stacked_conv3x3(a, w, stride), (x, weight))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_operators_are_well_formed(stride: int, needs: tuple[bool, bool]) -> None:
    x, weight = drawn(2, 3, 4, 4, 3).requires_grad_(needs[0]), drawn(2, 4, 3, 3, 3, seed=1).requires_grad_(needs[1])
    torch.library.opcheck(conv3x3._forward, (x, weight, stride))
    grad = drawn(*reference(x, weight, stride).shape, seed=2)
    torch.library.opcheck(conv3x3._input_gradient, (grad, weight.detach(), stride, 4, 4))
    torch.library.opcheck(conv3x3._weight_gradient, (grad, x.detach(), stride, torch.float32))


def test_gradient_dtypes() -> None:
    x = drawn(2, 2, 4, 4, 3, dtype=torch.bfloat16).requires_grad_()
    weight = drawn(2, 4, 3, 3, 3, seed=1, dtype=torch.float32).requires_grad_()
    y = stacked_conv3x3(x, weight)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_compiles_without_a_break() -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (stacked_conv3x3(x, weight, 2) ** 2).sum()

    x, weight = drawn(2, 2, 4, 4, 3).requires_grad_(), drawn(2, 4, 3, 3, 3, seed=1).requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(x, weight), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(compiled(x, weight), (x, weight)), expected)


@pytest.mark.parametrize(
    ("x", "weight", "stride", "named"),
    [
        ((2, 3, 4, 4, 3), (2, 4, 3, 3, 5), 1, "Cin"),
        ((2, 3, 4, 4, 3), (1, 4, 3, 3, 3), 1, "Cin"),
        ((3, 4, 4, 3), (4, 3, 3, 3), 1, "Cin"),
        ((2, 3, 4, 4, 3), (2, 4, 3, 3, 3), 3, "stride"),
    ],
)
def test_wrong_shapes_are_named(x: tuple[int, ...], weight: tuple[int, ...], stride: int, named: str) -> None:
    with pytest.raises(InputError, match=named):
        stacked_conv3x3(torch.zeros(x), torch.zeros(weight), stride)
