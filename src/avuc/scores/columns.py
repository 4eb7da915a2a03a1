"""Which columns of a table are scores, and which holds the label; shared by .csv and .parquet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from avuc.scores.names import LABEL_NAMES, SCORE_NAMES, Wanted, choose, listing, refuse

__all__ = ["LABEL_COLUMNS", "Columns", "index_labels", "pick_columns"]

# tables are written by hand more often than archives: their singular forms count too
LABEL_COLUMNS = (*LABEL_NAMES, "label", "target")
SCORE_PREFIXES = {"logits": "logits", "logit": "logits", "probs": "probs", "prob": "probs"} | {
    name: name for name in ("predictions", "scores", "score")
}
ASIDE = ("", "id", "index", "row", "Unnamed: 0", "__index_level_0__")


@dataclass(frozen=True)
class Columns:
    scores: tuple[str, ...]  # in class order
    name: str  # the scores word, or ""
    class_names: tuple[str, ...]
    label: str | None
    notes: tuple[str, ...] = ()

    @property
    def scores_from(self) -> str:
        first, last = self.scores[0], self.scores[-1]
        return f"column {first!r}" if len(self.scores) == 1 else f"columns {first!r} … {last!r}"


def pick_columns(path: Path, names: Sequence[str], wanted: Wanted) -> Columns:
    """The rule, in order: the columns that begin with the scores key; those that begin with a usual scores word
    (`logits_0`, `prob_cat`, or one list column `logits`); otherwise every column that is neither the label nor a row
    number.

    >>> pick_columns(Path("a.csv"), ["id", "label", "prob_1", "prob_0"], Wanted()).scores
    ('prob_0', 'prob_1')
    """
    label = choose(path, names, wanted.labels_key, LABEL_COLUMNS, "label column")
    others = [name for name in names if name != label]
    prefixes = [wanted.scores_key] if wanted.scores_key is not None else list(SCORE_PREFIXES)
    for prefix in prefixes:
        fits = re.compile(re.escape(prefix) + (r"(?![a-zA-Z]).*" if wanted.scores_key is None else ".*"), re.DOTALL)
        chosen = [name for name in others if fits.fullmatch(name)]
        if chosen:
            suffixes = [name.removeprefix(prefix).strip(" _.-:[]()") for name in chosen]
            word = SCORE_PREFIXES.get(prefix.rstrip("_.-: "), "")
            ordered, classes = _class_order(path, chosen, suffixes)
            return Columns(ordered, word, classes, label)
    if wanted.scores_key is not None:
        raise refuse(
            path, f"no column begins with {wanted.scores_key!r} (it has {listing(names)})", "correct --scores-key"
        )
    aside = [name for name in others if name in ASIDE]
    rest = [name for name in others if name not in ASIDE]
    if not rest:
        raise refuse(
            path,
            f"no score columns (it has {listing(names)})",
            f"name them {SCORE_NAMES[0]}_0, {SCORE_NAMES[0]}_1, … or give their prefix with --scores-key",
        )
    notes = (f"column {listing(aside)} left aside as row numbers",) if aside else ()
    ordered, classes = _class_order(path, rest, rest)
    return Columns(ordered, "", classes, label, notes)


def _class_order(path: Path, names: list[str], suffixes: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Numbered columns are put in the order of their numbers (logits_10 comes after logits_9)."""
    if not all(re.fullmatch(r"\d{1,9}", suffix) for suffix in suffixes):
        return tuple(names), tuple(suffixes)
    numbers = [int(suffix) for suffix in suffixes]
    order = sorted(range(len(names)), key=numbers.__getitem__)
    first = numbers[order[0]]
    if [numbers[i] for i in order] != list(range(first, first + len(names))) or first > 1:
        raise refuse(
            path,
            f"the numbers of columns {listing(names[i] for i in order)} have gaps or repeat",
            "number the classes 0, 1, 2, … without gaps",
        )
    return tuple(names[i] for i in order), tuple(suffixes[i] for i in order)


def index_labels(path: Path, labels: Sequence[str], classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]:
    """Text labels as numbers, and whether they are names that were looked up among the class columns."""
    try:
        return np.array([float(label) for label in labels]), False
    except ValueError:
        number = {name: index for index, name in enumerate(classes)}
    unknown = sorted({label for label in labels if label not in number})
    if unknown:
        raise refuse(
            path,
            f"{where}: {listing(unknown, 3)} is neither a number nor the name of a class ({listing(classes, 5)})",
            "label the rows 0 … C−1, or by the names of the score columns",
        )
    return np.array([number[label] for label in labels], dtype=np.int64), True
