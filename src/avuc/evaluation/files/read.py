"""Read saved predictions into memory, or open them to read them in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from avuc.core.tasks import not_ignored
from avuc.evaluation.files.decision.class_order import check_classes
from avuc.evaluation.files.decision.summary import Summary
from avuc.evaluation.files.find import TEXT_TABLES, HasScoreNames, file_errors, find_scores
from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import MARK, RawScores, ReadOptions, check_size, memory_bytes
from avuc.evaluation.files.padding import marks_padding, scores_with_padding
from avuc.evaluation.files.reading import Reading
from avuc.evaluation.files.score_file import BLOCK, ScoreFile, ScoreStream, blocks_of
from avuc.evaluation.files.sources import ArraySource, Source, counted_along
from avuc.metrics.blockwise import bytes_needed, needs_blocks
from avuc.metrics.streaming.suite import bytes_needed as fixed_bytes

# added to a refusal where it helps
FIXED_MEMORY = "or evaluate it with --fixed-memory"


def read_scores(
    path: str | Path,
    *,
    kind: str = "auto",
    labels: str | Path | None = None,
    scores_key: str | None = None,
    labels_key: str | None = None,
    max_gb: float | None = None,
    first_label: int | None = None,
    columns: str | Sequence[str] | None = None,
    like: HasScoreNames | None = None,
    needs_labels: bool = True,
    classes: Sequence[str] | None = None,
    task: str = "auto",
    class_dim: int | None = None,
    ignore_index: int | None = None,
    positive: str | None = None,
    padding: bool | str = False,
    fitted: tuple[str, ...] | None = None,
) -> ScoreFile:
    """Read saved predictions of any framework from .npz, .npy, .safetensors, .parquet, .csv or .tsv into memory.

    No code in the file can run, and memory is allocated only after the header was compared with the size of the file.
    Bad input raises an `InputError` with the file, the problem and the remedy.

    Args:
        path: the file.
        kind: what the scores are: `auto`, `logits`, `probs` or `percent`. `auto` decides by name and values.
        labels: another file with the labels (default: the same file).
        scores_key: name of the scores or prefix of their columns (default: `logits`, `probs`, `predictions`, `scores`).
        labels_key: name of the labels (default: `labels`, `y`, `targets`, `ground_truth` and similar names).
        max_gb: memory limit in gigabytes (default: AVUC_MAX_GB, else 8).
        first_label: label of the first class, 0 or 1 (default: decided by the values, or an error).
        columns: score columns of a table in class order: names, a range `a:b`, a pattern `prob_*`.
        like: a file of the same model; a table with the same score columns is read in the same way.
        needs_labels: False to read no labels.
        classes: names of the classes in the order of the scores, for labels that are names.
        task: `auto`, `multiclass`, or `binary` for one number per label.
        class_dim: dimension of the classes of dense scores; −1 for the last (default: 1, if the labels fit).
        ignore_index: label of rows that are left out (default: −100 for dense scores, else no row is left out).
        positive: label of the class that one number per row stands for (default: 1, or the second in the alphabet).
        padding: with `needs_labels=False`, still leave out positions of dense scores with the label `ignore_index`.
            "mark": keep these positions, or rows if `ignore_index` is given, and mark them in `ScoreFile.ignored`.
        fitted: names of the classes of a fit: without `positive`, one number per row stands for the second of them.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", predictions=[[0.9, 0.1], [0.2, 0.8]], ground_truth=[0, 1])
    ...     read_scores(f"{folder}/test.npz").kind
    'probs'
    """
    file, known = Path(path), None if like is None else like.raw.layout
    free = columns is None and like is None
    reading = Reading(kind, first_label, task, class_dim, ignore_index, positive, known, padding, free, fitted)
    reading.check(file)
    return _whole(
        file,
        reading,
        labels=labels,
        scores_key=scores_key,
        labels_key=labels_key,
        max_gb=max_gb,
        columns=columns,
        like=like,
        needs_labels=needs_labels,
        classes=classes,
    )


def _whole(file: Path, reading: Reading, *, needs_labels: bool, **options: Any) -> ScoreFile:
    with file_errors(file):
        raw = find_scores(file, padding=reading.padding, needs_labels=needs_labels, **options)
        return _decided(file, raw, reading, needs_labels)


def _decided(path: Path, raw: RawScores, reading: Reading, needs_labels: bool) -> ScoreFile:
    _check_ignored(path, raw, reading)
    raw.scores = torch.as_tensor(raw.scores)
    raw.labels = None if raw.labels is None else torch.as_tensor(raw.labels)
    raw.layout = layout = reading.layout(path, raw, needs_labels)
    scores, labels, positions, ignored = layout.rows(raw.scores), None, None, None
    if raw.labels is not None and needs_labels:
        total = scores.shape[-2]
        scores, labels = layout.kept(scores, raw.labels.reshape(-1))
        _note_left_out(path, raw, total, total - scores.shape[-2])
        if scores.shape[-2] < total:
            positions = not_ignored(raw.labels.reshape(-1), layout.ignore).nonzero()[:, 0]
            raw.keep(positions)
        check_classes(path, raw, [(scores, labels)], reading.first_of_columns)
    elif marks_padding(raw, reading, layout):
        kept = not_ignored(raw.labels.reshape(-1), layout.ignore)
        if reading.padding == MARK:
            ignored = ~kept
        else:
            positions = kept.nonzero()[:, 0]
            _note_left_out(path, raw, scores.shape[-2], scores.shape[-2] - len(positions))
            scores = scores[..., positions, :]
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    raw.scores, raw.labels = None, None
    known = scores if ignored is None else scores[..., ~ignored, :]
    decision = reading.decide(path, raw, Summary.of(known, labels))
    return ScoreFile(
        path=path,
        scores=decision.scores(scores) if ignored is None else scores_with_padding(scores, decision, ignored),
        labels=None if labels is None else decision.labels(labels),
        kind=decision.kind,
        scores_from=raw.scores_from,
        labels_from=raw.labels_from,
        class_names=raw.class_names,
        notes=(*raw.notes, *decision.notes),
        dtype=dtype,
        raw=raw,
        scale=decision.scale,
        draws=raw.draws,
        expected_entropy=raw.expected_entropy,
        places=positions,
        label_numbers=None if labels is None or raw.labels_named else decision.numbers(layout.flat[-1]),
        ignored=ignored,
    )


def _check_ignored(path: Path, raw: RawScores, reading: Reading) -> None:
    """Raise for names as labels with --ignore-index: it would leave out the class of that number."""
    if raw.labels_named and reading.padding == MARK:
        raw.labels, raw.labels_named = None, False
    if raw.labels_named and reading.ignore_index is not None:
        problem = f"labels from {raw.labels_from} are names, but --ignore-index {reading.ignore_index} is a number"
        raise file_error(path, problem, "leave it out, and remove the rows without a class")


def _note_left_out(path: Path, raw: RawScores, total: int, left_out: int) -> None:
    """Note how many rows were left out; raise if no row is left."""
    layout = raw.layout
    assert layout is not None
    if left_out == total:
        raise file_error(path, f"every label is {layout.ignore}, which marks rows to leave out", "label some rows")
    if left_out:
        raw.layout = replace(layout, left_out=left_out)
        what = "positions" if layout.dense else "rows"
        raw.notes.append(f"{left_out:,} of {total:,} {what} have the label {layout.ignore} and were left out")


def open_scores(
    path: str | Path,
    *,
    kind: str = "auto",
    labels: str | Path | None = None,
    scores_key: str | None = None,
    labels_key: str | None = None,
    max_gb: float | None = None,
    first_label: int | None = None,
    columns: str | Sequence[str] | None = None,
    like: HasScoreNames | None = None,
    needs_labels: bool = True,
    classes: Sequence[str] | None = None,
    task: str = "auto",
    class_dim: int | None = None,
    ignore_index: int | None = None,
    positive: str | None = None,
    padding: bool = False,
    memory: Callable[[int, int], int] = bytes_needed,
    most_scores: int | None = None,
) -> ScoreFile | ScoreStream:
    """Read like `read_scores`, but return a `ScoreStream` for a large file, which is then read in blocks.

    Large means more than 100,000 rows or 134 million scores. A .csv or .tsv is always read into memory.

    Args:
        path: the file. The arguments that are not listed here are those of `read_scores`.
        max_gb: memory limit in gigabytes: for the arrays of a small file, for `memory` bytes of a large file.
        memory: from (rows, classes) to the bytes that the caller keeps (default: what `evaluate_large` needs).
        most_scores: a file with more scores than this counts as large.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    ...     open_scores(f"{folder}/test.npz").num_rows
    2
    """
    file, known = Path(path), None if like is None else like.raw.layout
    free = columns is None and like is None
    reading = Reading(kind, first_label, task, class_dim, ignore_index, positive, known, padding, free)
    reading.check(file)
    options: dict[str, Any] = {
        "labels": labels,
        "scores_key": scores_key,
        "labels_key": labels_key,
        "max_gb": max_gb,
        "columns": columns,
        "like": like,
        "needs_labels": needs_labels,
        "classes": classes,
    }
    # a .csv has no stored row count, and its numbers need less memory than its text
    if file.suffix.lower() in TEXT_TABLES:
        return _whole(file, reading, **options)
    with file_errors(file):
        raw = find_scores(file, in_blocks=True, padding=padding, **options)
        _check_ignored(file, raw, reading)
        raw.scores = _source(raw.scores)
        raw.labels = None if raw.labels is None else _source(raw.labels)
        raw.layout = layout = reading.layout(file, raw, needs_labels)
        shape, dtype = layout.flat, raw.scores.dtype
        beyond = most_scores is not None and math.prod(shape) > most_scores
        rows, classes_here, draws = shape[-2], max(shape[-1], 2), shape[0] if layout.draws else 1
        if not (beyond or needs_blocks(rows, classes_here, draws)):
            limit = ReadOptions(max_gb=max_gb).limit
            held = memory_bytes(math.prod(shape), dtype.itemsize)
            if rows and fixed_bytes(rows, classes_here) <= limit:
                check_size(file, raw.scores_from, held, limit, f", {FIXED_MEMORY}")
            return _whole(file, reading, **options)
        raw.scores = counted_along(raw.scores, layout.row_axis)
        raw.labels = None if raw.labels is None else counted_along(raw.labels, 0)
        if not (needs_labels or marks_padding(raw, reading, layout)):
            raw.labels = None
        _check_memory(file, raw, memory, ReadOptions(max_gb=max_gb).limit)
        if raw.labels is not None and needs_labels:
            check_classes(file, raw, blocks_of(raw.scores, raw.labels, layout), reading.first_of_columns)
        summary = _summary(file, raw, rows, needs_labels)
        kept = summary.scores.rows
        if raw.labels is not None:
            _note_left_out(file, raw, rows, rows - kept)
            if kept < rows and raw.expected_entropy is not None:
                labels_here = raw.labels.blocks(BLOCK)
                raw.keep(torch.cat([not_ignored(block, layout.ignore).reshape(-1) for block in labels_here]))
        decision = reading.decide(file, raw, summary)
    return ScoreStream(
        path=file,
        shape=(*shape[:-2], kept, max(shape[-1], 2)),
        kind=decision.kind,
        scores_from=raw.scores_from,
        labels_from=raw.labels_from,
        class_names=raw.class_names,
        notes=(*raw.notes, *decision.notes),
        dtype=dtype if dtype.is_floating_point else torch.float32,
        decision=decision,
        raw=raw,
    )


def _check_memory(path: Path, raw: RawScores, memory: Callable[[int, int], int], limit: int) -> None:
    assert raw.layout is not None
    rows, classes = raw.layout.flat[-2], max(raw.layout.flat[-1], 2)
    needed = memory(rows, classes)
    if needed > limit:
        size = math.prod(raw.scores.shape) * raw.scores.dtype.itemsize
        # only where it helps: memory that grows with the rows, and a limit above that of fixed size
        helps = memory(1, classes) < needed and fixed_bytes(rows, classes) <= limit
        raise file_error(
            path,
            f"{raw.scores_from} has {size / 1e9:.3g} GB and needs {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {limit / 1e9:.3g} GB",
            "if you trust the file, raise the limit with --max-gb or AVUC_MAX_GB"
            + (f", {FIXED_MEMORY}" if helps else ""),
        )


def _summary(path: Path, raw: RawScores, rows: int, needs_labels: bool) -> Summary:
    summary, done, layout = None, 0, raw.layout
    assert layout is not None
    for scores, labels in blocks_of(raw.scores, raw.labels, layout):
        # in float32, which decides what is finite
        block = Summary.of(scores.to(torch.float32), labels if needs_labels else None, start=done)
        summary = block if summary is None else summary.merge(block)
        done += scores.shape[-2]
    if summary is None and layout.ignore is not None:
        _note_left_out(path, raw, rows, rows)
    if summary is None or (done != rows and layout.ignore is None):
        raise file_error(path, f"should have {rows:,} rows but has {done:,}", "save the file again")
    return summary


def _source(array: object) -> Source:
    """Return the array as a source."""
    return array if hasattr(array, "blocks") else ArraySource(array)  # type: ignore[return-value]
