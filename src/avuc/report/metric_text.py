"""What each metric means in plain words, and the verdict in sentences; shared by the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from avuc.evaluation.compare import Comparison
    from avuc.evaluation.result import EvaluationResult

__all__ = [
    "CHANGE_HEAD",
    "DETECTION_HEAD",
    "DETECTION_WORDS",
    "METRIC_HEAD",
    "METRIC_WORDS",
    "RANKING_HEAD",
    "Row",
    "Words",
    "change_rows",
    "compared_verdict",
    "detection_rows",
    "metric_rows",
    "number",
    "percent",
    "ranking_rows",
    "ranking_verdict",
    "replicates_text",
    "verdict",
    "words_of",
]

Row = tuple[str, ...]
METRIC_HEAD = ("metric", "value", "95 % interval", "better", "what it means")
DETECTION_HEAD = METRIC_HEAD
RANKING_HEAD = ("method", "accuracy", "NLL", "ECE", "95 % interval", "UCE", "AvU", "AUROC photos")
CHANGE_HEAD = ("metric", "before", "after", "change", "95 % interval", "which is")


class Words(NamedTuple):
    title: str
    meaning: str
    better: str = ""  # "higher", "lower" or neither
    percent: bool = False


METRIC_WORDS = {
    "accuracy": Words("Accuracy", "share of rows it gets right", "higher", True),
    "nll": Words("NLL", "surprise at the true class, in nats", "lower"),
    "brier": Words("Brier score", "squared error of the probabilities", "lower"),
    "ece": Words("ECE", "gap of stated confidence and accuracy", "lower"),
    "classwise_ece": Words("Classwise ECE", "the same gap, class by class", "lower"),
    "adaptive_ece": Words("Adaptive ECE", "the same gap, bins of equal size", "lower"),
    "debiased_ece": Words("Debiased ECE", "root mean square gap, less the noise", "lower"),
    "mce": Words("MCE", "the gap in the worst bin", "lower"),
    "uce": Words("UCE", "gap of stated uncertainty and error rate", "lower"),
    "avu": Words("AvU", "right and certain, or wrong and uncertain", "higher"),
    "avu_auc": Words("AvU-AUC", "the same over all thresholds", "higher"),
    "p_accurate_given_certain": Words("p(right | certain)", "how often it is right when certain", "higher", True),
    "p_uncertain_given_inaccurate": Words("p(uncertain | wrong)", "how many of its mistakes it flags", "higher", True),
    "aurc": Words("AURC", "mean error rate over all shares answered", "lower"),
    "mean_entropy": Words("Mean entropy", "how uncertain it is on average, in nats"),
    "mean_confidence": Words("Mean confidence", "how sure it says it is", "", True),
}
DETECTION_WORDS = {
    "auroc": Words("AUROC", "share of inside–outside pairs in the right order", "higher"),
    "aupr_in": Words("AUPR-in", "average precision at finding inside rows", "higher"),
    "aupr_out": Words("AUPR-out", "average precision at finding outside rows", "higher"),
    "detection_accuracy": Words("Detection accuracy", "mean of both hit rates, best threshold", "higher", True),
    "fpr95": Words("FPR at 95 % TPR", "inside refused to catch 95 % of outside", "lower", True),
    "wasserstein": Words("Wasserstein", "distance of the two entropies, in nats", "higher"),
}


def words_of(name: str) -> Words:
    return METRIC_WORDS.get(name) or DETECTION_WORDS.get(name) or Words(name, "")


def in_order(names: Iterable[str]) -> list[str]:
    """Known metrics in the order of the words, then whatever else there is."""
    known = list(names)
    return [name for name in METRIC_WORDS if name in known] + [name for name in known if name not in METRIC_WORDS]


def metric_rows(result: EvaluationResult) -> list[Row]:
    """Metric, value, interval, which way is better, meaning: the table of one result."""
    values = result.metrics | {"mean_confidence": result.confidence}
    return [_row(name, values[name], result.intervals.get(name)) for name in in_order(values)]


def replicates_text(result: EvaluationResult) -> str:
    """Where the intervals come from: how many replicates, and of what."""
    if not result.replicates:
        return "no bootstrap: 0 replicates of the rows"
    metrics, detection = (
        "the rows" if what == "rows" else "cells of similar rows (there are many rows)"
        for what in (result.bootstrap, result.detection_bootstrap)
    )
    text = f"{result.replicates:,} bootstrap replicates of {metrics}"
    return f"{text}, for detection of {detection}" if result.detection_intervals and detection != metrics else text


def detection_rows(result: EvaluationResult) -> list[Row]:
    """The same for telling outside rows apart."""
    return [_row(name, value, result.detection_intervals.get(name)) for name, value in result.detection.items()]


def change_rows(result: Comparison) -> list[Row]:
    """Metric, before, after, change, its interval, and what to make of it."""
    rows: list[Row] = []
    for name in in_order(result.after.metrics):
        words = words_of(name)
        before, after = (number(one.metrics[name], percent=words.percent) for one in (result.before, result.after))
        value, low, high = result.change.get(name, (math.nan,) * 3)
        change = "–" if math.isnan(value) else f"{value:+.4f}"
        interval = "" if math.isnan(low) else f"{low:+.4f} … {high:+.4f}"
        rows.append((words.title, before, after, change, interval, _judge(words.better, value, low, high)))
    return rows


def ranking_rows(results: Mapping[str, EvaluationResult]) -> list[Row]:
    """One line for each method, the best NLL first."""
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
    """What the ranking says; the first result is the model as it was."""
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
    words = words_of(name)
    shown = "" if bounds is None else " … ".join(number(one, percent=words.percent) for one in bounds)
    return words.title, number(value, percent=words.percent), shown, words.better, words.meaning


def _judge(better: str, value: float, low: float, high: float) -> str:
    if math.isnan(value) or not better:
        return ""
    if value == 0:
        return "the same"
    word = "better" if (value > 0) == (better == "higher") else "worse"
    return f"{word}, perhaps by chance" if low <= 0 <= high else word


def number(value: float, *, percent: bool = False) -> str:
    """Four digits, or a share in percent; a dash where a metric is not defined."""
    if not math.isfinite(value):
        return "–"
    if percent:
        return f"{100 * value:.2f} %"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def percent(value: float) -> str:
    """`87 %`; one digit more where rounding would hide a difference from everything or nothing."""
    shown = 100 * value
    return f"{shown:.0f} %" if 1 <= shown <= 99 or value in (0, 1) else f"{shown:.1f} %"


def verdict(result: EvaluationResult) -> list[str]:
    """What the figures say, in sentences."""
    accuracy, said = result.metrics["accuracy"], result.confidence
    low, high = result.intervals.get("accuracy", (accuracy, accuracy))
    # how far accuracy alone moves by chance; the intervals carry it when there are any
    noise = max(high - accuracy, accuracy - low) if math.isfinite(high - low) else 0.0
    stated, right = _apart(said, accuracy)
    both = f"it says {stated} and is right {right} of the time"
    if abs(said - accuracy) <= max(noise, 0.005):
        lines = [f"On average confidence matches accuracy: {both}."]
        if result.metrics["ece"] > 0.03:
            lines.append(
                f"Yet single confidences are off by {percent(result.metrics['ece'])} on average: some are too high, "
                "others too low."
            )
    elif said > accuracy:
        lines = [f"The model is overconfident: {both}."]
    else:
        lines = [f"The model is underconfident: {both}."]
    certain, flagged = (result.metrics[name] for name in ("p_accurate_given_certain", "p_uncertain_given_inaccurate"))
    if accuracy == 1:
        lines.append("It makes no mistake on these rows, so nothing can be said about how it flags mistakes.")
    elif math.isfinite(certain) and math.isfinite(flagged):
        lines.append(
            f"When it is certain (entropy up to {result.threshold:.3f} nats) it is right {percent(certain)} of the "
            f"time; it flags {percent(flagged)} of its mistakes as uncertain."
        )
    if result.detection:
        auroc = result.detection["auroc"]
        lines.append(
            f"Shown one row from inside and one from outside, it is more uncertain about the outside one "
            f"{percent(auroc)} of the time ({_grade(auroc)})."
        )
    return lines


def compared_verdict(result: Comparison) -> list[str]:
    """What calibration changed, in sentences."""
    if result.refused is not None:
        return [
            f"The {result.method} calibrator was refused: it is worse than leaving the scores alone, so they stay as "
            "they are. The figures show what it would have changed.",
            *compared_verdict(result.refused),
        ]
    lines = []
    if result.temperature is not None:
        t = result.temperature
        effect = "makes every prediction less sure" if t > 1.005 else "makes every prediction surer"
        effect = "changes next to nothing" if abs(t - 1) <= 0.005 else effect
        lines.append(f"The temperature is {t:.4g}: it {effect}.")
    lines += result.notes
    before, after = result.before, result.after
    stated, right = _apart(before.confidence, before.metrics["accuracy"])
    now, still = _apart(after.confidence, after.metrics["accuracy"])
    lines.append(
        f"Before, the model says {stated} and is right {right} of the time; after, it says {now} and is right {still}."
    )
    value, low, high = result.change["ece"]
    gone = "falls" if value < 0 else "rises"
    sure = "" if math.isnan(low) else (", beyond chance" if low > 0 or high < 0 else ", within chance")
    lines.append(f"ECE {gone} from {before.metrics['ece']:.4f} to {after.metrics['ece']:.4f}{sure}.")
    return lines


def _apart(first: float, second: float) -> tuple[str, str]:
    """Both as percentages, with as many digits as it takes to tell them apart."""
    one, two = percent(first), percent(second)
    return (one, two) if one != two or first == second else (f"{100 * first:.1f} %", f"{100 * second:.1f} %")


def _grade(auroc: float) -> str:
    for bar, word in ((0.95, "a clear separation"), (0.8, "a useful separation"), (0.6, "a weak separation")):
        if auroc >= bar:
            return word
    return "no better than chance" if auroc > 0.45 else "the wrong way round"
