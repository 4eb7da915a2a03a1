"""One sample of all weights in one kernel launch, with the random numbers that torch.randn would give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from avuc.gpu.kernels.build import KernelError, program, unsupported_reason

SOURCE = "weight_draw.cu"
THREADS = 256  # of a block, in torch.randn as well
# torch.randn draws larger tensors in several parts, which start at other numbers
MOST_WEIGHTS = 2**29 - 1
# each part is a launch that computes at least one number for each lane
MOST_PARTS = 12
LOW = {torch.float32: 0, torch.bfloat16: 1}
log: logging.Logger = logging.getLogger("avuc.gpu.kernels")

Build = Callable[[str, Mapping[str, int], torch.device], Any]
Parts = Sequence[tuple[int, Tensor]]


def usable(mean: Tensor, parts: Parts) -> bool:
    """Return whether the kernel draws these weights; the arguments are those of `draw_weights`."""
    fits = 0 < mean.numel() <= MOST_WEIGHTS and len(parts) <= MOST_PARTS
    types = mean.dtype == torch.float32 and all(out.dtype in LOW for _, out in parts)
    return fits and types and mean.is_cuda and all(_compiles(out.dtype, mean.device) for _, out in parts)


@cache
def _compiles(dtype: torch.dtype, device: torch.device) -> bool:
    if unsupported_reason(device) is not None:
        return False
    try:
        program(SOURCE, {"LOW": LOW[dtype]}, device)
    except KernelError as error:
        log.warning("weights are drawn in plain torch: %s", error)
        return False
    return True


def lanes_of(count: int, device: torch.device) -> int:
    """Return how many threads torch.randn starts for so many numbers."""
    properties = torch.cuda.get_device_properties(device)
    most = properties.multi_processor_count * (properties.max_threads_per_multi_processor // THREADS)
    return THREADS * min(most, -(-count // THREADS))


def draw_weights(
    mean: Tensor, spread: Tensor, seed: int, parts: Parts, *, lanes: int | None = None, build: Build = program
) -> None:
    """Write mean + spread · z, z = torch.randn(count) of a new CUDA generator with this seed.

    Args:
        mean: (number of weights), float32.
        spread: same shape.
        seed: of the generator, at least 0 and below 2^64.
        parts: (number of its first weight, where to write) for each part; flat tensors, float32 or bfloat16.
        lanes: threads of torch.randn; None: as on the tensors' device.
        build: compiles the kernel; tests pass an emulator.
    """
    lanes = lanes_of(mean.numel(), mean.device) if lanes is None else lanes
    low, high = seed & 0xFFFFFFFF, seed >> 32
    for first, out in parts:
        stop = first + out.numel()
        rounds = range(first // (4 * lanes), (stop - 1) // (4 * lanes) + 1)
        built = build(SOURCE, {"LOW": LOW[out.dtype]}, mean.device)
        args = (mean, spread, out, first, stop, lanes, rounds.start, low, high)
        built.launch("draw_weights", grid=(lanes // THREADS, len(rounds), 1), block=THREADS, args=args)
