"""Batch normalisation, shortcut and relu of several models at once, against the same functions in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.gpu.kernels import norm as kernels_norm
from avuc.gpu.kernels.norm import Kernels, block_gradient, norm, norm_gradient, unsupported_reason
from avuc.gpu.stacked import layers as plain
from avuc.gpu.stacked.net import Part, StackedResNet, norm_layers, weight_layers
from avuc.nets.resnet_cifar import CifarResNet

EPS = 1e-5
BF16_ROUNDING = 2.0**-8  # the most that rounding the result to bf16 can change it
Emulate = Callable[..., Any]
Shape = tuple[int, int, int, int, int]  # models, images, height, width, channels
SHAPES = [(2, 3, 8, 8, 16), (3, 2, 8, 8, 32), (2, 5, 8, 8, 64), (1, 1, 8, 8, 64), (1, 3, 5, 7, 16), (3, 1, 1, 1, 32)]
STAGES = [(8, 107, 32, 32, 16), (8, 107, 16, 16, 32), (8, 107, 8, 8, 64)]


class Case:
    """Activations in bf16 whose channels differ in mean and scale; scales and shifts that lie in a larger tensor."""

    def __init__(self, shape: Shape, device: str = "cpu") -> None:
        self.generator, self.shape, self.device = torch.Generator().manual_seed(sum(shape)), shape, device
        models, channels = shape[0], shape[4]
        self.x = self.drawn(shape, 2.0, spread=True)
        wide = torch.randn((models, 2, channels + 5), generator=self.generator).to(device)
        self.affine = wide[:, :, 3 : 3 + channels]
        scale, shift = plain._line(self.affine.double(), self.kept.double())
        # next to zero, which side of the relu a number is on is a matter of rounding
        unsure = (self.x.double() * scale + shift).abs() < 1e-5
        self.grad = self.drawn(shape).masked_fill(unsure, 0)
        self.output = self.drawn(shape).relu()

    def drawn(self, shape: tuple[int, ...], scale: float = 1.0, spread: bool = False) -> Tensor:
        numbers = scale * torch.randn(shape, generator=self.generator)
        if spread:
            numbers = numbers + torch.randn(shape[-1], generator=self.generator)
        return numbers.to(self.device, torch.bfloat16)

    def before(self, kind: str) -> Tensor | None:
        models, images, height, width, channels = self.shape
        halved = (models, images, 2 * height, 2 * width - 1, channels // 2)
        return None if kind == "none" else self.drawn(self.shape if kind == "same" else halved)

    def through(self, kind: str) -> Tensor | None:
        models, images, height, width, channels = self.shape
        halved = (models, images, -(-height // 2), -(-width // 2), 2 * channels)
        return None if kind == "none" else self.drawn(self.shape if kind == "same" else halved)

    def direct(self, pooled: bool) -> Tensor:
        models, images, _, _, channels = self.shape
        return self.drawn((models, images, 1, 1, channels)).expand(self.shape) if pooled else self.grad

    def sums(self, parts: int = 1) -> Tensor:
        """Σx and Σx² of each part of the images."""
        wide = [part.double() for part in self.x.tensor_split(parts, 1)]
        return torch.stack([torch.stack([x.sum((1, 2, 3)), x.square().sum((1, 2, 3))], 1) for x in wide], 1).float()

    @property
    def kept(self) -> Tensor:
        return self.exact().kept.float()

    def exact(self, before: Tensor | None = None) -> plain.Normed:
        before = None if before is None else before.double()
        return plain.norm(self.x.double(), self.sums()[:, 0].double(), self.affine.double(), EPS, before)


def close(found: Tensor, exact: Tensor) -> None:
    """To the rounding of bf16, or of sums in float32."""
    if found.dtype == torch.bfloat16:
        torch.testing.assert_close(found.double(), exact, rtol=1.02 * BF16_ROUNDING, atol=2e-5)
    else:
        assert found.dtype == torch.float32
        scale = exact.abs().max().item()
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * max(1.0, scale))


def check_norm(case: Case, before: Tensor | None, found: tuple[Tensor, ...]) -> None:
    for mine, exact in zip(found, case.exact(before), strict=True):
        close(mine, exact)


def check_gradient(case: Case, found: tuple[Tensor, ...]) -> None:
    exact = plain.norm_gradient(case.grad.double(), case.x.double(), case.affine.double(), case.kept.double())
    close(found[0], exact[0])
    close(found[1], exact[1])


def check_block(case: Case, direct: Tensor, through: Tensor | None, found: tuple[Tensor, ...]) -> None:
    args = case.output, case.x, case.affine, case.kept
    assert torch.equal(found[0], plain.block_gradient(direct, through, *args)[0])  # rounded before it is summed
    exact = plain._norm_gradient(found[0].double(), case.x.double(), case.affine.double(), case.kept.double())
    close(found[1], exact[0])
    close(found[2], exact[1])


def each_way(emulated: Emulate, shape: Shape) -> tuple[Case, list[Kernels]]:
    """One block for each model, and several."""
    return Case(shape), [Kernels(emulated, processors) for processors in (1, 3 * shape[0])]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads: several blocks and turns even of a few images."""
    monkeypatch.setattr(kernels_norm, "THREADS", 128)
    monkeypatch.setattr(kernels_norm, "LEAST_TURNS", 1)


