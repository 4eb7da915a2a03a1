"""Read, open and write saved predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.atomic import atomic_path
from avuc.evaluation.files.checks import check_label_shape, check_score_shape, decide
from avuc.evaluation.files.find import FORMATS, TEXT_TABLES, HasScoreNames, file_errors, find_scores
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import RawScores, ReadOptions, check_size, memory_bytes
from avuc.evaluation.files.score_file import ScoreFile, ScoreStream, as_file_dtype, blocks_of
from avuc.evaluation.files.sources import ArraySource, Source
from avuc.evaluation.files.summary import Summary
from avuc.metrics.blockwise import bytes_needed, needs_blocks
from avuc.metrics.streaming.suite import bytes_needed as fixed_bytes

# added to a refusal where it helps
FIXED_MEMORY = "or evaluate it with --fixed-memory"
KINDS = ("auto", "logits", "probs", "percent")


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

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", predictions=[[0.9, 0.1], [0.2, 0.8]], ground_truth=[0, 1])
    ...     read_scores(f"{folder}/test.npz").kind
    'probs'
    """
    if kind not in KINDS:
        raise file_error(Path(path), f"unknown kind {kind!r}", f"use one of {listing(KINDS)}")
    file = Path(path)
    with file_errors(file):
        raw = find_scores(
            file,
            labels=labels,
            scores_key=scores_key,
            labels_key=labels_key,
            max_gb=max_gb,
            columns=columns,
            like=like,
            needs_labels=needs_labels,
        )
        return _decided(file, raw, kind, first_label, needs_labels)


def _decided(path: Path, raw: RawScores, kind: str, first_label: int | None, needs_labels: bool) -> ScoreFile:
    scores, labels = _shaped(path, raw, needs_labels)
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    raw.scores, raw.labels = None, None
    decision = decide(path, raw, Summary.of(scores, labels), kind, first_label)
    return ScoreFile(
        path=path,
        scores=decision.scores(scores),
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
    )


def _shaped(path: Path, raw: RawScores, needs_labels: bool) -> tuple[Tensor, Tensor | None]:
    """Return the arrays as tensors, after checks of their shapes and types."""
    scores = torch.as_tensor(raw.scores)
    check_score_shape(path, raw.scores_from, scores.shape, scores.dtype)
    if raw.labels is None or not needs_labels:
        return scores, None
    labels = torch.as_tensor(raw.labels)
    check_label_shape(path, f"labels from {raw.labels_from}", labels.shape, labels.dtype, scores.shape)
    return scores, labels.reshape(-1)


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
    memory: Callable[[int, int], int] = bytes_needed,
    most_scores: int | None = None,
) -> ScoreFile | ScoreStream:
    """Read like `read_scores`, but return a `ScoreStream` for a large file, which is then read in blocks.

    Large means more than 100,000 rows or 134 million scores. A .csv is always read into memory.

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
    file = Path(path)
    if kind not in KINDS:
        raise file_error(file, f"unknown kind {kind!r}", f"use one of {listing(KINDS)}")
    options: dict[str, Any] = {
        "labels": labels,
        "scores_key": scores_key,
        "labels_key": labels_key,
        "max_gb": max_gb,
        "columns": columns,
        "like": like,
        "needs_labels": needs_labels,
    }
    # a .csv has no stored row count, and its numbers need less memory than its text
    if file.suffix.lower() in TEXT_TABLES:
        return read_scores(file, kind=kind, first_label=first_label, **options)
    with file_errors(file):
        raw = find_scores(file, in_blocks=True, **options)
        raw.scores = _source(raw.scores)
        shape, dtype = raw.scores.shape, raw.scores.dtype
        check_score_shape(file, raw.scores_from, shape, dtype)
        beyond = most_scores is not None and math.prod(shape) > most_scores
        rows, classes, draws = shape[-2], shape[-1], shape[0] if len(shape) == 3 else 1
        if not (beyond or needs_blocks(rows, classes, draws)):
            limit = ReadOptions(max_gb=max_gb).limit
            held = memory_bytes(math.prod(shape), dtype.itemsize)
            if rows and fixed_bytes(rows, classes) <= limit:
                check_size(file, raw.scores_from, held, limit, f", {FIXED_MEMORY}")
            return read_scores(file, kind=kind, first_label=first_label, **options)
        if raw.labels is not None and needs_labels:
            raw.labels = _source(raw.labels)
            where = f"labels from {raw.labels_from}"
            check_label_shape(file, where, raw.labels.shape, raw.labels.dtype, shape)
        else:
            raw.labels = None
        _check_memory(file, raw, memory, ReadOptions(max_gb=max_gb).limit)
        decision = decide(file, raw, _summary(file, raw, rows), kind, first_label)
    return ScoreStream(
        path=file,
        shape=tuple(shape),
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
    shape = raw.scores.shape
    needed = memory(shape[-2], shape[-1])
    if needed > limit:
        size = math.prod(shape) * raw.scores.dtype.itemsize
        # only where it helps: memory that grows with the rows, and a limit above that of fixed size
        helps = memory(1, shape[-1]) < needed and fixed_bytes(shape[-2], shape[-1]) <= limit
        raise file_error(
            path,
            f"{raw.scores_from} has {size / 1e9:.3g} GB and needs {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {limit / 1e9:.3g} GB",
            "if you trust the file, raise the limit with --max-gb or AVUC_MAX_GB"
            + (f", {FIXED_MEMORY}" if helps else ""),
        )


def _summary(path: Path, raw: RawScores, rows: int) -> Summary:
    summary, done = None, 0
    for scores, labels in blocks_of(raw.scores, raw.labels):
        # in float32, which decides what is finite
        block = Summary.of(scores.to(torch.float32), labels, start=done)
        summary = block if summary is None else summary.merge(block)
        done += scores.shape[-2]
    if summary is None or done != rows:
        raise file_error(path, f"should have {rows:,} rows but has {done:,}", "save the file again")
    return summary


def _source(array: object) -> Source:
    """Return the array as a source."""
    return array if hasattr(array, "blocks") else ArraySource(array)  # type: ignore[return-value]


def write_scores(file: ScoreFile, scores: Tensor, destination: str | Path) -> None:
    """Write a copy of the file with new scores, in the same format; everything else is kept.

    Logits that are too large for the type of the file are shifted so that the largest logit of their row is 0, which
    changes no probability. NaN and infinity are an error.

    Args:
        file: the file, from `read_scores`.
        scores: new scores of the same shape and kind, for example `file.calibrated(calibrator)`.
        destination: path of the copy.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=[[4.0, 0.0]], labels=[0])
    ...     file = read_scores(f"{folder}/a.npz")
    ...     write_scores(file, file.scores / 2, f"{folder}/b.npz")
    ...     read_scores(f"{folder}/b.npz").scores.tolist()
    [[2.0, 0.0]]
    """
    if scores.shape != file.scores.shape:
        raise file_error(
            file.path, f"has scores of shape {tuple(file.scores.shape)}, not {tuple(scores.shape)}", "keep the shape"
        )
    new = scores.detach().cpu()
    new = as_file_dtype(file.path, new * file.scale if file.scale != 1 else new, file.dtype, file.kind)
    with atomic_path(destination) as temporary:
        FORMATS[file.path.suffix.lower()].write(file.path, temporary, file.raw, new)
