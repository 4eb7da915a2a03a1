"""The meaning of each metric in plain words, and the verdict in sentences, for the terminal and for the pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from avuc.report.chance import class_doubts, ece_may_be_chance, gap_by_chance, order_doubts
from avuc.report.numbers import SMALLEST, distinct, number, percent, signed

if TYPE_CHECKING:
    from avuc.evaluation.compare import Comparison
    from avuc.evaluation.multilabel_file import MultiLabelEvaluation
    from avuc.evaluation.result import EvaluationResult


Row = tuple[str, ...]
METRIC_HEAD = ("metric", "value", "95 % interval", "better", "what it means")
DETECTION_HEAD = METRIC_HEAD
RANKING_HEAD = ("method", "accuracy", "NLL", "ECE", "95 % interval", "UCE", "AvU", "AUROC")
CHANGE_HEAD = ("metric", "before", "after", "change", "95 % interval", "result")


class MetricText(NamedTuple):
    """How a metric is named and explained to a reader."""

    title: str
    meaning: str
    better: str = ""  # "higher", "lower", or empty if neither is better
    percent: bool = False  # whether it is printed in percent


METRIC_TEXT = {
    "accuracy": MetricText("Accuracy", "share of correct predictions", "higher", True),
    "nll": MetricText("NLL", "−log p of the true class, in nats", "lower"),
    "brier": MetricText("Brier score", "squared error of the probabilities", "lower"),
    "ece": MetricText("ECE", "gap between confidence and accuracy", "lower"),
    "classwise_ece": MetricText("Classwise ECE", "the same gap, class by class", "lower"),
    "adaptive_ece": MetricText("Adaptive ECE", "the same gap, bins of equal size", "lower"),
    "debiased_ece": MetricText("Debiased ECE", "root-mean-square gap, corrected for noise", "lower"),
    "mce": MetricText("MCE", "the gap in the worst bin", "lower"),
    "uce": MetricText("UCE", "gap between uncertainty and error rate", "lower"),
    "avu": MetricText("AvU", "right and certain, or wrong and uncertain", "higher"),
    "avu_auc": MetricText("AvU-AUC", "area under AvU over all thresholds", "higher"),
    "p_accurate_given_certain": MetricText("p(right | certain)", "accuracy when it is certain", "higher", True),
    "p_uncertain_given_inaccurate": MetricText(
        "p(uncertain | wrong)", "share of mistakes that are uncertain", "higher", True
    ),
    "aurc": MetricText("AURC", "error rate, averaged over all coverages", "lower"),
    "entity_f1": MetricText("Entity F1", "names with the right words and kind", "higher", True),
    "mean_iou": MetricText("mIoU", "intersection over union, mean over classes", "higher", True),
    "pavpu": MetricText("PAvPU", "AvU of patches of 4 × 4 pixels", "higher"),
    "image_aurc": MetricText("AURC per example", "AURC of each image's pixels or sentence's words, averaged", "lower"),
    "mean_entropy": MetricText("Mean entropy", "average uncertainty, in nats"),
    "mean_confidence": MetricText("Mean confidence", "average probability of the predicted class", "", True),
}
DETECTION_TEXT = {
    "auroc": MetricText("AUROC", "share of test–OOD pairs in the right order", "higher"),
    "aupr_in": MetricText("AUPR-in", "average precision for finding test data", "higher"),
    "aupr_out": MetricText("AUPR-out", "average precision for finding OOD data", "higher"),
    "detection_accuracy": MetricText("Detection accuracy", "mean of TPR and TNR at the best threshold", "higher", True),
    "fpr95": MetricText("FPR at 95 % TPR", "test data rejected to find 95 % of OOD", "lower", True),
    "wasserstein": MetricText("Wasserstein", "distance between the entropies, in nats", "higher"),
}


def metric_text(name: str) -> MetricText:
    """Return the text of a metric; its name as the title if it is unknown."""
    return METRIC_TEXT.get(name) or DETECTION_TEXT.get(name) or MetricText(name, "")


# the names in version 0.1.0
Words: type[MetricText] = MetricText
METRIC_WORDS, DETECTION_WORDS = METRIC_TEXT, DETECTION_TEXT
words_of: Callable[[str], MetricText] = metric_text


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of `METRIC_TEXT`; unknown metrics come last."""
    wanted = list(names)
    return [name for name in METRIC_TEXT if name in wanted] + [name for name in wanted if name not in METRIC_TEXT]


def metric_rows(result: EvaluationResult) -> list[Row]:
    """Return the table of one result: metric, value, interval, which direction is better, meaning."""
    values = result.metrics | {"mean_confidence": result.confidence}
    ranges = result.bounds or result.intervals
    return [_row(name, values[name], ranges.get(name)) for name in in_order(values)]


LABEL_METRICS = ("accuracy", "nll", "brier", "ece", "avu")


def label_table_head() -> Row:
    """Return the head of the table of labels."""
    return ("label", "decisions", "positive", *(metric_text(name).title for name in LABEL_METRICS))


