"""`corrupt`: seeds, splits, devices, extremes, errors, and shifts of the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from avuc import shifts
from avuc.core.errors import InputError

ALL = tuple(shifts.SHIFTS)
DETERMINISTIC = {
    "brightness", "contrast", "defocus_blur", "gaussian_blur", "jpeg_compression", "pixelate", "saturate", "zoom_blur"
}  # fmt: skip


def some_images(count: int, height: int = 32, width: int = 32, channels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)


def test_nineteen_of_which_the_papers_sixteen() -> None:
    assert len(ALL) == 19
    assert set(ALL) - set(shifts.PAPER) == {"jpeg_compression", "motion_blur", "snow"}
    for name in ALL:
        shift = shifts.SHIFTS[name]
        assert isinstance(shift, shifts.Corruption)
        assert len(shift.cifar) == len(shift.imagenet) == 5
        assert len(set(map(str, shift.cifar))) == len(set(map(str, shift.imagenet))) == 5


def test_every_corruption_of_every_file_is_listed() -> None:
    """One new corruption is one line in SHIFTS: none may be forgotten."""
    import importlib
    import pkgutil

    found = {
        name
        for module in pkgutil.iter_modules(shifts.__path__)
        for name, value in vars(importlib.import_module(f"avuc.shifts.{module.name}")).items()
        if isinstance(value, shifts.Corruption)
    }
    assert found == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_same_result_for_any_split_order_and_kind(name: str, pieces: NDArray[np.uint8]) -> None:
    images = torch.from_numpy(pieces[:23])
    whole = shifts.corrupt(images, name, 3, seed=7)
    split = [shifts.corrupt(part, name, 3, seed=7) for part in images.split((1, 9, 13))]
    assert torch.equal(whole, torch.cat(split))
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole[order], shifts.corrupt(images[order], name, 3, seed=7))
    np.testing.assert_array_equal(whole.numpy(), shifts.corrupt(pieces[:23], name, 3, seed=7))
    odd = torch.cat((torch.zeros(1, dtype=torch.uint8), images.flatten()))[1:].view_as(images)
    assert torch.equal(whole, shifts.corrupt(odd, name, 3, seed=7))
    strided = images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert torch.equal(whole, shifts.corrupt(strided, name, 3, seed=7))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
def test_internal_parts_do_not_show(name: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of an image too: they are told apart over the whole call, not within a part."""
    images = some_images(6, 20, 17).repeat(3, 1, 1, 1)
    whole = shifts.corrupt(images, name, 5, profile=profile)
    monkeypatch.setattr(shifts, "_CPU_CHUNK", 20 * 17 * 3 * 4)
    assert torch.equal(whole, shifts.corrupt(images, name, 5, profile=profile))


@pytest.mark.parametrize("name", ALL)
def test_seed_and_severity_make_other_draws(name: str) -> None:
    images = torch.full((2, 32, 32, 3), 90, dtype=torch.uint8)
    images[:, 3, ::2] = 200
    images[:, 7:20, 7:20] = torch.tensor([180, 90, 30], dtype=torch.uint8)
    one, again, other = (shifts.corrupt(images, name, 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert torch.equal(one, other) == (name in DETERMINISTIC)
    # two copies of one image get two draws
    assert torch.equal(one[0], one[1]) == (name in DETERMINISTIC)
    assert not torch.equal(one, images)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 3),
        (2, 1, 1, 1),
        (1, 1, 7, 3),
        (1, 5, 1, 3),
        (2, 2, 2, 1),
        (3, 3, 4, 3),
        (1, 28, 28, 1),
        (1, 40, 33, 3),
    ],
)
def test_any_size_and_channel_count(name: str, profile: str, shape: tuple[int, int, int, int]) -> None:
    images = some_images(*shape)
    before = images.clone()
    for severity in (1, 5):
        result = shifts.corrupt(images, name, severity, profile=profile)
        assert result.shape == images.shape
        assert result.dtype == torch.uint8
        assert result.data_ptr() != images.data_ptr()
        assert result.is_contiguous()
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white(name: str, level: int) -> None:
    images = torch.full((2, 16, 16, 3), level, dtype=torch.uint8)
    for severity in (1, 2, 3, 4, 5):
        assert shifts.corrupt(images, name, severity).shape == images.shape


@pytest.mark.parametrize("name", ALL)
def test_no_images(name: str) -> None:
    assert shifts.corrupt(torch.empty(0, 32, 32, 3, dtype=torch.uint8), name, 1).shape == (0, 32, 32, 3)
    assert shifts.corrupt(np.empty((0, 8, 9, 1), np.uint8), name, 5).shape == (0, 8, 9, 1)


