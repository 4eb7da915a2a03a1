"""Text labels for scores whose classes have no names: the classes are in alphabetical order, if the scores agree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import RawScores

# with more classes, the counts need too much memory
MOST_CLASSES = 2000


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
