"""The ResNet kernel against the plain net, and against float64 with bf16 rounding where the kernel rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.gpu.kernels.resnet_forward import ResNetForward
from avuc.nets import resnet20
from avuc.nets.fold import fold, state_of
from avuc.nets.resnet_cifar import CifarResNet

Emulate = Callable[..., Any]
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def a_net(blocks: int = 1, classes: int = 10, normalised: bool = False, seed: int = 0) -> CifarResNet:
    """A net whose batch normalisation does something."""
    generator = torch.Generator().manual_seed(seed)
    constants: dict[str, Any] = {"mean": MEAN, "std": STD} if normalised else {}
    net = CifarResNet(blocks, classes, generator=generator, **constants).eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_(0, 0.2, generator=generator)
            layer.running_var.uniform_(0.5, 1.5, generator=generator)
            nn.init.normal_(layer.bias, 0, 0.2, generator=generator)
    nn.init.normal_(net.linear.bias, 0, 0.2, generator=generator)
    return net.requires_grad_(False)


def some_images(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def as_floats(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2) / 255


def folded_weights(net: nn.Module) -> dict[str, Tensor]:
    return fold(net).weights(state_of(net))


def rounded(net: CifarResNet, weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """The logits in float64, rounded to bf16 where the kernel rounds: the image, the weights, after each ReLU."""

    def bf16(x: Tensor) -> Tensor:
        return x.float().bfloat16().double()

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        return F.conv2d(x, bf16(weights[f"{name}.weight"]), weights[f"{name}.bias"].double(), stride, 1)

    x = bf16(net.normalise(images.float()))
    x = bf16(conv(x, "conv1").relu())
    for stage in (1, 2, 3):
        for index, block in enumerate(getattr(net, f"layer{stage}")):
            name, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            mid = bf16(conv(x, f"{name}.conv1", stride).relu())
            x = bf16((conv(mid, f"{name}.conv2") + block.shortcut(x)).relu())
    return F.linear(x.mean((2, 3)), weights["linear.weight"].double(), weights["linear.bias"].double()).float()


def assert_near(found: Tensor, expected: Tensor, relative: float) -> None:
    """Largest difference against the spread of the logits: sums in another order tip a bf16 rounding here and there."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= relative * expected.std()


CASES = [  # blocks, classes, normalised, images, draws, floats
    (1, 10, False, 1, 1, False),
    (1, 10, True, 3, 1, False),
    (1, 100, True, 2, 1, True),
    (1, 7, False, 1, 3, True),
    (3, 10, False, 1, 2, False),
]


@pytest.mark.parametrize(("blocks", "classes", "normalised", "count", "draws", "floats"), CASES)
def test_emulated_kernel(
    emulated: Emulate, blocks: int, classes: int, normalised: bool, count: int, draws: int, floats: bool
) -> None:
    nets = [a_net(blocks, classes, normalised, seed) for seed in range(draws)]
    images = some_images(count)
    forward = ResNetForward(nets[0])
    weights = [folded_weights(net) for net in nets]
    packed = torch.stack([forward.pack(one) for one in weights])
    given = as_floats(images) if floats else images
    found = forward.launch(emulated("resnet_forward.cu", forward.defines), given, packed)
    exact = torch.stack([rounded(net, one, as_floats(images)) for net, one in zip(nets, weights, strict=True)])
    plain = torch.stack([net(as_floats(images)) for net in nets])
    assert_near(found, exact, 0.005)
    assert_near(found, plain, 0.03)


