"""One metric each. In a `MetricCollection` they share their states, so a batch is reduced once for all of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX, Kind
from avuc.metrics.suite import METRICS, from_statistics
from avuc.metrics.threshold import Threshold
from avuc.torchmetrics.states import StatisticsMetric, Task

HIGHER_IS_BETTER = ("accuracy", "avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate")
# metrics with another upper end than 1, which plots do not show
UNBOUNDED = ("nll", "brier", "mean_entropy")


class CalibrationMetric(StatisticsMetric):
    """One metric of `avuc.metrics.METRICS`, by its name, as a `torchmetrics.Metric`; `compute()` returns a tensor.

    Args:
        name: "ece", "avu", "aurc", "nll" or any other name of `avuc.metrics.METRICS`.
        num_classes: number of classes; see `CalibrationSuite`.
        kind: whether `update` gets "logits" (default) or "probs".
        task: "multiclass" (default), "binary" or "multilabel".
        threshold: entropy in nats up to which a prediction is certain; "auto": see `avuc.metrics.auto_threshold`.
        bins: number of bins of the calibration errors (default 15).
        ignore_index: predictions with this label are left out (default −100); None: none is.
        class_dim: dimension of the classes. Default None: the last one for (N, C), else 1.
        options: those of `torchmetrics.Metric`.

    >>> metric = CalibrationMetric("brier", num_classes=2, kind="probs")
    >>> metric(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.4000)
    """

    def __init__(
        self,
        name: str,
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
        if name not in METRICS:
            raise InputError(f"there is no metric {name!r}; choose one of {', '.join(METRICS)}")
        self.name = name  # first, because the states depend on it
        super().__init__(
            num_classes,
            kind,
            task=task,
            threshold=threshold,
            bins=bins,
            ignore_index=ignore_index,
            class_dim=class_dim,
            **options,
        )

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Whether a higher value is better; None for the mean entropy."""
        return None if self.name == "mean_entropy" else self.name in HIGHER_IS_BETTER

    @property
    def plot_upper_bound(self) -> float | None:  # type: ignore[override]
        """The upper end of the plot; None: the largest value."""
        return None if self.name in UNBOUNDED else 1.0

    @property
    def _keeps_table(self) -> bool:
        return self.name == "classwise_ece"

    def compute(self) -> Tensor:
        """Return the metric of all batches since the last `reset`, float32; NaN if there is no prediction."""
        statistics = self._statistics()
        value = math.nan
        if statistics is not None:
            value = from_statistics(statistics, threshold=self.threshold, bins=self.bins, names=(self.name,))[self.name]
        return torch.tensor(value, dtype=torch.float32, device=self.device)


class ECE(CalibrationMetric):
    """The expected calibration error, `avuc.metrics.ece`.

    Args:
        num_classes: number of classes.
        kind: whether `update` gets "logits" (default) or "probs".
        options: those of `CalibrationMetric`.

    >>> ECE(num_classes=2, kind="probs")(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.4000)
    """

    def __init__(self, num_classes: int | None = None, kind: Kind = "logits", **options: Any) -> None:
        super().__init__("ece", num_classes, kind, **options)


class UCE(CalibrationMetric):
    """The uncertainty calibration error, `avuc.metrics.uce`.

    Args:
        num_classes: number of classes.
        kind: whether `update` gets "logits" (default) or "probs".
        options: those of `CalibrationMetric`.

    >>> UCE(num_classes=2, kind="probs")(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """

    def __init__(self, num_classes: int | None = None, kind: Kind = "logits", **options: Any) -> None:
        super().__init__("uce", num_classes, kind, **options)


class AvU(CalibrationMetric):
    """Accuracy versus uncertainty at one threshold, `avuc.metrics.avu`.

    Args:
        num_classes: number of classes.
        kind: whether `update` gets "logits" (default) or "probs".
        options: those of `CalibrationMetric`, such as `threshold`.

    >>> AvU(num_classes=2, kind="probs", threshold=0.5)(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1]))
    tensor(1.)
    """

    def __init__(self, num_classes: int | None = None, kind: Kind = "logits", **options: Any) -> None:
        super().__init__("avu", num_classes, kind, **options)


class AvUAUC(CalibrationMetric):
    """The area under AvU over thresholds, `avuc.metrics.avu_auc`.

    Args:
        num_classes: number of classes.
        kind: whether `update` gets "logits" (default) or "probs".
        options: those of `CalibrationMetric`.

    >>> AvUAUC(num_classes=2, kind="probs")(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1]))
    tensor(0.9875)
    """

    def __init__(self, num_classes: int | None = None, kind: Kind = "logits", **options: Any) -> None:
        super().__init__("avu_auc", num_classes, kind, **options)


class AURC(CalibrationMetric):
    """The area under the risk–coverage curve, `avuc.metrics.aurc`.

    Args:
        num_classes: number of classes.
        kind: whether `update` gets "logits" (default) or "probs".
        options: those of `CalibrationMetric`.

    >>> AURC(num_classes=2, kind="probs")(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.2500)
    """

    def __init__(self, num_classes: int | None = None, kind: Kind = "logits", **options: Any) -> None:
        super().__init__("aurc", num_classes, kind, **options)
