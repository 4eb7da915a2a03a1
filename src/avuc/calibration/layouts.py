"""Converts every layout that calibrators accept: to rows for `fit`, and to classes last and back for `transform`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.frames import check_all_rows, check_same_rows
from avuc.core.row_groups import Array, images_or_groups
from avuc.core.tasks import as_rows, binary_rows, not_ignored
from avuc.predictions.rows import binary_probabilities


class FitRows(NamedTuple):
    """Logits (M, C) or (S, M, C), labels (M,) and weights (M,) or None; inputs that are rows already stay unchanged."""

    logits: Any
    labels: Any
    weights: Any


def fit_rows(
    logits: Any, labels: Any, sample_weight: Any, *, class_dim: int | None, ignore_index: int | None
) -> FitRows:
    """Return logits and labels of any layout as rows; rows whose label is `ignore_index` are left out.

    Values are checked later. Scores have draws in front if they have two dimensions more than the labels.
    """
    check_same_rows(logits, labels, ("logits", "labels"))
    check_all_rows(sample_weight, "sample_weight", logits=logits, labels=labels)
    tensor, targets = as_tensor(logits, "logits"), as_tensor(labels, "labels")
    plain = tensor.ndim in (2, 3) and tensor.shape[-1] != 1 and class_dim in (None, -1, tensor.ndim - 1)
    if plain and (targets.ndim == 1 or targets.shape == (tensor.shape[-2], 1)):
        class_numbers = targets.reshape(-1)
        given = ignore_index is not None and len(class_numbers) == tensor.shape[-2]
        keep = not_ignored(class_numbers, ignore_index) if given else None
        if keep is None or bool(keep.all()):
            return FitRows(logits, labels, sample_weight)
        rows, kept = tensor[..., keep.to(tensor.device), :], class_numbers[keep]
        positions: Tensor | None = keep.nonzero()[:, 0]
    elif (
        tensor.ndim == 0
        or tensor.numel() == 0
        or (tensor.ndim == 3 and targets.shape == tensor.shape[:1] != tensor.shape[1:2])
    ):
        return FitRows(logits, labels, sample_weight)  # refused later
    else:
        flat = as_rows(tensor, targets, kind="logits", class_dim=class_dim, ignore_index=ignore_index, draws=None)
        assert flat.labels is not None
        rows, kept, positions = flat.scores, flat.labels, flat.positions
        refuse_binary_probabilities(rows)
    if not len(kept):
        raise InputError(f"every label is ignore_index ({ignore_index}), so there is nothing to fit on")
    if sample_weight is None:
        return FitRows(rows, kept, None)
    weights = as_tensor(sample_weight, "sample_weight")
    if weights.shape != targets.shape:
        raise InputError(
            f"sample_weight must have the shape of the labels, {tuple(targets.shape)}; found {tuple(weights.shape)}"
        )
    weights = weights.flatten()
    return FitRows(rows, kept, weights if positions is None else weights[positions.to(weights.device)])


def fit_groups(
    logits: Any, labels: Any, groups: Any, *, class_dim: int | None, ignore_index: int | None
) -> Array | None:
    """Return `images_or_groups` of the rows of `fit_rows`, (M,); None if rows are independent.

    Args:
        logits, labels, class_dim, ignore_index: as for `fit_rows`.
        groups: one name or number for each row or image, (N,), or for each label. None: of dense labels, those of one
            image are a group.
    """
    check_all_rows(groups, "groups", logits=logits, labels=labels)
    targets = as_tensor(labels, "labels")
    # with the positions passed as weights, `fit_rows` returns the positions of the rows that it keeps
    every = torch.arange(targets.numel(), device="cpu").reshape(targets.shape)
    flat = fit_rows(logits, labels, every, class_dim=class_dim, ignore_index=ignore_index)
    kept = as_tensor(flat.weights, "groups").flatten()
    return images_or_groups(tuple(targets.shape), kept, len(kept), groups)


def refuse_binary_probabilities(rows: Tensor) -> None:
    """Raise `InputError` if rows (..., M, 2), each built from one logit, look like they came from probabilities."""
    if rows.shape[-1] == 2 and binary_probabilities(rows):
        raise InputError(
            "these look like probabilities of the positive class (all of them are from 0 to 1), and a temperature acts "
            "on logits; pass avuc.calibration.logits_from_probs(probs)"
        )


class ClassesLast(NamedTuple):
    """Logits with the classes in the last dimension, and what is needed to restore their original layout.

    logits  (..., C)
    axis    the dimension of the classes; None: there was none, one number for each row
    binary  whether there was one number for two classes
    """

    logits: Tensor
    axis: int | None
    binary: bool

    @classmethod
    def of(cls, logits: Tensor, classes: int, class_dim: int | None, who: str) -> ClassesLast:
        """Return logits of any layout with their classes last.

        Args:
            logits: by default the classes are in the last of up to three dimensions, and in dimension 1 of more.
                One dimension is binary, and so is a single column if there are two classes.
            classes: number of classes of the calibrator.
            class_dim: the dimension of the classes; None: as above.
            who: what error messages call the calibrator.
        """
        dimensions = logits.ndim
        if dimensions == 1 and classes == 2 and class_dim is None:
            return cls(binary_rows(logits, "logits"), None, True)
        axis = (dimensions - 1 if dimensions <= 3 else 1) if class_dim is None else class_dim
        if dimensions < 2 or not isinstance(axis, int) or not -dimensions <= axis < dimensions:
            description = f"shape {tuple(logits.shape)}" + ("" if class_dim is None else f" with class_dim={class_dim}")
            raise InputError(
                f"{who} was fitted on {classes} classes and takes logits (N, {classes}), ({classes} in dimension "
                f"class_dim){' or binary (N,)' if classes == 2 else ''}; found {description}"
            )
        size = logits.shape[axis]
        if size == classes:
            return cls(logits.movedim(axis, -1), axis, False)
        if size == 1 and classes == 2:
            return cls(binary_rows(logits.squeeze(axis), "logits"), axis, True)
        fits = [dimension for dimension, length in enumerate(logits.shape) if length == classes]
        where = f"in dimension {axis % dimensions} of {tuple(logits.shape)}"
        remedy = f"; give class_dim={fits[-1] if fits[-1] < dimensions - 1 else -1}" if fits else ""
        raise InputError(f"{who} was fitted on {classes} classes; found {size} {where} (class_dim={class_dim}){remedy}")

    def back(self, calibrated: Tensor) -> Tensor:
        """Return calibrated logits (..., C) in the layout of the original ones."""
        if self.binary:
            # softmax([a, b])[1] = sigmoid(b − a)
            log_odds = calibrated[..., 1] - calibrated[..., 0]
            return log_odds if self.axis is None else log_odds.unsqueeze(self.axis)
        assert self.axis is not None
        return calibrated.movedim(-1, self.axis)


def binary_logits_from_probs(probs: Tensor, floor: float) -> Tensor:
    """Return log p − log (1 − p) of the probability p of class 1, with both at least `floor`."""
    both = binary_rows(probs, "probs").double().clamp(min=floor).log()
    return (both[..., 1] - both[..., 0]).to(torch.float64 if probs.dtype == torch.float64 else torch.float32)
