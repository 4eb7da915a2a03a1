"""idx files and the embedded digits."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avuc.data.load import load_dataset
from avuc.data.mnist import read_idx


def idx(*shape: int, body: bytes | None = None, magic: bytes | None = None) -> bytes:
    head = magic if magic is not None else bytes((0, 0, 8, len(shape)))
    return head + struct.pack(f">{len(shape)}I", *shape) + (bytes(int(np.prod(shape))) if body is None else body)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an idx file"),
        (idx(2, 3, 3)[:9], "not an idx file"),
        (idx(2, 3, 3, magic=b"\0\0\x0d\3"), "expected 00000803"),
        (idx(2, 3), "not an idx file"),
        (idx(2, 3, 3, body=b"x" * 17), "promises 18 bytes, found 17"),
        (idx(2, 3, 3, body=b"x" * 19), "promises 18 bytes, found more"),
        (idx(2**31, 2**31, 2**31, body=b"x"), "promises"),
        (b"\x89PNG" + bytes(40), "not an idx file"),
    ],
)
def test_wrong_idx_files(data: bytes, message: str, packed: bool, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(data) if packed else data)
    if "found more" in message and not packed:
        message = "promises 18 bytes, found more"
    assert message in refused(read_idx, path, 3)


def test_a_bomb_is_not_unpacked(tmp_path: Path, refused: Callable[..., str]) -> None:
    """A gigabyte of zeros packs into a megabyte; no more is unpacked than the header promises."""
    import tracemalloc

    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(idx(1, 2, 2))
        for _ in range(64):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    assert "found more" in refused(read_idx, path, 3)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("small", ["mnist_gz", "mnist_idx"], indirect=True)
def test_labels_of_another_set(small: Any, refused: Callable[..., str]) -> None:
    labels = small.files[1]
    data = idx(7)
    labels.write_bytes(gzip.compress(data) if labels.suffix == ".gz" else data)
    assert "7 labels for the 20 images; fetch both files again" in refused(small.load, verify=False)


@pytest.mark.parametrize("small", ["mnist_gz"], indirect=True)
@pytest.mark.parametrize("place", ["raw", "MNIST/raw"])
def test_where_other_tools_put_it(small: Any, place: str) -> None:
    folder = small.root / place
    folder.mkdir(parents=True)
    for file in small.files:
        file.rename(folder / file.name)
    assert len(small.load()) == len(small.images)


def test_mnist5k_splits_are_fixed_balanced_and_disjoint(digits: Any) -> None:
    train, test = load_dataset("mnist5k"), load_dataset("mnist5k", split="test")
    assert train.labels.bincount().tolist() == [400] * 10
    assert test.labels.bincount().tolist() == [100] * 10
    assert digits.labels.bincount().tolist() == [500] * 10
    together = torch.cat([train.images, test.images]).view(5000, -1)
    assert torch.equal(
        together.sum(1, dtype=torch.int64).sort().values,
        digits.images.view(5000, -1).sum(1, dtype=torch.int64).sort().values,
    )
    keys = [{bytes(image.numpy().tobytes()) for image in part.images} for part in (train, test)]
    assert not keys[0] & keys[1]
