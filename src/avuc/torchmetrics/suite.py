"""All metrics at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from avuc.core.tasks import IGNORE_INDEX, Kind
from avuc.metrics.suite import METRICS, from_statistics
from avuc.metrics.threshold import Threshold
from avuc.torchmetrics.states import StatisticsMetric, Task


class CalibrationSuite(StatisticsMetric):
    """Every metric of `avuc.metrics.METRICS` as one `torchmetrics.Metric`; `compute()` returns a dict of tensors.

    It keeps 16 bytes for each prediction, not the (N, C) scores, and the values are those of `avuc.metrics.evaluate`.
    Without a prediction every value is NaN.

    Args:
        num_classes: number of classes C; for multi-label models, the number of labels, or None; for binary models 2 or
            None.
        kind: whether `update` gets "logits" (default) or "probs".
        task: "multiclass" (default), "binary" (one score for each row) or "multilabel" (each label is a binary
            decision, and all decisions are measured together).
        threshold: entropy in nats up to which a prediction is certain; "auto": see `avuc.metrics.auto_threshold`.
        bins: number of bins of the calibration errors (default 15).
        ignore_index: predictions with this label are left out (default −100); None: none is.
        class_dim: dimension of the classes. Default None: the last one for (N, C), else 1, as in (N, C, H, W); language
            models have class_dim=-1.
        options: those of `torchmetrics.Metric`, such as `sync_on_compute`.

    >>> suite = CalibrationSuite(num_classes=2, kind="probs")
    >>> suite.update(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> suite.compute()["brier"]
    tensor(0.4000)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        kind: Kind = "logits",
        *,
        task: Task = "multiclass",
        threshold: Threshold = "auto",
        bins: int = 15,
        ignore_index: int | None = IGNORE_INDEX,
        class_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            num_classes,
            kind,
            task=task,
            threshold=threshold,
            bins=bins,
            ignore_index=ignore_index,
            class_dim=class_dim,
            classwise=True,
            **options,
        )

    def compute(self) -> dict[str, Tensor]:
        """Return every metric of all batches since the last `reset`, float32."""
        statistics = self._statistics()
        if statistics is None:
            values = dict.fromkeys(METRICS, math.nan)
        else:
            values = from_statistics(statistics, threshold=self.threshold, bins=self.bins)
        return {name: torch.tensor(value, dtype=torch.float32, device=self.device) for name, value in values.items()}

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Return the figure and the axes of a plot of all values.

        Args:
            val: what `compute` or `forward` returned, or a list of these, one for each step. Default None: compute now.
            ax: matplotlib axes to draw into. Default None: a new figure.
        """
        return self._plot(val, ax)
