"""Read and write saved predictions of a multi-label model: one score and one label, 0 or 1, for each of L labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.atomic import atomic_path
from avuc.core.tasks import not_ignored
from avuc.evaluation.files.columns.choose import expand_columns
from avuc.evaluation.files.columns.columns import SCORE_PREFIXES, begins, suffix_of
from avuc.evaluation.files.decision.binary import decide_binary_kind
from avuc.evaluation.files.decision.checks import check_finite
from avuc.evaluation.files.decision.summary import ScoreSummary
from avuc.evaluation.files.find import FORMATS, TABLE_OPENERS, TABLES, file_errors, find_scores
from avuc.evaluation.files.formats.arrow import booleans_as_numbers, stacked
from avuc.evaluation.files.formats.csv import COMMA_NOTE
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import (
    RawScores,
    ReadOptions,
    check_class_names,
    check_class_order,
    check_size,
    check_unique_names,
)
from avuc.evaluation.files.write import as_file_dtype

# the name of a label column is that of its score column with one of these words instead of `prob_`
LABEL_WORDS = ("", "label", "labels", "target", "targets", "y", "y_true", "true", "gt")
IGNORE_INDEX = -100
MISSING = f"write {IGNORE_INDEX} into the empty cells of unknown decisions"


@dataclass(frozen=True)
class MultiLabelFile:
    """Checked scores and labels of a multi-label model, in memory. `read_multilabel` returns it."""

    path: Path
    # (N, L), or (S, N, L) for S samples: logits in float32, or probabilities that the label applies in float64
    scores: Tensor
    labels: Tensor | None  # (N, L) of 0 and 1, and −100 where unknown
    kind: str  # logits or probs
    names: tuple[str, ...]  # names of the labels
    named: bool  # whether the file or the user names the labels; else they are numbered
    notes: tuple[str, ...]
    dtype: torch.dtype
    raw: RawScores
    scale: float = 1.0

    def logits(self) -> Tensor:
        """Return logits for a calibrator; probabilities within 1e-12 of 0 or 1 count as that far from it."""
        if self.kind == "logits":
            return self.scores
        return self.scores.clamp(1e-12, 1 - 1e-12).logit().to(torch.float32)

    def probs(self, calibrator: Any = None) -> Tensor:
        """Return the (N, L) probabilities, the mean over draws; a calibrator acts on every draw."""
        probs = self.draws(calibrator)
        return probs.mean(0) if probs.ndim == 3 else probs

    def draws(self, calibrator: Any = None) -> Tensor:
        """Return the probabilities in the shape of the scores, (N, L) or (S, N, L)."""
        if calibrator is None and self.kind == "probs":
            return self.scores
        return (self.scores if calibrator is None else self.calibrated(calibrator)).double().sigmoid()

    def calibrated(self, calibrator: Any) -> Tensor:
        """Return calibrated logits of the same shape."""
        logits: Tensor = calibrator.transform(self.logits())
        return logits

    def describe(self) -> str:
        """Return a description of the file's content, in one line."""
        draws = f"{self.scores.shape[0]:,} samples of " if self.scores.ndim == 3 else ""
        kind = "logits" if self.kind == "logits" else "probabilities"
        labels = "no labels" if self.labels is None else f"labels from {self.raw.labels_from}"
        sizes = f"{self.scores.shape[-2]:,} rows × {self.scores.shape[-1]:,} labels"
        return f"{draws}{sizes}, {kind} from {self.raw.scores_from}, {labels}"


def read_multilabel(
    path: str | Path,
    *,
    kind: str = "auto",
    labels: str | Path | None = None,
    scores_key: str | None = None,
    labels_key: str | None = None,
    max_gb: float | None = None,
    columns: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    ignore_index: int | None = None,
    needs_labels: bool = True,
) -> MultiLabelFile:
    """Read saved predictions of a multi-label model into memory.

    Args:
        path: the file: arrays (N, L) or (S, N, L) with labels (N, L), or a table with columns such as `prob_cat` for
            the scores and `cat` or `label_cat` for the labels.
        kind: `auto`, `logits`, `probs` or `percent`.
        labels: another file with the labels; not for tables.
        scores_key: name of the scores, or prefix of their columns.
        labels_key: name of the labels, or prefix of their columns.
        max_gb: memory limit in gigabytes.
        columns: score columns of a table.
        classes: names of the labels, in the order of the scores.
        ignore_index: label of unknown decisions (default: −100).
        needs_labels: False to read no labels.
    """
    file = Path(path)
    with file_errors(file):
        if file.suffix.lower() in TABLES:
            options = ReadOptions(scores_key, labels_key, max_gb, columns, needs_labels=needs_labels)
            if labels is not None:
                raise file_error(file, "its labels must be in the same table", "leave out --labels")
            raw = _read_table(file, options)
        else:
            raw = find_scores(
                file,
                labels=labels,
                scores_key=scores_key,
                labels_key=labels_key,
                max_gb=max_gb,
                columns=columns,
                needs_labels=needs_labels,
            )
        return _decided(file, raw, kind, classes, IGNORE_INDEX if ignore_index is None else ignore_index, needs_labels)


