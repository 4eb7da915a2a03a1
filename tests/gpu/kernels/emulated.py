"""Kernels on a CPU: the same sources, compiled against emulator.h. Slow, and strict where a GPU is silent."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from avuc.gpu.kernels.build import Argument, packed_arguments, source_of

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")


class Emulated:
    """`avuc.gpu.kernels.build.Program` for tensors on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.order = 0  # in which the threads run: 0 upwards, 1 downwards, else shuffled

    def launch(
        self, name: str, *, grid: tuple[int, int, int], block: int, args: Sequence[Argument], shared: int = 0
    ) -> None:
        kept, pointers = packed_arguments(args)
        dims = (ctypes.c_int * 3)(*grid)
        getattr(self.library, f"{name}_emulated")(pointers, dims, block, shared, self.order)
        del kept


def emulated(source: str, defines: Mapping[str, int] | None = None) -> Emulated:
    return _built(source, tuple(sorted((defines or {}).items())))


@cache
def _built(source: str, defines: tuple[tuple[str, int], ...]) -> Emulated:
    text = (HERE / source).read_text(encoding="utf-8") if (HERE / source).exists() else source_of(source)
    parts = [text, source_of("device.cuh"), (HERE / "emulator.h").read_text(encoding="utf-8"), repr(defines)]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    # kept between runs: several test processes, and the next run, compile each source once
    library = HERE / "__pycache__" / f"{name}.so"
    if library.exists():
        return Emulated(ctypes.CDLL(str(library)))
    library.parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=library.parent))
    (folder / f"{name}.cpp").write_text(text, encoding="utf-8")
    command = [
        str(COMPILER),
        "-std=c++17",
        "-O2",
        "-U_FORTIFY_SOURCE",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        "-DAVUC_EMULATED",
    ]
    command += [f"-D{key}={value}" for key, value in defines]
    command += ["-Wno-unknown-pragmas", "-I", str(HERE), "-I", str(Path(source_of.__code__.co_filename).parent)]
    subprocess.run([*command, str(folder / f"{name}.cpp"), "-o", str(folder / library.name)], check=True)
    os.replace(folder / library.name, library)
    shutil.rmtree(folder)
    return Emulated(ctypes.CDLL(str(library)))
