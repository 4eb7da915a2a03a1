"""All metrics at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from avuc.metrics.suite import METRICS, from_statistics
from avuc.torchmetrics.states import StatisticsMetric


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

    def compute(self) -> dict[str, Tensor]:
        """Return every metric of all batches since the last `reset`, float32."""
        statistics = self._statistics()
        if statistics is None:
            values = dict.fromkeys(METRICS, math.nan)
        else:
            values = from_statistics(statistics, threshold=self.threshold, bins=self.bins)
        return {name: torch.tensor(value, dtype=torch.float32, device=self.device) for name, value in values.items()}
