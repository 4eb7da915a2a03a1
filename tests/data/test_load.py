"""Every source, whole and damaged: written in its official format from real images and read back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import avuc.data
from avuc.data.load import DATASETS, load_dataset

EXACT = 0
JPEG = 12  # grey levels a quality-95 JPEG may move a pixel, at most, on average far less
NOT_SOURCES = {
    "arrays",
    "augmentation",
    "augmix",
    "decode",
    "digest",
    "download",
    "files",
    "load",
    "obtain",
    "pickles",
    "split",
    "stream",
    "unpack",
    "tensors",
}


def test_every_source_is_read_back(small: Any) -> None:
    data = small.load()
    assert data.images.shape == small.images.shape
    difference = np.abs(data.images.numpy().astype(int) - small.images.astype(int))
    if small.name.startswith("imagenet"):
        assert difference.mean() < JPEG
    else:
        assert difference.max() == EXACT
    np.testing.assert_array_equal(data.labels.numpy(), small.labels)
    assert data.num_classes > data.labels.max()
    assert data.origin
    assert "\n" not in data.origin


@pytest.mark.parametrize("damage", ["truncated", "empty", "longer", "flipped", "renamed"])
@pytest.mark.parametrize("which", [0, -1])
def test_every_damage_gives_one_clear_line(small: Any, damage: str, which: int, refused: Callable[..., str]) -> None:
    victim: Path = small.files[which]
    data = victim.read_bytes()
    unguarded = small.name.startswith("imagenet")  # JPEG has no checksum: only damage to its structure can be seen
    if damage == "truncated":
        victim.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "longer":
        victim.write_bytes(data + b"more")
        if unguarded or small.name in ("folder", "npz"):
            # these formats mark their own end: what follows it harms nothing
            assert len(small.load()) == len(small.images)
            return
    elif damage == "flipped":
        place = 1 if unguarded else len(data) // 2
        victim.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
    else:
        victim.rename(victim.with_name("other-name"))
        if len(small.files) > 1 and (unguarded or small.name == "folder"):
            assert len(small.load()) == len(small.images) - 1  # any name is right there: one picture fewer
            return
        if small.name == "npy" and which == -1:
            assert (small.load().labels == -1).all()  # labels are optional: without them the set is unlabelled
            return
    line = refused(small.load)
    assert victim.name in line or victim.parent.name in line or small.root.name in line


@pytest.mark.parametrize(
    "small", ["cifar10_python", "cifar10_binary", "svhn_mat", "mnist_gz", "mnist_idx", "cifar10_c"], indirect=True
)
@pytest.mark.parametrize("damage", ["truncated", "empty"])
def test_unverified_files_still_fail_clearly(small: Any, damage: str, refused: Callable[..., str]) -> None:
    for victim in small.files:
        data = victim.read_bytes()
        victim.write_bytes(data[: len(data) // 2 + 1] if damage == "truncated" else b"")
        assert str(victim) in refused(small.load, verify=False)
        victim.write_bytes(data)


@pytest.mark.parametrize("small", ["cifar10_python", "cifar10_binary", "cifar10_c"], indirect=True)
def test_a_swapped_name_is_recognised(small: Any, refused: Callable[..., str]) -> None:
    first, second = small.files[0], small.files[1]
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    assert f"this is {second.name} under another name" in refused(small.load)


@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_a_changed_batch_is_read_only_when_asked(small: Any, refused: Callable[..., str]) -> None:
    data = bytearray(small.files[0].read_bytes())
    data[-10] ^= 1  # a pixel
    small.files[0].write_bytes(bytes(data))
    assert "verify=False" in refused(small.load)
    changed = small.load(verify=False)
    assert int((changed.images.numpy() != small.images).sum()) == 1
    assert "not checked" in changed.origin


def test_every_source_file_is_listed() -> None:
    folder = Path(avuc.data.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"} - NOT_SOURCES
    listed = {function.__module__.rpartition(".")[2] for function in DATASETS.values()}
    assert files == listed


@pytest.mark.parametrize("name", DATASETS)
def test_sources_share_one_signature(name: str) -> None:
    parameters = inspect.signature(DATASETS[name]).parameters
    assert list(parameters)[:2] == ["root", "split"]
    assert {"download", "verify"} <= set(parameters)


def test_unknown_names_splits_and_options(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "expected a file, a folder, or one of cifar10" in refused(load_dataset, "cifar11")
    assert "no split 'dev'; there are train, test" in refused(load_dataset, "cifar10", tmp_path, "dev")
    assert "no option 'size'" in refused(load_dataset, "cifar10", tmp_path, size=3)
    assert "needs the option 'corruption'" in refused(load_dataset, "cifar10-c", tmp_path, severity=1)
    assert "severity must be 1…5" in refused(load_dataset, "cifar10-c", tmp_path, corruption="fog", severity=6)
    assert "no corruption 'rain'" in refused(load_dataset, "cifar10-c", tmp_path, corruption="rain", severity=1)
    assert "no such file or folder" in refused(load_dataset, "cifar10", tmp_path / "absent")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "mnist", "fashion-mnist"])
def test_a_folder_without_the_set_says_what_to_put_there(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    line = refused(load_dataset, name, tmp_path, "test")
    assert "holiday.jpg" in line
    assert "http" in line
    assert str(tmp_path) in line


def test_a_path_is_a_name_too(tmp_path: Path, crops: Any) -> None:
    np.save(tmp_path / "ood.npy", crops(3))
    data = load_dataset(str(tmp_path / "ood.npy"))
    assert len(data) == 3
    assert data.labels.tolist() == [-1, -1, -1]
    assert data.num_classes == 0
