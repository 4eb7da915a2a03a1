"""Predictions of several batches as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.predictions import Predictions


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of batches that follow one another, from the same samples, as one.

    The Monte Carlo error is the root of a mean over rows, so its squares are averaged, weighted by the rows.

    Args:
        parts: at least one.

    >>> parts = [Predictions.from_logits([[2.0, 0.0]], [0]), Predictions.from_logits([[0.0, 1.0]], [1])]
    >>> joined(parts).labels
    tensor([0, 1])
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    classes = {part.num_classes for part in parts}
    if len(classes) > 1:
        found = ", ".join(map(str, sorted(classes)))
        raise InputError(f"the network must return the same number of classes for every batch, found {found}")
    rows = sum(map(len, parts))
    errors = [part.monte_carlo_error for part in parts]
    error = None
    if all(value is not None for value in errors):
        squares = sum(len(part) * (value or 0.0) ** 2 for part, value in zip(parts, errors, strict=True))
        error = math.sqrt(squares / max(rows, 1))
    probs, labels, expected = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("probs", "labels", "expected_entropy")
    )
    shape, positions = _places(parts)
    return Predictions(probs, labels, expected, first.samples, error, shape, positions, ignore_index=None)


def _places(parts: Sequence[Predictions]) -> tuple[Any, Tensor | None]:
    """Return `shape` and `positions` of the whole; (None, None) if the examples differ in size."""
    if len({part.shape[1:] for part in parts}) > 1:
        return None, None
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    if all(part.positions is None for part in parts):
        return shape, None
    found, start = [], 0
    for part in parts:
        size = math.prod(part.shape)
        within = torch.arange(size, device=part.probs.device) if part.positions is None else part.positions
        found.append(start + within)
        start += size
    return shape, torch.cat(found)
