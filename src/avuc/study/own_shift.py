"""Shifts of the user's own: functions of a batch, a severity and a random generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.shifts import apply_shift
from avuc.study.own_code import bound, described, find


def shift_function(path: str) -> Callable[[Any, int, torch.Generator], Any]:
    """Return the user's function as one that takes (batch, severity, generator), and gets what it names of these."""
    function = find(path, "study.shifts")

    def shift(batch: Any, severity: int, generator: torch.Generator) -> Any:
        given = {"severity": severity, "generator": generator}
        call = bound(function, given, {}, "study.shifts", path, takes_batch=True)
        try:
            return call(batch)
        except InputError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise InputError(f"study.shifts: {path} failed: {described(error)}") from error

    return shift


def own_shifted(images: Tensor, path: str, severity: int, seed: int) -> Tensor:
    """Return uint8 images (N, H, W, C) shifted by the user's function; shape and type must stay.

    Args:
        images: the clean images.
        path: the function.
        severity: 1 to 5.
        seed: of the random numbers, which also depend on path and severity.
    """
    function = shift_function(path)

    def shift(batch: Tensor, severity: int, generator: torch.Generator, /) -> Tensor:
        found = function(batch.clone(), severity, generator)  # a function may write into its batch
        if not isinstance(found, Tensor):
            raise InputError(f"study.shifts: {path} returned a {type(found).__name__}; expected a tensor of images")
        return found

    shifted = apply_shift(images, shift, path, severity, seed=seed)
    assert isinstance(shifted, Tensor)
    return shifted
