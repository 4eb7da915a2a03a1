"""Crop, flip and AugMix of a batch in one kernel launch; `avuc.data.augmix` does the same in plain torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from avuc.gpu.kernels.build import KernelError, program, unsupported_reason

SOURCE = "augmix.cu"
THREADS = 256
MOST_SHARED = 96 * 1024  # shared memory that a block may use on every supported GPU
log: logging.Logger = logging.getLogger("avuc.gpu.kernels")

Build = Callable[[str, Mapping[str, int], torch.device], Any]


def shared_bytes(height: int, width: int, channels: int) -> int:
    """Return the shared memory of a block: an image once as floats and three times as bytes, histograms, tables."""
    return 7 * height * width * channels + (4 + 1) * 256 * channels


def usable(images: Tensor, pad: int, flip: bool) -> bool:
    """Return whether the kernel runs on the images' device and an image fits into a block's shared memory."""
    height, width, channels = images.shape[1:]
    if images.device.type != "cuda" or shared_bytes(height, width, channels) > MOST_SHARED:
        return False
    return _compiles(height, width, channels, pad, flip, images.device)


@cache
def _compiles(height: int, width: int, channels: int, pad: int, flip: bool, device: torch.device) -> bool:
    if unsupported_reason(device) is not None:
        return False
    try:
        program(SOURCE, _defines(height, width, channels, pad, flip), device)
    except KernelError as error:
        log.warning("AugMix runs in plain torch: %s", error)
        return False
    return True


def augmix_images(
    images: Tensor,
    indices: Tensor,
    drawn: Tensor,
    *,
    pad: int,
    flip: bool,
    strengths: tuple[float, float],
    build: Build = program,
) -> Tensor:
    """Return `Augmentation("augmix", pad, flip, severity).apply(images, indices, drawn)`, uint8 (B, H, W, C).

    Args:
        images: all training images, uint8 (N, H, W, C).
        indices: numbers of the images of the batch (B,).
        drawn: random numbers from `Augmentation.draw`.
        pad, flip: as in `Augmentation`.
        strengths: smallest and largest strength of a change.
        build: compiles the kernel; tests pass an emulator.
    """
    height, width, channels = images.shape[1:]
    out = torch.empty(len(indices), height, width, channels, dtype=torch.uint8, device=images.device)
    if len(out):
        built = build(SOURCE, _defines(height, width, channels, pad, flip), images.device)
        tensors = (images.contiguous(), indices.contiguous(), drawn.contiguous(), out)
        args = (*tensors, strengths[0], strengths[1] - strengths[0])
        shared = shared_bytes(height, width, channels)
        built.launch("augmix_images", grid=(len(out), 1, 1), block=THREADS, args=args, shared=shared)
    return out


def _defines(height: int, width: int, channels: int, pad: int, flip: bool) -> dict[str, int]:
    return {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "PAD": pad, "FLIPS": 1 + flip}
