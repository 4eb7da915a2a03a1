"""Checks of the logits and labels that are passed to a calibrator. Probabilities are refused, with the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from avuc.calibration.layouts import binary_logits_from_probs
from avuc.core.arrays import as_tensor, range_remedy
from avuc.core.errors import InputError
from avuc.core.probabilities import check_probs, looks_like
from avuc.core.tasks import REGRESSION
from avuc.metrics.statistics import NLL_FLOOR

# how to get logits from other kinds of scores
REMEDIES = {
    "probabilities": "logits_from_probs(probs)",
    "rounded probabilities": "logits_from_probs(probs / probs.sum(-1)[..., None])",
    "percentages": "logits_from_probs(percentages / 100)",
}
# elements that are calibrated at a time on the CPU; intermediate results, often float64, need a few times their memory
BLOCK_ELEMENTS = 1 << 18
KINDS = {"probabilities": "probs", "rounded probabilities": "probs", "percentages": "percent"}


def as_logits(logits: Any, *, peek: bool = True) -> Tensor:
    """Return logits as a float tensor (N, C) or (S, N, C), without a copy if possible.

    Args:
        logits: list, NumPy array or tensor; half precision becomes float32.
        peek: whether to refuse values that look like probabilities; on a GPU this waits for the values.
    """
    tensor = as_tensor(logits, "logits")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"logits must be real numbers; found {tensor.dtype}")
    if tensor.ndim not in (2, 3):
        raise InputError(
            f"logits must be (rows, classes) or (samples, rows, classes); found shape {tuple(tensor.shape)}"
        )
    if 0 in tensor.shape:
        raise InputError(f"logits are empty: shape {tuple(tensor.shape)}; at least one sample, row and class is needed")
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64 if tensor.dtype in (torch.int32, torch.int64) else torch.float32)
    looks = looks_like(tensor) if peek else None
    if looks is not None:
        total = 100 if looks == "percentages" else 1
        raise InputError(
            f"these look like {looks} (every row is non-negative and sums to {total}), and a temperature acts on "
            f"logits; pass avuc.calibration.{REMEDIES[looks]}, or --kind {KINDS[looks]} to the command"
        )
    return tensor


def as_labels(labels: Any, logits: Tensor) -> Tensor:
    """Return class numbers (N,) as int64 on the device of the logits (checked against their rows and classes)."""
    tensor = as_tensor(labels, "labels")
    rows, classes = logits.shape[-2:]
    if tensor.shape == (rows, 1):
        tensor = tensor[:, 0]
    if tensor.ndim != 1 or len(tensor) != rows:
        hint = ""
        if logits.ndim == 3 and tensor.ndim == 1 and len(tensor) == len(logits):
            remedy = "logits[..., 0]" if classes == 1 else "logits.swapaxes(0, 1)"
            hint = f" (logits {tuple(logits.shape)} are read as (samples, rows, classes): pass {remedy})"
        raise InputError(
            f"labels must be one class number for each of {rows} rows; found shape {tuple(tensor.shape)}{hint}"
        )
    whole = tensor.to(logits.device).to(torch.int64)
    if tensor.is_floating_point() and not torch.equal(whole.to(tensor.dtype), tensor.to(logits.device)):
        raise InputError(f"labels must be whole class numbers; found fractions or NaN: {REGRESSION}")
    low, high = int(whole.min()), int(whole.max())
    if low < 0 or high >= classes:
        remedy = range_remedy(low, high, classes)
        raise InputError(f"labels must be 0 … {classes - 1} for {classes} classes; found {low} … {high}{remedy}")
    return whole


def as_weights(sample_weight: Any, rows: int) -> Tensor:
    """Return the weights of the rows (N,) in float64; they must be finite, not negative and not all 0."""
    weight = as_tensor(sample_weight, "sample_weight").detach().double()
    if weight.shape != (rows,):
        raise InputError(f"sample_weight must be one number for each of {rows} rows; found {tuple(weight.shape)}")
    if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()) or not bool((weight > 0).any()):
        raise InputError("sample_weight must be finite, not negative and not all 0")
    return weight


def logits_from_probs(probs: Any) -> Any:
    """Return logits log max(p, 1e-12) of probabilities, of the same type (array or tensor).

    `avuc.metrics.nll` has the same floor of 1e-12, so a fit on these logits minimises the NLL that is reported. Without
    a floor, one row that gives its true class a probability of 0 would determine the temperature alone.

    For binary probabilities p of class 1, these are log p − log (1 − p).

    Args:
        probs: (N, C) or (S, N, C) probabilities; each row must sum to 1 within 0.01. Or binary, (N,) or (N, 1).

    >>> logits_from_probs(torch.tensor([[0.25, 0.75]]))
    tensor([[-1.3863, -0.2877]])
    >>> logits_from_probs(torch.tensor([0.75]))
    tensor([1.0986])
    """
    tensor = as_tensor(probs, "probs")
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    wide = tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
    if wide.ndim == 1 or (wide.ndim > 1 and wide.shape[-1] == 1):
        log_odds = binary_logits_from_probs(wide, NLL_FLOOR)
        return log_odds if isinstance(probs, Tensor) else log_odds.numpy()
    if wide.ndim == 0 or wide.shape[-1] == 0:
        raise InputError(f"probs must have shape (N, C) or (S, N, C); found {tuple(wide.shape)}")
    try:
        check_probs(wide.reshape(-1, wide.shape[-1]))
    except InputError as error:
        raise InputError(f"each row of probs must sum to 1 and not be negative; {error}") from error
    logits = in_blocks(lambda block: block.double().clamp(min=NLL_FLOOR).log().to(wide.dtype), wide)
    return logits if isinstance(probs, Tensor) else logits.numpy()


def in_blocks(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Return function(scores) for a function of each row (..., N, C) that keeps shape and type.

    On the CPU, blocks of rows are computed one after the other: memory for intermediate results does not grow with N.
    """
    rows = scores.shape[-2]
    step = max(1, BLOCK_ELEMENTS * rows // max(1, scores.numel()))
    if scores.is_cuda or step >= rows or (scores.requires_grad and torch.is_grad_enabled()):
        return function(scores)
    result = torch.empty_like(scores)
    for start in range(0, rows, step):
        size = min(step, rows - start)
        result.narrow(-2, start, size).copy_(function(scores.narrow(-2, start, size)))
    return result


def without_overflow(scaled: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return `scaled` = logits / temperature, with rows that overflow shifted so that their largest logit is 0."""
    lost = (scaled.isinf() & logits.isfinite()).any(dim=-1, keepdim=True)
    if not lost.is_cuda and not bool(lost.any()):
        return scaled
    below = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    below = below.clamp(min=torch.finfo(logits.dtype).min).masked_fill(torch.isneginf(logits), -math.inf)
    return torch.where(lost, below, scaled)


def are_numbers(*values: Any) -> bool:
    """Return whether all values are finite real numbers; True and False are not."""
    try:
        return all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    except OverflowError:  # a whole number that no float can hold
        return False


def refuse_not_logits(logits: Tensor) -> None:
    """Raise InputError for NaN, +inf, and rows whose logits (..., N, C) are all −inf."""
    if bool(torch.isfinite(logits.amax(dim=-1)).all()):
        return
    for name, bad in (("NaN", logits.isnan()), ("+inf", torch.isposinf(logits))):
        rows = bad.any(dim=-1).reshape(-1, logits.shape[-2]).any(dim=0)
        if bool(rows.any()):
            first, many = int(rows.nonzero()[0]), int(rows.sum())
            raise InputError(f"logits contain {name} in {many} of {len(rows)} rows (first: row {first}); remove them")
    first = int(torch.isneginf(logits).all(dim=-1).reshape(-1, logits.shape[-2]).any(dim=0).nonzero()[0])
    raise InputError(f"every class of row {first} has a logit of −inf, so no class is possible; remove the row")
