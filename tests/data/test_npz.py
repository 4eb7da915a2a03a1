"""Arrays of the user's own: layouts, splits, labels, files that are not what they say; CIFAR-C's memory map."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avuc.core.errors import InputError
from avuc.core.npy import map_array
from avuc.data.load import load_dataset
from avuc.shifts import Archive


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("image_key", "label_key"), [("images", "labels"), ("x", "y"), ("X", "Y"), ("data", "targets"), ("arr_0", "arr_1")]
)
def test_one_set(tmp_path: Path, crops: Any, image_key: str, label_key: str) -> None:
    images, labels = crops(5), np.array([3, 1, 0, 2, 3], np.uint8)
    path = save(tmp_path / "a.npz", **{image_key: images, label_key: labels})
    data = load_dataset("npz", path)
    np.testing.assert_array_equal(data.images, images)
    assert data.labels.tolist() == labels.tolist()
    assert data.num_classes == 4
    assert load_dataset("npz", path, num_classes=10).num_classes == 10


@pytest.mark.parametrize("form", ["{name}_{split}", "{split}_{name}"])
def test_splits_inside_one_file(tmp_path: Path, crops: Any, form: str) -> None:
    arrays = {}
    for split, n in (("train", 4), ("test", 2)):
        arrays[form.format(name="images" if form[1] == "s" else "x", split=split)] = crops(n)
        arrays[form.format(name="labels" if form[1] == "s" else "y", split=split)] = np.arange(n)[:, None]
    path = save(tmp_path / "a.npz", **arrays)
    assert len(load_dataset("npz", path, "train")) == 4
    assert load_dataset("npz", path, "test").labels.tolist() == [0, 1]


def test_splits_as_files_of_a_folder(tmp_path: Path, crops: Any, refused: Callable[..., str]) -> None:
    save(tmp_path / "train.npz", images=crops(4), labels=np.zeros(4, int))
    np.save(tmp_path / "test.npy", crops(2))
    np.save(tmp_path / "test-labels.npy", np.array([0, 1]))
    assert len(load_dataset("npz", tmp_path, "train")) == 4
    assert load_dataset("npy", tmp_path, "test").labels.tolist() == [0, 1]
    assert "no val.npz or val.npy here (test-labels.npy" in refused(load_dataset, "npz", tmp_path, "val")


def test_a_set_that_does_not_tell_train_from_test(tmp_path: Path, crops: Any, refused: Callable[..., str]) -> None:
    path = save(tmp_path / "a.npz", images=crops(2), labels=np.zeros(2, int))
    np.save(tmp_path / "b.npy", crops(2))
    for place in (path, tmp_path / "b.npy"):
        for split in ("train", "test"):
            assert "ask for split='all'" in refused(load_dataset, "npz", place, split)


def test_grey_images_gain_a_channel(tmp_path: Path, digits: Any) -> None:
    path = save(tmp_path / "a.npz", images=digits.images[:6, ..., 0].numpy(), labels=digits.labels[:6].numpy())
    assert load_dataset("npz", path).images.shape == (6, 28, 28, 1)


def test_out_of_distribution_arrays_are_mapped_not_copied(tmp_path: Path, crops: Any) -> None:
    path = tmp_path / "dtd10.npy"
    np.save(path, crops(40))
    data = load_dataset("npy", path)
    np.testing.assert_array_equal(data.images, crops(40))
    assert (data.labels == -1).all()
    assert data.name == "dtd10"
    data.images[0] = 0  # copy on write: the file stays as it is
    np.testing.assert_array_equal(np.load(path), crops(40))
    assert isinstance(map_array(path), np.memmap)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3))}, r"must be uint8 .* found float64 \(2, 4, 4, 3\)"),
        ({"images": np.zeros((2, 48), np.uint8)}, r"found uint8 \(2, 48\)"),
        ({"images": np.zeros((2, 3, 32, 32), np.uint8)}, "channels first"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(3, int)}, "expected 2 integer labels"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2)}, "expected 2 integer labels"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0, -5])}, "label -5 is outside"),
        ({"pictures": np.zeros((2, 4, 4, 3), np.uint8)}, "no images for split 'all': holds pictures"),
        ({}, "holds nothing"),
    ],
)
def test_wrong_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset("npz", save(tmp_path / "a.npz", **arrays))
    assert "\n" not in str(caught.value)


def test_objects_are_never_unpickled(tmp_path: Path, refused: Callable[..., str]) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([{"a": 1}], dtype=object))
    np.save(tmp_path / "b.npy", np.array([{"a": 1}], dtype=object))
    assert "key 'images' holds Python objects" in refused(load_dataset, "npz", tmp_path / "a.npz")
    refused(load_dataset, "npy", tmp_path / "b.npy")


def test_a_file_that_may_not_be_read(tmp_path: Path, crops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.npz", images=crops(2))

    def denied(*arguments: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("avuc.data.npz.open_regular", denied)
    with pytest.raises(InputError, match=r"a\.npz: cannot be read \(Permission denied\); check the path"):
        load_dataset("npz", path)


def test_fortran_order_and_other_byte_orders(tmp_path: Path, crops: Any) -> None:
    images, labels = crops(4), np.array([2, 0, 1, 2])
    path = save(tmp_path / "a.npz", images=np.asfortranarray(images), labels=labels.astype(">i4"))
    np.save(tmp_path / "b.npy", np.asfortranarray(images))
    np.save(tmp_path / "b-labels.npy", labels.astype(">i4"))
    for file in (path, tmp_path / "b.npy"):
        data = load_dataset("npz", file)
        np.testing.assert_array_equal(data.images, images)
        assert data.labels.tolist() == labels.tolist()


def test_a_header_that_promises_the_moon(tmp_path: Path, refused: Callable[..., str]) -> None:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (2**45, 32, 32, 3)}
    np.lib.format.write_array_header_1_0(header, description)
    (tmp_path / "a.npy").write_bytes(header.getvalue() + b"abc")
    refused(load_dataset, "npy", tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as stored:
        stored.writestr("images.npy", header.getvalue() + b"abc")
    refused(load_dataset, "npz", tmp_path / "a.npz")


def test_the_wrong_suffix(tmp_path: Path, crops: Any, refused: Callable[..., str]) -> None:
    path = save(tmp_path / "a.npz", images=crops(2))
    (tmp_path / "b.npy").write_bytes(path.read_bytes())
    np.save(tmp_path / "c.npy", crops(2))
    (tmp_path / "c.npz").write_bytes((tmp_path / "c.npy").read_bytes())
    (tmp_path / "d.txt").write_bytes(b"hello")
    assert "right suffix" in refused(load_dataset, "npy", tmp_path / "b.npy")
    refused(load_dataset, "npz", tmp_path / "c.npz")
    assert "expected .npz or .npy" in refused(load_dataset, "npz", tmp_path / "d.txt")
    assert "name the file" in refused(load_dataset, "npz")


@pytest.mark.parametrize("small", ["user_npy"], indirect=True)
def test_the_users_own_digests(small: Any, refused: Callable[..., str]) -> None:
    assert "SHA256SUMS checked" in small.load().origin
    data = bytearray(small.files[0].read_bytes())
    data[-1] ^= 1
    small.files[0].write_bytes(bytes(data))
    assert "SHA256SUMS lists" in refused(small.load)
    assert int((small.load(verify=False).images.numpy() != small.images).sum()) == 1


@pytest.mark.parametrize("small", ["cifar10_c"], indirect=True)
def test_cifar_c_severities_are_slices(small: Any, crops: Any) -> None:
    everything = crops(100)
    for severity in range(1, 6):
        data = small.load(severity=severity)
        np.testing.assert_array_equal(data.images, everything[(severity - 1) * 20 : severity * 20])
        assert data.name == f"cifar10-c-fog-{severity}"


@pytest.mark.parametrize("small", ["cifar10_c"], indirect=True)
def test_cifar_c_is_what_the_archive_of_shifts_reads(small: Any) -> None:
    archive = Archive(small.files[0].parent)
    for severity in range(1, 6):
        data = small.load(severity=severity)
        np.testing.assert_array_equal(data.images, archive.images("fog", severity))
        np.testing.assert_array_equal(data.labels, archive.labels(severity))


@pytest.mark.parametrize("small", ["cifar10_c"], indirect=True)
def test_cifar_c_images_of_another_size(small: Any, refused: Callable[..., str]) -> None:
    np.save(small.files[0], np.zeros((100, 28, 28, 3), np.uint8))
    assert "expected images of shape (32, 32, 3), found (28, 28, 3)" in refused(small.load, verify=False)


@pytest.mark.parametrize("small", ["cifar10_c"], indirect=True)
@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("fog.npy", np.zeros((7, 32, 32, 3), np.uint8)),
        ("fog.npy", np.zeros((10, 32, 32), np.uint8)),
        ("fog.npy", np.zeros((100, 32, 32, 3), np.float32)),
        ("labels.npy", np.zeros(99, np.uint8)),
        ("labels.npy", np.zeros(100, np.float32)),
    ],
)
def test_cifar_c_wrong_arrays(small: Any, name: str, array: np.ndarray, refused: Callable[..., str]) -> None:
    np.save(small.files[0].with_name(name), array)
    assert "expected" in refused(small.load, verify=False)
    refused(small.load)
