"""ScoreFile and ScoreStream: scores and labels of one saved file, checked; in memory, or read in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from avuc.calibration import TemperatureScaling, logits_from_probs
from avuc.core.errors import InputError
from avuc.evaluation.files.checks import Decision
from avuc.evaluation.files.find import no_labels
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import RawScores
from avuc.evaluation.files.sources import Source, paired_blocks
from avuc.predictions import Predictions
from avuc.uncertainty import entropy, expected_entropy

# scores of one part of a file
BLOCK = 1 << 21


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
    raw: RawScores  # without the arrays: what a rewrite needs
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
            raise no_labels(self.path)

    def predictions(self, calibrator: Any = None) -> Predictions:
        """The Predictions of the labelled rows; a calibrator acts on every draw before the mean."""
        self.check_labelled()
        labels = self.labels
        assert labels is not None
        if self.kind == "logits" or calibrator is not None:
            build = Predictions.from_samples if self.scores.ndim == 3 else Predictions.from_logits
            # what the file holds has been decided
            return build(
                self.logits(), labels, calibrator=match_classes(self.path, self.names, calibrator), check=False
            )
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
        ordered = match_classes(self.path, self.names, calibrator)
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
            ordered = match_classes(self.path, self.names, calibrator)
            return Predictions.from_samples(draws, calibrator=ordered, check=False).entropy
        return entropy(self.scores.mean(0) if self.scores.ndim == 3 else self.scores)


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
    raw: RawScores  # with the arrays as sources

    @property
    def num_rows(self) -> int:
        return self.shape[-2]

    @property
    def num_classes(self) -> int:
        return self.shape[-1]

    @property
    def samples(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else self.raw.draws

    def check_labelled(self) -> None:
        """Refuse a file without labels."""
        if self.raw.labels is None:
            raise no_labels(self.path)

    def parts(self) -> Iterator[ScoreFile]:
        """Consecutive rows, each as a file of its own."""
        done = 0
        for scores, labels in blocks_of(self.raw.scores, self.raw.labels):
            some, expected = slice(done, done + scores.shape[-2]), self.raw.expected_entropy
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
                raw=self.raw,
                scale=self.decision.scale,
                draws=self.raw.draws,
                expected_entropy=None if expected is None else expected[some],
            )


def blocks_of(scores: Source, labels: Source | None) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Scores and labels of the same rows; about `BLOCK` scores at a time."""
    shape = scores.shape
    rows = max(1, BLOCK // (shape[-1] * (shape[0] if len(shape) == 3 else 1)))
    blocks = scores.blocks(rows)
    if labels is None:
        return ((block, None) for block in blocks)
    return iter(paired_blocks(blocks, labels.blocks(rows)))


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


@dataclass(frozen=True)
class ReorderedCalibrator:
    """A calibrator for logits whose classes stand in another order; `places` says where each of its classes is."""

    calibrator: Any
    places: list[int]

    def transform(self, logits: Tensor) -> Tensor:
        result = torch.empty_like(logits)
        result[..., self.places] = self.calibrator.transform(logits[..., self.places])
        return result


def match_classes(path: Path, names: Sequence[str] | None, calibrator: Any) -> Any:
    """The calibrator for the order that the classes have in this file; other classes than its own are refused.

    Where the file or the calibrator has no names, classes are matched by their position.
    """
    fitted = getattr(calibrator, "class_names_", None)
    if fitted is None or names is None or tuple(fitted) == tuple(names):
        return calibrator
    if sorted(fitted) != sorted(names) or len(set(fitted)) < len(fitted):
        raise file_error(
            path,
            f"its classes are {listing(names)}, but the calibrator was fitted on {listing(fitted)}",
            "apply it to scores of the same classes, under the same names",
        )
    return ReorderedCalibrator(calibrator, [list(names).index(name) for name in fitted])


def as_file_dtype(path: Path, scores: Tensor, dtype: torch.dtype, kind: str) -> Tensor:
    """The scores in the file's own type, all finite.

    Rows of logits that the type cannot hold are shifted, so that the largest is 0, and cut where softmax gives 0
    anyway: their probabilities stay the same.
    """
    cast = scores.to(dtype)
    lost = (cast.isinf() & scores.isfinite()).any(-1, keepdim=True)
    if kind == "logits" and bool(lost.any()):
        below = (scores - scores.amax(-1, keepdim=True)).clamp(min=torch.finfo(dtype).min)
        cast = torch.where(lost, below.to(dtype), cast)
    if not bool(cast.isfinite().all()):
        raise file_error(path, "the new scores are not finite", "look for NaN or infinity in what is to be written")
    return cast
