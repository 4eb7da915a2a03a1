from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from avuc.core.errors import InputError
from avuc.core.tensor_file import DTYPES, read_metadata, read_tensors, write_tensors


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
        if a.numel()
        else a.dtype == b.dtype and a.shape == b.shape
    )


def every_dtype() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 2, (3, 4), generator=generator)
    tensors = {name: raw.to(dtype) for name, dtype in DTYPES.items()}
    return tensors | {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "turned": torch.arange(6.0).view(2, 3).T}


def test_round_trip_of_every_dtype(tmp_path: Path) -> None:
    tensors = every_dtype()
    write_tensors(tmp_path / "x.safetensors", tensors, {"a": "β"})
    back, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"a": "β"} == read_metadata(tmp_path / "x.safetensors")
    assert set(back) == set(tensors)
    assert all(same(back[name], tensors[name]) for name in tensors)


def test_the_package_reads_ours_and_we_read_the_packages(tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in every_dtype().items()}
    write_tensors(tmp_path / "ours.safetensors", tensors, {"by": "us"})
    theirs = load_file(tmp_path / "ours.safetensors")
    assert all(same(theirs[name], tensors[name]) for name in tensors)
    with safe_open(tmp_path / "ours.safetensors", "pt") as file:
        assert file.metadata() == {"by": "us"}
    save_file(tensors, tmp_path / "theirs.safetensors", {"by": "them"})
    back, metadata = read_tensors(tmp_path / "theirs.safetensors")
    assert metadata == {"by": "them"}
    assert all(same(back[name], tensors[name]) for name in tensors)


def test_nothing_at_all(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {})
    assert read_tensors(tmp_path / "x") == ({}, {})


def test_reading_is_private_and_survives_replacement(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_tensors(path, {"a": torch.ones(1000)})
    first = read_tensors(path)[0]["a"]
    first += 1
    assert read_tensors(path)[0]["a"].sum() == 1000
    write_tensors(path, {"a": torch.zeros(5)})
    assert first.sum() == 2000


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="complex128"):
        write_tensors(tmp_path / "x", {"a": torch.zeros(2, dtype=torch.complex128)})
    with pytest.raises(InputError, match="text"):
        write_tensors(tmp_path / "x", {"a": torch.zeros(2)}, {"n": 3})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def build(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, bytes] = {
    "empty file": b"",
    "half a length": b"\x01\x00",
    "ten gigabytes of header": (10 * 2**30).to_bytes(8, "little") + b"{}",
    "largest length": b"\xff" * 8 + b"{}",
    "not JSON": build(b"{nope"),
    "not UTF-8": build(b'{"\xff\xfe": 1}'),
    "deep nesting": build(b"[" * 100_000),
    "a list": build([]),
    "a name twice": build(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"1",
    ),
    "metadata not text": build({"__metadata__": {"a": 1}}),
    "metadata a list": build({"__metadata__": [1]}),
    "unknown dtype": build({"a": entry("F128")}, bytes(8)),
    "dtype a list": build({"a": entry(["F32"])}, bytes(8)),
    "missing field": build({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "extra field": build({"a": {**entry(), "code": "x"}}, bytes(8)),
    "negative shape": build({"a": entry(shape=[-2])}, bytes(8)),
    "fractional shape": build({"a": entry(shape=[2.0])}, bytes(8)),
    "true as a size": build({"a": entry("U8", [True], [0, 1])}, b"1"),
    "enormous shape": build({"a": entry(shape=[2**62, 2**62])}, bytes(8)),
    "empty but enormous": build({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}),
    "offsets reversed": build({"a": entry(offsets=[8, 0])}, bytes(8)),
    "three offsets": build({"a": entry(offsets=[0, 4, 8])}, bytes(8)),
    "past the end": build({"a": entry(shape=[4], offsets=[0, 16])}, bytes(8)),
    "overlap": build({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
    "a gap": build({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
    "bytes left over": build({"a": entry()}, bytes(9)),
    "truncated": build({"a": entry()}, bytes(7)),
    "huge number": build(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}', b"1"),
    "NaN as a shape": build(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError, match=r"bad\.safetensors.*fetch a whole copy"):
        read_tensors(path)


def test_a_file_of_another_format_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("label,prob_cat,prob_dog\n0,0.5,0.5\n")
    with pytest.raises(InputError, match=r"test.csv: not a .safetensors file: .*; give a file that save\(\) wrote"):
        read_tensors(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_tensors(path)


@given(st.binary(max_size=200), st.integers(0, 120))
def test_random_bytes_never_do_more_than_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    write_tensors(path, {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bool)}, {"k": "v"})
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        tensors, _ = read_tensors(path)
    except InputError:
        return
    for tensor in tensors.values():
        tensor.double().sum()
