"""SVHN's MATLAB files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from avuc.data.load import load_dataset


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("n", [1, 12])
def test_ten_means_zero(tmp_path: Path, crops: Any, compressed: bool, n: int) -> None:
    images = crops(n)
    labels = np.arange(1, n + 1) % 10
    stored = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": stored}, do_compression=compressed)
    data = load_dataset("svhn", tmp_path, "test", verify=False)
    np.testing.assert_array_equal(data.images, images)
    assert data.labels.tolist() == labels.tolist()


GOOD = {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.array([[1], [2], [3], [10]], np.uint8)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"y": GOOD["y"]}, "'X' must be uint8 (32, 32, 3, N), found nothing"),
        (GOOD | {"X": np.zeros((4, 32, 32, 3), np.uint8)}, "found uint8 (4, 32, 32, 3)"),
        (GOOD | {"X": np.zeros((32, 32, 3, 4))}, "found float64"),
        ({"X": GOOD["X"]}, "'y' must hold 4 labels, found nothing"),
        (GOOD | {"y": GOOD["y"][:3]}, "'y' must hold 4 labels"),
        (GOOD | {"y": np.array([[0], [1], [2], [3]], np.uint8)}, "'y' must be 1…10"),
        (GOOD | {"y": np.array([[1.5], [1], [2], [3]])}, "'y' must be 1…10"),
    ],
)
def test_wrong_contents(content: dict[str, Any], message: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    savemat(tmp_path / "test_32x32.mat", content)
    assert message in refused(load_dataset, "svhn", tmp_path, "test", verify=False)


@pytest.mark.parametrize("body", [b"", b"\x89HDF\r\n\x1a\n" + bytes(600), b"MATLAB 7.3" + bytes(600), b"x" * 600])
def test_other_files(body: bytes, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "train_32x32.mat").write_bytes(body)
    assert "train_32x32.mat: not a whole MATLAB 5 file" in refused(load_dataset, "svhn", tmp_path, verify=False)