def label_rows(result: MultiLabelEvaluation) -> list[Row]:
    """Return the table of a multi-label result: each label, the mean over labels, and all decisions together."""

    def cells(values: Mapping[str, float]) -> list[str]:
        return [number(values[name], percent=metric_text(name).percent) for name in LABEL_METRICS]

    labels, decisions, rows = result.labels, result.decisions, list[Row]()
    for index, name in enumerate(result.names):
        count = int(labels.rows[index])
        share = number(float(result.positives[index]) if count else math.nan, percent=True)
        values = {metric: float(labels.per_label[metric][index]) for metric in LABEL_METRICS}
        rows.append((name, f"{count:,}", share, *cells(values)))
    rows.append(("mean of labels (macro)", "", "", *cells(labels.macro)))
    rows.append(("all decisions (micro)", f"{decisions.n:,}", "", *cells(decisions.metrics)))
    return rows


def metric_head(result: EvaluationResult) -> Row:
    """Return the head of that table; its third column has intervals, or bounds if there are any."""
    return (*METRIC_HEAD[:2], "bounds", *METRIC_HEAD[3:]) if result.bounds else METRIC_HEAD


def bounds_text() -> str:
    """Return which metrics of a result with bounds are exact."""
    return (
        "No bootstrap intervals: no rows are kept that could be resampled. A metric with bounds is exact to within "
        "these bounds, and its value is their middle. All other metrics are exact."
    )


def replicates_text(result: EvaluationResult) -> str:
    """Return how many bootstrap replicates the intervals come from, and what was resampled."""
    if result.bounds:
        return "no bootstrap (no rows are kept)"
    if not result.replicates:
        return "no bootstrap (0 replicates)"
    many = {"cells": "groups of similar rows", "random cells": "random groups of rows"}
    what = {"rows": "the rows", "groups": f"the {'rows' if result.per_label else 'images'} or groups"}
    what |= {unit: f"{text} (there are many rows)" for unit, text in many.items()}
    metrics, detection = (what[unit] for unit in (result.bootstrap, result.detection_bootstrap))
    text = f"{result.replicates:,} bootstrap replicates of {metrics}"
    return f"{text}, for detection of {detection}" if result.detection_intervals and detection != metrics else text


def detection_rows(result: EvaluationResult) -> list[Row]:
    """Return the same table for the detection of out-of-distribution rows."""
    ranges = result.bounds or result.detection_intervals
    return [_row(name, value, ranges.get(name)) for name, value in result.detection.items()]


def change_rows(result: Comparison) -> list[Row]:
    """Return the table of a calibration: metric, before, after, change, its interval, better or worse."""
    rows: list[Row] = []
    for name in in_order(result.after.metrics):
        text = metric_text(name)
        before, after = (number(each.metrics[name], percent=text.percent) for each in (result.before, result.after))
        value, low, high = result.change.get(name, (math.nan,) * 3)
        change = "–" if math.isnan(value) else signed(value, percent=text.percent)
        interval = "" if math.isnan(low) else " … ".join(signed(end, percent=text.percent) for end in (low, high))
        rows.append((text.title, before, after, change, interval, _judgement(text.better, value, low, high)))
    return rows


def ranking_rows(results: Mapping[str, EvaluationResult]) -> list[Row]:
    """Return one row for each method, the lowest NLL first."""
    rows: list[Row] = []
    for name, result in sorted(results.items(), key=lambda item: item[1].metrics["nll"]):
        figures = {key: number(result.metrics[key]) for key in ("nll", "ece", "uce", "avu")}
        low, high = result.intervals.get("ece", (math.nan, math.nan))
        rows.append(
            (
                name,
                number(result.metrics["accuracy"], percent=True),
                figures["nll"],
                figures["ece"],
                "" if math.isnan(low) else f"{low:.4f} … {high:.4f}",
                figures["uce"],
                figures["avu"],
                number(result.detection.get("auroc", math.nan)),
            )
        )
    return rows


def ranking_verdict(results: Mapping[str, EvaluationResult], temperatures: Mapping[str, float]) -> list[str]:
    """Return what the ranking says; the first result is that of the uncalibrated model."""
    first = next(iter(results.values()))
    lines = verdict(first)
    for name, temperature in temperatures.items():
        before, after = first.metrics, results[name].metrics
        lines.append(
            f"{name} (T = {temperature:.3g}): ECE {before['ece']:.4f} → {after['ece']:.4f}, "
            f"UCE {before['uce']:.4f} → {after['uce']:.4f}, NLL {before['nll']:.4f} → {after['nll']:.4f}."
        )
    return lines


def _row(name: str, value: float, bounds: tuple[float, float] | None) -> Row:
    text = metric_text(name)
    interval = "" if bounds is None else " … ".join(number(bound, percent=text.percent) for bound in bounds)
    return text.title, number(value, percent=text.percent), interval, text.better, text.meaning


def _judgement(better: str, value: float, low: float, high: float) -> str:
    if math.isnan(value) or not better:
        return ""
    if value == 0 or (abs(value) < SMALLEST and low <= 0 <= high):
        return "unchanged"
    direction = "better" if (value > 0) == (better == "higher") else "worse"
    return f"{direction}, not significant" if low <= 0 <= high else direction


