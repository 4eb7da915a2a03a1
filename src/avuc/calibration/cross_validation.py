"""Compare a calibrator with no calibrator, by cross-validation on the data it is fitted on."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avuc.calibration.base import Calibrator
from avuc.calibration.inputs import as_labels, as_logits, as_weights
from avuc.calibration.layouts import fit_groups, fit_rows
from avuc.calibration.metric_change import MetricChange, ece_change, mean_change
from avuc.calibration.multilabel import MultiLabelCalibrator
from avuc.calibration.rows import Rows
from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.predictions import MultiLabelPredictions, Predictions

TITLES = {"nll": "NLL", "brier": "the Brier score", "ece": "ECE"}
# a calibrator is not refused for a rise of NLL or of the Brier score by less than this share
SHARE = 0.01
# a calibrator is not refused for a rise of ECE by less than this
ECE_MARGIN = 0.005
# more logits than this are checked on a random sample of the rows
CHECK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class CalibratorCheck:
    """The result of `check_calibrator`.

    Args:
        method: name of the calibrator.
        figures: for "nll", "brier" and "ece": before, after, change, low, high; the last two are its 95 % interval.
        reasons: metrics that are significantly worse, as sentences; empty if the calibrator does no harm.
        tradeoffs: metrics that are worse by little, possibly by chance, or together with a better NLL, as sentences.
        rows: number of rows that were used.
        given: number of rows that were given.
        folds: parts of the cross-validation.

    >>> CalibratorCheck("temperature", {}, ("NLL rises",), (), rows=100, given=100, folds=5).worse
    True
    """

    method: str
    figures: dict[str, MetricChange]
    reasons: tuple[str, ...]
    tradeoffs: tuple[str, ...]
    rows: int
    given: int
    folds: int
    tradeoff_metrics: tuple[str, ...] = ()  # the metric that each of `tradeoffs` is about

    @property
    def worse(self) -> bool:
        """Whether the scores should stay uncalibrated."""
        return bool(self.reasons)

    @property
    def warnings(self) -> list[str]:
        """Everything that a user should read before using the calibrator."""
        refusal = f"this {self.method} calibrator is worse than leaving the scores alone: {'; '.join(self.reasons)}"
        return [*([refusal] if self.worse else []), *self.tradeoffs]

    def as_json(self) -> dict[str, Any]:
        return {
            "worse": self.worse,
            "reasons": list(self.reasons),
            "tradeoffs": list(self.tradeoffs),
            "figures": {
                name: {
                    "before": change.before,
                    "after": change.after,
                    "change": [change.change, change.low, change.high],
                }
                for name, change in self.figures.items()
            },
            "rows": self.rows,
            "rows_given": self.given,
            "folds": self.folds,
        }


def check_calibrator(
    calibrator: Calibrator,
    logits: Any,
    labels: Any,
    *,
    folds: int = 5,
    bins: int = 15,
    seed: int = 0,
    elements: int = CHECK_ELEMENTS,
    sample_weight: Any = None,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    groups: Any = None,
) -> CalibratorCheck:
    """Return whether a calibrator is better than none, by cross-validation on the data it is fitted on.

    The rows are split at random into `folds` parts. Each part is calibrated by a new calibrator with the same
    parameters that is fitted on the other parts. The calibrator itself does not change.

    Args:
        calibrator: any calibrator, fitted or not; only its parameters are used.
        logits: (N, C), or (S, N, C) for S posterior samples; dense or binary as for `Calibrator.fit`.
        labels: (N,) or (N, *spatial) class numbers.
        folds: parts of the cross-validation, at least 2; fewer if there are fewer rows.
        bins: number of bins of ECE.
        seed: of the split and of the bootstrap.
        elements: more logits than this are checked on a random sample of the rows.
        sample_weight: (N,) weights of the rows, for the fits and for the means of NLL and the Brier score; ECE is then
            not judged. None: all rows count the same.
        class_dim: dimension of the classes in `logits`, as for `Calibrator.fit`.
        ignore_index: rows with this label are left out (default −100); None: no row is.
        groups: (N,) names or numbers; rows of one group (a patient, an image) are held out together, and the intervals
            are those of groups. Default None: of dense labels, those of one image are a group; other rows are
            independent.

    >>> from avuc.calibration import TemperatureScaling
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 4 * (rng.normal(size=(500, 3)) + np.eye(3)[labels])  # overconfident
    >>> check = check_calibrator(TemperatureScaling(), logits, labels)
    >>> check.worse, check.figures["nll"].high < 0
    (False, True)
    """
    if not isinstance(folds, int) or folds < 2:
        raise InputError(f"folds must be a whole number, at least 2; found {folds!r}")
    if isinstance(calibrator, MultiLabelCalibrator):
        if not all(each is None for each in (sample_weight, class_dim, groups)):
            raise InputError("the check of a MultiLabelCalibrator takes (N, L) or (S, N, L), without weights or groups")
        return _check_multilabel(calibrator, logits, labels, folds, bins, seed, ignore_index)
    layout: dict[str, Any] = {"class_dim": class_dim, "ignore_index": ignore_index}
    group_numbers = fit_groups(logits, labels, groups, **layout)
    units = None if group_numbers is None else torch.from_numpy(group_numbers)
    logits, labels, sample_weight = fit_rows(logits, labels, sample_weight, **layout)
    scores = as_logits(logits).detach()
    targets = as_labels(labels, scores)
    rows_given, weight = len(targets), None
    if sample_weight is not None:
        weight = as_weights(sample_weight, rows_given)
        kept = weight > 0
        scores, targets, weight = scores[..., kept.to(scores.device), :], targets[kept.to(targets.device)], weight[kept]
        units = None if units is None else units[kept.to(units.device)]
    rows = len(targets)
    most = max(2 * folds, elements // max(1, scores.numel() // rows))
    if most < rows:
        some = _order(rows, seed)[:most].sort().values
        weight, units = (None if each is None else each[some.to(each.device)] for each in (weight, units))
        some = some.to(scores.device)
        scores, targets = scores[..., some, :], targets[some]
    scores, targets = scores.cpu(), targets.cpu()
    before = _predictions(scores, targets)
    folds = min(folds, len(targets if units is None else units.unique()))
    after = before if folds < 2 else cross_fit_predictions(calibrator, scores, targets, folds, seed, weight, units)
    return check_predictions(
        calibrator, before, after, folds=folds, bins=bins, seed=seed, given=rows_given, weight=weight, groups=units
    )


def _check_multilabel(
    calibrator: MultiLabelCalibrator,
    logits: Any,
    labels: Any,
    folds: int,
    bins: int,
    seed: int,
    ignore_index: int | None,
) -> CalibratorCheck:
    """Return the check over all label decisions; a row's decisions are in one part of the cross-validation."""
    scores, targets = as_tensor(logits, "logits").detach().cpu(), as_tensor(labels, "labels").cpu()
    build = MultiLabelPredictions.from_samples if scores.ndim == 3 else MultiLabelPredictions.from_logits
    before = build(scores, targets, check=False, ignore_index=ignore_index)
    folds, calibrated = min(folds, len(targets)), scores.clone()
    for part in _order(len(targets), seed).tensor_split(folds) if folds > 1 else ():
        rest = torch.ones(len(targets), dtype=torch.bool, device="cpu")
        rest[part] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows has warned already
            fitted = type(calibrator)(**calibrator.get_params())
            fitted.fit(scores[..., rest, :], targets[rest], ignore_index=ignore_index)
        calibrated[..., part, :] = fitted.transform(scores[..., part, :])
    after = build(calibrated, targets, check=False, ignore_index=ignore_index)
    decisions_before, decisions_after = before.flatten(), after.flatten()
    rows = torch.arange(decisions_before.shape[0], device="cpu").repeat_interleave(decisions_before.shape[1])
    rows = rows if decisions_before.positions is None else rows[decisions_before.positions]
    return check_predictions(
        calibrator, decisions_before, decisions_after, folds=folds, bins=bins, seed=seed, groups=rows
    )


