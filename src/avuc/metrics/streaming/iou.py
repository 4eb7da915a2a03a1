"""`StreamingIoU`: intersection over union from counts of fixed size."""

from __future__ import annotations

from typing import Any

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.checks import metric_rows
from avuc.metrics.iou import IoU, class_counts, iou_of
from avuc.metrics.statistics import statistics_blocks
from avuc.metrics.streaming.accumulator import Accumulator, Streaming


class StreamingIoU(Streaming):
    """`iou` over batches, processes and files; it is exact.

    Args:
        num_classes: number of classes C.

    >>> StreamingIoU(2).update([[0.9, 0.1]], [0]).update([[0.9, 0.1]], [1]).compute().mean
    0.25
    """

    def __init__(self, num_classes: int) -> None:
        if num_classes < 2:
            raise InputError(f"num_classes must be at least 2, found {num_classes}")
        self.num_classes = num_classes
        config = {"num_classes": str(num_classes)}
        self._state = Accumulator("avuc.StreamingIoU.v1", config, {"counts": (3, num_classes)})

    def update(
        self, probs: Any, labels: Any, *, class_dim: int | None = None, ignore_index: int | None = IGNORE_INDEX
    ) -> StreamingIoU:
        """Add a batch. A batch that raises InputError, or that has no row to count, changes nothing.

        Args:
            probs, labels, class_dim, ignore_index: as in `iou`.
        """
        rows = metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index, none_is_fine=True)
        if not len(rows.labels):
            return self
        if rows.probs.shape[1] != self.num_classes:
            raise InputError(f"expected {self.num_classes} classes, found {rows.probs.shape[1]}")
        parts = [
            class_counts(statistics.predicted, statistics.labels, self.num_classes)
            for statistics in statistics_blocks(*rows)
        ]
        self._state["counts"][:] += sum(parts)
        return self

    def compute(self) -> IoU:
        """Return the IoU of each class and their mean."""
        return iou_of(self._state["counts"].copy())

    def _empty(self) -> StreamingIoU:
        return StreamingIoU(self.num_classes)
