"""Compiles CUDA sources with NVRTC, which comes with torch, and launches the kernels through the CUDA driver.

The machine needs no compiler, no header and no C++ extension.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Argument = Tensor | int | float
FIRST_CAPABILITY = (8, 0)  # bf16 on tensor cores
# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT (in per cent)
MAX_DYNAMIC_SHARED, CARVEOUT = 8, 9
_LOCK = threading.Lock()


class KernelError(RuntimeError):
    """A kernel cannot be compiled, loaded or launched."""


def unsupported_reason(device: torch.device) -> str | None:
    """Return why kernels cannot run on a device, or None if they can."""
    if device.type != "cuda":
        return f"{device.type} is no CUDA device"
    if torch.version.hip is not None:
        return "torch is built for ROCm"
    if torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has no bf16 tensor cores"
    try:
        _nvrtc(), _driver()
    except KernelError as error:
        return str(error)
    return None


def source_of(name: str) -> str:
    """Return the text of a source file."""
    return resources.files("avuc.gpu.kernels").joinpath(name).read_text(encoding="utf-8")


def program(source: str, defines: Mapping[str, int] | None = None, device: torch.device | None = None) -> Program:
    """Return the kernels of a source file for a device, compiled once for each set of `defines`."""
    device = torch.device("cuda", torch.cuda.current_device()) if device is None or device.index is None else device
    with _LOCK:
        return _program(source, tuple(sorted((defines or {}).items())), device)


@cache
def _program(source: str, defines: tuple[tuple[str, int], ...], device: torch.device) -> Program:
    return Program(source, defines, device)


class Program:
    """The loaded kernels of one source file."""

    def __init__(self, source: str, defines: tuple[tuple[str, int], ...], device: torch.device) -> None:
        self.source: str = source
        self.device: torch.device = device
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._shared: dict[str, int] = {}
        major, minor = torch.cuda.get_device_capability(device)
        image = _compiled(source, defines, f"sm_{major}{minor}")
        self._module = ctypes.c_void_p()
        with torch.cuda.device(device):
            _make_current(device)
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), image), f"{source}: load")

    def launch(
        self, name: str, *, grid: tuple[int, int, int], block: int, args: Sequence[Argument], shared: int = 0
    ) -> None:
        """Run a kernel on torch's current stream.

        Tensors are passed as pointers, Python integers as int32, other numbers as float32.
        """
        driver = _driver()
        _make_current(self.device)
        function = self._function(name)
        if shared > self._shared.get(name, 0):
            _check(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared), f"{name}: {shared} bytes shared")
            _check(driver.cuFuncSetAttribute(function, CARVEOUT, 100), f"{name}: carveout")
            self._shared[name] = shared
        kept, pointers = packed_arguments(args)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        _check(driver.cuLaunchKernel(function, *grid, block, 1, 1, shared, stream, pointers, None), f"{name}: launch")
        del kept

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            _check(_driver().cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()), f"{name}: find")
            self._functions[name] = function
        return self._functions[name]


def packed_arguments(args: Sequence[Argument]) -> tuple[list[Any], Any]:
    """Return the arguments as C values, and the array of pointers to them. Keep both until the launch returns."""
    kept: list[Any] = []
    for value in args:
        if isinstance(value, Tensor):
            kept.append(ctypes.c_void_p(value.data_ptr()))
        elif isinstance(value, int):
            kept.append(ctypes.c_int32(value))
        else:
            kept.append(ctypes.c_float(value))
    pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(value) for value in kept))
    return kept, pointers


def _compiled(source: str, defines: tuple[tuple[str, int], ...], architecture: str) -> bytes:
    nvrtc = _nvrtc()
    handle = ctypes.c_void_p()
    header, name = ctypes.c_char_p(source_of("device.cuh").encode()), ctypes.c_char_p(b"device.cuh")
    included = (1, ctypes.byref(header), ctypes.byref(name))
    text = source_of(source).encode()
    _check_nvrtc(nvrtc.nvrtcCreateProgram(ctypes.byref(handle), text, source.encode(), *included), source)
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17"] + [f"-D{key}={value}" for key, value in defines]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(handle, len(options), array):
            raise KernelError(f"{source}: {_log(nvrtc, handle)}")
        size = ctypes.c_size_t()
        _check_nvrtc(nvrtc.nvrtcGetCUBINSize(handle, ctypes.byref(size)), source)
        image = ctypes.create_string_buffer(size.value)
        _check_nvrtc(nvrtc.nvrtcGetCUBIN(handle, image), source)
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))


def _log(nvrtc: Any, handle: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(handle, log)
    return log.value.decode(errors="replace").strip()


def _check_nvrtc(code: int, what: str) -> None:
    if code:
        raise KernelError(f"{what}: NVRTC error {code}")


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise KernelError(f"{what}: {(text.value or b'unknown').decode()} (CUDA error {code})")


def _make_current(device: torch.device) -> None:
    """Give this thread a CUDA context; a thread that has not used the GPU yet has none."""
    driver, current = _driver(), ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(current)), "context")
    if not current.value:
        number, context = ctypes.c_int(), ctypes.c_void_p()
        _check(driver.cuDeviceGet(ctypes.byref(number), device.index), "device")
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "context")
        _check(driver.cuCtxSetCurrent(context), "context")


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        raise KernelError("the CUDA driver library is not found") from error


@cache
def _nvrtc() -> Any:
    major = (torch.version.cuda or "").partition(".")[0]
    known = ctypes.util.find_library("nvrtc")
    for path in (f"libnvrtc.so.{major}", *_installed(major), *([known] if known else [])):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise KernelError("NVRTC, which comes with torch's CUDA packages, is not found")


def _installed(major: str) -> list[str]:
    """Return the paths where pip, conda and the CUDA toolkit install NVRTC."""
    packages = Path(torch.__file__).parent.parent
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    paths = [*packages.glob(f"nvidia/*/lib/libnvrtc.so.{major}*"), *packages.glob("torch/lib/libnvrtc*.so*")]
    paths += [path for home in homes for path in home.glob(f"lib*/libnvrtc.so.{major}*")]
    return [str(path) for path in paths if "builtins" not in path.name and "alt" not in path.name]
