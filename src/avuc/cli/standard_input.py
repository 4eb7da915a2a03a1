"""Standard input as FILE: it is copied to a temporary file, because scores are read more than once."""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from avuc.cli.command import Namespace
from avuc.cli.outputs import STANDARD
from avuc.core.errors import InputError

NAME = "standard input"
CHUNK = 1 << 20
# longest header of a .safetensors file, in bytes
MOST_HEADER = 100_000_000


@contextmanager
def standard_input(args: Namespace) -> Iterator[None]:
    """Replace `-` as FILE by a temporary copy of standard input; messages say "standard input"."""
    if getattr(args, "file", None) != STANDARD:
        if getattr(args, "format", None) is not None:
            raise InputError("--format is for standard input; the suffix says the format of a file, leave it out")
        yield
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(f"{NAME}: nothing is piped into it; name a file, or write: cat FILE | avuc …")
    with tempfile.TemporaryDirectory(prefix="avuc-") as folder:
        copy = _copy(sys.stdin.buffer, Path(folder), args.format, _limit(args))
        args.file, args.aliases = str(copy), {str(copy): NAME}
        try:
            yield
        except InputError as error:
            raise InputError(str(error).replace(str(copy), NAME)) from error


def format_of(start: bytes) -> str:
    """Return the format by the first bytes of a file; text is a .csv.

    >>> format_of(b"label,logits_0,logits_1")
    'csv'
    """
    magic = {b"PK\x03\x04": "npz", b"\x93NUMPY": "npy", b"PAR1": "parquet"}
    for signature, name in magic.items():
        if start.startswith(signature):
            return name
    if len(start) > 8 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] <= MOST_HEADER:
        return "safetensors"
    if b"\0" in start:
        raise InputError(f"{NAME}: its format is not known by its first bytes; pass --format")
    return "csv"


def _limit(args: Namespace) -> int:
    from avuc.evaluation.files.names import ReadOptions

    return ReadOptions(max_gb=args.max_gb).limit


def _copy(stream: BinaryIO, folder: Path, form: str | None, limit: int) -> Path:
    """Copy the stream, up to `limit` bytes, to a file with the suffix of its format."""
    start = stream.read(CHUNK)
    if not start:
        raise InputError(f"{NAME}: is empty; pipe saved predictions into it")
    path, done = folder / f"stdin.{form or format_of(start)}", 0
    with path.open("wb") as out:
        while start:
            done += len(start)
            if done > limit:
                raise InputError(
                    f"{NAME}: has more than {limit / 1e9:.3g} GB, the limit; raise it with --max-gb or AVUC_MAX_GB"
                )
            out.write(start)
            start = stream.read(CHUNK)
    return path