def cross_fit_predictions(
    calibrator: Calibrator,
    logits: Tensor,
    labels: Tensor,
    folds: int,
    seed: int,
    weight: Tensor | None = None,
    groups: Tensor | None = None,
) -> Predictions:
    """Return predictions in which every row is calibrated by a fit on other rows.

    Args:
        calibrator: only its class and parameters are used.
        logits: (N, C) or (S, N, C), on the CPU.
        labels: (N,) class numbers, int64.
        folds: parts of the cross-validation.
        seed: of the split.
        weight: (N,) weights of the rows, above 0; None: all rows count the same.
        groups: (N,) numbers of groups; a group is held out as a whole, and `AutoCalibrator` gets them. None: rows are
            independent.
    """
    parts = _order(len(labels), seed).tensor_split(folds)
    if groups is not None:
        parts = tuple(Rows(logits, labels, None, groups.cpu()).parts(folds, seed))
    known: dict[str, Any] = {} if weight is None else {"sample_weight": weight.cpu()}
    if groups is not None and "groups" in inspect.signature(calibrator.fit).parameters:
        known["groups"] = groups.cpu()
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    probs = torch.empty(logits.shape[-2:], dtype=dtype, device="cpu")
    expected = torch.empty(len(labels), dtype=dtype, device="cpu")
    for part in parts:
        rest = torch.ones(len(labels), dtype=torch.bool, device="cpu")
        rest[part] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows has warned already
            some = {name: values[rest] for name, values in known.items()}
            fitted = type(calibrator)(**calibrator.get_params()).fit(logits[..., rest, :], labels[rest], **some)
        held = _predictions(logits[..., part, :], labels[part], fitted)
        probs[part], expected[part] = held.probs.to(probs.dtype), held.expected_entropy.to(probs.dtype)
    return Predictions(probs, labels, expected, logits.shape[0] if logits.ndim == 3 else 1)