@given(
    st.sampled_from(ALL), st.integers(1, 5), st.integers(1, 4), st.integers(1, 24), st.integers(1, 24),
    st.sampled_from([1, 3]), st.integers(-(2**40), 2**70), st.sampled_from(["cifar", "imagenet"]),
)  # fmt: skip
def test_first_image_never_depends_on_the_others(
    name: str, severity: int, count: int, height: int, width: int, channels: int, seed: int, profile: str
) -> None:
    images = some_images(count, height, width, channels, seed=count * height)
    whole = shifts.corrupt(images, name, severity, seed=seed, profile=profile)
    assert torch.equal(whole[:1], shifts.corrupt(images[:1], name, severity, seed=seed, profile=profile))


def test_memory_mapped_and_read_only_arrays(tmp_path: Path) -> None:
    images = some_images(5).numpy()
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    np.testing.assert_array_equal(shifts.corrupt(mapped, "fog", 2), shifts.corrupt(images, "fog", 2))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8, 3), np.float32), "expected uint8 values 0 … 255, found float32"),
        (torch.zeros(2, 8, 8, 3), r"expected uint8 values 0 … 255, found torch.float32"),
        (np.zeros((8, 8, 3), np.uint8), r"found \(8, 8, 3\); add a batch axis with images\[None\]"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"found \(2, 3, 8, 8\); move the channels last"),
        (np.zeros((2, 8, 8, 4), np.uint8), "C = 1 or 3"),
        (np.zeros((2, 0, 8, 3), np.uint8), r"found \(2, 0, 8, 3\)"),
        ([[1, 2]], "found list"),
    ],
)
def test_wrong_images_are_explained(images: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        shifts.corrupt(images, "fog", 1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gausian_noise", 1), "did you mean 'gaussian_noise'"),
        (("blur", 1), "unknown shift 'blur'; did you mean '.*blur'"),
        (("fog", 0), "severity must be 1…5, found 0"),
        (("fog", 6), "found 6"),
        (("fog", 2.0), "found 2.0"),
        (("fog", "3"), "found '3'"),
        (("fog", None), "found None"),
    ],
)
def test_wrong_name_and_severity_are_explained(arguments: tuple[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shifts.corrupt(some_images(1), *arguments)


def test_wrong_profile_is_explained() -> None:
    with pytest.raises(InputError, match="expected one of cifar, imagenet, found 'mnist'"):
        shifts.corrupt(some_images(1), "fog", 1, profile="mnist")  # type: ignore[call-overload]


def test_profiles_differ() -> None:
    images = some_images(2)
    for name in ALL:
        cifar, imagenet = (shifts.corrupt(images, name, 2, profile=profile) for profile in shifts.PROFILES)
        # the first two saturations desaturate alike in both
        assert torch.equal(cifar, imagenet) == (name == "saturate")


def test_own_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    def darken(images: torch.Tensor, severity: int, generator: torch.Generator) -> torch.Tensor:
        return images // (severity + 1)

    def dither(images: torch.Tensor, severity: int, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randint(0, severity, images.shape, generator=generator, dtype=torch.uint8)
        return images // 2 + noise

    monkeypatch.setitem(shifts.SHIFTS, "darken", darken)
    monkeypatch.setitem(shifts.SHIFTS, "dither", dither)
    images = some_images(4)
    assert torch.equal(shifts.corrupt(images, "darken", 2), images // 3)
    assert torch.equal(shifts.corrupt(images, "dither", 5, seed=3), shifts.corrupt(images, "dither", 5, seed=3))


def test_own_shift_must_keep_shape_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shifts.SHIFTS, "floats", lambda images, severity, generator: images.float())
    with pytest.raises(InputError, match=r"shift 'floats' returned torch.float32 .* expected uint8"):
        shifts.corrupt(some_images(1), "floats", 1)


def test_shifts_take_a_plain_generator() -> None:
    images = some_images(2)
    first = shifts.SHIFTS["fog"](images, 2, torch.Generator().manual_seed(3))
    assert torch.equal(first, shifts.SHIFTS["fog"](images, 2, torch.Generator().manual_seed(3)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
def test_gpu_agrees_with_cpu_and_with_itself(name: str, profile: str, pieces: NDArray[np.uint8]) -> None:
    here = torch.from_numpy(pieces[:40])
    there = here.cuda()
    for severity in (1, 3, 5):
        whole = shifts.corrupt(there, name, severity, profile=profile)
        assert whole.device == there.device
        split = torch.cat([shifts.corrupt(part, name, severity, profile=profile) for part in there.split((3, 30, 7))])
        assert torch.equal(whole, split)
        off = (whole.cpu().int() - shifts.corrupt(here, name, severity, profile=profile).int()).abs()
        assert (off <= 1).float().mean() > 0.999
