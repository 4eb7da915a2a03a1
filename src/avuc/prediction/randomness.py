"""Networks that draw random numbers in evaluation mode: each of their predictions is another one."""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.core.caller import warn_caller


def generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's global generators of the CPU and of a device."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def same_states(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(before, after) for before, after in zip(one, other, strict=True))


def warn_if_random(first: Tensor, second: Tensor) -> None:
    """Warn if two passes of one sample over one batch gave different logits.

    Args:
        first, second: the logits.
    """
    if first.shape == second.shape and torch.allclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True):
        return
    warn_caller(
        "the network draws random numbers in evaluation mode, such as F.dropout(..., training=True), so each call "
        "gives another prediction, whatever seed= is; for Monte Carlo dropout put nn.Dropout layers there and pass "
        "avuc.methods.DropoutPosterior.of_own_layers(net)"
    )
