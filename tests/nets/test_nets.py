"""Nets: sizes published for them, names that public checkpoints use, first weights from the generator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import avuc.nets
from avuc.core.errors import InputError
from avuc.nets import NETS, mlp, resnet20, resnet50, small_cnn
from avuc.nets.resnet_cifar import PadShortcut

SHAPES = {"mlp": (28, 28, 1), "small_cnn": (28, 28, 1), "resnet50": (64, 64, 3)}
SMALL = [name for name in NETS if name != "resnet50"]


def build(name: str, seed: int = 0, **options: object) -> nn.Module:
    return NETS[name](7, SHAPES.get(name, (32, 32, 3)), generator=torch.Generator().manual_seed(seed), **options)


def images(name: str, count: int = 2) -> torch.Tensor:
    height, width, channels = SHAPES.get(name, (32, 32, 3))
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", NETS)
def test_logits_and_gradients(name: str) -> None:
    net = build(name)
    logits = net(images(name))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    for parameter_name, parameter in net.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0 or "bn" in parameter_name or ".1." in parameter_name, parameter_name


@pytest.mark.parametrize("name", NETS)
def test_one_image_in_eval(name: str) -> None:
    assert build(name).eval()(images(name, 1)).shape == (1, 7)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_alone_makes_the_net(name: str) -> None:
    torch.manual_seed(1)
    first = build(name, seed=3)
    torch.manual_seed(2)
    second = build(name, seed=3)
    other = build(name, seed=4)
    for (key, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_he_normal() -> None:
    net = mlp(1000, (30, 30, 1), hidden=(1000,), generator=torch.Generator().manual_seed(0))
    for layer in net.layers:
        if isinstance(layer, nn.Linear):
            std = (2 / layer.in_features) ** 0.5
            assert layer.weight.std().item() == pytest.approx(std, rel=0.01)
            assert abs(layer.weight.mean().item()) < 5 * std / layer.weight.numel() ** 0.5
            assert (layer.bias == 0).all()


@pytest.mark.parametrize(
    ("name", "count"), [("resnet20", 269722), ("resnet32", 464154), ("resnet44", 658586), ("resnet56", 853018)]
)
def test_cifar_resnet_sizes(name: str, count: int) -> None:
    # published sizes of the option A networks: 0.27, 0.46, 0.66, 0.85 million
    assert sum(p.numel() for p in NETS[name]().parameters()) == count


def test_resnet20_has_20_weight_layers() -> None:
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in resnet20().modules()) == 20


def test_cifar_names_are_those_of_public_checkpoints() -> None:
    names = set(resnet20().state_dict())
    expected = {"conv1.weight", "linear.weight", "linear.bias", *(f"bn1.{x}" for x in BN)}
    for stage in (1, 2, 3):
        for block in range(3):
            for layer in (1, 2):
                prefix = f"layer{stage}.{block}"
                expected |= {f"{prefix}.conv{layer}.weight", *(f"{prefix}.bn{layer}.{x}" for x in BN)}
    assert names == expected


BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def torchvision_resnet50_shapes() -> dict[str, tuple[int, ...]]:
    """The layout of torchvision's checkpoint, spelled out."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape

    def norm(name: str, width: int) -> None:
        for entry in BN:
            shapes[f"{name}.{entry}"] = () if entry == "num_batches_tracked" else (width,)

    conv("conv1", 64, 3, 7, 7)
    norm("bn1", 64)
    inputs = 64
    for stage, (blocks, planes) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            conv(f"{prefix}.conv1", planes, inputs, 1, 1)
            norm(f"{prefix}.bn1", planes)
            conv(f"{prefix}.conv2", planes, planes, 3, 3)
            norm(f"{prefix}.bn2", planes)
            conv(f"{prefix}.conv3", 4 * planes, planes, 1, 1)
            norm(f"{prefix}.bn3", 4 * planes)
            if block == 0:
                conv(f"{prefix}.downsample.0", 4 * planes, inputs, 1, 1)
                norm(f"{prefix}.downsample.1", 4 * planes)
            inputs = 4 * planes
    shapes["fc.weight"], shapes["fc.bias"] = (1000, 2048), (1000,)
    return shapes


def test_resnet50_takes_torchvision_weights() -> None:
    net = resnet50()
    assert {name: tuple(value.shape) for name, value in net.state_dict().items()} == torchvision_resnet50_shapes()
    assert sum(p.numel() for p in net.parameters()) == 25_557_032
    # v1.5: the 3×3 convolution carries the stride
    assert net.layer2[0].conv1.stride == (1, 1)
    assert net.layer2[0].conv2.stride == (2, 2)


def test_option_a_shortcut_by_loops() -> None:
    x = torch.rand(2, 3, 5, 4)
    out = PadShortcut(3)(x)
    assert out.shape == (2, 6, 3, 2)
    for channel in range(6):
        for row in range(3):
            for column in range(2):
                expected = x[:, channel - 1, 2 * row, 2 * column] if 1 <= channel < 4 else torch.zeros(2)
                assert torch.equal(out[:, channel, row, column], expected)


def test_option_b_has_projections() -> None:
    net = resnet20(shortcut="B", generator=torch.Generator().manual_seed(0))
    assert net.state_dict()["layer2.0.shortcut.0.weight"].shape == (32, 16, 1, 1)
    assert net(images("resnet20")).shape == (2, 10)
    with pytest.raises(InputError, match=r"'A' .* or 'B'"):
        resnet20(shortcut="C")


def test_normalisation_is_inside_and_not_in_the_state() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    plain = build("resnet20").eval()
    inside = build("resnet20", mean=mean, std=std).eval()
    assert plain.state_dict().keys() == inside.state_dict().keys()
    x = images("resnet20")
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(inside(x), plain(by_hand))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5,)}, "go together"),
        ({"mean": (0.5,), "std": (0.5,)}, r"one number per image channel \(3\), found 1"),
        ({"mean": (0.5,) * 3, "std": (0.5, 0.0, 0.5)}, "must be positive"),
        ({"image_shape": (3, 32)}, "height, width, channels"),
        ({"image_shape": (3, 32, 32)}, "at least 4×4 pixels, found 3×32"),
    ],
)
def test_bad_arguments(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resnet20(**options)


def test_small_cnn_takes_digits_and_colour() -> None:
    for shape in ((8, 8, 1), (28, 28, 1), (32, 32, 3)):
        net = small_cnn(10, shape)
        assert net(torch.rand(2, shape[2], shape[0], shape[1])).shape == (2, 10)


def test_mlp_without_hidden_layers_is_logistic_regression() -> None:
    net = mlp(3, (2, 2, 1), hidden=())
    assert {name: tuple(p.shape) for name, p in net.named_parameters()} == {
        "layers.0.weight": (3, 4),
        "layers.0.bias": (3,),
    }


def test_every_file_of_nets_is_listed() -> None:
    folder = Path(avuc.nets.__file__).parent
    helpers = {"__init__", "calls", "common", "fold", "runner", "masked", "trace"}
    listed = {factory.__module__.rpartition(".")[2] for factory in NETS.values()}
    assert listed == {path.stem for path in folder.glob("*.py")} - helpers
    assert all(factory.__name__ == name for name, factory in NETS.items())