def kinds(channels: int) -> tuple[str, ...]:
    """Of shortcuts; there is none to the 16 channels of the first stage that changes the shape."""
    return ("none", "same", "other") if channels > 16 else ("none", "same")


@pytest.mark.parametrize(("shape", "kind"), [(shape, kind) for shape in SHAPES for kind in kinds(shape[4])])
def test_norm_emulated(emulated: Emulate, monkeypatch: pytest.MonkeyPatch, shape: Shape, kind: str) -> None:
    small(monkeypatch)
    case, several = each_way(emulated, shape)
    before = case.before(kind)
    for kernels in several:
        check_norm(case, before, kernels.norm(case.x, case.sums(), case.affine, EPS, before))


@pytest.mark.parametrize("parts", [2, 40])
def test_sums_may_come_in_parts(emulated: Emulate, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    small(monkeypatch)
    case = Case((2, 41, 2, 2, 64))
    check_norm(case, None, Kernels(emulated, 1).norm(case.x, case.sums(parts), case.affine, EPS, None))
    check_norm(case, None, Kernels(emulated, 1).norm(case.x, case.sums()[:, 0], case.affine, EPS, None))


@pytest.mark.parametrize("shape", SHAPES)
def test_norm_gradient_emulated(emulated: Emulate, monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    small(monkeypatch)
    case, several = each_way(emulated, shape)
    for kernels in several:
        check_gradient(case, kernels.norm_gradient(case.grad, case.x, case.affine, case.kept))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["none", "same", "other"])
@pytest.mark.parametrize("pooled", [False, True])
def test_block_gradient_emulated(
    emulated: Emulate, monkeypatch: pytest.MonkeyPatch, shape: Shape, kind: str, pooled: bool
) -> None:
    small(monkeypatch)
    case, several = each_way(emulated, shape)
    direct, through = case.direct(pooled), case.through(kind)
    for kernels in several:
        found = kernels.block_gradient(direct, through, case.output, case.x, case.affine, case.kept)
        check_block(case, direct, through, found)


def everything(case: Case, kernels: Any) -> list[Tensor]:
    through = case.grad
    return [
        *kernels.norm(case.x, case.sums(3), case.affine, EPS, case.output),
        *kernels.norm_gradient(case.grad, case.x, case.affine, case.kept),
        *kernels.block_gradient(case.direct(True), through, case.output, case.x, case.affine, case.kept),
    ]


@pytest.mark.parametrize("channels", [16, 64])
def test_threads_may_run_in_any_order(emulated: Emulate, channels: int) -> None:
    found = []
    for order in (0, 1, 7):

        def ordered(source: str, defines: dict[str, int], order: int = order) -> Any:
            program = emulated(source, defines)
            program.order = order
            return program

        found.append(everything(Case((2, 9, 8, 8, channels)), Kernels(ordered, 4)))
    emulated("norm.cu", {"CHANNELS": channels, "THREADS": kernels_norm.THREADS}).order = 0
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def check_extremes(case: Case, run: Callable[..., tuple[Tensor, ...]]) -> None:
    case.x[..., 3] = 1.5  # the variance of such a channel must not come out below zero
    case.x[1, 0, 0, 0, 5] = float("nan")
    case.x[0, 1, 1, 1, 7] = float("inf")
    out, moments, kept = run(case.x, case.sums(), case.affine, EPS, None)
    torch.testing.assert_close(kept[:, 1, 3].cpu(), torch.full((2,), EPS**-0.5), rtol=1e-3, atol=0.0)
    assert out.isnan().all(3).all(2).all(1).nonzero().tolist() == [[0, 7], [1, 5]]
    assert moments[:, 1].isnan().nonzero().tolist() == [[0, 7], [1, 5]]


def test_constant_channels_and_what_is_no_number(emulated: Emulate) -> None:
    check_extremes(Case((2, 2, 8, 8, 16)), Kernels(emulated, 2).norm)


@pytest.mark.gpu
def test_constant_channels_and_what_is_no_number_on_a_gpu() -> None:
    check_extremes(Case((2, 2, 8, 8, 16), "cuda"), norm)


def test_blocks_are_on_the_gpu_at_once() -> None:
    kernels = Kernels(lambda source, defines: pytest.fail("no program is needed"), 132)
    for shape in (*STAGES, (1, 107, 8, 8, 64), (300, 1, 8, 8, 16), (1, 1, 1, 1, 16)):
        x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for turns in (1, 4):
            blocks = kernels._blocks(x, turns)
            assert blocks == 1 or blocks * shape[0] <= 2 * 132
            assert (blocks - 1) * kernels_norm.THREADS * turns < x[0].numel() // 8, "every block has work"


def test_shapes_that_do_not_fit_are_named(emulated: Emulate) -> None:
    case, kernels = Case((1, 2, 8, 8, 32)), Kernels(emulated, 1)
    with pytest.raises(InputError, match="option A"):
        kernels.norm(case.x, case.sums(), case.affine, EPS, torch.zeros(1, 2, 16, 16, 8, dtype=torch.bfloat16))
    through = torch.zeros(1, 2, 4, 4, 32, dtype=torch.bfloat16)
    with pytest.raises(InputError, match="option A"):
        kernels.block_gradient(case.grad, through, case.output, case.x, case.affine, case.kept)


def test_reasons_against_the_kernels() -> None:
    assert "CUDA" in str(unsupported_reason(torch.zeros(1, 1, 8, 8, 16, dtype=torch.bfloat16)))


@pytest.mark.gpu
def test_reasons_on_a_gpu() -> None:
    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    x = zeros(2, 3, 8, 8, 32)
    assert unsupported_reason(x) is None
    assert unsupported_reason(x, x) is None
    assert unsupported_reason(x, zeros(2, 3, 16, 16, 16)) is None
    assert "float32" in str(unsupported_reason(x.float()))
    assert "shape" in str(unsupported_reason(zeros(2, 3, 8, 8, 48)))
    assert "none" in str(unsupported_reason(zeros(2, 0, 8, 8, 32)))
    assert "shortcut" in str(unsupported_reason(x, zeros(2, 3, 16, 16, 32)))
    assert "shortcut" in str(unsupported_reason(zeros(2, 3, 8, 8, 16), zeros(2, 3, 16, 16, 8)))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*STAGES, (3, 1, 8, 8, 64), (1, 45, 32, 32, 16)])