def verdict(result: EvaluationResult) -> list[str]:
    """Return what the metrics of a model say, in sentences."""
    accuracy, confidence = result.metrics["accuracy"], result.confidence
    stated, right = distinct(confidence, accuracy)
    both = f"it says {stated} and is right {right} of the time"
    gap = abs(confidence - accuracy)
    if gap <= max(gap_by_chance(result), 0.005):
        matches = "On average, confidence matches accuracy"
        what = matches if gap <= 0.005 else "Confidence and accuracy do not differ significantly"
        lines, ece = [f"{what}: {both}."], result.metrics["ece"]
        if ece > 0.03 and ece_may_be_chance(result):
            lines.append(f"An ECE of {ece:.2f} may be chance: on so few rows, calibrated models have one, too.")
        elif ece > 0.03:
            wrong = f"However, single confidences are wrong by {percent(ece)} on average"
            lines.append(f"{wrong}: some are too high, others too low.")
    elif confidence > accuracy:
        lines = [f"The model is overconfident: {both}."]
    else:
        lines = [f"The model is underconfident: {both}."]
    lines = order_doubts(result) + lines + class_doubts(result)
    certain, flagged = (result.metrics[name] for name in ("p_accurate_given_certain", "p_uncertain_given_inaccurate"))
    if accuracy == 1:
        lines.append("It makes no mistakes on these rows, so its uncertainty about mistakes cannot be measured.")
    elif math.isfinite(certain) and math.isfinite(flagged):
        lines.append(
            f"When it is certain (entropy up to {result.threshold:.3f} nats), it is right {percent(certain)} of the "
            f"time. It is uncertain about {percent(flagged)} of its mistakes."
        )
    if result.detection:
        auroc = result.detection["auroc"]
        lines.append(
            f"Given one test row and one out-of-distribution row, it is more uncertain about the out-of-distribution "
            f"row {percent(auroc)} of the time ({_grade(auroc, result.detection_intervals.get('auroc'))})."
        )
    return lines


def compared_verdict(result: Comparison) -> list[str]:
    """Return what calibration changed, in sentences."""
    if result.refused is not None:
        return [
            f"The {result.method} calibrator was refused: it makes the predictions worse, so they are left unchanged. "
            "The figures show what it would have changed.",
            *compared_verdict(result.refused),
        ]
    lines = order_doubts(result.before)
    if result.temperature is not None:
        t = result.temperature
        effect = f"{'lowers' if t > 1 else 'raises'} the confidence of every prediction"
        effect = ": it " + ("changes almost nothing" if abs(t - 1) <= 0.005 else effect)
        # a mixture and the mean over draws can move single confidences in the other direction
        lines.append(f"The temperature is {t:.4g}{'' if result.mixed or result.before.samples > 1 else effect}.")
    lines += result.notes
    before, after = result.before, result.after
    stated_before, right_before = distinct(before.confidence, before.metrics["accuracy"])
    stated_after, right_after = distinct(after.confidence, after.metrics["accuracy"])
    lines.append(
        f"Before calibration the model says {stated_before} and is right {right_before} of the time; after calibration "
        f"it says {stated_after} and is right {right_after}."
    )
    value, low, high = result.change["ece"]
    if value == 0:
        return [*lines, f"ECE stays at {before.metrics['ece']:.4f}.", *class_doubts(after)]
    verb = "falls" if value < 0 else "rises"
    certainty = (
        "" if math.isnan(low) else (", a significant change" if low > 0 or high < 0 else ", which may be chance")
    )
    lines.append(f"ECE {verb} from {before.metrics['ece']:.4f} to {after.metrics['ece']:.4f}{certainty}.")
    return lines + _traded(result) + class_doubts(after)


def _traded(result: Comparison) -> list[str]:
    """Return a sentence if figures that a calibrated model need not win get worse while the predictions get better."""
    if _outcome(result, "nll") != "better":
        return []
    names = [metric_text(name).title for name in ("uce", "avu", "avu_auc") if _outcome(result, name) == "worse"]
    if not names:
        return []
    return [
        f"Worse, although NLL gets better: {', '.join(names)}. Right probabilities have the lowest NLL, but need not "
        "have the best values of these. Judge the calibrator by NLL, Brier score and ECE."
    ]


def _outcome(result: Comparison, name: str) -> str:
    return _judgement(metric_text(name).better, *result.change.get(name, (math.nan,) * 3))


def _grade(auroc: float, interval: tuple[float, float] | None) -> str:
    if interval is not None and interval[0] <= 0.5 <= interval[1]:
        return "which may be chance"
    for bound, text in ((0.95, "a clear separation"), (0.8, "a useful separation"), (0.6, "a weak separation")):
        if auroc >= bound:
            return text
    if interval is not None and auroc > 0.5:
        return "hardly any separation"
    return "no better than chance" if interval is None and auroc > 0.45 else "worse than chance"