def _decided(
    path: Path, raw: RawScores, kind: str, classes: Sequence[str] | None, ignore: int, needs_labels: bool
) -> MultiLabelFile:
    scores = torch.as_tensor(raw.scores)
    shape = tuple(scores.shape)
    if len(shape) not in (2, 3) or 0 in shape or scores.dtype == torch.bool or scores.dtype.is_complex:
        problem = f"{raw.scores_from} has shape {shape}, expected (N, L), one score per label"
        raise file_error(path, problem, "save (N, L), or (S, N, L) for S posterior samples")
    summary = ScoreSummary.of(scores.reshape(-1, 1))
    if summary.bad is not None:
        check_finite(path, raw, ScoreSummary.of(scores))
    kind, scale, notes = decide_binary_kind(path, raw, summary, kind)
    if raw.class_names is None and raw.class_array is not None and len(raw.class_array) == shape[-1]:
        raw.class_names = raw.class_array
    names = raw.class_names if classes is None else tuple(classes)
    check_class_order(path, names or (), raw.class_names)
    named = names is not None
    names = names or tuple(str(number) for number in range(shape[-1]))
    check_class_names(path, names, shape[-1])
    known = None
    if needs_labels:
        known, left_out = _labels(path, raw, shape[-2:], ignore)
        if left_out:
            notes.append(f"{left_out:,} of {known.numel():,} decisions have the label {ignore} and were left out")
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    # 1 − p needs all digits of p
    values = (scores.double() / scale).clamp(0, 1) if kind == "probs" else scores.to(torch.float32)
    raw.scores = raw.labels = None
    return MultiLabelFile(path, values, known, kind, names, named, (*raw.notes, *notes), dtype, raw, scale)


def _labels(path: Path, raw: RawScores, shape: tuple[int, ...], ignore: int) -> tuple[Tensor, int]:
    """Return checked labels (N, L), and how many are unknown."""
    where = f"labels from {raw.labels_from}"
    if raw.labels is None:
        raise file_error(path, "contains no labels", "save labels (N, L) of 0 and 1, or name them with --label")
    if raw.labels_named:
        raise file_error(path, f"{where} are names", "save 0 or 1 for each label")
    labels = torch.as_tensor(raw.labels)
    if tuple(labels.shape) != shape:
        problem = f"{where} have shape {tuple(labels.shape)}, but multi-label scores need {shape}"
        raise file_error(path, problem, "save 0 or 1 for each label, or leave out --task multilabel")
    known = not_ignored(labels, ignore)
    if not bool(known.any()):
        raise file_error(path, f"every label is {ignore}, which marks unknown decisions", "label some rows")
    wrong = known & (labels != 0) & (labels != 1)  # also NaN
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        problem = f"{where} must be 0 or 1, found {float(labels[row, column]):g} at row {row}, label {column}"
        raise file_error(path, problem, f"save {ignore} for unknown decisions, or pass --ignore-index")
    return torch.where(known, labels.to(torch.int64), IGNORE_INDEX), int((~known).sum())


def _read_table(path: Path, options: ReadOptions) -> RawScores:
    FORMATS[path.suffix.lower()]  # a known format
    with TABLE_OPENERS[path.suffix.lower()](path, options) as table:
        check_unique_names(path, table.names)
        chosen, kind_name, suffixes = _score_columns(path, table.names, options)
        raw = RawScores(_numbers(path, table, chosen, options), _from(chosen), kind_name, tuple(chosen))
        raw.class_names = tuple(suffixes)
        if hasattr(table, "uses_comma") and table.uses_comma(chosen):  # a .csv
            raw.notes.append(COMMA_NOTE)
        if options.needs_labels:
            label_columns = _label_columns(path, table.names, chosen, suffixes, options.labels_key)
            raw.labels, raw.labels_from = _decisions(path, table, label_columns, options), _from(label_columns)
    return raw


