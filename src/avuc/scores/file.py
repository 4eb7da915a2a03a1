"""ScoreFile: scores and labels of one saved file, checked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from avuc.atomic import atomic_path
from avuc.calibration import logits_from_probs
from avuc.errors import InputError
from avuc.predictions import Predictions
from avuc.scores import csv, npy, parquet, tensors
from avuc.scores.checks import check_label_shape, check_score_shape, decide
from avuc.scores.facts import Facts
from avuc.scores.names import LABEL_NAMES, Found, Wanted, listing, refuse
from avuc.uncertainty import entropy, expected_entropy

__all__ = ["FORMATS", "KINDS", "ScoreFile", "describe", "find_scores", "read_scores", "unlabelled", "write_scores"]

# scores of one part of a file
BLOCK = 1 << 21
KINDS = ("auto", "logits", "probs", "percent")


@dataclass(frozen=True)
class Format:
    read: Callable[[Path, Wanted], Found]
    labels: Callable[[Path, Wanted], tuple[Any, str]]
    write: Callable[[Path, Path, Found, Any], None]


FORMATS: dict[str, Format] = {
    ".npz": Format(npy.read_npz, npy.labels_npz, npy.write_npz),
    ".npy": Format(npy.read_npy, npy.labels_npy, npy.write_npy),
    ".safetensors": Format(tensors.scores_tensors, tensors.labels_tensors, tensors.write_scores_tensors),
    ".parquet": Format(parquet.read_parquet, parquet.labels_parquet, parquet.write_parquet),
    ".csv": Format(csv.read_csv, csv.labels_csv, csv.write_csv),
}


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
        return int(self.scores.shape[0]) if self.scores.ndim == 3 else 1

    def logits(self) -> Tensor:
        """What a calibrator reads; probabilities become log p, 0 counting as the smallest positive float32."""
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
            return build(self.logits(), labels, calibrator=calibrator)
        if self.scores.ndim == 3:
            return Predictions(self.scores.mean(0), labels, expected_entropy(self.scores), self.samples)
        return Predictions(self.scores, labels)

    def parts(self) -> Iterator[ScoreFile]:
        """Consecutive rows, each as a file of its own: bounds the working memory of what follows."""
        rows = max(1, BLOCK // (self.samples * self.num_classes))
        for start in range(0, self.num_rows, rows):
            some = slice(start, start + rows)
            labels = None if self.labels is None else self.labels[some]
            yield replace(self, scores=self.scores[..., some, :], labels=labels)

    def calibrated(self, calibrator: Any) -> Tensor:
        """The scores through a calibrator, of the same kind and shape; every draw on its own."""
        logits: Tensor = calibrator.transform(self.logits())
        return logits if self.kind == "logits" else logits.softmax(-1)

    def entropy(self, calibrator: Any = None) -> Tensor:
        """Predictive entropy of every row, in nats; needs no labels."""
        if self.kind == "logits" or calibrator is not None:
            draws = self.logits().reshape(-1, *self.scores.shape[-2:])
            return Predictions.from_samples(draws, calibrator=calibrator).entropy
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
) -> ScoreFile:
    """Read saved predictions of any framework from .npz, .npy, .safetensors, .parquet or .csv.

    Nothing in the file is executed, and nothing is allocated on the word of a header alone. Bad input is an
    `InputError` that names the file, the problem and the remedy.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", predictions=[[0.9, 0.1], [0.2, 0.8]], ground_truth=[0, 1])
    ...     describe(read_scores(f"{folder}/test.npz"))
    "2 × 2 probabilities from key 'predictions', labels from 'ground_truth'"
    """
    if kind not in KINDS:
        raise refuse(Path(path), f"kind {kind!r} is unknown", f"use one of {listing(KINDS)}")
    file = Path(path)
    found = find_scores(file, labels=labels, scores_key=scores_key, labels_key=labels_key, max_gb=max_gb)
    scores, labelled = _shaped(file, found)
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    scores = scores.to(torch.float32)
    decision = decide(file, found, Facts.of(scores, labelled), kind, first_label)
    found.scores, found.labels = None, None
    return ScoreFile(
        path=file,
        scores=decision.scores(scores),
        labels=None if labelled is None else decision.labels(labelled),
        kind=decision.kind,
        scores_from=found.scores_from,
        labels_from=found.labels_from,
        class_names=found.class_names,
        notes=(*found.notes, *decision.notes),
        dtype=dtype,
        found=found,
        scale=decision.scale,
    )


def unlabelled(path: Path) -> InputError:
    return refuse(
        path,
        f"no labels: none named {listing(LABEL_NAMES)}",
        "save them in the file, name them with --labels-key, or give them with --labels FILE",
    )


def find_scores(
    file: Path,
    *,
    labels: str | Path | None,
    scores_key: str | None,
    labels_key: str | None,
    max_gb: float | None,
    in_blocks: bool = False,
) -> Found:
    """The scores and the labels of a file, before anything is checked; `in_blocks`, they stay there."""
    wanted = Wanted(scores_key, labels_key if labels is None else None, max_gb, in_blocks)
    try:
        found = _format(file).read(file, wanted)
        if labels is not None:
            beside = Path(labels)
            other = Wanted(None, labels_key, max_gb, in_blocks)
            found.labels, found.labels_from = _format(beside).labels(beside, other)
    except OSError as error:
        where = Path(error.filename) if error.filename else file
        raise refuse(where, f"cannot be read ({error.strerror or error})", "check the file and its rights") from error
    except MemoryError as error:
        raise refuse(file, "there is not enough memory to hold it", "split it, or save float32 instead") from error
    return found


def write_scores(file: ScoreFile, scores: Tensor, destination: str | Path) -> None:
    """Write the file again, in its own format, with these scores in place of its own; all else is kept."""
    if scores.shape != file.scores.shape:
        raise refuse(file.path, f"holds {tuple(file.scores.shape)} scores, not {tuple(scores.shape)}", "keep the shape")
    saved = (scores.detach() * file.scale if file.scale != 1 else scores.detach()).to("cpu", file.dtype)
    with atomic_path(destination) as temporary:
        FORMATS[file.path.suffix.lower()].write(file.path, temporary, file.found, saved)


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


def _shaped(path: Path, found: Found) -> tuple[Tensor, Tensor | None]:
    """The arrays as tensors, once their shapes and types can be read."""
    scores = torch.as_tensor(found.scores)
    check_score_shape(path, found.scores_from, scores.shape, scores.dtype)
    if found.labels is None:
        return scores, None
    labels = torch.as_tensor(found.labels)
    check_label_shape(path, f"labels from {found.labels_from}", labels.shape, labels.dtype, scores.shape)
    return scores, labels.reshape(-1)


def _format(path: Path) -> Format:
    """The file's format by its suffix, once it is known to be a file that can be opened and is not empty."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise refuse(path, "is a folder", f"name a file ({', '.join(FORMATS)})")
    if not stat.S_ISREG(status.st_mode):
        raise refuse(path, "is not a regular file", "save the predictions to a file first")
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise refuse(path, f"unknown format {suffix!r}", f"save it as {', '.join(FORMATS)}")
    if status.st_size == 0:
        raise refuse(path, "is empty", "save the predictions again")
    with path.open("rb"):
        return FORMATS[suffix]