def check_predictions(
    calibrator: Calibrator,
    before: Predictions,
    after: Predictions,
    *,
    folds: int,
    bins: int = 15,
    seed: int = 0,
    given: int | None = None,
    statistics: tuple[Statistics, Statistics] | None = None,
    weight: Tensor | None = None,
    groups: Tensor | None = None,
) -> CalibratorCheck:
    """Return the check from predictions without a calibrator and cross-fitted ones, on the same rows.

    Args:
        calibrator: the calibrator that is checked.
        before: predictions without a calibrator.
        after: predictions of `cross_fit_predictions`.
        folds: parts of the cross-validation.
        bins: number of bins of ECE.
        seed: of the bootstrap.
        given: number of rows that the user gave; None: those of `before`.
        statistics: of before and after, if they are known already.
        weight: (N,) weights of the rows; ECE is then not judged. None: all rows count the same.
        groups: (N,) numbers of groups; rows of one group may depend on each other. None: rows are independent.
    """
    rows = len(before)
    common: dict[str, Any] = {"method": calibrator.name, "rows": rows, "given": given or rows, "folds": folds}
    first, second = statistics or tuple(
        prediction_statistics(predictions.probs, predictions.labels) for predictions in (before, after)
    )
    weights, units = (None if each is None else each.cpu().numpy() for each in (weight, groups))
    figures = {
        name: mean_change(getattr(first, name), getattr(second, name), weights, units) for name in ("nll", "brier")
    }
    if weights is None:
        figures["ece"] = ece_change(first, second, bins=bins, seed=seed, groups=units)
    if folds < 2:
        unit_name = "row" if groups is None else "image or group"
        alone = f"there is only one {unit_name}, so nothing can be held out to judge the calibrator by"
        return CalibratorCheck(figures=figures, reasons=(alone,), tradeoffs=(), **common)
    margins = {name: SHARE * figures[name].before for name in ("nll", "brier")}
    margins["ece"] = ECE_MARGIN + calibrator.ece_allowance
    beyond = {name: change.low > 0 for name, change in figures.items()}
    much = {name: change.change > margins[name] for name, change in figures.items()}
    refuse = {name: beyond[name] and much[name] for name in figures}
    if "ece" in refuse:
        refuse["ece"] &= not figures["nll"].high < 0
    reasons = tuple(_sentence(name, figures[name]) for name in figures if refuse[name])
    worse = tuple(name for name in figures if not refuse[name] and (beyond[name] or much[name]))
    tradeoffs = tuple(
        f"{_sentence(name, figures[name])}{'' if beyond[name] else ', which may be chance'}" for name in worse
    )
    return CalibratorCheck(figures=figures, reasons=reasons, tradeoffs=tradeoffs, tradeoff_metrics=worse, **common)


def _sentence(name: str, figure: MetricChange) -> str:
    before, after, _, low, high = figure
    return (
        f"{TITLES[name]} rises from {before:.4f} to {after:.4f} on held-out rows "
        f"(95 % interval of the change {low:+.4f} to {high:+.4f})"
    )


def _predictions(logits: Tensor, labels: Tensor, calibrator: Calibrator | None = None) -> Predictions:
    build = Predictions.from_samples if logits.ndim == 3 else Predictions.from_logits
    return build(logits, labels, calibrator=calibrator, check=False)  # as_logits has checked them


def _order(rows: int, seed: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed), device="cpu")
