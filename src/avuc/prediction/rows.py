"""Logits of any layout as rows (M, C): one for each example, position or decision that has not been left out."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX, Rows, as_rows, binary_rows, multilabel_rows, not_ignored, whole_labels
from avuc.prediction.inputs import Batch
from avuc.prediction.task import Task

Shape = tuple[int, ...]


class BatchRows(NamedTuple):
    """Which rows a batch has.

    Attributes:
        labels: (M,), or None.
        shape: (n, *spatial).
        positions: flat indices into `shape` of the rows that are kept; None: all of them.
        on_device: the same on the device of the logits.
        axis: the dimension of the classes in (S, n, …); None: there is none.
        binary: whether there is one number for each row.
        logits_shape: shape of the logits of a sample, (n, …).
    """

    labels: Tensor | None
    shape: Shape
    positions: Tensor | None
    on_device: Tensor | None
    axis: int | None
    binary: bool
    logits_shape: Shape


class RowLayout:
    """The rows of each batch of a dataset, found from the logits of the first sample.

    Args:
        labels: of the whole dataset, or None.
        task: how logits and labels are laid out.
    """

    def __init__(self, labels: Tensor | None, task: Task) -> None:
        self.task: Task = task
        self._labels = labels
        self._known: dict[int, BatchRows] = {}
        self._ends: list[int] = []  # number of rows up to the end of each batch
        self._one_label_each = labels is not None and labels.ndim == 1

    def rows(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the logits (S, n, …) of a batch as rows (S, M, C)."""
        if self._one_label_each and logits.ndim > 3 and math.prod(logits.shape[3:]) == 1:
            logits = logits.flatten(2)  # (N, C, 1, 1)
        known = self._known.get(batch.number)
        if known is None:
            known = self._known[batch.number] = self._find(logits, batch)
            count = math.prod(known.shape) if known.positions is None else len(known.positions)
            self._ends.append(count + (self._ends[-1] if self._ends else 0))
        elif tuple(logits.shape[1:]) != known.logits_shape:
            raise InputError(
                f"all samples must return logits of one shape, found {known.logits_shape} and "
                f"{tuple(logits.shape[1:])}; the members of an ensemble need the same classes"
            )
        if logits.ndim == 3 and known.on_device is None and not known.binary:
            return logits
        if self.multilabel:
            return logits
        if known.axis is not None:
            logits = logits.squeeze(known.axis) if known.binary else logits.movedim(known.axis, -1)
        flat = logits.flatten(1, len(known.shape))
        if known.on_device is not None:
            flat = flat.index_select(1, known.on_device)
        return binary_rows(flat, "logits") if known.binary else flat

    def row_range(self, batch: Batch) -> slice:
        """Return the range of the dataset's rows that a batch has; batches come in order."""
        return slice(self._ends[batch.number - 1] if batch.number else 0, self._ends[batch.number])

    def total(self, examples: int) -> int:
        """Return the number of rows of the whole dataset, after the first batch."""
        if self.multilabel:
            return examples
        if self._labels is None:
            return examples * math.prod(self._known[0].shape[1:])
        return int(not_ignored(self._labels, self.task.ignore_index).sum())

    @property
    def multilabel(self) -> bool:
        """Whether each column of the logits is a separate decision; all are kept, also those without a label."""
        return self.task.name == "multilabel"

    @property
    def labels(self) -> Tensor | None:
        """The labels of all rows, (M,); of a multi-label model (M, L)."""
        parts = [known.labels for known in self._parts() if known.labels is not None]
        return torch.cat(parts) if parts else None

    @property
    def shape(self) -> Shape:
        """The shape of the labels of the whole dataset, (N, *spatial)."""
        parts = self._parts()
        return (sum(known.shape[0] for known in parts), *parts[0].shape[1:])

    @property
    def positions(self) -> Tensor | None:
        """Flat indices into `shape` of all rows; None: all are there."""
        parts, start = self._parts(), 0
        positions: list[Tensor] = []
        if all(known.positions is None for known in parts):
            return None
        for known in parts:
            size = math.prod(known.shape)
            positions.append(start + (torch.arange(size) if known.positions is None else known.positions.cpu()))
            start += size
        return torch.cat(positions)

    def _parts(self) -> list[BatchRows]:
        return [self._known[number] for number in sorted(self._known)]

    def _find(self, logits: Tensor, batch: Batch) -> BatchRows:
        n = len(batch)
        labels = None if self._labels is None else self._labels[batch.rows]
        if logits.ndim < 2 or logits.shape[1] != n:
            shape = tuple(logits.shape[1:])
            raise InputError(f"a sample must return logits ({n}, classes), found {shape}")
        first, task = logits[0], self.task
        if task.name == "multilabel":
            if first.ndim > 2:
                raise InputError(
                    f"task='multilabel' needs logits (N, L), found {tuple(first.shape)}; for several labels of each "
                    "position, give rows to MultiLabelPredictions.from_logits: logits.movedim(1, -1).flatten(0, -2)"
                )
            multilabel_rows(first, labels, kind="logits", ignore_index=task.ignore_index)  # checks both
            return BatchRows(_decisions(labels, task), (n,), None, None, None, False, tuple(first.shape))
        if task.class_dim is None and labels is None and first.ndim == 3:
            raise InputError(
                f"logits {tuple(first.shape)} without labels have their classes in the second or in the last "
                "dimension: give class_dim=1 for (N, C, L), class_dim=-1 for (N, T, C)"
            )
        rows = as_rows(first, labels, kind="logits", class_dim=task.class_dim, ignore_index=task.ignore_index)
        axis = None if first.ndim == 1 else 1 if task.class_dim is None else task.class_dim % first.ndim
        if axis == 0:
            raise InputError(f"class_dim={task.class_dim} of logits {tuple(first.shape)} are the examples, not classes")
        binary = axis is None or first.shape[axis] == 1
        if task.name is not None and binary != (task.name == "binary"):
            wanted = "one number for each row" if task.name == "binary" else "at least two classes"
            raise InputError(f"task={task.name!r} needs logits with {wanted}, found {tuple(first.shape)}")
        return _batch_rows(rows, axis, binary, logits)


def _batch_rows(rows: Rows, axis: int | None, binary: bool, logits: Tensor) -> BatchRows:
    index = None if rows.positions is None else rows.positions.to(logits.device)
    class_dim = None if axis is None else axis + 1  # after the samples
    return BatchRows(rows.labels, rows.shape, rows.positions, index, class_dim, binary, tuple(logits.shape[1:]))


def _decisions(labels: Tensor | None, task: Task) -> Tensor | None:
    """Return labels (n, L) of 0 and 1, and `IGNORE_INDEX` where unknown."""
    if labels is None:
        return None
    whole = whole_labels(labels)
    return whole if task.ignore_index is None else whole.masked_fill(whole == task.ignore_index, IGNORE_INDEX)
