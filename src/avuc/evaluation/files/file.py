"""ScoreFile: scores and labels of one saved file, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from avuc.calibration import TemperatureScaling, logits_from_probs
from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError
from avuc.evaluation.files.checks import check_label_shape, check_score_shape, decide
from avuc.evaluation.files.facts import Facts
from avuc.evaluation.files.formats import FORMATS, HasKeys, find_scores, reading, unlabelled
from avuc.evaluation.files.names import Found, listing, refuse
from avuc.evaluation.files.rewrite import by_name, fitting
from avuc.predictions import Predictions
from avuc.uncertainty import entropy, expected_entropy

__all__ = ["FORMATS", "KINDS", "ScoreFile", "describe", "read_scores", "write_scores"]

# scores of one part of a file
BLOCK = 1 << 21
KINDS = ("auto", "logits", "probs", "percent")


@dataclass(frozen=True)
class ScoreFile:
    """Scores (N,C) or, for Monte Carlo draws, (S,N,C) in float32; labels (N) or None; and where each came from."""

    path: Path
    scores: Tensor
    labels: Tensor | None
    kind: str
    scores_from: str
    labels_from: str | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    dtype: torch.dtype  # of the scores in the file
    found: Found  # without the arrays: what a rewrite needs
    scale: float = 1.0  # what a certain probability is in the file: 100 for percentages
    draws: int = 1  # how many draws (N,C) scores are the mean of
    expected_entropy: Tensor | None = None  # (N) the mean of these draws' entropies, where it is known

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.scores.shape)

    @property
    def num_rows(self) -> int:
        return int(self.scores.shape[-2])

    @property
    def num_classes(self) -> int:
        return int(self.scores.shape[-1])

    @property
    def samples(self) -> int:
        return int(self.scores.shape[0]) if self.scores.ndim == 3 else self.draws

    def logits(self) -> Tensor:
        """What a calibrator reads; probabilities become log max(p, 1e-12), the floor of `avuc.metrics.nll`."""
        logits: Tensor = self.scores if self.kind == "logits" else logits_from_probs(self.scores)
        return logits

    def check_labelled(self) -> None:
        """Refuse a file without labels."""
        if self.labels is None:
            raise unlabelled(self.path)

    def predictions(self, calibrator: Any = None) -> Predictions:
        """The Predictions of the labelled rows; a calibrator acts on every draw before the mean."""
        self.check_labelled()
        labels = self.labels
        assert labels is not None
        if self.kind == "logits" or calibrator is not None:
            build = Predictions.from_samples if self.scores.ndim == 3 else Predictions.from_logits
            # what the file holds has been decided
            return build(self.logits(), labels, calibrator=by_name(self.path, self.names, calibrator), check=False)
        if self.scores.ndim == 3:
            return Predictions(self.scores.mean(0), labels, expected_entropy(self.scores), self.samples)
        return Predictions(self.scores, labels, self.expected_entropy, self.draws)  # type: ignore[arg-type]

    def parts(self) -> Iterator[ScoreFile]:
        """Consecutive rows, each as a file of its own: bounds the working memory of what follows."""
        draws = self.shape[0] if self.scores.ndim == 3 else 1
        rows = max(1, BLOCK // (draws * self.num_classes))
        for start in range(0, self.num_rows, rows):
            some = slice(start, start + rows)
            labels = None if self.labels is None else self.labels[some]
            expected = None if self.expected_entropy is None else self.expected_entropy[some]
            yield replace(self, scores=self.scores[..., some, :], labels=labels, expected_entropy=expected)

    def calibrated(self, calibrator: Any) -> Tensor:
        """The scores through a calibrator, of the same kind and shape; every draw on its own."""
        ordered = by_name(self.path, self.names, calibrator)
        if isinstance(calibrator, TemperatureScaling) and calibrator.temperature_ == 1:
            return self.scores
        try:
            logits: Tensor = ordered.transform(self.logits())
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        return logits if self.kind == "logits" else logits.softmax(-1)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes; None where there are none, or just the numbers 0, 1, 2, … or 1, 2, 3, …"""
        named = self.class_names
        if named is not None and all(name.isdecimal() for name in named):
            first = int(named[0])
            counted = first in (0, 1) and [int(name) for name in named] == list(range(first, first + len(named)))
            return None if counted else named
        return named

    def entropy(self, calibrator: Any = None) -> Tensor:
        """Predictive entropy of every row, in nats; needs no labels."""
        if self.kind == "logits" or calibrator is not None:
            draws = self.logits().reshape(-1, *self.scores.shape[-2:])
            ordered = by_name(self.path, self.names, calibrator)
            return Predictions.from_samples(draws, calibrator=ordered, check=False).entropy
        return entropy(self.scores.mean(0) if self.scores.ndim == 3 else self.scores)


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
    like: HasKeys | None = None,
    needs_labels: bool = True,
) -> ScoreFile:
    """Read saved predictions of any framework from .npz, .npy, .safetensors, .parquet or .csv.

    Nothing in the file is executed, and nothing is allocated on the word of a header alone. Bad input is an
    `InputError` that names the file, the problem and the remedy.

    Args:
        path: the file.
        kind: what the scores are: `auto`, `logits`, `probs` or `percent`.
        labels: another file that holds the labels.
        scores_key: name of the scores, or the prefix of their columns.
        labels_key: name of the labels.
        max_gb: the most memory that the file may take, in gigabytes (default: AVUC_MAX_GB, else 8).
        first_label: the label of the first class, 0 or 1 (default: found out, or refused).
        columns: the score columns of a table in the order of the classes: names, a range `a:b`, a pattern `prob_*`.
        like: a file of the same model; a table with its score columns is read in the same way.
        needs_labels: False for a file whose labels are not asked for.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", predictions=[[0.9, 0.1], [0.2, 0.8]], ground_truth=[0, 1])
    ...     describe(read_scores(f"{folder}/test.npz"))
    "2 × 2 probabilities from key 'predictions', labels from 'ground_truth'"
    """
    if kind not in KINDS:
        raise refuse(Path(path), f"kind {kind!r} is unknown", f"use one of {listing(KINDS)}")
    file = Path(path)
    with reading(file):
        found = find_scores(
            file,
            labels=labels,
            scores_key=scores_key,
            labels_key=labels_key,
            max_gb=max_gb,
            columns=columns,
            like=like,
            needs_labels=needs_labels,
        )
        return _decided(file, found, kind, first_label, needs_labels)


