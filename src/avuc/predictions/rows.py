"""Rows of logits and probabilities: the mean of softmaxes, and the checks of values."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from avuc.core.arrays import range_remedy
from avuc.core.errors import InputError
from avuc.core.probabilities import are_probs, check_probs, looks_like
from avuc.uncertainty import entropy

# elements of one block: bounds the working memory; smaller on a CPU, whose cache is fast
BLOCK, CPU_BLOCK = 1 << 22, 1 << 20
# one number for each row is taken for a probability, not a logit, if at least this many rows are all from 0 to 1
MANY_ROWS = 16


class HasTransform(Protocol):
    """The part of a calibrator that is used here."""

    def transform(self, logits: Tensor) -> Tensor: ...


def check_calibrator_kind(calibrator: Any, *, multilabel: bool) -> None:
    """Raise `InputError` if a calibrator of classes is given for independent labels, or the other way round.

    Its shapes can fit, but its temperatures were learned for another kind of probabilities.
    """
    kind = getattr(calibrator, "multilabel", None)  # None: not a calibrator of this package
    if kind is not None and kind is not multilabel:
        wanted = "needs a MultiLabelCalibrator" if multilabel else "cannot use one"
        calibrator_name = type(calibrator).__name__
        raise InputError(
            f"{calibrator_name} is for {'several independent labels' if kind else 'classes of which one is right'}; "
            f"a {'multi-label' if multilabel else 'multiclass or binary'} model {wanted}"
        )


def mean_softmax(logits: Tensor, calibrator: HasTransform | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean over samples of the softmax, (M, C), and of its entropy, (M).

    Args:
        logits: (S, M, C).
        calibrator: its `transform` is applied to the logits of each sample, before the mean.

    >>> mean_softmax(torch.zeros(3, 1, 2))
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]))
    """
    check_calibrator_kind(calibrator, multilabel=False)
    samples, rows, classes = logits.shape
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    probs = torch.empty(rows, classes, dtype=dtype, device=logits.device)
    expected = torch.empty(rows, dtype=dtype, device=logits.device)
    step = _step(logits, samples * classes)
    for start in range(0, rows, step):
        some = slice(start, start + step)
        block = logits[:, some].detach()
        if calibrator is not None:
            block = calibrator.transform(block)
        log_probs = block.to(dtype).log_softmax(-1)
        each = log_probs.exp()
        probs[some] = each[0] if samples == 1 else each.mean(0)
        # the clamp makes 0 log 0 = 0 instead of 0 · −inf = NaN; in place, because memory access takes most of the time
        expected[some] = -log_probs.clamp_(min=torch.finfo(dtype).min).mul_(each).sum(-1).mean(0)
        if not bool(expected[some].isfinite().all()):
            raise InputError(f"logits contain NaN or +infinity (rows {start}…{min(rows, start + step) - 1})")
    return probs, expected


def entropies(probs: Tensor) -> Tensor:
    """Return the entropy of each row of probabilities (M, C)."""
    step = _step(probs, probs.shape[1])
    return entropy(probs) if step >= len(probs) else torch.cat([entropy(block) for block in probs.split(step)])


def _step(values: Tensor, width: int) -> int:
    """Return the number of rows of a block."""
    return max(1, (CPU_BLOCK if values.device.type == "cpu" else BLOCK) // max(width, 1))


def refuse_probabilities(logits: Tensor, remedy: str = "") -> None:
    """Raise `InputError` if logits (S, M, C) look like probabilities, or are not floating-point.

    Args:
        logits: what was given.
        remedy: the end of the message, where that of `Predictions` is not possible.
    """
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating-point, found {logits.dtype}")
    looks = looks_like(logits)
    if looks is not None:
        raise InputError(
            f"these logits look like {looks} (no row is negative, and each sums to "
            f"{'100' if looks == 'percentages' else '1'}): "
            + (
                remedy
                or "pass their logarithm, give probabilities (N, C) to Predictions(probs, labels), or pass check=False "
                "if these are logits"
            )
        )
    if logits.shape[-1] == 2 and binary_probabilities(logits):
        raise InputError(
            "these binary logits look like probabilities (all of them are from 0 to 1): "
            + (
                remedy
                or "pass log(p / (1 − p)), give probabilities (N,) to Predictions(probs, labels), or pass check=False "
                "if these are logits"
            )
        )


def binary_probabilities(rows: Tensor) -> bool:
    """Return whether z looks like a probability in rows [0, z] (..., 2) that were built from one logit each."""
    if rows.shape[-2] < MANY_ROWS or bool((rows[..., 0] != 0).any()):
        return False
    low, high = rows[..., 1].aminmax()
    return bool((low >= 0) & (high <= 1))


def values_fit(probs: Tensor, labels: Tensor, expected: Tensor) -> bool:
    """Return whether labels are in range, rows are probabilities and entropies finite; waits for a GPU only once."""
    if not len(labels):
        return True
    low, high = labels.aminmax()
    in_range = (low >= -1) & (high < probs.shape[1])
    return bool(in_range & are_probs(probs) & expected.isfinite().all())


def check_values(probs: Tensor, labels: Tensor, expected: Tensor) -> None:
    """Raise `InputError` for labels out of range, rows that are not probabilities, or entropies that are not finite."""
    if values_fit(probs, labels, expected):
        return
    low, high = labels.aminmax()
    if low < -1 or high >= probs.shape[1]:
        remedy = range_remedy(int(low), int(high), probs.shape[1])
        raise InputError(
            f"labels must be in 0…{probs.shape[1] - 1}, or −1 for none, found {int(low)}…{int(high)}{remedy}"
        )
    check_probs(probs)
    raise InputError("expected_entropy contains NaN or infinity; give one entropy in nats for each row, or None")
