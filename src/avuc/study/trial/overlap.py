"""Find examples that two parts of a study's own data share: a function may ignore `split` and return the same."""

from __future__ import annotations

import sys

import torch

from avuc.core.errors import InputError
from avuc.data.tensors import MemoryData
from avuc.study.data.reading import row_hashes

MOST_SOUGHT = 2000  # most examples that are searched for, spread evenly
FEW = 0.01  # a smaller share of common examples is not reported: most collections of images have some
UNIQUE = 0.9  # with a smaller share of unique examples, as in a table of few values, equal ones may be chance


def check_overlap(source: str, training: MemoryData, held_out: MemoryData, test: MemoryData) -> None:
    """Raise if all test or held-out examples occur among the other data; print a line if some of them do.

    Args:
        source: the user's function, for messages.
        training, held_out, test: the parts of a study.
    """
    seen = set(_rows(training))
    _check(source, "held-out", held_out, "training", seen)
    _check(source, "test", test, "training or held-out", seen.union(_rows(held_out)))


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
    """Return a hash of the inputs of each example, or of `most` examples if `most` is not 0."""
    rows = torch.arange(len(data))
    if 0 < most < len(data):
        rows = (torch.arange(most) * len(data)).div(most, rounding_mode="floor")
    return row_hashes(data, rows)
