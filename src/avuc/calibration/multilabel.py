"""Calibration of a multi-label model: a calibrator of two classes for each label, or one for all."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.inputs import as_weights, in_blocks
from avuc.calibration.layouts import refuse_binary_probabilities
from avuc.calibration.temperature import TemperatureScaling
from avuc.calibration.user_warnings import warn
from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.frames import check_all_rows, check_same_rows
from avuc.core.tasks import IGNORE_INDEX, multilabel_rows

# methods whose whole result is one temperature for each label
TEMPERATURES = ("temperature", "cautious", "avuts", "auavuts")


class MultiLabelCalibrator(Calibrator):
    """Calibration of independent sigmoids; by default temperature scaling, p_l = sigmoid(z_l / T_l).

    Each label is a binary decision with the logits [0, z], and a calibrator of two classes is fitted on it. With
    posterior samples, p_l is the mean of the samples' probabilities. A label that was never seen as both 0 and 1,
    with a weight above 0, has nothing to fit on: it stays as it is, with a CalibrationWarning.

    Args:
        method: name of the calibrator in `CALIBRATORS`, with its defaults: "temperature" (NLL), "avuts" (AvUC over the
            decisions), "isotonic", "dirichlet", which is beta calibration of each label, and all others.
        shared: whether all labels have the same calibrator, fitted on all decisions together.

    Learned attributes:
        temperature_: (L,) temperatures; 1 for methods without.
        each_: the calibrators of the labels, one if they share it; None for methods that are only a temperature.
        fitted_: (L,) 1 for labels that were fitted, 0 for those that stay as they are.
        num_classes_: L, the number of labels.

    >>> import numpy as np
    >>> logits, labels = np.array([[4.0, 1.0], [4.0, -1.0], [-4.0, 1.0]]), np.array([[1, 1], [0, 0], [0, 0]])
    >>> scaler = MultiLabelCalibrator().fit(logits, labels)
    >>> scaler.temperature_.round(2)  # each is right twice in three: z/T = log 2
    array([5.77, 1.44])
    """

    name: ClassVar[str] = "multilabel"
    multilabel: ClassVar[bool] = True
    learned: ClassVar[dict[str, str]] = {
        "temperature": "vector",
        "fitted": "vector",
        "num_classes": "whole",
        "each": "calibrators",
    }
    optional: ClassVar[tuple[str, ...]] = ("each",)

    temperature_: Array  # type: ignore[assignment]
    fitted_: Array
    each_: list[Calibrator] | None = None

    def __init__(self, method: str = "temperature", *, shared: bool = False) -> None:
        self.method = method
        self.shared = shared

    def fit(
        self,
        logits: Any,
        labels: Any,
        sample_weight: Any = None,
        *,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Learn from data that the network was not trained on, and return this calibrator.

        Args:
            logits: (N, L), or (S, N, L) for S posterior samples; dense (N, L, *spatial). List, NumPy array or tensor.
            labels: (N, L) of 0 and 1, of the shape of one sample's logits.
            sample_weight: (N, L) weights of the decisions. Default None: all count the same.
            class_dim: dimension of the labels in `logits`. Default None: the one after N.
            ignore_index: decisions with this label are unknown and left out (default −100); None: none is.
        """
        self._check_params()
        check_same_rows(logits, labels, ("logits", "labels"))
        check_all_rows(sample_weight, "sample_weight", logits=logits, labels=labels)
        scores, targets = as_tensor(logits, "logits").detach(), as_tensor(labels, "labels").detach()
        draws = scores.ndim == targets.ndim + 1
        front = int(draws)
        weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight").to(torch.float64)
        if weight is not None and weight.shape != targets.shape:
            raise InputError(
                f"sample_weight must have the shape of the labels, {tuple(targets.shape)}; found {tuple(weight.shape)}"
            )
        axis = front + 1 if class_dim is None else class_dim % max(scores.ndim, 1)
        if not front <= axis < scores.ndim:
            raise InputError(
                f"multi-label logits must be (N, L) or (S, N, L), with labels (N, L); found {tuple(scores.shape)} and "
                f"{tuple(targets.shape)}"
            )
        every = multilabel_rows(scores, targets, kind="logits", ignore_index=ignore_index, draws=draws)
        assert every.labels is not None
        if not len(every.labels):
            raise InputError("there is no known decision: every label is ignore_index, or there are no rows")
        refuse_binary_probabilities(every.scores)
        count = every.shape[axis - front]
        label_numbers = torch.arange(count, device="cpu").reshape(
            [-1 if d == axis - front else 1 for d in range(targets.ndim)]
        )
        of_label = label_numbers.expand(every.shape).flatten().to(every.labels.device)
        weights = None if weight is None else weight.flatten().to(every.labels.device)
        if every.positions is not None:
            of_label = of_label[every.positions]
            weights = None if weights is None else weights[every.positions]
        weights = None if weights is None else as_weights(weights, len(every.labels))
        self.num_classes_: int = count
        self.class_names_: tuple[str, ...] | None = None
        temperatures, fitted = np.ones(count), np.zeros(count)
        each: list[Calibrator] = [TemperatureScaling.identity(2)] * count
        if self.shared:
            each, fitted[:] = [self._fit_decisions(every.scores, every.labels, weights)], 1
            temperatures[:] = each[0].temperature_
        for label in range(0 if self.shared else count):
            some = of_label == label if weights is None else (of_label == label) & (weights > 0)
            seen = every.labels[some]
            if len(seen) and bool((seen != seen[0]).any()):
                of_some = None if weights is None else weights[some]
                each[label] = self._fit_decisions(every.scores[..., some.to(every.scores.device), :], seen, of_some)
                temperatures[label], fitted[label] = each[label].temperature_, 1
        self.temperature_, self.fitted_ = temperatures, fitted
        self.each_ = None if self.method in TEMPERATURES else each
        self._warn_unfitted()
        return self

    def _fit_decisions(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Calibrator:
        """Return a calibrator fitted on some of the decisions."""
        scaler = self.calibrators[self.method]()
        return scaler.fit(rows, labels, weights)

    def reset(self) -> None:
        """Leave all logits as they are."""
        self.temperature_, self.each_ = np.ones_like(self.temperature_), None

    def _warn_unfitted(self) -> None:
        numbers = np.flatnonzero(self.fitted_ == 0).tolist()
        if numbers:
            listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
            warn(
                f"MultiLabelCalibrator: label {listed} is never seen as both 0 and 1, so it stays as it is; fit on "
                "rows of both, or use shared=True"
            )

    def _classes_at(self, logits: Any, labels: Any) -> int | None:
        return as_tensor(logits, "logits").ndim - as_tensor(labels, "labels").ndim + 1

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        raise NotImplementedError  # `fit` does it: its labels are not class numbers

    def transform(self, logits: Any, *, class_dim: int | None = None) -> Any:
        """Return calibrated logits of the same shape and type (array or tensor).

        Args:
            logits: (N, L) or (S, N, L); dense (N, L, *spatial).
            class_dim: dimension of the labels in `logits`. Default None: the last of up to three dimensions, else 1.
        """
        if not hasattr(self, "temperature_"):
            raise InputError("this MultiLabelCalibrator is not fitted; call fit(logits, labels) or load() first")
        tensor = as_tensor(logits, "logits")
        if not tensor.is_floating_point() or tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.float()
        dimensions = tensor.ndim
        axis = (dimensions - 1 if dimensions <= 3 else 1) if class_dim is None else class_dim
        if dimensions < 2 or not -dimensions <= axis < dimensions or tensor.shape[axis] != self.num_classes_:
            raise InputError(
                f"this MultiLabelCalibrator was fitted on {self.num_classes_} labels; found logits "
                f"{tuple(tensor.shape)} with class_dim={class_dim}"
            )
        if not tensor.is_cuda and bool(tensor.isnan().any()):
            raise InputError("logits contain NaN; remove or repair these rows")
        calibrated = in_blocks(self._apply, tensor.movedim(axis, -1)).movedim(-1, axis)
        return calibrated if isinstance(logits, Tensor) else calibrated.numpy()

    def _apply(self, logits: Tensor) -> Tensor:
        most = torch.finfo(logits.dtype).max
        if self.each_ is not None:
            finite = logits.isfinite()
            columns = torch.where(finite, logits, 0.0).unbind(-1)
            each = self.each_ * len(columns) if len(self.each_) == 1 else self.each_
            mapped = torch.stack([_of_two(calibrator, z) for calibrator, z in zip(each, columns, strict=True)], dim=-1)
            return torch.where(finite, mapped.clamp(min=-most, max=most), logits)
        scaled = logits / torch.as_tensor(self.temperature_, dtype=logits.dtype, device=logits.device)
        # finite logits stay finite
        return torch.where(logits.isfinite(), scaled.clamp(min=-most, max=most), scaled)

    def predict_proba(self, logits: Any) -> Any:
        """Return the calibrated probabilities (N, L) that each label applies; draws are averaged.

        Args:
            logits: as for `transform`.
        """
        calibrated = torch.as_tensor(self.transform(logits)).sigmoid()
        probs = calibrated.mean(0) if calibrated.ndim == 3 else calibrated
        return probs if isinstance(logits, Tensor) else probs.numpy()

    def predict(self, logits: Any) -> Any:
        """Return which labels apply, (N, L) of 0 and 1.

        Args:
            logits: as for `transform`.
        """
        chosen = torch.as_tensor(self.predict_proba(logits)) > 0.5
        return chosen.long() if isinstance(logits, Tensor) else chosen.long().numpy()

    def score(self, logits: Any, labels: Any, sample_weight: Any = None) -> float:
        """Return minus the mean NLL of all known decisions; higher is better.

        Args:
            logits: as for `transform`.
            labels: (N, L) of 0 and 1.
            sample_weight: (N, L) weights of the decisions; None: all count the same.
        """
        rows = multilabel_rows(self.predict_proba(logits), labels, kind="probs")
        assert rows.labels is not None
        chosen = rows.scores.double().gather(-1, rows.labels[:, None])[:, 0].clamp(min=1e-12).log()
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64).reshape(-1)
        if weights is not None and rows.positions is not None:
            weights = weights[rows.positions.numpy()]
        return float(np.average(chosen.cpu().numpy(), weights=weights))

    def _check_params(self) -> None:
        known = [name for name, kind in self.calibrators.items() if not kind.multilabel]
        if self.method not in known:
            raise InputError(f"MultiLabelCalibrator: method must be one of {', '.join(known)}; found {self.method!r}")
        if not isinstance(self.shared, bool):
            raise InputError(f"MultiLabelCalibrator: shared must be True or False; found {self.shared!r}")

    def _check_learned(self) -> None:
        count = self.num_classes_
        if count < 1 or len(self.temperature_) != count or len(self.fitted_) != count:
            raise InputError(
                f"calibrator JSON: temperature and fitted must have one entry for each of {count} labels; found "
                f"{len(self.temperature_)} and {len(self.fitted_)}"
            )
        if not (self.temperature_ > 0).all() or not np.isin(self.fitted_, (0, 1)).all():
            raise InputError("calibrator JSON: every temperature must be above 0, and fitted 0 or 1")
        if self.each_ is not None:
            two = all(hasattr(calibrator, "temperature_") and calibrator.num_classes_ == 2 for calibrator in self.each_)
            if not two or len(self.each_) not in (1, count):
                raise InputError(f"calibrator JSON: each must hold 1 or {count} fitted calibrators of two classes")


def _of_two(calibrator: Calibrator, z: Tensor) -> Tensor:
    """Return the calibrated log-odds of a decision with the log-odds z."""
    both = calibrator._apply(torch.stack((torch.zeros_like(z), z), dim=-1))
    return both[..., 1] - both[..., 0]