def whole_numbers(net: CifarResNet, seed: int) -> dict[str, Tensor]:
    """Sparse weights of -1, 0 and 1: sums are exact in any order, so no rounding depends on it."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in folded_weights(net).items():
        share = 3 / value[0].numel() if value.ndim == 4 else 0.5
        sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        found[name] = sign * (torch.rand(value.shape, generator=generator) < share).float()
    return found


@pytest.mark.parametrize(("blocks", "seed"), [(1, 0), (1, 1), (2, 2)])
def test_exact_in_whole_numbers(emulated: Emulate, blocks: int, seed: int) -> None:
    net = a_net(blocks, 12)
    weights = whole_numbers(net, seed)
    images = (some_images(1, seed) % 8).permute(0, 3, 1, 2).float()
    forward = ResNetForward(net)
    program = emulated("resnet_forward.cu", forward.defines)
    found = forward.launch(program, images, forward.pack(weights)[None])[0]
    expected = rounded(net, weights, images)
    assert expected.std() > 10
    assert torch.equal(found, expected)


@pytest.mark.parametrize("order", [1, 5])
@pytest.mark.parametrize("warps", [4, 8])
def test_no_barrier_is_missing(emulated: Emulate, warps: int, order: int) -> None:
    """Whatever the order in which the threads run, and however many they are, the numbers are the same."""
    net, images = a_net(1), some_images(1)
    forward = ResNetForward(net)
    packed = forward.pack(folded_weights(net))[None]
    usual = forward.launch(emulated("resnet_forward.cu", forward.defines), images, packed)
    forward.defines = {"WARPS": warps, "BLOCKS_PER_SM": 2}
    program = emulated("resnet_forward.cu", forward.defines)
    program.order = order
    try:
        found = forward.launch(program, images, packed)
    finally:
        program.order = 0
    assert torch.equal(found, usual) if warps == 4 else torch.allclose(found, usual, atol=1e-5)


def test_nan_weights_give_nan(emulated: Emulate) -> None:
    net = a_net(1)
    net.layer2[0].conv1.weight[3, 2, 1, 1] = torch.nan
    forward = ResNetForward(net)
    packed = forward.pack(folded_weights(net))[None]
    found = forward.launch(emulated("resnet_forward.cu", forward.defines), some_images(1), packed)
    assert found.isnan().all()


def test_pack_keeps_every_weight_once() -> None:
    net = a_net(2, 12)
    forward = ResNetForward(net)
    weights = folded_weights(net)
    packed = forward.pack(weights)
    assert packed.shape == (forward.words,)
    assert forward.words % 4 == 0
    products = packed[: forward.products].view(torch.bfloat16).float()
    convolutions = torch.cat([weights[f"{name}.weight"].flatten() for name in forward.layers]).bfloat16().float()
    zeros = 16 * 48 - 16 * 27  # the first convolution's places that have no weight
    assert torch.equal(products.sort().values, torch.cat([convolutions, torch.zeros(zeros)]).sort().values)
    floats = packed[forward.products :].view(torch.float32)
    assert torch.equal(floats[16:32], weights["layer1.0.conv1.bias"])
    assert torch.equal(floats[-12:], weights["linear.bias"])


def test_pack_takes_weights_in_channels_last() -> None:
    net = a_net()
    weights = folded_weights(net)
    turned = {
        name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
        for name, value in weights.items()
    }
    forward = ResNetForward(net)
    assert torch.equal(forward.pack(weights), forward.pack(turned))


class Child(CifarResNet):
    pass


def hooked() -> CifarResNet:
    net = a_net()
    net.layer1[0].conv2.register_forward_pre_hook(lambda *_: None)
    return net


def patched() -> CifarResNet:
    net = a_net()
    net.layer1[0].bn2.forward = lambda x: x
    return net


def uneven() -> CifarResNet:
    net = a_net(2)
    del net.layer3[1]
    return net


def replaced() -> CifarResNet:
    net = a_net()
    net.layer2[0].bn1 = nn.GroupNorm(2, 32)
    return net


def without_statistics() -> CifarResNet:
    net = a_net()
    net.layer3[0].bn2 = nn.BatchNorm2d(64, track_running_stats=False)
    return net


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Linear(2, 2), "Linear is no CifarResNet"),
        (Child(1), "Child is no CifarResNet"),
        (CifarResNet(1, shortcut="B"), "shortcuts have weights"),
        (CifarResNet(1, image_shape=(32, 32, 1)), "conv1 is no 3→16"),
        (hooked(), "layer1.0.conv2 has hooks"),
        (patched(), "layer1.0.bn2 has a forward function of its own"),
        (uneven(), "layer3.1.conv1 is missing"),
        (replaced(), "layer2.0.bn1 is a GroupNorm"),
        (without_statistics(), "bn2 has no running statistics"),
        (resnet20(), "cpu is no CUDA device"),
        (fold(resnet20()).module, "cpu is no CUDA device"),
    ],
)
def test_reasons_against(net: nn.Module, words: str) -> None:
    assert words in str(ResNetForward.unsupported_reason(net, torch.device("cpu")))


def test_errors_say_what_was_expected(emulated: Emulate) -> None:
    forward = ResNetForward(a_net())
    packed = forward.pack(folded_weights(a_net()))[None]
    with pytest.raises(InputError, match=r"found torch.uint8 \(2, 28, 28, 3\)"):
        forward.launch(None, torch.zeros(2, 28, 28, 3, dtype=torch.uint8), packed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"int32 \(D, 38140\)"):
        forward.launch(None, some_images(1), packed[:, 1:])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not those of this net"):
        forward.pack(folded_weights(a_net(classes=11)))
    with pytest.raises(InputError, match="conv1 has no bias"):
        forward.pack(state_of(a_net()))
    assert forward.launch(None, some_images(0), packed).shape == (1, 0, 10)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3, 10_000])
def test_exact_on_the_gpu(count: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    net = a_net(3, 100).to(device)
    assert ResNetForward.unsupported_reason(net, device) is None
    forward = ResNetForward(net)
    draws = [{name: value.to(device) for name, value in whole_numbers(a_net(3, 100), seed).items()} for seed in (3, 4)]
    images = (some_images(count) % 8).permute(0, 3, 1, 2).float().to(device)
    found = forward.logits(images, torch.stack([forward.pack(weights) for weights in draws]))
    for logits, weights in zip(found, draws, strict=True):
        for some, part in zip(logits.split(1000), images.split(1000), strict=True):
            assert torch.equal(some, rounded(net, weights, part))


@pytest.mark.gpu
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize(("blocks", "classes", "normalised"), [(3, 10, False), (9, 100, True)])
def test_near_the_plain_net_on_the_gpu(floats: bool, blocks: int, classes: int, normalised: bool) -> None:
    net = a_net(blocks, classes, normalised).to("cuda")
    forward = ResNetForward(net)
    images = some_images(1000).to("cuda")
    packed = forward.pack(folded_weights(net))[None]
    found = forward.logits(as_floats(images) if floats else images, packed)[0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        plain = net(as_floats(images))
    assert_near(found, plain, 0.1)
    assert (found - plain).pow(2).mean().sqrt() <= 0.02 * plain.std()


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    net = a_net(3).to("cuda")
    forward = ResNetForward(net)
    packed = forward.pack(folded_weights(net))[None]
    images = some_images(300).to("cuda")
    expected = forward.logits(images, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward.logits(images, packed)
    graph.replay()
    assert torch.equal(found, expected)