def _decided(path: Path, found: Found, kind: str, first_label: int | None, needs_labels: bool) -> ScoreFile:
    scores, labels = _shaped(path, found, needs_labels)
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    found.scores, found.labels = None, None
    decision = decide(path, found, Facts.of(scores, labels), kind, first_label)
    return ScoreFile(
        path=path,
        scores=decision.scores(scores),
        labels=None if labels is None else decision.labels(labels),
        kind=decision.kind,
        scores_from=found.scores_from,
        labels_from=found.labels_from,
        class_names=found.class_names,
        notes=(*found.notes, *decision.notes),
        dtype=dtype,
        found=found,
        scale=decision.scale,
        draws=found.draws,
        expected_entropy=found.expected_entropy,
    )


def write_scores(file: ScoreFile, scores: Tensor, destination: str | Path) -> None:
    """Write the file again, in its own format, with these scores in place of its own; all else is kept.

    Logits too large for the file's own type are shifted: the largest of their row becomes 0, which changes no
    probability. Nothing but finite numbers is written.
    """
    if scores.shape != file.scores.shape:
        raise refuse(file.path, f"holds {tuple(file.scores.shape)} scores, not {tuple(scores.shape)}", "keep the shape")
    new = scores.detach().cpu()
    new = fitting(file.path, new * file.scale if file.scale != 1 else new, file.dtype, file.kind)
    with atomic_path(destination) as temporary:
        FORMATS[file.path.suffix.lower()].write(file.path, temporary, file.found, new)


class Described(Protocol):
    """What `describe` reads of a `ScoreFile` or a `ScoreStream`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def scores_from(self) -> str: ...
    @property
    def labels_from(self) -> str | None: ...


def describe(file: Described) -> str:
    """`10,000 × 10 probabilities from key 'predictions', labels from 'ground_truth'`."""
    draws = f"{file.shape[0]:,} draws of " if len(file.shape) == 3 else ""
    kind = "logits" if file.kind == "logits" else "probabilities"
    labels = f"labels from {file.labels_from}" if file.labels_from else "no labels"
    return f"{draws}{file.shape[-2]:,} × {file.shape[-1]:,} {kind} from {file.scores_from}, {labels}"


def _shaped(path: Path, found: Found, needs_labels: bool) -> tuple[Tensor, Tensor | None]:
    """The arrays as tensors, once their shapes and types can be read."""
    scores = torch.as_tensor(found.scores)
    check_score_shape(path, found.scores_from, scores.shape, scores.dtype)
    if found.labels is None or not needs_labels:
        return scores, None
    labels = torch.as_tensor(found.labels)
    check_label_shape(path, f"labels from {found.labels_from}", labels.shape, labels.dtype, scores.shape)
    return scores, labels.reshape(-1)
