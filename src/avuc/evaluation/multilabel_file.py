"""Evaluate and calibrate a file of multi-label predictions: each label, their mean, and all decisions together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from avuc.calibration import MultiLabelCalibrator
from avuc.core.errors import InputError
from avuc.core.row_groups import images_or_groups
from avuc.core.tasks import binary_rows, multilabel_rows
from avuc.evaluation.compare import Comparison, compare_predictions, rejected, with_warning
from avuc.evaluation.evaluate import evaluate
from avuc.evaluation.files.multilabel import MultiLabelFile
from avuc.evaluation.result import EvaluationResult, json_value
from avuc.metrics import MultiLabelMetrics, multilabel
from avuc.metrics.threshold import Threshold
from avuc.predictions import Predictions
from avuc.uncertainty import entropy


@dataclass(frozen=True)
class MultiLabelEvaluation:
    """Metrics of a multi-label file. `evaluate_multilabel` returns it.

    Args:
        names: of the labels.
        decisions: the result over all decisions, with intervals and curves (micro average).
        labels: metrics of each label, and their mean (macro average).
        positives: share of known decisions of each label that are 1.
        rows: number of rows.
    """

    names: tuple[str, ...]
    decisions: EvaluationResult
    labels: MultiLabelMetrics
    positives: np.ndarray
    rows: int

    def as_json(self) -> dict[str, Any]:
        """Return the document that `--json` writes: that of the decisions, and the values of each label."""
        return self.decisions.as_json() | label_json(self.names, self.labels) | {"rows": self.rows}


def label_json(names: tuple[str, ...], labels: MultiLabelMetrics) -> dict[str, Any]:
    """Return the metrics of each label, their mean, and the number of labels behind each mean."""
    per_label = {
        name: {metric: values[index] for metric, values in labels.per_label.items()} | {"n": int(labels.rows[index])}
        for index, name in enumerate(names)
    }
    document: dict[str, Any] = json_value(
        {"task": "multilabel", "labels": list(names), "macro": labels.macro, "macro_labels": labels.counted}
    )
    return document | {"per_label": json_value(per_label)}


def evaluate_multilabel(
    file: MultiLabelFile, *, threshold: Threshold, bins: int, replicates: int, seed: int
) -> MultiLabelEvaluation:
    """Return the metrics of each label, their mean, and over all decisions.

    Args:
        file: labelled scores, from `read_multilabel`.
        threshold: entropy in nats up to which a decision counts as certain; "auto": learned from the decisions.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals of all decisions; 0: no intervals.
        seed: seed of the bootstrap.
    """
    assert file.labels is not None
    probs, labels, raw = file.probs(), file.labels, file.raw
    known = labels != -100
    positives = ((labels == 1).sum(0).double() / known.sum(0).clamp(min=1)).numpy()
    decisions = _decisions(file.draws(), labels, raw.expected_entropy, raw.draws)
    result = evaluate(decisions, threshold=threshold, bins=bins, replicates=replicates, seed=seed)
    each = multilabel(probs, labels, threshold=threshold, bins=bins)
    return MultiLabelEvaluation(file.names, _of_labels(result, file.names, each), each, positives, len(labels))


def _of_labels(result: EvaluationResult, names: tuple[str, ...], each: MultiLabelMetrics) -> EvaluationResult:
    """Return the result over all decisions with the metrics of each label."""
    per_label = {name: values.tolist() for name, values in each.per_label.items()}
    return replace(result, per_label=per_label, macro=each.macro, label_names=names)


def compare_multilabel(
    file: MultiLabelFile,
    method: str,
    *,
    shared: bool,
    folds: int,
    threshold: Threshold,
    bins: int,
    replicates: int,
    seed: int,
    keep_worse: bool,
) -> tuple[MultiLabelCalibrator, Comparison, dict[str, Any]]:
    """Fit a calibrator on all rows; return it, its effect on held-out decisions, and the JSON of each label.

    Args:
        file: labelled scores, from `read_multilabel`.
        method: name of a calibrator.
        shared: whether all labels have one calibrator.
        folds: parts for cross-fitting; rows are held out, with all their labels.
        threshold: entropy in nats up to which a decision counts as certain.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals; 0: no intervals.
        seed: seed of the split and of the bootstrap.
        keep_worse: return the fitted calibrator even if it is worse than none.
    """
    assert file.labels is not None
    logits, labels = file.logits(), file.labels
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            calibrator = MultiLabelCalibrator(method, shared=shared).fit(logits, labels)
    except InputError as error:
        raise InputError(f"{file.path}: {error}") from error
    calibrator.class_names_ = file.names if file.named else None
    folds = min(folds, len(labels))
    before, after = file.draws(), file.draws(calibrator)
    how = "the one row that the calibrator was fitted on; no row could be held out, so they are optimistic"
    if folds > 1:
        after = _held_out(file, method, shared, folds, seed)
        how = (
            f"held-out rows ({folds} parts, each calibrated by a fit on the other parts); the saved calibrator is "
            "fitted on all rows"
        )
    options: dict[str, Any] = {"threshold": threshold, "bins": bins}
    decisions = _decisions(before, labels, file.raw.expected_entropy, file.raw.draws)
    result = compare_predictions(
        calibrator,
        decisions,
        _decisions(after, labels),
        method=method,
        how=how,
        folds=folds,
        messages=list(dict.fromkeys(str(warning.message) for warning in caught)),
        replicates=replicates,
        seed=seed,
        groups=images_or_groups(decisions.shape, decisions.positions, len(decisions)),
        **options,
    )
    first, then = (multilabel(_mean(probs), labels, **options) for probs in (before, after))
    result = replace(
        result,
        before=_of_labels(result.before, file.names, first),
        after=_of_labels(result.after, file.names, then),
    )
    if result.check.worse and keep_worse:
        result = with_warning(result)
    elif result.check.worse:
        calibrator.reset()
        result, then = rejected(result), first
    document = label_json(file.names, then)
    document["per_label_before"] = label_json(file.names, first)["per_label"]
    document["temperatures"] = dict(zip(file.names, calibrator.temperature_.tolist(), strict=True))
    return calibrator, result, document


def _held_out(file: MultiLabelFile, method: str, shared: bool, folds: int, seed: int) -> torch.Tensor:
    """Return the probabilities of calibrators that were fitted on other rows, (N, L) or (S, N, L)."""
    assert file.labels is not None
    logits, labels = file.logits(), file.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    result = torch.empty(logits.shape, dtype=torch.float64)
    for part in order.chunk(folds):
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[part] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows warns
            scaler = MultiLabelCalibrator(method, shared=shared)
            if bool((labels[rest] != -100).any()):
                calibrated = scaler.fit(logits[..., rest, :], labels[rest]).transform(logits[..., part, :])
            else:
                calibrated = logits[..., part, :]
        result[..., part, :] = calibrated.double().sigmoid()
    return result


def _mean(probs: torch.Tensor) -> torch.Tensor:
    return probs.mean(0) if probs.ndim == 3 else probs


def _decisions(
    probs: torch.Tensor, labels: torch.Tensor, expected_entropy: torch.Tensor | None = None, draws: int = 1
) -> Predictions:
    """Return every known decision as one binary row; `shape` and `positions` say to which row it belongs.

    Args:
        probs: (N, L), or (S, N, L) for S draws.
        labels: (N, L).
        expected_entropy: (N, L) mean entropy of the draws that (N, L) probabilities are the mean of, if it is known.
        draws: number of these draws.
    """
    if probs.ndim == 3:
        draws, expected_entropy = len(probs), entropy(binary_rows(probs, "probs")).mean(0)
    rows = multilabel_rows(_mean(probs), labels, kind="probs")
    assert rows.labels is not None
    expected: Any = None
    if expected_entropy is not None:
        expected = expected_entropy.flatten()
        expected = (expected if rows.positions is None else expected[rows.positions]).float()
    return Predictions(rows.scores.float(), rows.labels, expected, draws, shape=rows.shape, positions=rows.positions)
