"""Read and write .safetensors files: named tensors and text metadata, no code. The safetensors package is not needed.

A file has 8 bytes with the length of the header (little-endian), the header in JSON (name → {"dtype", "shape",
"data_offsets"}, and "__metadata__", text to text), then the bytes of the tensors (little-endian) without gaps. Reading
maps the file into memory and checks everything in the header; a damaged file is an `InputError` that names it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError, out_of_memory
from avuc.core.files import open_regular

# the same limit as in the safetensors package
MAX_HEADER = 100_000_000

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def can_store(tensor: Tensor) -> bool:
    """Return whether a file can hold a tensor: its type is known, and its numbers lie in memory as they are.

    >>> can_store(torch.zeros(2)), can_store(torch.zeros(2).to_sparse())
    (True, False)
    """
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return plain and tensor.dtype in NAMES and not is_lazy(tensor)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors of any device, and text metadata, atomically.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/x.safetensors", {"a": torch.arange(3)}, {"made by": "me"})
    ...     read_tensors(f"{folder}/x.safetensors")
    ({'a': tensor([0, 1, 2])}, {'made by': 'me'})
    """
    _need_little_endian()
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):
            raise InputError(f"{path}: metadata must map text to text; convert other values with json.dumps")
        header["__metadata__"] = dict(metadata)
    # widest types first, as in the safetensors package, so that every tensor starts at a multiple of its item size
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in order:
        tensor = tensors[name]
        if name == "__metadata__" or tensor.dtype not in NAMES:
            raise InputError(f"{path}: cannot store tensor {name!r} of {tensor.dtype}")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise InputError(
            f"{path}: the header would take {len(text)} bytes, more than {MAX_HEADER}: store fewer tensors"
        )
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            # one tensor at a time is copied from the device, and written without another copy
            host = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
            if host.numel():
                file.write(host.reshape(-1).view(torch.uint8).numpy().data)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a file. The file is mapped: data are read when used, changes stay in memory."""
    header, metadata, base = _header(path)
    size = base + max((end for _, _, _, end in header.values()), default=0)
    try:
        whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except RuntimeError as error:  # from mmap; the system's reason is at the end of a long message
        if out_of_memory(error):
            raise MemoryError(f"{path}: there is not enough memory to hold it") from error
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0][-80:]})") from error
    out: dict[str, Tensor] = {}
    for name, (dtype, shape, start, end) in header.items():
        try:
            if start == end:
                out[name] = torch.empty(shape, dtype=dtype)
                continue
            flat = whole[base + start : base + end]
            # other programs may write tensors that are not aligned, which cannot be viewed in place
            out[name] = (flat if (base + start) % dtype.itemsize == 0 else flat.clone()).view(dtype).view(shape)
        except (RuntimeError, OverflowError, TypeError):
            # shapes such as (0, 2**62, 2**62)
            _bad(path, f"has tensor {name!r} with an impossible shape")
    return out, metadata


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return only the metadata; the header is checked, the data are not read."""
    return _header(path)[1]


def tensor_offsets(path: str | Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], int]]:
    """Return dtype, shape and first byte of every tensor; the header is checked, the data are not read."""
    entries, _, base = _header(path)
    return {name: (dtype, shape, base + start) for name, (dtype, shape, start, _) in entries.items()}


Entry = tuple[torch.dtype, tuple[int, ...], int, int]


def _header(path: str | Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    _need_little_endian()
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                _bad(path, f"has {size} bytes, too few for a header")
            if length > min(MAX_HEADER, size - 8):
                _bad(path, f"claims a header of {length} bytes and has {size} bytes in all")
            text = file.read(length)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        raw = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _bad(path, f"has a header that is not plain JSON ({str(error)[:80]})")
    if not isinstance(raw, dict):
        _bad(path, "has a header that is not a JSON object")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _bad(path, "has metadata that is not text to text")
    entries = {name: _entry(path, name, item) for name, item in raw.items()}
    # no gaps, no overlap, up to the last byte: no hidden data, no shared memory
    position = 0
    for name, (_, _, start, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if start != position:
            _bad(path, f"has tensor {name!r} at byte {start} where {position} was expected")
        position = end
    if 8 + length + position != size:
        _bad(path, f"should have {8 + length + position} bytes by its header and has {size}")
    return entries, metadata, 8 + length


def _entry(path: str | Path, name: str, item: Any) -> Entry:
    if not isinstance(item, dict) or set(item) != {"dtype", "shape", "data_offsets"}:
        _bad(path, f"describes tensor {name!r} by something other than dtype, shape and data_offsets")
    dtype = DTYPES.get(item["dtype"]) if isinstance(item["dtype"], str) else None
    if dtype is None:
        _bad(path, f"has tensor {name!r} of unknown type {str(item['dtype'])[:40]!r}")
    shape, offsets = item["shape"], item["data_offsets"]
    if not (_whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        _bad(path, f"has tensor {name!r} with an impossible shape or place")
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        _bad(path, f"has tensor {name!r} whose shape and size disagree")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _whole_numbers(value: Any) -> bool:
    # bool is a subclass of int; no machine has sizes of 2**63 or more
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name appears twice")
    return out


def _bad(path: str | Path, problem: str) -> NoReturn:
    if Path(path).suffix.lower() != ".safetensors":
        raise InputError(
            f"{path}: not a .safetensors file: it {problem}; give a file that save() wrote ('avuc evaluate' reads "
            "tables and NumPy files)"
        )
    raise InputError(f"{path}: not a valid .safetensors file: it {problem}; write it again or fetch a whole copy")


def _need_little_endian() -> None:
    if sys.byteorder != "little":
        raise InputError(".safetensors files are little-endian and this machine is not")
