"""Arrays that stay in their files and are read in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from avuc.evaluation.files.messages import file_error


class Source(Protocol):
    """Scores (N, C) or (S, N, C), or labels (N), that can be read any number of times."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def blocks(self, rows: int) -> Iterator[Tensor]:
        """Yield all rows in order, at most `rows` at a time."""
        ...


class ArraySource:
    """An array in memory."""

    def __init__(self, array: Any) -> None:
        self._array = torch.as_tensor(array)
        self.shape: tuple[int, ...] = tuple(self._array.shape)
        self.dtype: torch.dtype = self._array.dtype
        self.axis: int = _row_axis(self.shape)

    def blocks(self, rows: int) -> Iterator[Tensor]:
        axis = self.axis
        for start in range(0, self.shape[axis], rows):
            yield self._array.narrow(axis, start, min(rows, self.shape[axis] - start))


class FileSource:
    """An array at a known offset of a file, in row-major or column-major order; `decode` turns bytes into a tensor."""

    def __init__(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        itemsize: int,
        decode: Callable[[bytearray], Tensor],
        *,
        column_major: bool = False,
    ) -> None:
        self.path: Path = path
        self.shape: tuple[int, ...] = shape
        self.dtype: torch.dtype = dtype
        self.axis: int = _row_axis(shape)
        self._offset, self._itemsize, self._decode, self._column_major = offset, itemsize, decode, column_major

    def blocks(self, rows: int) -> Iterator[Tensor]:
        stored = self.shape[::-1] if self._column_major else self.shape
        axis = self.axis
        row_axis = len(self.shape) - 1 - axis if self._column_major else axis
        count, outer, inner = stored[row_axis], math.prod(stored[:row_axis]), math.prod(stored[row_axis + 1 :])
        stride = inner * self._itemsize
        # no buffer: a block is read directly into its own memory
        with self.path.open("rb", buffering=0) as stream:
            for start in range(0, count, rows):
                here = min(rows, count - start)
                raw = bytearray(outer * here * stride)
                for part in range(outer):
                    stream.seek(self._offset + (part * count + start) * stride)
                    read_exactly(self.path, stream, memoryview(raw)[part * here * stride : (part + 1) * here * stride])
                block = self._decode(raw).reshape(*stored[:row_axis], here, *stored[row_axis + 1 :])
                yield block.permute(*range(block.ndim)[::-1]) if self._column_major else block


class StreamSource:
    """A row-major array that can only be read from the start, such as a compressed archive member.

    `open_data` opens a stream at the first byte of the data; `whole` reads the array at once, which draws need.
    """

    def __init__(
        self,
        path: Path,
        open_data: Callable[[], AbstractContextManager[IO[bytes]]],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        itemsize: int,
        decode: Callable[[bytearray], Tensor],
        whole: Callable[[], Any],
    ) -> None:
        self.path: Path = path
        self.shape: tuple[int, ...] = shape
        self.dtype: torch.dtype = dtype
        self.axis: int = 0
        self._open, self._itemsize, self._decode = open_data, itemsize, decode
        self.whole: Callable[[], Any] = whole

    def blocks(self, rows: int) -> Iterator[Tensor]:
        stride = math.prod(self.shape[1:]) * self._itemsize
        with self._open() as stream:
            for start in range(0, self.shape[0], rows):
                here = min(rows, self.shape[0] - start)
                raw = bytearray(here * stride)
                read_exactly(self.path, stream, memoryview(raw))
                yield self._decode(raw).reshape(here, *self.shape[1:])
            # at the end of a zip member, Python compares its checksum
            stream.read(1)


def read_exactly(path: Path, stream: Any, view: memoryview) -> None:
    """Fill the whole view from the stream."""
    done = 0
    while done < len(view):
        chunk = stream.readinto(view[done:])
        if not chunk:
            raise file_error(path, f"ends {len(view) - done:,} bytes too early", "the file is cut short: save it again")
        done += chunk


def numpy_decoder(dtype: np.dtype[Any]) -> tuple[torch.dtype, Callable[[bytearray], Tensor]]:
    """Return the torch type, and a function from bytes to a tensor that converts byte order and long double."""
    plain = np.dtype(np.float64) if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("=")

    def decode(raw: bytearray) -> Tensor:
        return torch.from_numpy(np.frombuffer(raw, dtype).astype(plain, copy=False))

    return torch.from_numpy(np.empty(0, plain)).dtype, decode


def paired_blocks(
    scores: Iterator[Tensor], labels: Iterator[Tensor], axis: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of scores with the labels of the same samples; the label blocks may have other sizes.

    `axis` is the dimension of the scores that counts the samples (default: the last but one).
    """
    held = torch.empty(0)
    for block in scores:
        parts, missing = [], block.shape[-2 if axis is None else axis]
        while missing:
            if not len(held):
                held = next(labels)
            parts.append(held[:missing])
            held, missing = held[missing:], missing - len(parts[-1])
        yield block, parts[0] if len(parts) == 1 else torch.cat(parts)


def counted_along(source: Source, axis: int) -> Source:
    """Return a source whose blocks are parts of this dimension."""
    if isinstance(source, StreamSource) and axis:
        source = ArraySource(source.whole())
    if isinstance(source, ArraySource | FileSource | StreamSource):
        source.axis = axis
    return source


def _row_axis(shape: tuple[int, ...]) -> int:
    return 1 if len(shape) == 3 else 0
