"""ScoreStream: scores and labels that stay in their file and are read in blocks of rows.

Two passes are made: one gathers the facts that decide what the scores are, one hands out the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from avuc.evaluation.files import file as whole
from avuc.evaluation.files.checks import Decision, check_label_shape, check_score_shape, decide
from avuc.evaluation.files.facts import Facts
from avuc.evaluation.files.file import KINDS, ScoreFile, read_scores
from avuc.evaluation.files.formats import HasKeys, find_scores, reading, unlabelled
from avuc.evaluation.files.names import Found, Wanted, listing, refuse
from avuc.evaluation.files.sources import ArraySource, Source, matched
from avuc.metrics.blockwise import bytes_needed, needs_blocks

__all__ = ["ScoreStream", "open_scores"]


@dataclass(frozen=True)
class ScoreStream:
    """What a `ScoreFile` is, for a file that is too large to be held: its rows come as `ScoreFile`s of some rows."""

    path: Path
    shape: tuple[int, ...]  # (N, C) or (S, N, C)
    kind: str
    scores_from: str
    labels_from: str | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    dtype: torch.dtype  # of the scores in the file
    decision: Decision
    found: Found  # with the arrays as sources

    @property
    def num_rows(self) -> int:
        return self.shape[-2]

    @property
    def num_classes(self) -> int:
        return self.shape[-1]

    @property
    def samples(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else self.found.draws

    def check_labelled(self) -> None:
        """Refuse a file without labels."""
        if self.found.labels is None:
            raise unlabelled(self.path)

    def parts(self) -> Iterator[ScoreFile]:
        """Consecutive rows, each as a file of its own."""
        done = 0
        for scores, labels in _blocks(self.found.scores, self.found.labels):
            some, expected = slice(done, done + scores.shape[-2]), self.found.expected_entropy
            done += scores.shape[-2]
            yield ScoreFile(
                path=self.path,
                scores=self.decision.scores(scores),
                labels=None if labels is None else self.decision.labels(labels),
                kind=self.kind,
                scores_from=self.scores_from,
                labels_from=self.labels_from,
                class_names=self.class_names,
                notes=self.notes,
                dtype=self.dtype,
                found=self.found,
                scale=self.decision.scale,
                draws=self.found.draws,
                expected_entropy=None if expected is None else expected[some],
            )


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
    like: HasKeys | None = None,
    needs_labels: bool = True,
    memory: Callable[[int, int], int] = bytes_needed,
    most_scores: int | None = None,
) -> ScoreFile | ScoreStream:
    """Like `read_scores`, but a large file stays where it is and is read in blocks.

    Args:
        max_gb: most memory that a file may take: its arrays, or for a large file what `memory` says.
        memory: the bytes that are kept of so many rows of so many classes; by default, what every metric needs.
        most_scores: a file with more scores than this counts as large, whatever `needs_blocks` says.
    """
    file = Path(path)
    if kind not in KINDS:
        raise refuse(file, f"kind {kind!r} is unknown", f"use one of {listing(KINDS)}")
    options: dict[str, Any] = {
        "labels": labels,
        "scores_key": scores_key,
        "labels_key": labels_key,
        "max_gb": max_gb,
        "columns": columns,
        "like": like,
        "needs_labels": needs_labels,
    }
    # a text table has no row count to look up, and its numbers take less memory than its text
    if file.suffix.lower() == ".csv":
        return read_scores(file, kind=kind, first_label=first_label, **options)
    with reading(file):
        found = find_scores(file, in_blocks=True, **options)
        found.scores = _source(found.scores)
        shape, dtype = found.scores.shape, found.scores.dtype
        check_score_shape(file, found.scores_from, shape, dtype)
        beyond = most_scores is not None and math.prod(shape) > most_scores
        rows, classes, draws = shape[-2], shape[-1], shape[0] if len(shape) == 3 else 1
        if not (beyond or needs_blocks(rows, classes, draws)):
            return read_scores(file, kind=kind, first_label=first_label, **options)
        if found.labels is not None and needs_labels:
            found.labels = _source(found.labels)
            where = f"labels from {found.labels_from}"
            check_label_shape(file, where, found.labels.shape, found.labels.dtype, shape)
        else:
            found.labels = None
        _check_memory(file, found, memory(rows, classes), Wanted(max_gb=max_gb).limit)
        decision = decide(file, found, _facts(file, found, rows), kind, first_label)
    return ScoreStream(
        path=file,
        shape=tuple(shape),
        kind=decision.kind,
        scores_from=found.scores_from,
        labels_from=found.labels_from,
        class_names=found.class_names,
        notes=(*found.notes, *decision.notes),
        dtype=dtype if dtype.is_floating_point else torch.float32,
        decision=decision,
        found=found,
    )


def _check_memory(path: Path, found: Found, needed: int, limit: int) -> None:
    if needed > limit:
        size = math.prod(found.scores.shape) * found.scores.dtype.itemsize
        raise refuse(
            path,
            f"{found.scores_from} claims {size / 1e9:.3g} GB and needs {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {limit / 1e9:.3g} GB",
            "if the file is to be trusted, raise the limit with --max-gb or AVUC_MAX_GB",
        )


def _facts(path: Path, found: Found, rows: int) -> Facts:
    facts, done = None, 0
    for scores, labels in _blocks(found.scores, found.labels):
        # float32 first: it decides what is finite
        here = Facts.of(scores.to(torch.float32), labels, start=done)
        facts = here if facts is None else facts.merge(here)
        done += scores.shape[-2]
    if facts is None or done != rows:
        raise refuse(path, f"claims {rows:,} rows but {done:,} are there", "save the file again")
    return facts


def _blocks(scores: Source, labels: Source | None) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Scores and labels of the same rows; about `BLOCK` scores at a time."""
    shape = scores.shape
    rows = max(1, whole.BLOCK // (shape[-1] * (shape[0] if len(shape) == 3 else 1)))
    blocks = scores.blocks(rows)
    if labels is None:
        return ((block, None) for block in blocks)
    return iter(matched(blocks, labels.blocks(rows)))


def _source(array: object) -> Source:
    """The array as it came: in its file, or already in memory."""
    return array if hasattr(array, "blocks") else ArraySource(array)  # type: ignore[return-value]
