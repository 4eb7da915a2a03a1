"""`Predictions`: what every method produces and every metric reads."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from avuc.core.arrays import as_tensor
from avuc.core.display import Displayed
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows
from avuc.core.tasks import IGNORE_INDEX, Rows, as_rows
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.predictions.display import facts, frame
from avuc.predictions.file_names import check_file_name
from avuc.predictions.rows import HasTransform, check_values, entropies, mean_softmax, refuse_probabilities, values_fit

FORMAT = "avuc.predictions.v1"


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Displayed):
    """Class probabilities with labels, averaged over posterior samples. Metrics take it, `avuc.predict` returns it.

    Tensors, arrays and lists are accepted and stored as tensors. Rows that contain NaN or negative numbers, or do not
    sum to 1, are refused. Dense and binary predictions are stored as rows, too, so everything that reads predictions
    works for them: `probs` is always (M, C) and `labels` (M).

    Args:
        probs: probabilities, the mean of the samples' softmax probabilities: (N, C); dense (N, C, *spatial); or binary,
            the probability of class 1, (N) or (N, 1).
        labels: class indices, (N) or (N, *spatial), int64; −1 for no label, for example for out-of-distribution images.
        expected_entropy: mean of the samples' entropies in nats, (N). Default None: the entropy of `probs`, which is
            right for one sample.
        samples: number of posterior samples in the mean (default 1).
        monte_carlo_error: typical distance of `probs` from the mean over infinitely many samples. Default None: not
            known.
        shape: of the labels as they were given: (N,), or (N, *spatial). Default None: found from `labels`.
        positions: flat indices of the rows into `shape`, (M). Default None: all rows, less those of `ignore_index`.
        class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1, as in torch;
            −1 for the (N, T, C) of language models.
        ignore_index: rows with this label are left out (default −100, as in torch); None: no row is.

    >>> p = Predictions.from_logits(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> p.predicted, p.correct
    (tensor([0, 1]), tensor([ True, False]))
    >>> Predictions([0.9, 0.2], [1, -100]).probs  # binary; the second row is ignored
    tensor([[0.1000, 0.9000]], dtype=torch.float64)
    """

    probs: Tensor
    labels: Tensor
    expected_entropy: Tensor = None  # type: ignore[assignment]  # filled in below, so that readers see a Tensor
    samples: int = 1
    monte_carlo_error: float | None = None
    shape: tuple[int, ...] = None  # type: ignore[assignment]
    positions: Tensor | None = None
    class_dim: InitVar[int | None] = None
    ignore_index: InitVar[int | None] = IGNORE_INDEX

    def __post_init__(self, class_dim: int | None, ignore_index: int | None) -> None:
        check_same_rows(self.probs, self.labels, ("probs", "labels"))
        probs = as_tensor(self.probs, "probs")
        if not probs.is_floating_point():
            description = f"{tuple(probs.shape)} {probs.dtype}"
            raise InputError(f"probs must be floating-point numbers of shape (N, C), found {description}")
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, found {self.samples}")
        if self.monte_carlo_error is not None and not 0 <= self.monte_carlo_error < math.inf:
            raise InputError(f"monte_carlo_error must be a number from 0 up, or None, found {self.monte_carlo_error}")
        labels, expected = self.labels, cast("Tensor | None", self.expected_entropy)
        if probs.ndim == 2 and probs.shape[1] > 1 and ignore_index is not None and ignore_index < -1:
            # the usual case waits for a GPU only once: the check of all values also finds ignored labels
            self._store(as_rows(probs, labels, kind="probs", class_dim=class_dim, ignore_index=None), expected)
            if values_fit(self.probs, self.labels, self.expected_entropy):
                return
        self._store(as_rows(probs, labels, kind="probs", class_dim=class_dim, ignore_index=ignore_index), expected)
        check_values(self.probs, self.labels, self.expected_entropy)

    def _store(self, rows: Rows, expected: Tensor | None) -> None:
        """Set all fields; the class is frozen, so this is the only way."""
        probs = rows.scores if rows.scores.dtype in (torch.float32, torch.float64) else rows.scores.float()
        object.__setattr__(self, "probs", probs)
        object.__setattr__(self, "labels", cast("Tensor", rows.labels).to(probs.device))
        if expected is None:
            if self.samples > 1:
                raise InputError("expected_entropy is needed for the mean of more than one sample; use from_samples")
            expected = entropies(probs)
        expected = as_tensor(expected, "expected_entropy")
        if expected.shape == rows.shape and (len(rows.shape) > 1 or rows.positions is not None):
            expected = expected.flatten()
            expected = expected if rows.positions is None else expected[rows.positions.to(expected.device)]
        if expected.shape != probs.shape[:1]:
            raise InputError(f"expected_entropy must have shape ({len(probs)},), found {tuple(expected.shape)}")
        object.__setattr__(self, "expected_entropy", expected.detach().to(probs.device, probs.dtype))
        self._store_positions(rows)

    def _store_positions(self, rows: Rows) -> None:
        """Store where each row comes from: the arguments `shape` and `positions`, or else those of the layout."""
        shape, positions = cast("tuple[int, ...] | None", self.shape), self.positions
        if shape is None or (len(shape) == 1 and positions is None):
            shape, positions = rows.shape, rows.positions
        else:
            shape = tuple(int(size) for size in shape)
            if positions is not None:
                positions = as_tensor(positions, "positions").to(torch.int64)
            kept = math.prod(shape) if positions is None else len(positions)
            if kept != len(rows.scores) or rows.positions is not None:
                raise InputError(
                    f"{len(rows.scores)} rows are not those of shape {shape}; leave shape and positions out"
                )
            if (
                positions is not None
                and kept
                and not 0 <= int(positions.min()) <= int(positions.max()) < math.prod(shape)
            ):
                raise InputError(f"positions must be indices into shape {shape}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "positions", None if positions is None else positions.to(rows.scores.device))

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.probs.shape[1]

    @cached_property
    def confidence(self) -> Tensor:
        """Largest probability of each row, (N)."""
        return self.probs.amax(1)

    @cached_property
    def predicted(self) -> Tensor:
        """Predicted class of each row, (N)."""
        return self.probs.argmax(1)

    @cached_property
    def correct(self) -> Tensor:
        """Whether the predicted class is the label, (N)."""
        return self.predicted == self.labels

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy −Σ p log p of each row, (N), in nats."""
        return entropies(self.probs)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy minus expected entropy, (N), not below 0; 0 for one sample."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def to_map(self, values: Any, fill: float = math.nan) -> Any:
        """Return one value for each row as a map of the shape of the labels, (N, *spatial) or (N, *spatial, K).

        Args:
            values: (M) or (M, K), such as `entropy`, `correct` or `probs`; the map of an array is an array.
            fill: for positions that were left out (default NaN). Whole numbers become float32 if NaN is needed.

        >>> p = Predictions.from_logits(torch.zeros(1, 3, 2, 2), torch.tensor([[[0, 1], [2, -100]]]))
        >>> p.to_map(p.correct, fill=-1)
        tensor([[[ 1,  0],
                 [ 0, -1]]])
        """
        each = as_tensor(values, "values")
        if each.ndim == 0 or len(each) != len(self):
            raise InputError(f"values must have one entry for each of {len(self)} rows, found {tuple(each.shape)}")
        if self.positions is not None:
            if not each.is_floating_point():
                each = each.to(torch.int64 if float(fill).is_integer() else torch.float32)
            out = each.new_full((math.prod(self.shape), *each.shape[1:]), fill)
            out[self.positions.to(each.device)] = each
            each = out
        placed = each.reshape(*self.shape, *each.shape[1:])
        return placed if isinstance(values, Tensor) else placed.numpy()

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        calibrator: HasTransform | None = None,
        check: bool = True,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Predictions:
        """Return the predictions of one network.

        Args:
            logits: (N, C); dense (N, C, *spatial); or binary, the logit of class 1, (N) or (N, 1).
            labels: class indices, (N) or (N, *spatial). Default None: no labels.
            calibrator: its `transform` is applied to the logits. Default None: no calibration.
            check: whether logits that look like probabilities are refused (default True).
            class_dim: dimension of the classes in `logits`. Default None: the last one for (N, C), else 1.
            ignore_index: rows with this label are left out (default −100); None: no row is.

        >>> Predictions.from_logits([[2.0, 0.0]]).probs
        tensor([[0.8808, 0.1192]], dtype=torch.float64)
        """
        rows = as_rows(logits, labels, kind="logits", class_dim=class_dim, ignore_index=ignore_index)
        return cls._of_rows(rows._replace(scores=rows.scores[None]), calibrator, check)

    @classmethod
    def from_samples(
        cls,
        sample_logits: Any,
        labels: Any = None,
        *,
        calibrator: HasTransform | None = None,
        check: bool = True,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Predictions:
        """Return the predictions of S posterior samples: p = (1/S) Σ_s softmax(z_s).

        Args:
            sample_logits: (S, N, C); dense (S, N, C, *spatial); or binary, (S, N) or (S, N, 1).
            labels: class indices, (N) or (N, *spatial). Default None: no labels.
            calibrator: its `transform` is applied to the logits of each sample, before the mean. Default None: no
                calibration.
            check: whether logits that look like probabilities are refused (default True).
            class_dim: dimension of the classes in `sample_logits`. Default None: the last one for (S, N, C), else 2.
            ignore_index: rows with this label are left out (default −100); None: no row is.

        >>> predictions = Predictions.from_samples(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]), [0])
        >>> predictions.samples, predictions.entropy, predictions.mutual_information
        (2, tensor([0.6931]), tensor([0.6919]))
        """
        rows = as_rows(sample_logits, labels, kind="logits", class_dim=class_dim, ignore_index=ignore_index, draws=True)
        return cls._of_rows(rows, calibrator, check)

    @classmethod
    def _of_rows(cls, rows: Rows, calibrator: HasTransform | None, check: bool) -> Predictions:
        """Return the predictions of logits (S, M, C)."""
        if check:
            refuse_probabilities(rows.scores)
        probs, expected = mean_softmax(rows.scores, calibrator)
        labels = torch.full((len(probs),), -1, device=probs.device) if rows.labels is None else rows.labels
        return cls(probs, labels, expected, len(rows.scores), None, rows.shape, rows.positions, ignore_index=None)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each prediction: label, predicted, confidence, entropy, correct.

        The index is the position in the flattened labels, if some were left out. A row without a label has the label
        −1, and NA in the column correct.

        >>> Predictions([[0.9, 0.1], [0.6, 0.4]], [0, 1]).to_frame()["correct"].tolist()
        [True, False]
        """
        return frame(self)

    def _facts(self) -> dict[str, Any]:
        return facts(self)

    def to(self, device: torch.device | str) -> Predictions:
        """Return the same predictions on another device."""
        probs, labels, expected = (tensor.to(device) for tensor in (self.probs, self.labels, self.expected_entropy))
        shape_and_positions = self.shape, None if self.positions is None else self.positions.to(device)
        return Predictions(
            probs, labels, expected, self.samples, self.monte_carlo_error, *shape_and_positions, ignore_index=None
        )

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, atomically; names of another format, such as p.npz, are refused.

        `avuc evaluate` reads it, too, if its name ends in .safetensors.
        """
        check_file_name(path)
        tensors = {"probs": self.probs, "labels": self.labels, "expected_entropy": self.expected_entropy}
        metadata = {"format": FORMAT, "samples": str(self.samples)}
        if self.monte_carlo_error is not None:
            metadata["monte_carlo_error"] = repr(float(self.monte_carlo_error))
        if len(self.shape) > 1 or self.positions is not None:
            metadata["shape"] = ",".join(map(str, self.shape))
        if self.positions is not None:
            tensors["positions"] = self.positions
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Predictions:
        """Return predictions from a file written by `save`."""
        tensors, metadata = read_tensors(path)
        samples = metadata.get("samples", "")
        if metadata.get("format") != FORMAT or not samples.isdecimal() or len(samples) > 9:
            raise InputError(f"{path}: not a file of Predictions (format {FORMAT}); Predictions.save writes one")
        missing = {"probs", "labels", "expected_entropy"} - set(tensors)
        if missing:
            raise InputError(f"{path}: tensor {min(missing)!r} is missing; Predictions.save writes a whole file")
        try:
            error = float(metadata["monte_carlo_error"]) if "monte_carlo_error" in metadata else None
            shape = tuple(map(int, metadata["shape"].split(","))) if "shape" in metadata else None
            return cls(
                tensors["probs"],
                tensors["labels"],
                tensors["expected_entropy"],
                int(samples),
                error,
                cast("tuple[int, ...]", shape),
                None if shape is None else tensors.get("positions"),
                ignore_index=None,
            )
        except ValueError as problem:  # an InputError is one
            raise InputError(f"{path}: {problem}") from problem
