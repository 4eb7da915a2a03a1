"""The pickle reader: equal to Python's on plain data, and nothing else gets through."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.data.pickles import load_plain

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8) | st.binary(max_size=8)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


class Calls:
    """Pickles as a call of `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(value=plain)
def test_equals_python_on_plain_data(protocol: int, value: Any) -> None:
    assert load_plain(pickle.dumps(value, protocol), "p") == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i4", "<u8", "?", "<f4", ">f8"])
@pytest.mark.parametrize("shape", [(0,), (7,), (2, 3), (2, 0, 3), (2, 3, 4)])
def test_equals_python_on_arrays(protocol: int, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for value in (array, np.asfortranarray(array)):
        got = load_plain(pickle.dumps({"a": value, "again": [value]}, protocol), "p")
        np.testing.assert_array_equal(got["a"], value)
        assert got["a"].dtype == value.dtype
        assert got["again"][0] is got["a"]


def test_the_real_batch(real_cifar: Path) -> None:
    path = real_cifar / "cifar-10-batches-py" / "data_batch_1"
    got = load_plain(path.read_bytes(), "data_batch_1")
    with path.open("rb") as stream:
        want = pickle.load(stream, encoding="bytes")
    assert got.keys() == want.keys()
    np.testing.assert_array_equal(got[b"data"], want[b"data"])
    for key in (b"labels", b"filenames", b"batch_label"):
        assert got[key] == want[key]


def marker(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "executed"
    return path, f"{sys.executable} -c \"open(r'{path}', 'w')\""


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "function", [os.system, subprocess.getoutput, builtins.eval, builtins.exec, builtins.__import__, builtins.getattr]
)
def test_calls_are_refused_and_not_made(
    function: Any, protocol: int, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path, command = marker(tmp_path)
    argument = command if function in (os.system, subprocess.getoutput) else f"open({str(path)!r}, 'w').close()"
    poison = {"labels": [1], "data": Calls(function, argument)}
    blob = pickle.dumps(poison, protocol)
    assert "refused" in refused(load_plain, blob, "data_batch_1")
    assert not path.exists()
    if function in (os.system, subprocess.getoutput, builtins.exec):  # the poison is real: Python itself does run it
        pickle.loads(blob)
        assert path.exists()


NDARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def array_of(shape: bytes, dtype: bytes = U1, raw: bytes = b"U\x02ab") -> bytes:
    return b"\x80\x02" + NDARRAY + b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb."


HOSTILE = {
    "object array": pickle.dumps(np.array([Calls(os.getcwd)], dtype=object), 2),
    "object dtype by name": array_of(b"K\x02\x85", U1.replace(b"U\x02u1", b"U\x02O8")),
    "record dtype": pickle.dumps(np.zeros(2, [("a", "u1")]), 2),
    "datetime dtype": pickle.dumps(np.zeros(2, "M8[s]"), 2),
    "text dtype": pickle.dumps(np.array(["abc"]), 2),
    "dtype made by a call": b"\x80\x02cnumpy\ndtype\ncnumpy\nndarray\n\x85R.",
    "ndarray called with a shape": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R.",
    "subclass of ndarray": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nmatrix\nK\x00\x85U\x01b\x87R.",
    "negative side": array_of(b"J\xff\xff\xff\xff\x85"),
    "huge side": array_of(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x3f\x85"),
    "huge sides times zero": array_of(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x3fK\x00\x86", raw=b"U\x00"),
    "side that is a float": array_of(b"G\x40\x00\x00\x00\x00\x00\x00\x00\x85"),
    "array filled twice": b"\x80\x02" + NDARRAY + 2 * (b"(K\x01K\x02\x85" + U1 + b"\x89U\x02abtb") + b".",
    "array never filled": b"\x80\x02" + NDARRAY + b".",
    "state for a dict": b"\x80\x02}}b.",
    "state for a list": b"\x80\x02]U\x01ab.",
    "bytes called with a size": b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "bare global": b"\x80\x02cos\nsystem\n.",
    "allowed global left over": b"\x80\x02cnumpy\nndarray\n.",
    "instance (protocol 0)": b"(ios\nsystem\n.",
    "object opcode": b"(cos\nsystem\nU\x02lso.",
    "new object": b"\x80\x02cos\nsystem\nU\x02ls\x85\x81.",
    "new object with keywords": b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
    "persistent id": b"\x80\x02U\x01aQ.",
    "text persistent id": b"Pabc\n.",
    "extension": b"\x80\x02\x82\x01.",
    "out of band buffer": b"\x80\x05\x97.",
    "a set": pickle.dumps({1, 2}, 4),
    "a frozenset": pickle.dumps(frozenset((1, 2)), 4),
    "a tuple as the result": pickle.dumps((1, 2), 2),
    "a float": pickle.dumps(0.5, 2),
    "a complex": pickle.dumps(1j, 2),
    "a class": pickle.dumps(Path, 2),
    "a tuple as a key": pickle.dumps({(1, 2): 3}, 2),
    "an array scalar": pickle.dumps(np.float64(1.0), 2),
    "encode with another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.",
    "a list in itself": b"\x80\x02]q\x01h\x01a.",
    "deep nesting": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "reduce of a dict": b"\x80\x02})R.",
    "append to a dict": b"\x80\x02}K\x01a.",
    "empty stack": b"\x80\x02R.",
    "only a stop": b".",
    "nothing": b"",
    "no stop": b"\x80\x02]",
    "two results": b"\x80\x02K\x01K\x02.",
    "a mark as a value": b"\x80\x02(.",
    "unknown opcode": b"\x80\x02\xff.",
    "memo that was never put": b"\x80\x02h\x07.",
    "odd dict": b"\x80\x02}(K\x01u.",
    "not a pickle": b"<html>login</html>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_everything_else_is_one_line(name: str, refused: Callable[..., str]) -> None:
    assert refused(load_plain, HOSTILE[name], "data_batch_1").startswith("data_batch_1: ")


def test_a_registered_extension_is_refused(refused: Callable[..., str]) -> None:
    """Python's unpickler takes a cached extension without asking find_class; this one has no extensions."""
    copyreg.add_extension("os", "getcwd", 240)
    try:
        blob = b"\x80\x02\x82\xf0)R."
        assert pickle.loads(blob) == os.getcwd()
        assert "EXT1" in refused(load_plain, blob, "p")
    finally:
        copyreg.remove_extension("os", "getcwd", 240)


@pytest.mark.parametrize(
    "blob",
    [
        b"\x80\x02U\x01ar" + struct.pack("<I", 2**31 - 1) + b".",  # a memo slot far away: Python allocates up to it
        b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc.",
        b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"abc.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"K\x01.",
        array_of(b"J\xff\xff\xff\x7f\x85"),
        # a text of 100 kB turned into bytes 20,000 times: 2 GB from a small file
        b"\x80\x02](X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x00"
        + b"c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02" + b"h\x01h\x00h\x02\x86R" * 20_000 + b"e.",
    ],
)  # fmt: skip
def test_a_small_file_cannot_ask_for_much_memory(blob: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            load_plain(blob, "p")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_shared_parts_are_finished_once() -> None:
    """Fifteen lists, each holding the one before ten times: 10^15 paths, but only fifteen lists."""
    blob = b"\x80\x02]q\x00" + b"".join(
        b"](" + b"h" + bytes([k]) + (b"h" + bytes([k])) * 9 + b"eq" + bytes([k + 1]) for k in range(14)
    )
    got = load_plain(b"\x80\x02](" + blob[2:] + b"e.", "p")
    assert got[-1][0] is got[-1][9]


@given(data=st.data())
def test_no_damage_escapes(data: st.DataObject) -> None:
    """Any bytes changed, cut or inserted in a real pickle give plain data or one line, never another exception."""
    blob = bytearray(pickle.dumps({"labels": [1, 2, 3], "data": np.arange(6, dtype=np.uint8).reshape(2, 3)}, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not blob:
            break
    with contextlib.suppress(InputError):
        load_plain(bytes(blob), "p")