def test_forward_on_a_gpu(shape: Shape) -> None:
    case = Case(shape, "cuda")
    for kind in kinds(shape[4]):
        before = case.before(kind)
        args = case.x, case.sums(min(33, shape[1])), case.affine, EPS, before
        found = norm(*args)
        check_norm(case, before, found)
        assert all(torch.equal(a, b) for a, b in zip(found, norm(*args), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*STAGES, (3, 1, 8, 8, 64), (1, 45, 32, 32, 16)])
def test_backward_on_a_gpu(shape: Shape) -> None:
    case = Case(shape, "cuda")
    of_norm = case.x, case.affine, case.kept
    check_gradient(case, norm_gradient(case.grad, *of_norm))
    for kind, pooled in (("none", True), ("none", False), ("same", False), ("other", False), ("other", True)):
        direct, through = case.direct(pooled), case.through(kind)
        found = block_gradient(direct, through, case.output, *of_norm)
        check_block(case, direct, through, found)
        again = block_gradient(direct, through, case.output, *of_norm)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.gpu
def test_captured_in_a_cuda_graph() -> None:
    case = Case((4, 7, 16, 16, 32), "cuda")
    kept, sums, direct = case.kept, case.sums(5), case.direct(True)

    def step() -> list[Tensor]:
        return [
            *norm(case.x, sums, case.affine, EPS, case.output),
            *norm_gradient(case.grad, case.x, case.affine, kept),
            *block_gradient(direct, case.grad, case.output, case.x, case.affine, kept),
        ]

    expected = step()
    x = case.x
    case.x = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    case.x.copy_(x)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.gpu
