"""ScoreFile and ScoreStream: checked scores and labels of one file, in memory or read in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from avuc.calibration import TemperatureScaling, logits_from_probs
from avuc.core.errors import InputError
from avuc.evaluation.files.decision.checks import Decision
from avuc.evaluation.files.find import no_labels
from avuc.evaluation.files.layout import Layout
from avuc.evaluation.files.match_classes import match_classes, names_for, only_count
from avuc.evaluation.files.names import RawScores
from avuc.evaluation.files.sources import Source, paired_blocks
from avuc.predictions import Predictions
from avuc.uncertainty import entropy, expected_entropy

# number of scores in one block
BLOCK = 1 << 21


@dataclass(frozen=True)
class ScoreFile:
    """Checked scores and labels of a file, in memory. `read_scores` returns it.

    Args:
        path: the file.
        scores: (N, C), or (S, N, C) for S Monte Carlo draws, float32.
        labels: (N) class numbers, or None.
        kind: "logits" or "probs".
        scores_from: where the scores were found, for messages.
        labels_from: where the labels were found, for messages.
        class_names: names of the classes, if the file has them.
        notes: remarks for the user.
        dtype: type of the scores in the file.
        raw: names of the arrays or columns, which `write_scores` needs; without the arrays.
        scale: the number that stands for probability 1 in the file: 100 for percentages.
        draws: number of draws that (N, C) scores are the mean of.
        expected_entropy: (N) mean entropy of these draws, if it is known.
        places: (N) numbers of the rows in the file, if some were left out; None: all rows.
        label_numbers: the label of each class, if the labels in the file are numbers.
        ignored: (N) bool, rows that labels which are not needed mark as padding; None: no row.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", logits=[[2.0, -1.0], [0.5, 0.7]], labels=[0, 1])
    ...     file = read_scores(f"{folder}/test.npz")
    >>> file.kind, file.num_rows, file.predictions().correct.tolist()
    ('logits', 2, [True, True])
    """

    path: Path
    scores: Tensor
    labels: Tensor | None
    kind: str
    scores_from: str
    labels_from: str | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    dtype: torch.dtype
    raw: RawScores
    scale: float = 1.0
    draws: int = 1
    expected_entropy: Tensor | None = None
    places: Tensor | None = None
    label_numbers: tuple[int, ...] | None = None
    ignored: Tensor | None = None

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
        """Return logits for a calibrator; probabilities become log max(p, 1e-12), as in `avuc.metrics.nll`."""
        logits: Tensor = self.scores if self.kind == "logits" else logits_from_probs(self.scores)
        return logits

    def check_labelled(self) -> None:
        """Raise if the file has no labels."""
        if self.labels is None:
            raise no_labels(self.path, self.raw.keys)

    def predictions(self, calibrator: Any = None) -> Predictions:
        """Return the labelled rows as `Predictions`; a calibrator acts on every draw before the mean."""
        self.check_labelled()
        labels = self.labels
        assert labels is not None
        if self.kind == "logits" or calibrator is not None:
            build = Predictions.from_samples if self.scores.ndim == 3 else Predictions.from_logits
            # the kind has been decided already
            return build(self.logits(), labels, calibrator=self._in_order(calibrator), check=False)
        if self.scores.ndim == 3:
            return Predictions(self.scores.mean(0), labels, expected_entropy(self.scores), self.samples)
        return Predictions(self.scores, labels, self.expected_entropy, self.draws)  # type: ignore[arg-type]

    def parts(self) -> Iterator[ScoreFile]:
        """Yield consecutive rows as files of their own, so that the caller needs memory for one block only."""
        draws = self.shape[0] if self.scores.ndim == 3 else 1
        rows = max(1, BLOCK // (draws * self.num_classes))
        for start in range(0, self.num_rows, rows):
            block = slice(start, start + rows)
            labels = None if self.labels is None else self.labels[block]
            expected = None if self.expected_entropy is None else self.expected_entropy[block]
            yield replace(self, scores=self.scores[..., block, :], labels=labels, expected_entropy=expected)

    def calibrated(self, calibrator: Any) -> Tensor:
        """Return calibrated scores of the same kind and shape; every draw is calibrated separately."""
        ordered = self._in_order(calibrator)
        if isinstance(calibrator, TemperatureScaling) and calibrator.is_identity:
            return self.scores
        try:
            logits: Tensor = ordered.transform(self.logits())
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        return logits if self.kind == "logits" else logits.softmax(-1)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Class names; None if there are none or if they only count: 0, 1, 2, … or 1, 2, 3, …"""
        named = self.class_names
        return None if named is None or only_count(named) else named

    def names_for(self, fitted: Sequence[str] | None) -> Sequence[str] | None:
        """Return the class names to match with those of a fit; one number per row can take both from the fit."""
        return names_for(self.names, self.raw.positive, fitted)

    def _in_order(self, calibrator: Any) -> Any:
        names = self.names_for(getattr(calibrator, "class_names_", None))
        return match_classes(self.path, names, calibrator)

    @property
    def class_labels(self) -> tuple[str, ...]:
        """What results call the classes: their names, else their labels in the file, else 0, 1, 2, …"""
        if self.names is None and self.label_numbers is not None:
            return tuple(map(str, self.label_numbers))
        return self.class_names or tuple(map(str, range(self.num_classes)))

    def entropy(self, calibrator: Any = None) -> Tensor:
        """Return the (N) predictive entropies in nats; needs no labels."""
        if self.kind == "logits" or calibrator is not None:
            draws = self.logits().reshape(-1, *self.scores.shape[-2:])
            ordered = self._in_order(calibrator)
            return Predictions.from_samples(draws, calibrator=ordered, check=False).entropy
        return entropy(self.scores.mean(0) if self.scores.ndim == 3 else self.scores)


