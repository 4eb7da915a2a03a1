"""`Part`: the averages of one dataset or batch, before they become `Predictions`; several parts become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.predictions import MultiLabelPredictions, Predictions


class Part(NamedTuple):
    """Averages over samples, as in `Predictions`; nothing has been checked.

    Attributes:
        probs: (M, C).
        labels: (M,), −1 for none.
        expected_entropy: (M,).
        samples: number of samples.
        error: Monte Carlo error, or None.
        shape: (N, *spatial), or None if the examples differ in the number of dimensions.
        positions: flat indices of the rows into `shape`, or None: all.
        width: number of labels of a multi-label model, whose decisions are the rows; else 0.
    """

    probs: Tensor
    labels: Tensor
    expected_entropy: Tensor
    samples: int
    error: float | None
    shape: tuple[int, ...] | None = None
    positions: Tensor | None = None
    width: int = 0

    def predictions(self) -> Predictions:
        """Return the checked predictions; of a multi-label model, `MultiLabelPredictions`."""
        probs, labels, expected = self.probs, self.labels, self.expected_entropy
        if self.width:
            each = [part.view(-1, self.width) for part in (_of_class_1(probs), labels, expected)]
            targets: Any = None if bool((labels == -1).all()) else each[1]
            # callers that ask for several labels know what they get
            return cast("Predictions", MultiLabelPredictions(each[0], targets, each[2], self.samples))
        shape: Any = self.shape
        return Predictions(probs, labels, expected, self.samples, self.error, shape, self.positions, ignore_index=None)


def _of_class_1(pairs: Tensor) -> Tensor:
    """Return the second of two columns [1 − p, p] in float64, with the relative precision of the smaller one."""
    wide = pairs if pairs.device.type == "mps" else pairs.double()
    return torch.where(wide[:, 0] < wide[:, 1], 1 - wide[:, 0], wide[:, 1])


def joined(parts: Sequence[Part]) -> Part:
    """Return the averages of batches that follow one another, from the same samples, as one.

    The Monte Carlo error is the root of a mean over rows, so its squares are averaged, weighted by the rows.

    Args:
        parts: at least one.

    >>> parts = [Part(torch.eye(2)[[row]], torch.tensor([row]), torch.zeros(1), 1, 0.0, (1,)) for row in (0, 1)]
    >>> joined(parts).labels, joined(parts).shape
    (tensor([0, 1]), (2,))
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    classes = {part.width or part.probs.shape[1] for part in parts}
    if len(classes) > 1:
        counts = ", ".join(map(str, sorted(classes)))
        raise InputError(f"the network must return the same number of classes for every batch, found {counts}")
    sizes = [len(part.probs) for part in parts]
    error = None
    if all(part.error is not None for part in parts):
        squares = sum(size * (part.error or 0.0) ** 2 for part, size in zip(parts, sizes, strict=True))
        error = math.sqrt(squares / max(sum(sizes), 1))
    probs, labels, expected = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("probs", "labels", "expected_entropy")
    )
    return Part(probs, labels, expected, first.samples, error, *_shape_and_positions(parts), first.width)


def _shape_and_positions(parts: Sequence[Part]) -> tuple[tuple[int, ...] | None, Tensor | None]:
    """Return `shape` and `positions` of all parts together: the shape has the largest size of any example.

    Return (None, None) if the examples differ in the number of dimensions.
    """
    shapes = [part.shape for part in parts]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None, None
    inner = tuple(max(sizes) for sizes in zip(*(shape[1:] for shape in known), strict=True))
    shape = (sum(shape[0] for shape in known), *inner)
    if all(part.positions is None for part in parts) and all(own[1:] == inner for own in known):
        return shape, None
    positions, start = [], 0
    for part, own in zip(parts, known, strict=True):
        own_positions = torch.arange(math.prod(own)) if part.positions is None else part.positions.cpu()
        if own[1:] != inner:
            index = np.unravel_index(own_positions.numpy(), own)
            own_positions = torch.from_numpy(np.ravel_multi_index(index, (own[0], *inner)))
        positions.append(start + own_positions)
        start += own[0] * math.prod(inner)
    return shape, torch.cat(positions)
