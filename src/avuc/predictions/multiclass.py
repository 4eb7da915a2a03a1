"""`Predictions`: what every method produces and every metric reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from avuc import uncertainty
from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.probabilities import BOTH_COLUMNS, are_probs, check_probs, looks_like
from avuc.core.tensor_file import read_tensors, write_tensors

FORMAT = "avuc.predictions.v1"
# elements of one softmax block: bounds the working memory of from_samples
BLOCK = 1 << 22


class HasTransform(Protocol):
    """The part of a calibrator that is used here."""

    def transform(self, logits: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class probabilities with labels, averaged over posterior samples. Metrics take it, `avuc.predict` returns it.

    Tensors, arrays and lists are accepted and stored as tensors. Rows that contain NaN or negative numbers, or do not
    sum to 1, are refused.

    Args:
        probs: probabilities, (N, C), float32 or float64: the mean of the samples' softmax probabilities.
        labels: class indices, (N), int64; −1 for no label, for example for out-of-distribution images.
        expected_entropy: mean of the samples' entropies in nats, (N). Default None: the entropy of `probs`, which is
            right for one sample.
        samples: number of posterior samples in the mean (default 1).
        monte_carlo_error: typical distance of `probs` from the mean over infinitely many samples. Default None: not
            known.

    >>> p = Predictions.from_logits(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> p.predicted, p.correct
    (tensor([0, 1]), tensor([ True, False]))
    """

    probs: Tensor
    labels: Tensor
    expected_entropy: Tensor = None  # type: ignore[assignment]  # filled in below, so that readers see a Tensor
    samples: int = 1
    monte_carlo_error: float | None = None

    def __post_init__(self) -> None:
        probs = as_tensor(self.probs, "probs")
        if not probs.is_floating_point() or probs.ndim != 2 or probs.shape[1] == 0:
            found = f"{tuple(probs.shape)} {probs.dtype}"
            raise InputError(f"probs must be floating-point numbers of shape (N, C), found {found}")
        if probs.dtype not in (torch.float32, torch.float64):
            probs = probs.float()
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, found {self.samples}")
        if self.monte_carlo_error is not None and not 0 <= self.monte_carlo_error < math.inf:
            raise InputError(f"monte_carlo_error must be a number from 0 up, or None, found {self.monte_carlo_error}")
        # frozen: the only way to store the checked values
        object.__setattr__(self, "probs", probs.detach())
        object.__setattr__(self, "labels", _class_numbers(self.labels, probs))
        expected = cast("Tensor | None", self.expected_entropy)
        if expected is None:
            if self.samples > 1:
                raise InputError("expected_entropy is needed for the mean of more than one sample; use from_samples")
            expected = uncertainty.entropy(self.probs)
        expected = as_tensor(expected, "expected_entropy")
        if expected.shape != probs.shape[:1]:
            raise InputError(f"expected_entropy must have shape ({len(probs)},), found {tuple(expected.shape)}")
        object.__setattr__(self, "expected_entropy", expected.detach().to(probs.device, probs.dtype))
        _check_values(self.probs, self.labels, self.expected_entropy)

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
        return uncertainty.entropy(self.probs)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy minus expected entropy, (N), not below 0; 0 for one sample."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @classmethod
    def from_logits(
        cls, logits: Any, labels: Any = None, *, calibrator: HasTransform | None = None, check: bool = True
    ) -> Predictions:
        """Return the predictions of one network.

        Args:
            logits: (N, C).
            labels: class indices, (N). Default None: no labels.
            calibrator: its `transform` is applied to the logits. Default None: no calibration.
            check: whether logits that look like probabilities are refused (default True).

        >>> Predictions.from_logits([[2.0, 0.0]]).probs
        tensor([[0.8808, 0.1192]], dtype=torch.float64)
        """
        tensor = as_tensor(logits, "logits")
        if tensor.ndim != 2:
            raise InputError(
                f"logits must have shape (N, C), found {tuple(tensor.shape)}; from_samples takes (S, N, C)"
            )
        return cls.from_samples(tensor[None], labels, calibrator=calibrator, check=check)

    @classmethod
    def from_samples(
        cls, sample_logits: Any, labels: Any = None, *, calibrator: HasTransform | None = None, check: bool = True
    ) -> Predictions:
        """Return the predictions of S posterior samples: p = (1/S) Σ_s softmax(z_s).

        Args:
            sample_logits: (S, N, C).
            labels: class indices, (N). Default None: no labels.
            calibrator: its `transform` is applied to the logits of each sample, before the mean. Default None: no
                calibration.
            check: whether logits that look like probabilities are refused (default True).

        >>> predictions = Predictions.from_samples(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]), [0])
        >>> predictions.samples, predictions.entropy, predictions.mutual_information
        (2, tensor([0.6931]), tensor([0.6919]))
        """
        given = as_tensor(sample_logits, "logits")
        if given.ndim != 3 or 0 in (given.shape[0], given.shape[2]):
            raise InputError(f"logits of samples must have shape (S, N, C), found {tuple(given.shape)}")
        if not given.is_floating_point():
            raise InputError(f"logits must be floating-point, found {given.dtype}")
        looks = looks_like(given) if check else None
        if looks is not None:
            raise InputError(
                f"these logits look like {looks} (no row is negative, and each sums to "
                f"{'100' if looks == 'percentages' else '1'}): pass their logarithm, give probabilities (N, C) "
                "to Predictions(probs, labels), or pass check=False if these are logits"
            )
        samples, rows, classes = given.shape
        dtype = torch.float64 if given.dtype == torch.float64 else torch.float32
        probs = torch.zeros(rows, classes, dtype=dtype, device=given.device)
        expected = torch.zeros(rows, dtype=dtype, device=given.device)
        step = max(1, BLOCK // (samples * classes))
        for start in range(0, rows, step):
            some = slice(start, start + step)
            block = given[:, some].detach()
            if calibrator is not None:
                block = calibrator.transform(block)
            log_probs = block.to(dtype).log_softmax(-1)
            if not bool(log_probs.amax(-1).isfinite().all()):
                raise InputError(f"logits contain NaN or +infinity (rows {start}…{min(rows, start + step) - 1})")
            each = log_probs.exp()
            probs[some] = each.mean(0)
            # the clamp makes 0 log 0 = 0 instead of 0 · −inf = NaN
            expected[some] = -(each * log_probs.clamp(min=torch.finfo(dtype).min)).sum(-1).mean(0)
        if labels is None:
            labels = torch.full((rows,), -1, device=probs.device)
        return cls(probs, labels, expected, samples)

    def to(self, device: torch.device | str) -> Predictions:
        """Return the same predictions on another device."""
        probs, labels, expected = (tensor.to(device) for tensor in (self.probs, self.labels, self.expected_entropy))
        return Predictions(probs, labels, expected, self.samples, self.monte_carlo_error)

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, atomically. `avuc evaluate` reads it too."""
        tensors = {"probs": self.probs, "labels": self.labels, "expected_entropy": self.expected_entropy}
        metadata = {"format": FORMAT, "samples": str(self.samples)}
        if self.monte_carlo_error is not None:
            metadata["monte_carlo_error"] = repr(float(self.monte_carlo_error))
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
            return cls(tensors["probs"], tensors["labels"], tensors["expected_entropy"], int(samples), error)
        except ValueError as problem:  # an InputError is one
            raise InputError(f"{path}: {problem}") from problem


def _class_numbers(labels: Any, probs: Tensor) -> Tensor:
    """Return labels (N) or (N, 1) as int64 (N) on the device of the probabilities."""
    tensor = as_tensor(labels, "labels")
    if tensor.is_floating_point() or tensor.is_complex():
        raise InputError(f"labels must be class numbers, found {tensor.dtype}")
    if tensor.shape == (len(probs), 1):
        tensor = tensor[:, 0]
    if tensor.shape != probs.shape[:1]:
        raise InputError(f"labels must have shape ({len(probs)},), found {tuple(tensor.shape)}")
    return tensor.detach().to(probs.device, torch.int64)


def _check_values(probs: Tensor, labels: Tensor, expected: Tensor) -> None:
    """Raise `InputError` for labels out of range, rows that are not probabilities, and entropies that are not finite.

    The check of all three waits for a GPU only once.
    """
    if not len(labels):
        return
    low, high = labels.aminmax()
    in_range = (low >= -1) & (high < probs.shape[1])
    if bool(in_range & are_probs(probs) & expected.isfinite().all()):
        return
    if not bool(in_range):
        hint = f": {BOTH_COLUMNS}" if probs.shape[1] == 1 else ""
        raise InputError(
            f"labels must be in 0…{probs.shape[1] - 1}, or −1 for none, found {int(low)}…{int(high)}{hint}"
        )
    check_probs(probs)
    raise InputError("expected_entropy contains NaN or infinity; give one entropy in nats for each row, or None")
