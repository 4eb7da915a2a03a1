"""The AugMix kernel, emulated and on a GPU, against the plain torch that is tested against Pillow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from avuc.data import Augmentation
from avuc.data.augmentation import augment_at
from avuc.data.augmix import COLUMNS, OPERATIONS, WEAKEST, augmix
from avuc.gpu.kernels import augmix as kernel


def pictures(count: int, height: int, width: int, channels: int) -> Tensor:
    """Crops of a photograph, and a flat, a faint and a two-valued image."""
    from sklearn.datasets import load_sample_image

    photo = torch.from_numpy(load_sample_image("flower.jpg").copy())
    corners = torch.randint(0, 300, (count, 2), generator=torch.Generator().manual_seed(0)).tolist()
    images = torch.stack([photo[y : y + height, x : x + width, :channels] for y, x in corners])
    images[0] = 77
    images[1] = images[1] % 3 + 100
    images[2] = images[2] % 2 * 255
    return images.contiguous()


def plainly(images: Tensor, indices: Tensor, drawn: Tensor, pad: int, flip: bool, severity: float) -> Tensor:
    choices = (2 * pad + 1) ** 2 * (1 + flip)
    choice = (drawn[:, 0] * choices).long().clamp(max=choices - 1)
    flipped = choice % 2 if flip else torch.zeros_like(choice)
    place = choice // (1 + flip)
    cropped = augment_at(images, indices, place // (2 * pad + 1), place % (2 * pad + 1), flipped, pad=pad)
    return augmix(cropped, drawn[:, 1:], severity)


def same(got: Tensor, want: Tensor) -> None:
    """To the byte, but for last bits of sines and logarithms."""
    apart = (got.int() - want.int()).abs()
    assert got.shape == want.shape
    assert (apart > 0).double().mean() < 1e-3
    assert (apart > 1).double().mean() < 1e-4


@pytest.mark.parametrize(
    ("shape", "pad", "flip", "severity"),
    [
        ((32, 32, 3), 4, True, 3.0),
        ((28, 28, 1), 2, False, 3.0),
        ((20, 33, 3), 0, True, 10.0),
        ((9, 5, 4), 0, False, 6.0),
    ],
)
def test_the_emulated_kernel(
    emulated: Callable[..., Any], shape: tuple[int, int, int], pad: int, flip: bool, severity: float
) -> None:
    images = pictures(12, *shape)
    g = torch.Generator().manual_seed(1)
    indices = torch.randint(0, 12, (20,), generator=g)
    drawn = torch.rand(20, 1 + COLUMNS, generator=g)
    want = plainly(images, indices, drawn, pad, flip, severity)
    for order in (0, 1, 5):  # in which threads run
        same(run_emulated(emulated, order, images, indices, drawn, pad=pad, flip=flip, severity=severity), want)


def run_emulated(emulated: Callable[..., Any], order: int, *tensors: Tensor, severity: float, **options: Any) -> Tensor:
    def build(source: str, defines: dict[str, int], _device: torch.device) -> Any:
        built = emulated(source, defines)
        built.order = order
        return built

    return kernel.augmix_images(*tensors, **options, strengths=(WEAKEST, severity), build=build)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_alone(emulated: Callable[..., Any], name: str) -> None:
    """Tables to the byte."""
    images = pictures(10, 16, 16, 3)
    drawn = torch.zeros(10, 1 + COLUMNS)
    drawn[:, 1], drawn[:, 2] = 1, 0.5
    drawn[:, 8] = (OPERATIONS.index(name) + 0.5) / 9
    drawn[:, 17] = torch.linspace(0, 0.999, 10)
    options: dict[str, Any] = {"pad": 0, "flip": False, "severity": 10.0}
    got = run_emulated(emulated, 0, images, torch.arange(10), drawn, **options)
    want = augmix(images, drawn[:, 1:], 10.0)
    if name in ("autocontrast", "equalize", "posterize", "solarize", "translate_x", "translate_y"):
        assert torch.equal(got, want)
    same(got, want)


def test_ends_of_the_range_and_no_rows(emulated: Callable[..., Any]) -> None:
    images = pictures(4, 32, 32, 3)
    drawn = torch.stack([torch.zeros(1 + COLUMNS), torch.full((1 + COLUMNS,), 1 - 2**-24)])
    options: dict[str, Any] = {"pad": 4, "flip": True, "severity": 3.0}
    got = run_emulated(emulated, 0, images, torch.tensor([3, 2]), drawn, **options)
    same(got, plainly(images, torch.tensor([3, 2]), drawn, **options))
    none = run_emulated(emulated, 0, images, torch.zeros(0, dtype=torch.int64), drawn[:0], **options)
    assert none.shape == (0, 32, 32, 3)


def test_large_images_and_cpus_do_not_use_it() -> None:
    assert kernel.shared_bytes(32, 32, 3) <= 48 * 1024
    assert not kernel.usable(torch.zeros(1, 32, 32, 3, dtype=torch.uint8), 4, True)
    assert not kernel.usable(torch.empty(1, 224, 224, 3, dtype=torch.uint8, device="meta"), 4, True)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (64, 64, 3)])
def test_on_a_gpu(shape: tuple[int, int, int]) -> None:
    images = pictures(100, *shape)
    policy = Augmentation("augmix", severity=5.0)
    indices = torch.arange(100).repeat(9)
    drawn = policy.draw(900, torch.Generator().manual_seed(2), "cpu")
    on_gpu = [x.cuda() for x in (images, indices, drawn)]
    assert kernel.usable(on_gpu[0], policy.pad, policy.flip)
    first, second = (policy.apply(*on_gpu) for _ in range(2))
    assert torch.equal(first, second)
    same(first.cpu(), policy.apply(images, indices, drawn))


@pytest.mark.gpu
def test_the_plain_way_on_a_gpu_compiled() -> None:
    """What devices without the kernel run."""
    images = pictures(64, 32, 32, 3)
    drawn = torch.rand(64, COLUMNS, generator=torch.Generator().manual_seed(3))
    want = augmix(images, drawn)
    same(augmix(images.cuda(), drawn.cuda()).cpu(), want)
    same(torch.compile(augmix, fullgraph=True, dynamic=False)(images.cuda(), drawn.cuda()).cpu(), want)