@dataclass(frozen=True)
class ScoreStream:
    """A large file that is read in blocks; each block is a `ScoreFile`. `open_scores` returns it.

    Args:
        path: the file.
        shape: (N, C) or (S, N, C).
        kind: "logits" or "probs".
        scores_from: where the scores were found, for messages.
        labels_from: where the labels were found, for messages.
        class_names: names of the classes, if the file has them.
        notes: remarks for the user.
        dtype: type of the scores in the file.
        decision: how to read every block.
        raw: sources of the scores and labels.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import open_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/logits.npy", np.zeros((4, 3), np.float32))
    ...     stream = open_scores(f"{folder}/logits.npy", most_scores=0)  # large or not
    ...     [part.num_rows for part in stream.parts()]
    [4]
    """

    path: Path
    shape: tuple[int, ...]
    kind: str
    scores_from: str
    labels_from: str | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    dtype: torch.dtype
    decision: Decision
    raw: RawScores

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
        """Raise if the file has no labels."""
        if self.raw.labels is None:
            raise no_labels(self.path, self.raw.keys)

    def parts(self) -> Iterator[ScoreFile]:
        """Yield consecutive rows as files of their own."""
        done = 0
        assert self.raw.layout is not None
        for scores, labels in blocks_of(self.raw.scores, self.raw.labels, self.raw.layout):
            block, expected = slice(done, done + scores.shape[-2]), self.raw.expected_entropy
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
                expected_entropy=None if expected is None else expected[block],
            )


def blocks_of(
    scores: Source, labels: Source | None, layout: Layout
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Yield rows and their labels, about `BLOCK` scores at a time, without the rows that the layout leaves out."""
    shape, axis = scores.shape, layout.row_axis
    samples = max(1, BLOCK * shape[axis] // math.prod(shape))
    blocks: Iterator[tuple[Tensor, Tensor | None]] = ((block, None) for block in scores.blocks(samples))
    if labels is not None:
        blocks = iter(paired_blocks(scores.blocks(samples), labels.blocks(samples), axis))
    most = max(1, BLOCK // (layout.flat[-1] * (shape[0] if layout.draws else 1)))  # one image may be larger
    for block, here in blocks:
        flat, known = layout.rows(block), None
        if here is not None:
            flat, known = layout.kept(flat, here.reshape(-1))
        for start in range(0, flat.shape[-2], most):
            part = slice(start, start + most)
            yield flat[..., part, :], None if known is None else known[part]


class Described(Protocol):
    """The properties of `ScoreFile` and `ScoreStream` that `describe` uses."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def scores_from(self) -> str: ...
    @property
    def labels_from(self) -> str | None: ...
    @property
    def raw(self) -> RawScores: ...


def describe(file: Described) -> str:
    """Return a description of a file's content, in one line.

    Args:
        file: a `ScoreFile` or `ScoreStream`.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", predictions=[[0.9, 0.1], [0.2, 0.8]], ground_truth=[0, 1])
    ...     describe(read_scores(f"{folder}/test.npz"))
    "2 × 2 probabilities from key 'predictions', labels from 'ground_truth'"
    """
    draws = f"{file.shape[0]:,} samples of " if len(file.shape) == 3 else ""
    kind = "logits" if file.kind == "logits" else "probabilities"
    labels = f"labels from {file.labels_from}" if file.labels_from else "no labels"
    layout, sizes = file.raw.layout, f"{file.shape[-2]:,} × {file.shape[-1]:,}"
    if layout is not None and layout.dense:
        sizes = " × ".join(f"{side:,}" for side in layout.shape[layout.row_axis :])
    elif layout is not None and layout.binary:
        sizes = f"{file.shape[-2]:,} binary"
    return f"{draws}{sizes} {kind} from {file.scores_from}, {labels}"
