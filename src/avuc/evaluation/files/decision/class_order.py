"""Labels whose order is not that of the scores: names beside scores without names, numbers beside columns with names.

Names are in alphabetical order and numbers in the order of the columns, if the scores agree.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from avuc.evaluation.files.messages import file_error, list_option, listing
from avuc.evaluation.files.names import RawScores, check_class_names

# with more classes, the counts need too much memory
MOST_CLASSES = 2000

# another order is clear if more rows are right in it: by this many standard deviations, and by this share of the rows
CLEAR, CLEAR_SHARE = 3.0, 0.1


def check_classes(
    path: Path, raw: RawScores, blocks: Iterable[tuple[Tensor, Tensor | None]], first_label: int | None
) -> None:
    """Check number and order of the class names, and give classes the names of text labels.

    Args:
        path, raw, blocks: as in `check_column_order`.
        first_label: label of the first class; None if the user gave the order of the columns.
    """
    assert raw.layout is not None
    classes = raw.layout.flat[-1]
    if classes == 1:
        return
    if raw.class_names is not None and len(raw.class_names) != classes:
        check_class_names(path, raw.class_names, classes)
    if isinstance(raw.labels_named, tuple):
        order_classes(path, raw, blocks, classes)
    elif first_label is not None and columns_name_numbers(raw):
        check_column_order(path, raw, blocks, first_label)


def order_classes(path: Path, raw: RawScores, blocks: Iterable[tuple[Tensor, Tensor | None]], classes: int) -> None:
    """Set the class names to the sorted labels, as scikit-learn orders them; raise unless the scores agree.

    They agree if the rows of every label have their largest score most often at the label's alphabetical position.

    Args:
        path: the file, for messages.
        raw: `labels_named` has the sorted labels; the class names and a note are added.
        blocks: rows of scores ([S,] M, C), and labels (M,) as indices into the sorted labels.
        classes: number of classes.
    """
    words = raw.labels_named
    assert isinstance(words, tuple)
    where, remedy = f"labels from {raw.labels_from}", "name the classes in the order of the scores with --classes"
    if len(words) != classes or classes > MOST_CLASSES:
        problem = f"{where} are {len(words)} names ({listing(words, 3)}) for {classes} scores per row without names"
        raise file_error(path, problem, f"{remedy} NAME,NAME,…")
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    for scores, labels in blocks:
        assert labels is not None
        predicted = (scores.to(torch.float32).mean(0) if scores.ndim == 3 else scores).argmax(-1)
        counts += torch.bincount(labels.to(torch.int64) * classes + predicted, minlength=classes * classes)
    usual = counts.reshape(classes, classes).argmax(1)
    wrong = (usual != torch.arange(classes)).nonzero().flatten().tolist()
    if wrong:
        problem = (
            f"{where} are names, and the classes are not in alphabetical order: rows labelled {words[wrong[0]]!r} have "
            f"their largest score most often in column {int(usual[wrong[0]])}"
        )
        raise file_error(path, problem, f"{remedy} NAME,NAME,…")
    raw.class_names = words
    raw.notes.append(f"classes were read in alphabetical order: {listing(words, 5)} (--classes gives another order)")


def columns_name_numbers(raw: RawScores) -> bool:
    """Return whether labels are numbers while the columns of the scores have names, so that no order is known."""
    names = raw.class_names
    if raw.labels_named or names is None or len(raw.keys) != len(names):
        return False
    numbers = all(name.isascii() and name.isdecimal() and len(name) <= 9 for name in names)
    # --classes gives names that are not in those of the columns
    return not numbers and all(key.endswith(name) for key, name in zip(raw.keys, names, strict=True))


def check_column_order(
    path: Path, raw: RawScores, blocks: Iterable[tuple[Tensor, Tensor | None]], first_label: int
) -> None:
    """Raise if numbers as labels clearly fit the alphabetical order of the columns better than the columns' own order.

    Two columns are compared with their reverse order.

    Args:
        path: the file, for messages.
        raw: `columns_name_numbers` is true of it.
        blocks: rows of scores ([S,] M, C), and labels (M,), which need not be checked.
        first_label: label of the first class.
    """
    names = raw.class_names
    assert names is not None
    order = sorted(range(len(names)), key=lambda index: names[index].lower())
    if len(names) == 2:
        order = [1, 0]
    elif order == list(range(len(names))):
        return
    rank = torch.empty(len(names), dtype=torch.int64)
    rank[torch.tensor(order)] = torch.arange(len(names))
    rows, right = 0, [0, 0, 0]
    for scores, labels in blocks:
        assert labels is not None
        predicted = (scores.to(torch.float32).mean(0) if scores.ndim == 3 else scores).argmax(-1)
        numbers = labels.reshape(-1) - first_label
        for index, read in enumerate((predicted, rank.to(predicted.device)[predicted], predicted + 1)):
            right[index] += int((read == numbers).sum())
        rows += len(numbers)
    # the last: labels that are counted from 1, which is decided later. A weak classifier may fit another order a little
    if right[1] - max(right[0], right[2]) <= max(CLEAR * math.sqrt(rows), CLEAR_SHARE * rows):
        return
    other = "the reverse" if len(names) == 2 else "alphabetical"
    shares = [f"{100 * count / rows:.3g} %" for count in right[:2]]
    problem = (
        f"labels from {raw.labels_from} are numbers, and it is unclear which number is which column: "
        f"{shares[0]} of the rows are right in the order of the columns, {shares[1]} in {other} order"
    )
    raise file_error(path, problem, f"name the columns in the order of the numbers: {_columns_option(raw.keys, order)}")


def _columns_option(keys: Sequence[str], order: Sequence[int]) -> str:
    """Return --columns with the other order, and with that of the file."""
    return " or ".join(
        f"--columns {shlex.quote(list_option([keys[index] for index in indices]))}"
        for indices in (order, sorted(order))
    )
