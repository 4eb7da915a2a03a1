"""Find examples that two parts of a study's own data share: a function may ignore `split` and return the same."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.data.tensors import MemoryData

MOST_SOUGHT = 2000  # examples that are looked for, spread evenly
FEW = 0.01  # share of common examples that is not worth a line: most collections of images have some
UNIQUE = 0.9  # share of different examples from which on equal ones are no chance, unlike in a table of few values


def check_overlap(source: str, training: MemoryData, held_out: MemoryData, test: MemoryData) -> None:
    """Refuse test or held-out data that are all among the data before them; print a line if some are.

    Args:
        source: the user's function, for messages.
        training, held_out, test: the parts of a study.
    """
    learned = set(_rows(training))
    _check(source, "held-out", held_out, "training", learned)
    _check(source, "test", test, "training or held-out", learned.union(_rows(held_out)))


def _check(source: str, name: str, data: MemoryData, others: str, known: set[int]) -> None:
    sought = _rows(data, MOST_SOUGHT)
    share = sum(row in known for row in sought) / max(1, len(sought))
    if share == 1 and len(set(sought)) >= max(2, UNIQUE * len(sought)):
        raise InputError(
            f"data.source: {source}: all {name} examples are {others} examples, too, so figures on them would say "
            "nothing about new data; return other examples for each split"
        )
    if share > FEW:
        print(
            f"avuc: data.source: {source}: {share:.0%} of the {name} examples have the inputs of {others} examples; if "
            "that is no chance, figures on them are too good",
            file=sys.stderr,
        )


def _rows(data: MemoryData, most: int = 0) -> list[int]:
    """Return a hash of the inputs of each example; of `most` examples at most, if it is given."""
    rows = torch.arange(len(data))
    if 0 < most < len(data):
        rows = (torch.arange(most) * len(data)).div(most, rounding_mode="floor")
    parts = [data.inputs] if isinstance(data.inputs, Tensor) else list(data.inputs.values())
    hashes = [_hashes(part.detach().cpu()[rows]) for part in parts]
    return [hash(row) for row in zip(*hashes, strict=True)]


def _hashes(values: Tensor) -> list[int]:
    rows = values.contiguous().reshape(len(values), -1).view(torch.uint8).numpy()
    return [hash(row.tobytes()) for row in rows]
