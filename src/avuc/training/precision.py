"""The precision in which a network is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def network_precision(device: torch.device, precision: str) -> Iterator[None]:
    """Run a network under autocast, or without it, inside.

    Torch keeps the weights that it has cast until the outermost autocast ends. If the caller has one around all of
    `fit`, even a disabled one, every step would compute with the weights of the first step.

    Args:
        device: where the network is.
        precision: "bfloat16" for autocast, or "float32".
    """
    torch.clear_autocast_cache()
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        yield
    torch.clear_autocast_cache()