def _score_columns(path: Path, names: list[str], options: ReadOptions) -> tuple[list[str], str, list[str]]:
    """Return the score columns, their kind, and the names of their labels."""
    if options.columns is not None:
        chosen = list(expand_columns(path, names, options.columns))
        prefixes = [prefix for prefix in SCORE_PREFIXES if all(begins(name, prefix) for name in chosen)]
    else:
        candidates = [options.scores_key] if options.scores_key is not None else list(SCORE_PREFIXES)
        prefixes = [prefix for prefix in candidates if any(name.startswith(prefix) for name in names)]
        chosen = [name for name in names if prefixes and name.startswith(prefixes[0])]
        if options.scores_key is None:
            prefixes = [prefix for prefix in prefixes if any(begins(name, prefix) for name in names)]
            chosen = [name for name in names if prefixes and begins(name, prefixes[0])]
    if not chosen:
        problem = f"contains no score columns (it has {listing(names)})"
        raise file_error(path, problem, "name them prob_NAME or logits_NAME, or list them with --columns")
    suffixes = [suffix_of(name, prefixes[0]) if prefixes else name for name in chosen]
    if len(set(suffixes)) < len(suffixes) or not all(suffixes):
        problem = f"columns {listing(chosen, 4)} do not name their labels"
        raise file_error(path, problem, "name them prob_NAME, with another NAME for each label")
    return chosen, SCORE_PREFIXES.get(prefixes[0].rstrip("_ .-"), "") if prefixes else "", suffixes


def _label_columns(path: Path, names: list[str], scores: list[str], suffixes: list[str], key: str | None) -> list[str]:
    """Return the label column of each score column."""
    others = {name.lower(): name for name in names if name not in scores}
    fits: list[list[str]] = []
    for word in LABEL_WORDS if key is None else (key.lower(),):
        starts = ("",) if not word else (f"{word}_", f"{word}.", f"{word} ", word)
        for start in starts:
            matches = [others.get(f"{start}{suffix}".lower()) for suffix in suffixes]
            columns = [name for name in matches if name is not None]
            if len(columns) == len(suffixes) and columns not in fits:
                fits.append(columns)
    if len(fits) != 1:
        what = "several sets of label columns" if fits else "no label column for every score column"
        examples = ", ".join(f"{suffix!r} or 'label_{suffix}'" for suffix in suffixes[:2])
        raise file_error(path, f"has {what} (looked for {examples}, …)", "name their common prefix with --label")
    return fits[0]


def _decisions(path: Path, table: Any, names: Sequence[str], options: ReadOptions) -> np.ndarray:
    """Return (N, len(names)) labels of these columns; true counts as 1 and false as 0."""
    if not hasattr(table, "truths"):  # a .parquet
        return _matrix(stacked(path, booleans_as_numbers(table.read(list(names))), names))
    truths = {name: table.truths(name, MISSING) for name in names}
    if not any(values is not None for values in truths.values()):
        return _numbers(path, table, names, options, missing=MISSING)
    numbers = [name for name in names if truths[name] is None]
    found = dict(
        zip(numbers, _numbers(path, table, numbers, options, missing=MISSING).T, strict=True) if numbers else ()
    )
    return np.stack([found.get(name, truths[name]) for name in names], axis=1)


def _numbers(path: Path, table: Any, names: Sequence[str], options: ReadOptions, **more: Any) -> np.ndarray:
    """Return (N, len(names)) numbers of these columns; `more` is for `numbers` of a .csv."""
    if hasattr(table, "numbers"):  # a .csv
        rows = len(table.column(None).codes)
        check_size(path, "the table", 8 * rows * len(names), options.limit)
        if not rows:
            raise file_error(path, "has no rows", "save at least one row")
        return np.asarray(table.numbers(names, rows, np.float64, **more))
    return _matrix(stacked(path, table.read(list(names)), names))


def _matrix(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def _from(names: Sequence[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {names[0]!r} … {names[-1]!r}"


def write_multilabel(file: MultiLabelFile, logits: Tensor, destination: str | Path) -> None:
    """Write a copy of the file with calibrated scores of the same kind, in the same format.

    Args:
        file: the file, from `read_multilabel`.
        logits: new logits of the same shape.
        destination: path of the copy.
    """
    new = logits.detach().cpu()
    if file.kind == "probs":
        new = new.double().sigmoid() * file.scale
    else:
        limits = torch.finfo(file.dtype)
        new = new.double().clamp(limits.min, limits.max)
    new = as_file_dtype(file.path, new, file.dtype, "probs")
    with atomic_path(destination) as temporary:
        FORMATS[file.path.suffix.lower()].write(file.path, temporary, file.raw, new)
