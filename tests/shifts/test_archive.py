"""Released corruption files: found, checked, memory-mapped; broken ones each named in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.shifts import Archive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "labels.npy", np.tile(rng.integers(0, 10, 7), 5).astype(np.uint8))
    for name in ("fog", "snow"):
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (35, 8, 8, 3), dtype=np.uint8))
    return tmp_path


def test_severities_are_slices_of_the_file(folder: Path) -> None:
    archive = Archive(folder)
    assert archive.names == ("fog", "snow")
    assert archive.size == 7
    whole = np.load(folder / "fog.npy")
    for severity in (1, 2, 3, 4, 5):
        images = archive.images("fog", severity)
        assert isinstance(images, np.memmap)
        np.testing.assert_array_equal(images, whole[(severity - 1) * 7 : severity * 7])
        assert archive.labels(severity).dtype == np.int64
        np.testing.assert_array_equal(archive.labels(severity), np.load(folder / "labels.npy")[:7])


def test_a_tensor_over_the_map_does_not_touch_the_file(folder: Path) -> None:
    before = (folder / "fog.npy").read_bytes()
    torch.from_numpy(Archive(folder).images("fog", 1)).zero_()
    assert (folder / "fog.npy").read_bytes() == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: truncate(folder / "fog.npy"), r"fog\.npy: .* cut short or damaged"),
        (lambda folder: flip(folder / "fog.npy"), r"fog\.npy: .* not a \.npy array"),
        (lambda folder: (folder / "fog.npy").write_bytes(b""), r"fog\.npy: .* not a \.npy array"),
        (lambda folder: np.save(folder / "fog.npy", np.array([{}], dtype=object)), r"fog\.npy: .*holds Python objects"),
        (lambda folder: np.save(folder / "fog.npy", np.zeros((30, 8, 8, 3), np.uint8)), "expected 35 images.*found 30"),
        (lambda folder: np.save(folder / "fog.npy", np.zeros((35, 8, 8, 3))), "expected uint8 images.*found float64"),
        (lambda folder: np.save(folder / "fog.npy", np.zeros((35, 64), np.uint8)), r"found uint8 of shape \(35, 64\)"),
        (lambda folder: (folder / "labels.npy").unlink(), r"labels\.npy: missing"),
        (lambda folder: np.save(folder / "labels.npy", np.zeros(34, np.uint8)), "expected 5 × N labels.*found 34"),
        (lambda folder: np.save(folder / "labels.npy", np.zeros((5, 7))), "expected one row of whole numbers"),
        (lambda folder: [(folder / f"{name}.npy").unlink() for name in ("fog", "snow")], "no corruption files"),
    ],
)
def test_broken_files_are_named(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=message) as caught:
        Archive(folder)
    assert "\n" not in str(caught.value)


def test_wrong_requests_are_explained(folder: Path) -> None:
    archive = Archive(folder)
    with pytest.raises(InputError, match=r"no frost\.npy here; found fog, snow"):
        archive.images("frost", 1)
    with pytest.raises(InputError, match="found 0"):
        archive.images("fog", 0)
    with pytest.raises(InputError, match="not a folder"):
        Archive(folder / "fog.npy")
