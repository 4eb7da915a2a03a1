"""Predictions: what every method yields and every metric reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from avuc import uncertainty
from avuc.errors import InputError
from avuc.tensorfile import read_tensors, write_tensors

__all__ = ["Predictions"]

FORMAT = "avuc.predictions.v1"
# elements of one softmax block: bounds the working memory of from_samples
BLOCK = 1 << 22


class HasTransform(Protocol):
    """What is used of a calibrator here."""

    def transform(self, logits: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class probabilities with labels: the mean over draws, and what the draws said about their disagreement.

    probs             (N, C) float32 or float64, on any device; the mean of the draws' softmaxes
    labels            (N) int64; −1 where there is none (out-of-distribution rows): only entropies have a meaning then
    expected_entropy  (N) mean of the draws' entropies; equal to the entropy when there is one draw
    samples           how many draws were averaged
    monte_carlo_error how far that average is from one of infinitely many draws; None where it is not known

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
        probs = self.probs
        if not isinstance(probs, Tensor) or not probs.is_floating_point() or probs.ndim != 2 or probs.shape[1] == 0:
            found = f"{tuple(probs.shape)} {probs.dtype}" if isinstance(probs, Tensor) else type(probs).__name__
            raise InputError(f"probs must be a floating-point tensor of shape (N, C), found {found}")
        if probs.dtype not in (torch.float32, torch.float64):
            probs = probs.float()
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, found {self.samples}")
        if self.monte_carlo_error is not None and not 0 <= self.monte_carlo_error < math.inf:
            raise InputError(f"monte_carlo_error must be a number from 0 up, or None, found {self.monte_carlo_error}")
        # frozen: the only way to store the checked values
        object.__setattr__(self, "probs", probs.detach())
        object.__setattr__(self, "labels", _checked_labels(self.labels, probs))
        expected = cast("Tensor | None", self.expected_entropy)
        if expected is None:
            if self.samples > 1:
                raise InputError("expected_entropy is needed when more than one draw was averaged; use from_samples")
            expected = uncertainty.entropy(self.probs)
        if expected.shape != probs.shape[:1]:
            raise InputError(f"expected_entropy must have shape ({len(probs)},), found {tuple(expected.shape)}")
        object.__setattr__(self, "expected_entropy", expected.detach().to(probs.device, probs.dtype))

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def num_classes(self) -> int:
        return self.probs.shape[1]

    @cached_property
    def confidence(self) -> Tensor:
        return self.probs.amax(1)

    @cached_property
    def predicted(self) -> Tensor:
        return self.probs.argmax(1)

    @cached_property
    def correct(self) -> Tensor:
        return self.predicted == self.labels

    @cached_property
    def entropy(self) -> Tensor:
        """−Σ p log p of the mean prediction, in nats."""
        return uncertainty.entropy(self.probs)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy less expected entropy, cut at 0; all 0 for one draw."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @classmethod
    def from_logits(
        cls, logits: Tensor, labels: Tensor | None = None, *, calibrator: HasTransform | None = None
    ) -> Predictions:
        """From (N, C) logits of one network; `labels=None` marks rows without labels."""
        if logits.ndim != 2:
            raise InputError(f"logits must have shape (N, C), found {tuple(logits.shape)}; draws go to from_samples")
        return cls.from_samples(logits[None], labels, calibrator=calibrator)

    @classmethod
    def from_samples(
        cls, sample_logits: Tensor, labels: Tensor | None = None, *, calibrator: HasTransform | None = None
    ) -> Predictions:
        """From (S, N, C) logits of S draws. The calibrator acts on every draw's logits before their softmaxes are
        averaged: calibrating the average instead is another model.
        """
        if sample_logits.ndim != 3 or 0 in (sample_logits.shape[0], sample_logits.shape[2]):
            raise InputError(f"draws' logits must have shape (S, N, C), found {tuple(sample_logits.shape)}")
        if not sample_logits.is_floating_point():
            raise InputError(f"logits must be floating-point, found {sample_logits.dtype}")
        draws, rows, classes = sample_logits.shape
        dtype = torch.float64 if sample_logits.dtype == torch.float64 else torch.float32
        probs = torch.zeros(rows, classes, dtype=dtype, device=sample_logits.device)
        expected = torch.zeros(rows, dtype=dtype, device=sample_logits.device)
        step = max(1, BLOCK // (draws * classes))
        for start in range(0, rows, step):
            some = slice(start, start + step)
            block = sample_logits[:, some].detach()
            if calibrator is not None:
                block = calibrator.transform(block)
            log_probs = block.to(dtype).log_softmax(-1)
            if not bool(log_probs.amax(-1).isfinite().all()):
                raise InputError(f"logits contain NaN or +infinity (rows {start}…{min(rows, start + step) - 1})")
            each = log_probs.exp()
            probs[some] = each.mean(0)
            # a class of probability 0 has log −inf; 0 · −inf is the 0 that 0 log 0 means
            expected[some] = -(each * log_probs.clamp(min=torch.finfo(dtype).min)).sum(-1).mean(0)
        if labels is None:
            labels = torch.full((rows,), -1, device=probs.device)
        return cls(probs, labels, expected, draws)

    def to(self, device: torch.device | str) -> Predictions:
        """The same predictions on another device."""
        probs, labels, expected = (tensor.to(device) for tensor in (self.probs, self.labels, self.expected_entropy))
        return Predictions(probs, labels, expected, self.samples, self.monte_carlo_error)

    def save(self, path: str | Path) -> None:
        """One file in the safetensors layout: readable by anyone, carries no code, appears whole or not at all."""
        tensors = {"probs": self.probs, "labels": self.labels, "expected_entropy": self.expected_entropy}
        metadata = {"format": FORMAT, "samples": str(self.samples)}
        if self.monte_carlo_error is not None:
            metadata["monte_carlo_error"] = repr(float(self.monte_carlo_error))
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Predictions:
        """Read what `save` wrote."""
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


def _checked_labels(labels: Tensor, probs: Tensor) -> Tensor:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        found = str(labels.dtype) if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels must be a tensor of class numbers, found {found}")
    if labels.shape != probs.shape[:1]:
        raise InputError(f"labels must have shape ({len(probs)},), found {tuple(labels.shape)}")
    labels = labels.detach().to(probs.device, torch.int64)
    if len(labels) and not bool((labels.min() >= -1) & (labels.max() < probs.shape[1])):
        raise InputError(
            f"labels must be in 0…{probs.shape[1] - 1}, or −1 for none, found {int(labels.min())}…{int(labels.max())}"
        )
    return labels
