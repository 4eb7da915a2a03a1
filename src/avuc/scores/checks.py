"""What scores and labels must be, whatever file they came from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from avuc.scores.names import Found, refuse

__all__ = ["check_labels", "check_scores", "settle_kind"]

# rows of probabilities that were rounded when they were saved still count as probabilities
SUM_TOLERANCE = 1e-2
SUM_NOTE = 1e-4
NEGATIVE_TOLERANCE = 1e-6


def check_scores(path: Path, found: Found) -> tuple[Tensor, torch.dtype]:
    """The scores in float32, and the type a rewrite gives them back in."""
    scores = torch.as_tensor(found.scores)
    dtype = scores.dtype if scores.is_floating_point() else torch.float32
    shape = tuple(scores.shape)
    if scores.dtype == torch.bool or scores.is_complex():
        raise refuse(path, f"{found.scores_from} holds {scores.dtype}, not scores", "save logits or probabilities")
    if scores.ndim not in (2, 3):
        remedy = (
            "save one column per class; for a binary model stack [1 − p, p]"
            if scores.ndim < 2
            else "save (N, C), or (S, N, C) for Monte Carlo draws"
        )
        raise refuse(path, f"{found.scores_from} has shape {shape}, expected (N, C) or (S, N, C)", remedy)
    if 0 in shape:
        raise refuse(path, f"{found.scores_from} is empty: shape {shape}", "save at least one row")
    if shape[-1] < 2:
        raise refuse(
            path,
            f"{found.scores_from} has one column: shape {shape}",
            "for a binary model save both columns [1 − p, p]",
        )
    scores = scores.to(torch.float32).contiguous()
    finite = torch.isfinite(scores)
    if not bool(finite.all()):
        place = (~finite).nonzero()[0].tolist()
        value = float(scores[tuple(place)])
        many = int((~finite).sum())
        raise refuse(
            path,
            f"{found.scores_from} holds {value} at row {place[-2]}, class {place[-1]} ({many:,} such values)",
            "drop these rows or repair the model; every score must be a finite float32 number",
        )
    return scores, dtype


def settle_kind(path: Path, found: Found, scores: Tensor, kind: str) -> tuple[str, Tensor, list[str]]:
    """Logits or probabilities: as asked, else by name, else by the values."""
    sums = scores.sum(-1, dtype=torch.float64)
    off = (sums - 1).abs()
    worst = float(off.max())
    negative = float(scores.min())
    looks = negative >= -NEGATIVE_TOLERANCE and worst <= SUM_TOLERANCE
    named = found.name if found.name in ("logits", "probs") else None
    notes: list[str] = []
    if kind == "auto":
        kind = named or ("probs" if looks else "logits")
        if kind == "logits" and looks:
            notes.append("named 'logits', but every row sums to 1: if these are probabilities, pass --kind probs")
    if kind == "logits":
        return kind, scores, notes
    remedy = "pass --kind logits if these are logits, else save softmax outputs"
    if not looks:
        row = int((off if worst > SUM_TOLERANCE else -scores.amin(-1)).argmax()) % scores.shape[-2]
        problem = (
            f"row {row} sums to {float(sums.reshape(-1, scores.shape[-2])[:, row].max()):.6g}, not 1"
            if worst > SUM_TOLERANCE
            else f"row {row} holds a negative probability, {negative:.3g}"
        )
        raise refuse(path, f"{found.scores_from} should hold probabilities, but {problem}", remedy)
    if worst > SUM_NOTE:
        notes.append(f"rows sum to 1 only within {worst:.1g}; each was divided by its sum")
    scores = scores.clamp_min(0)
    return "probs", scores / scores.sum(-1, keepdim=True), notes


def check_labels(path: Path, found: Found, scores: Tensor) -> Tensor:
    labels, where = torch.as_tensor(found.labels), f"labels from {found.labels_from}"
    rows, classes = scores.shape[-2:]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        remedy = "save class numbers, for example one_hot.argmax(1)" if labels.ndim == 2 else "save one label per row"
        raise refuse(path, f"{where} have shape {tuple(labels.shape)}, expected ({rows},)", remedy)
    if len(labels) != rows:
        swapped = scores.ndim == 3 and len(labels) == scores.shape[0]
        raise refuse(
            path,
            f"{rows:,} rows of scores but {len(labels):,} {where}",
            "put the draws first: scores.transpose(1, 0, 2)" if swapped else "save one label per row",
        )
    if labels.dtype == torch.bool or labels.is_complex():
        raise refuse(path, f"{where} are {labels.dtype}", "save whole class numbers 0 … C−1")
    exact = labels.to(torch.float64)
    if not bool(torch.isfinite(exact).all()) or not bool((exact == exact.floor()).all()):
        row = int((~torch.isfinite(exact) | (exact != exact.floor())).nonzero()[0])
        raise refuse(path, f"{where} are not whole: {float(exact[row]):g} at row {row}", "save class numbers 0 … C−1")
    if float(exact.min()) < 0 or float(exact.max()) >= classes:
        row = int(((exact < 0) | (exact >= classes)).nonzero()[0])
        hint = (
            "subtract 1: classes count from 0"
            if float(exact.min()) == 1 and float(exact.max()) == classes
            else (f"{classes} score columns allow 0 … {classes - 1}")
        )
        raise refuse(path, f"{where} are out of range: {int(exact[row])} at row {row}", hint)
    return labels.to(torch.int64)