def test_views_that_start_anywhere() -> None:
    case = Case((2, 3, 8, 8, 16), "cuda")
    flat = torch.zeros(case.x.numel() + 1, device="cuda", dtype=torch.bfloat16)
    case.x = flat[1:].copy_(case.x.flatten()).view_as(case.x)
    check_norm(case, None, norm(case.x, case.sums(), case.affine, EPS))


def stacked_pass(net: StackedResNet, images: Tensor, flat: Tensor, affine: Tensor, in_logits: Tensor) -> list[Tensor]:
    def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    tape = net.forward(images, flat, affine, as_it_is, lambda number, x: x)
    logits, moments = tape.logits, tape.moments
    return [logits, moments, *net.backward(tape, in_logits, affine, as_it_is, lambda number, x: x)]


def test_a_whole_network_with_the_kernels(emulated: Emulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shortcut of a CIFAR ResNet where it belongs: the same as without kernels, but for roundings to bf16."""
    generator = torch.Generator().manual_seed(0)
    net = CifarResNet(2, 10, (8, 8, 3), generator=generator)
    shapes = [tuple(p.shape) for layer in weight_layers(net).values() for p in layer.parameters()]
    shapes = [(shape[0], 3, 3, shape[1]) if len(shape) == 4 else shape for shape in shapes]
    weights = [
        torch.randn((2, *shape), generator=generator) / max(1, torch.Size(shape[1:]).numel()) ** 0.5 for shape in shapes
    ]
    stacked = StackedResNet(net, {str(i): Part(0, shape) for i, shape in enumerate(shapes)})
    channels = sum(layer.num_features for layer in norm_layers(net).values())
    affine = torch.stack([torch.ones(2, channels), 0.1 * torch.randn(2, channels, generator=generator)], 1)
    images, in_logits = torch.randn(2, 8, 8, 8, 3, generator=generator), torch.randn(2, 8, 10, generator=generator)
    flat = torch.cat([weight.flatten() for weight in weights]).bfloat16()
    args = stacked, images.bfloat16(), flat, affine, in_logits.bfloat16()
    expected = stacked_pass(*args)
    used: list[str] = []

    def counted(source: str, defines: dict[str, int]) -> Any:
        used.append(source)
        return emulated(source, defines)

    monkeypatch.setattr(kernels_norm.build, "unsupported_reason", lambda device: None)
    monkeypatch.setattr(kernels_norm, "_kernels", lambda device: Kernels(counted, 2))
    found = stacked_pass(*args)
    assert len(used) == 13 * 3  # a pass forward and two backward of every convolution
    for mine, other in zip(found, expected, strict=True):
        difference = (mine.double() - other.double()).norm() / other.double().norm()
        assert difference < 0.01, difference
