"""CIFAR: the real batches where they are at hand, small ones of real images in both official forms always."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avuc.data import cifar
from avuc.data.load import load_dataset

PARTS = ("data_batch_1", "test_batch")


def reference(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """What everybody's script does with a batch."""
    with path.open("rb") as stream:
        batch = pickle.load(stream, encoding="bytes")
    return batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(batch[b"labels"])


def binary(path: Path) -> bytes:
    """The official binary form of a python batch."""
    images, labels = reference(path)
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None].astype(np.uint8), planes], 1).tobytes()


def test_the_real_test_set(real_cifar: Path) -> None:
    data = load_dataset("cifar10", real_cifar, "test")
    images, labels = reference(real_cifar / "cifar-10-batches-py" / "test_batch")
    np.testing.assert_array_equal(data.images, images)
    np.testing.assert_array_equal(data.labels, labels)
    assert data.labels.bincount().tolist() == [1000] * 10
    assert data.class_names[int(data.labels[0])] == "cat"  # the first test image is a well-known cat
    assert data.origin.startswith("CIFAR-10 python form, 1 file in ")
    assert data.origin.endswith("md5 checked")


def test_the_real_binary_form(real_cifar: Path, tmp_path: Path) -> None:
    """The published SHA-1 of the binary files must be that of the binary form of the real python files."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    known = {k.name: k for k in cifar.CIFAR10[1]["train"].members}
    for part in PARTS:
        data = binary(real_cifar / "cifar-10-batches-py" / part)
        assert f"sha1:{hashlib.sha1(data).hexdigest()}" == known[f"{part}.bin"].digest
        assert len(data) == known[f"{part}.bin"].size
    (folder / "test_batch.bin").write_bytes(data)
    got = load_dataset("cifar10", tmp_path, "test")
    want = load_dataset("cifar10", real_cifar, "test")
    assert torch.equal(got.images, want.images)
    assert torch.equal(got.labels, want.labels)
    assert "binary form" in got.origin


def test_the_real_training_set_is_incomplete(real_cifar: Path, refused: Callable[..., str]) -> None:
    line = refused(load_dataset, "cifar10", real_cifar, "train")
    assert "data_batch_2, data_batch_3, data_batch_4, data_batch_5 missing from the CIFAR-10 python form" in line
    assert "found batches.meta, data_batch_1, test_batch" in line


@pytest.mark.parametrize("damage", ["truncated", "flipped", "renamed", "swapped"])
def test_the_real_file_damaged(real_cifar: Path, tmp_path: Path, damage: str, refused: Callable[..., str]) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    shutil.copytree(real_cifar / "cifar-10-batches-py", folder)
    path = folder / "test_batch"
    data = path.read_bytes()
    expected = {"truncated": "truncated: 31,000,000 bytes, expected 31,035,526", "flipped": "damaged or changed"}
    if damage == "truncated":
        path.write_bytes(data[:31_000_000])
    elif damage == "flipped":
        path.write_bytes(data[:1_000_000] + bytes([data[1_000_000] ^ 1]) + data[1_000_001:])
    elif damage == "renamed":
        path.rename(folder / "testbatch")
    else:
        (folder / "data_batch_1").replace(path)
    line = refused(load_dataset, "cifar10", tmp_path, "test")
    assert (
        expected.get(
            damage,
            {"renamed": "found batches.meta, data_batch_1, testbatch"}.get(
                damage, "this is data_batch_1 under another name"
            ),
        )
        in line
    )


@pytest.mark.parametrize("small", ["cifar10_python", "cifar10_binary"], indirect=True)
def test_the_folder_itself_may_be_named(small: Any) -> None:
    for root in (small.root, small.files[0].parent, small.files[0]):
        assert len(load_dataset("cifar10", root, "train")) == len(small.images)


def test_coarse_labels(tmp_path: Path, crops: Any) -> None:
    planes = crops(6).transpose(0, 3, 1, 2).reshape(6, -1)
    fine, coarse = np.array([0, 99, 5, 7, 8, 9]), np.array([4, 13, 0, 19, 1, 2])
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    batch = {"data": planes, "fine_labels": fine.tolist(), "coarse_labels": coarse.tolist(), "filenames": ["x.png"] * 6}
    for protocol in (2, 3, 4, 5):
        (folder / "test").write_bytes(pickle.dumps(batch, protocol))
        data = load_dataset("cifar100", tmp_path, "test", verify=False)
        assert data.labels.tolist() == fine.tolist()
        assert data.num_classes == len(data.class_names) == 100
        groups = load_dataset("cifar100", tmp_path, "test", verify=False, coarse=True)
        assert groups.labels.tolist() == coarse.tolist()
        assert groups.num_classes == len(groups.class_names) == 20
    bin_folder = tmp_path / "b" / "cifar-100-binary"
    bin_folder.mkdir(parents=True)
    rows = np.concatenate([coarse[:, None].astype(np.uint8), fine[:, None].astype(np.uint8), planes], 1)
    (bin_folder / "test.bin").write_bytes(rows.tobytes())
    assert load_dataset("cifar100", tmp_path / "b", "test", verify=False).labels.tolist() == fine.tolist()
    groups = load_dataset("cifar100", tmp_path / "b", "test", verify=False, coarse=True)
    assert groups.labels.tolist() == coarse.tolist()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": np.zeros((2, 3072), np.uint8)}, "'labels' must list one label for each of the 2 images"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "'labels' must list one label"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, "must be integers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, [2]]}, "must be integers"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}, r"'data' must be uint8 \(N, 3072\)"),
        ({"data": np.zeros((2, 3072)), "labels": [1, 2]}, "'data' must be uint8"),
        ({"data": [1, 2], "labels": [1, 2]}, "'data' must be uint8"),
        ([1, 2], "'data' must be uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}, "label 10 is outside 0…9"),
    ],
)
def test_a_pickle_that_is_not_a_batch(batch: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset("cifar10", tmp_path, "test", verify=False)
    assert "\n" not in str(caught.value)


def test_a_malicious_batch_is_never_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    class Poison:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'executed')!r}, 'w').close()",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Poison(), "labels": [1]}, 2))
    assert "expected 31,035,526" in refused(load_dataset, "cifar10", tmp_path, "test")
    assert "refused: it asks for" in refused(load_dataset, "cifar10", tmp_path, "test", verify=False)
    assert not (tmp_path / "executed").exists()


def test_a_binary_file_of_odd_length(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 5000)
    assert "not whole records of 3,073" in refused(load_dataset, "cifar10", tmp_path, "test", verify=False)
