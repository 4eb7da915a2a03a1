"""Convolutions of several models at once, against conv2d in float64 model by model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from avuc.core.errors import InputError
from avuc.gpu.kernels import conv3x3, conv3x3_launch
from avuc.gpu.kernels.conv3x3 import stacked_conv3x3, stacked_conv3x3_sums, unsupported_reason
from avuc.gpu.kernels.conv3x3_launch import Kernels, Shape

# (height, channels in, channels out, stride): every convolution of a CIFAR ResNet
SHAPES = [(32, 3, 16, 1), (32, 16, 16, 1), (32, 16, 32, 2), (16, 32, 32, 1), (16, 32, 64, 2), (8, 64, 64, 1)]
BF16_ROUNDING = 2.0**-8  # the most that rounding the result to bf16 can change it
Emulate = Callable[..., Any]


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
def test_sums_and_their_gradients(stride: int) -> None:
    x, weight = drawn(2, 2, 4, 5, 3).requires_grad_(), drawn(2, 4, 3, 3, 3, seed=1).requires_grad_()
    y, sums = stacked_conv3x3_sums(x, weight, stride)
    assert torch.equal(y, stacked_conv3x3(x, weight, stride))
    torch.testing.assert_close(sums, torch.stack([y.sum((1, 2, 3)), y.square().sum((1, 2, 3))], 1))
    assert torch.autograd.gradcheck(lambda a, w: stacked_conv3x3_sums(a, w, stride), (x, weight))
    assert torch.autograd.gradcheck(lambda a, w: stacked_conv3x3_sums(a, w, stride)[0], (x, weight))
    assert torch.autograd.gradcheck(lambda a, w: stacked_conv3x3_sums(a, w, stride)[1], (x, weight))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_operators_are_well_formed(stride: int, needs: tuple[bool, bool]) -> None:
    x, weight = drawn(2, 3, 4, 4, 3).requires_grad_(needs[0]), drawn(2, 4, 3, 3, 3, seed=1).requires_grad_(needs[1])
    torch.library.opcheck(conv3x3._forward, (x, weight, stride))
    torch.library.opcheck(conv3x3._forward_sums, (x, weight, stride))
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


class Case:
    """Inputs in bf16, weights that the kernels must round, and the exact results."""

    def __init__(self, shape: Shape, models: int, images: int, dtype: torch.dtype, device: str = "cpu") -> None:
        side, c_in, c_out, self.stride = shape
        out = side // self.stride
        self.x = drawn(models, images, side, side, c_in, dtype=torch.bfloat16).to(device)
        self.weight = drawn(models, c_out, 3, 3, c_in, seed=1, dtype=dtype).to(device)
        self.grad = drawn(models, images, out, out, c_out, seed=2, dtype=torch.bfloat16).to(device)
        x, weight = self.x.double().requires_grad_(), self.weight.bfloat16().double().requires_grad_()
        y = reference(x, weight, self.stride)
        self.y, self.by_input, self.by_weight = y.detach(), *torch.autograd.grad(y, (x, weight), self.grad.double())

    def check(self, y: Tensor, by_input: Tensor | None, by_weight: Tensor) -> None:
        assert y.dtype == torch.bfloat16
        assert by_weight.dtype == self.weight.dtype
        rounded = {"rtol": 1.02 * BF16_ROUNDING, "atol": 1e-3}  # numbers of size 5 to 24
        torch.testing.assert_close(y.double(), self.y, **rounded)
        if by_input is not None:
            assert by_input.dtype == torch.bfloat16
            torch.testing.assert_close(by_input.double(), self.by_input, **rounded)
        if by_weight.dtype == torch.float32:  # sums of many products, in float32
            scale = self.by_weight.abs().max().item()
            torch.testing.assert_close(by_weight.double(), self.by_weight, rtol=1e-5, atol=2e-6 * scale)
        else:
            torch.testing.assert_close(by_weight.double(), self.by_weight, rtol=1.02 * BF16_ROUNDING, atol=1e-3)


def check_sums(y: Tensor, sums: Tensor) -> None:
    y = y.double()
    size = y.abs().sum((1, 2, 3)).max().item()
    torch.testing.assert_close(sums[:, 0].double(), y.sum((1, 2, 3)), rtol=0.0, atol=1e-6 * size)
    torch.testing.assert_close(sums[:, 1].double(), y.square().sum((1, 2, 3)), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, torch.float32) for shape in SHAPES), (SHAPES[0], torch.bfloat16), (SHAPES[1], torch.bfloat16)],
)
def test_kernels_emulated(emulated: Emulate, shape: Shape, dtype: torch.dtype) -> None:
    # one block for all images of a model, and a block for each group of them
    for images, processors in ((1, 1), (3, 1), (3, 6)):
        case, kernels = Case(shape, 2, images, dtype), Kernels(emulated, processors)
        by_input = None if shape[1] == 3 else kernels.input_gradient(case.grad, case.weight, case.stride)
        by_weight = kernels.weight_gradient(case.grad, case.x, case.stride, dtype)
        y, partials = kernels.forward(case.x, case.weight, case.stride, sums=True)
        case.check(y, by_input, by_weight)
        check_sums(y, partials.sum(1))


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5]])
def test_threads_may_run_in_any_order(emulated: Emulate, shape: Shape) -> None:
    case, found = Case(shape, 1, 3, torch.float32), []
    for order in (0, 1, 7):

        def ordered(source: str, defines: dict[str, int], order: int = order) -> Any:
            program = emulated(source, defines)
            program.order = order
            return program

        kernels = Kernels(ordered, 1)
        y, sums = kernels.forward(case.x, case.weight, case.stride, sums=True)
        assert torch.equal(y, kernels.forward(case.x, case.weight, case.stride)[0])
        by_input = kernels.input_gradient(case.grad, case.weight, case.stride)
        found.append((y, sums, by_input, kernels.weight_gradient(case.grad, case.x, case.stride, torch.float32)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_blocks_fill_the_gpu_with_equal_work() -> None:
    kernels = Kernels(lambda source, defines: pytest.fail("no program is needed"), 132)
    for tuning in (
        conv3x3_launch.Tuning(),
        conv3x3_launch.Tuning(images=2, split=2),
        conv3x3_launch.Tuning(min_blocks=1, waves=3),
    ):
        for models, images in ((8, 107), (1, 45), (16, 1), (300, 5)):
            groups = -(-images // tuning.images)
            blocks = kernels.blocks(models, images, tuning)
            assert 1 <= blocks <= groups
            if blocks > 1:
                assert blocks * models * tuning.split <= 132 * tuning.min_blocks * tuning.waves
            turns = -(-groups // blocks)
            assert -(-groups // turns) == blocks  # fewer blocks would take more turns


def test_blocks_fit_where_they_should() -> None:
    for shape, tunings in conv3x3_launch.TUNINGS.items():
        for which, tuning in enumerate(tunings):
            shared = conv3x3_launch.shared_bytes(which, shape, tuning)
            assert shared <= 99 * 1024, "the least that a GPU with bf16 tensor cores gives to a block"
            assert tuning.min_blocks * (shared + 1024) <= 228 * 1024, "what a multiprocessor of an H200 has"


def test_reasons_against_the_kernels() -> None:
    cpu = torch.device("cpu")
    assert "CUDA" in str(unsupported_reason((2, 3, 32, 32, 16), (2, 16, 3, 3, 16), 1, torch.bfloat16, cpu))


@pytest.mark.gpu
def test_reasons_on_a_gpu() -> None:
    cuda = torch.device("cuda")
    assert unsupported_reason((2, 3, 32, 32, 16), (2, 16, 3, 3, 16), 1, torch.bfloat16, cuda) is None
    assert "float32" in str(unsupported_reason((2, 3, 32, 32, 16), (2, 16, 3, 3, 16), 1, torch.float32, cuda))
    assert "stride 2" in str(unsupported_reason((2, 3, 8, 8, 64), (2, 64, 3, 3, 64), 2, torch.bfloat16, cuda))
    assert "32x16" in str(unsupported_reason((2, 3, 32, 16, 16), (2, 16, 3, 3, 16), 1, torch.bfloat16, cuda))
    assert "no images" in str(unsupported_reason((2, 0, 32, 32, 16), (2, 16, 3, 3, 16), 1, torch.bfloat16, cuda))


def gradients(case: Case) -> tuple[Tensor, Tensor | None, Tensor]:
    """y and the gradients by input (not of colours: training needs none) and by weight."""
    x, weight = case.x.detach().requires_grad_(case.x.shape[4] != 3), case.weight.detach().requires_grad_()
    y = stacked_conv3x3(x, weight, case.stride)
    *by_input, by_weight = torch.autograd.grad(y, (x, weight) if x.requires_grad else (weight,), case.grad)
    return y.detach(), by_input[0] if by_input else None, by_weight


def assert_same(one: tuple[Tensor | None, ...], other: tuple[Tensor | None, ...]) -> None:
    """To the bit."""
    for a, b in zip(one, other, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("models", "images"), [(8, 107), (1, 45)])
def test_kernels_on_a_gpu(shape: Shape, models: int, images: int) -> None:
    case = Case(shape, models, images, torch.float32, "cuda")
    found = gradients(case)
    case.check(*found)
    y, sums = stacked_conv3x3_sums(case.x, case.weight, case.stride)
    assert torch.equal(y, found[0])
    check_sums(y, sums)
    for _ in range(3):
        assert_same(found, gradients(case))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5]])
def test_bf16_weights_on_a_gpu(shape: Shape) -> None:
    case = Case(shape, 2, 5, torch.bfloat16, "cuda")
    case.check(*gradients(case))


@pytest.mark.gpu
def test_views_that_start_anywhere() -> None:
    case = Case(SHAPES[1], 2, 3, torch.float32, "cuda")
    flat = torch.zeros(case.weight.numel() + 1, device="cuda")
    case.weight = flat[1:].copy_(case.weight.flatten()).view_as(case.weight)
    case.x = case.x.transpose(2, 3).contiguous().transpose(2, 3)
    case.check(*gradients(case))


@pytest.mark.gpu
def test_captured_in_a_cuda_graph() -> None:
    case = Case(SHAPES[3], 4, 7, torch.float32, "cuda")
    expected = gradients(case)
    graph = torch.cuda.CUDAGraph()
    x = case.x.clone()
    case.x = torch.zeros_like(x)
    with torch.cuda.graph(graph):
        found = gradients(case)
    case.x.copy_(x)
    graph.replay()
    assert_same(found, expected)


@pytest.mark.gpu
def test_compiled_on_a_gpu() -> None:
    case = Case(SHAPES[2], 2, 5, torch.float32, "cuda")
    expected = gradients(case)
    sums = stacked_conv3x3_sums(case.x, case.weight, case.stride)[1]

    @torch.compile(fullgraph=True)
    def compiled(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, sums = stacked_conv3x3_sums(x, weight, case.stride)
        return y * 1.0, sums.detach()

    x, weight = case.x.detach().requires_grad_(), case.weight.detach().requires_grad_()
    y, found_sums = compiled(x, weight)
    torch.testing.assert_close(found_sums, sums)
    found = (y.detach(), *torch.autograd.grad(y, (x, weight), case.grad))
    assert_same(found, expected)
