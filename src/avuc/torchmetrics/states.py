"""The states of the metrics: two numbers for each prediction, and sums.

A prediction is kept as its confidence, negative if it is wrong (a confidence is never 0), and its entropy. Everything
else is a sum. All of it is float64, so the values are those of `avuc.metrics`, in any split into batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from avuc.core.errors import InputError
from avuc.core.probabilities import looks_like
from avuc.core.tasks import IGNORE_INDEX, TASKS, Kind, Rows, as_rows, multilabel_rows
from avuc.metrics.binning import check_bins
from avuc.metrics.few_classes import MOST_CLASSES
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.threshold import Threshold, check_threshold
from avuc.predictions.rows import mean_softmax

Task = Literal["multiclass", "binary", "multilabel"]
# states that hold one number for each prediction
PER_ROW = ("confidence", "entropy")
# precisions of probabilities, from the finest to the coarsest; bin edges are rounded to the coarsest one of all batches
PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class StatisticsMetric(Metric):
    """The base of all metrics here: checks a batch, reduces it to its statistics and keeps these.

    Args:
        num_classes: number of classes C; for multi-label models, the number of labels L; for binary models 2 or None.
        kind: whether `update` gets "logits" or "probs".
        task: "multiclass", "binary" or "multilabel".
        threshold: entropy in nats up to which a prediction is certain, or "auto".
        bins: number of bins of the calibration errors.
        ignore_index: rows with this label are left out; None: no row is.
        class_dim: dimension of the classes; None: the last one for (N, C), else the one after N.
        options: those of `torchmetrics.Metric`, such as `sync_on_compute`.
    """

    is_differentiable: bool | None = False
    # a batch adds to the states and never reads them
    full_state_update: bool | None = False
    plot_lower_bound: float | None = 0.0
    confidence: list[Tensor]
    entropy: list[Tensor]
    sums: Tensor
    precision: Tensor
    reads: Tensor
    classwise: Tensor

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
        super().__init__(**options)
        if kind not in ("logits", "probs"):
            raise InputError(f"kind must be 'logits' or 'probs', found {kind!r}")
        if task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, found {task!r}")
        if num_classes is None and task == "multiclass":
            raise InputError("num_classes is needed for the task 'multiclass'")
        if num_classes is not None and (num_classes < 1 or (task == "binary" and num_classes != 2)):
            what = "2, or be left out, for the task 'binary'" if task == "binary" else "at least 1"
            raise InputError(f"num_classes must be {what}; found {num_classes}")
        check_bins(bins)
        self.num_classes: int | None = num_classes
        self.kind = kind
        self.task = task
        self.bins: int = bins
        self.threshold: Threshold = "auto" if threshold == "auto" else check_threshold(threshold)
        self.ignore_index: int | None = ignore_index
        self.class_dim: int | None = class_dim
        for name in PER_ROW:
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("sums", default=torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")  # nll, brier
        self.add_state("precision", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")
        # A MetricCollection shares the states of metrics whose first batch gave the same ones. This constant keeps
        # metrics apart that read later batches in another way, for example with another `ignore_index`.
        reads = [TASKS.index(task), kind == "probs", ignore_index is None, ignore_index or 0, class_dim is None]
        self.add_state("reads", default=torch.tensor([*map(int, reads), class_dim or 0]), dist_reduce_fx="max")
        if self._keeps_table:
            table = torch.zeros(self._columns, bins, dtype=torch.float64)
            self.add_state("classwise", default=table, dist_reduce_fx="sum")

    @property
    def _keeps_table(self) -> bool:
        """Whether the table of the class-wise error is kept."""
        return True

    @property
    def _columns(self) -> int:
        """The number of classes of a row: each decision of a multi-label model has two."""
        return self.num_classes if self.task == "multiclass" and self.num_classes is not None else 2

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch; a batch that raises InputError changes nothing.

        Args:
            preds: scores (N, C); dense (N, C, *spatial); binary (N,) or (N, 1); multi-label (N, L). S posterior samples
                are a dimension in front; the mean of their probabilities counts.
            target: class numbers (N,) or (N, *spatial); multi-label (N, L) of 0 and 1.
        """
        rows = self._rows(preds, target)
        labels = rows.labels
        if labels is None or len(labels) == 0:
            return
        scores = rows.scores
        if scores.shape[-1] != self._columns:
            raise InputError(f"expected scores of {self._columns} classes, found {scores.shape[-1]}")
        probs = self._probabilities(scores)
        try:
            statistics = prediction_statistics(probs, labels, bins=self.bins if self._keeps_table else None)
        except InputError:
            if self.kind == "logits" and len(bad := probs.isnan().any(-1).nonzero()):
                raise InputError(
                    f"logits contain NaN or +infinity, or only −infinity (row {int(bad[0])}): remove or repair them"
                ) from None
            raise
        signed = np.where(statistics.correct, statistics.confidence, -statistics.confidence)
        self.confidence.append(self._kept(signed))
        self.entropy.append(self._kept(statistics.entropy))
        # in place: setting an attribute of a metric takes as long as the sum
        self.sums.add_(self._kept(np.array([statistics.nll.sum(), statistics.brier.sum()])))
        self.precision.clamp_(min=_coarseness(probs.dtype))
        if statistics.classwise is not None:
            self.classwise.add_(self._kept(statistics.classwise))

    def _rows(self, preds: Any, target: Any) -> Rows:
        plain = self.task == "multiclass" and self.class_dim is None and _are_rows(preds, target)
        if plain and (self.ignore_index is None or not bool((target == self.ignore_index).any())):
            return Rows(preds.detach(), target, tuple(target.shape), None)
        options: dict[str, Any] = {"kind": self.kind, "ignore_index": self.ignore_index}
        if self.task == "multilabel":
            wide = getattr(preds, "ndim", 2) - getattr(target, "ndim", 2)
            rows = multilabel_rows(preds, target, draws=wide == 1, **options)
            if self.num_classes not in (None, rows.shape[1]):
                raise InputError(f"expected scores of {self.num_classes} labels, found {rows.shape[1]}")
            return rows
        return as_rows(preds, target, class_dim=self.class_dim, draws=None, **options)

    def _probabilities(self, scores: Tensor) -> Tensor:
        if self.kind == "probs":
            return scores if scores.ndim == 2 else scores.mean(0)
        if not scores.is_floating_point():
            raise InputError(f"logits must be floating-point, found {scores.dtype}")
        if self.task == "multiclass" and not self.confidence and (looks := looks_like(scores)) is not None:
            raise InputError(f"these logits look like {looks}: give kind='probs' and rows that sum to 1")
        if scores.ndim == 3:
            return mean_softmax(scores)[0]
        wide = scores.to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
        if wide.shape[1] <= MOST_CLASSES and wide.device.type == "cpu":
            return wide.t().softmax(0).t()  # over columns, several times as fast for few classes
        return wide.softmax(-1)

    def _kept(self, values: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def _statistics(self) -> Statistics | None:
        """Return the statistics of all predictions so far; None if there are none."""
        signed, entropy = (_joined(getattr(self, name)) for name in PER_ROW)
        if len(signed) == 0:
            return None
        nll, brier = (np.full(1, value / len(signed)) for value in self.sums.tolist())
        empty = np.empty(0, np.int64)
        return Statistics(
            confidence=np.abs(signed),
            predicted=empty,
            correct=signed > 0,
            entropy=entropy,
            nll=nll,  # like brier, one entry with the mean, because only the mean is used
            brier=brier,
            labels=empty,
            num_classes=self._columns,
            dtype=PRECISIONS[int(self.precision)],
            classwise=self.classwise.cpu().numpy() if self._keeps_table else None,
        )

    def reset(self) -> None:
        """Forget all batches."""
        for name in PER_ROW:  # new lists: `torchmetrics.wrappers.Running` keeps the old ones, which must stay full
            setattr(self, name, [])
        super().reset()

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Return the figure and the axes of a plot of what `compute` returns.

        Args:
            val: what `compute` or `forward` returned, or a list of these, one for each step. Default None: compute now.
            ax: matplotlib axes to draw into. Default None: a new figure.
        """
        return self._plot(val, ax)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **options: Any) -> Any:
        # `model.to(torch.float16)` is for the network; sums of many rows would be rounded, or overflow
        def moved(state: Tensor) -> Tensor:
            result = fn(state)
            return result if result.dtype == state.dtype else state.to(result.device)

        return super()._apply(moved, *args, **options)

    def _sync_dist(self, *args: Any, **options: Any) -> None:
        # torchmetrics would give a rank without a batch empty states of float32, which do not fit the others' float64
        for name in PER_ROW:
            if len(getattr(self, name)) == 0:
                setattr(self, name, [torch.empty(0, dtype=torch.float64, device=self.device)])
        super()._sync_dist(*args, **options)


def _joined(state: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a state as one array; it is a tensor after a synchronisation."""
    parts = [state] if isinstance(state, Tensor) else state
    return np.concatenate([part.cpu().numpy() for part in parts]) if parts else np.empty(0)


def _are_rows(preds: Any, target: Any) -> bool:
    """Return whether these are tensors (N, C) and (N,), the usual case."""
    if not (isinstance(preds, Tensor) and isinstance(target, Tensor) and target.dtype == torch.int64):
        return False
    return preds.ndim == 2 and preds.shape[1] > 1 and target.shape == preds.shape[:1]


def _coarseness(dtype: torch.dtype) -> int:
    return PRECISIONS.index(dtype) if dtype in PRECISIONS else 0
