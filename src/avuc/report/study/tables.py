"""The tables of the report: the ranking, the paper's tables, and the comparison of two studies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from avuc.metrics.rank_correlation import spearman as spearman_rho
from avuc.report.metric_text import metric_text
from avuc.report.study.coverage import coverage_tables
from avuc.report.study.intervals import STATISTICS, Spread, spread
from avuc.report.study.result_arrays import CLEAN, Results, SetKey, finite_mean
from avuc.report.table import Cell, Entry, Table

Array = NDArray[np.float64]
SCORES = ("ece", "uce", "nll", "brier", "accuracy", "avu_auc")
DETECTION = ("auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95")
MARKS = (
    "Bold: the best method, and every method not significantly different from it. Nothing is bold if there is only one "
    "seed on one test set, because significance is then unknown."
)


def all_tables(results: Results) -> list[Table]:
    """Return every table of a study, in the order of the page."""
    tables = [ranking(results)]
    if len(results.studies) == 2:
        tables.append(changes(results))
    if results.shifts:
        tables += [quartiles(results), spearman(results)]
    tables += [table for metric in DETECTION if (table := detection(results, metric)) is not None]
    wasserstein = detection(results, "wasserstein")
    if wasserstein is not None:
        tables.append(
            replace(
                wasserstein,
                name="wasserstein",
                title="Wasserstein distance of the entropies",
                caption=f"Between the entropies of clean {results.units} and of the other {results.units}, in nats. "
                f"A larger distance is better for detection. {MARKS}",
            )
        )
    return tables + coverage_tables(results)


def ranking(results: Results) -> Table:
    """Return one row for each method, the lowest NLL first."""
    columns: list[tuple[str, Spread, bool]] = []  # title, values, whether lower is better
    for metric in (
        *(candidate for candidate in ("entity_f1", "mean_iou") if candidate in results.values),
        "accuracy",
        "ece",
    ):
        columns.append((f"clean: {metric_text(metric).title}", _at(results, metric, CLEAN), _lower(metric)))
    for metric in ("nll", "brier", "ece", "uce", "accuracy") if results.shifts else ("nll", "brier", "uce"):
        scores = spread(results.shifted(metric), metric=metric) if results.shifts else _at(results, metric, CLEAN)
        where = "shifted" if results.shifts else "clean"
        columns.append((f"{where}: {metric_text(metric).title}", scores, _lower(metric)))
    for name in results.outside:
        columns.append((f"AUROC {name.removeprefix('ood:')}", _at(results, "auroc", (name, 0)), False))
    nll = next(scores for title, scores, _ in columns if title.endswith(": NLL"))
    order = np.argsort(np.where(np.isfinite(nll.value), nll.value, np.inf), kind="stable")
    entries = [_entries(scores, lower, intervals=True) for _, scores, lower in columns]
    rows = [
        [
            results.names[method],
            str(len(results.methods[method].seeds)),
            str(results.methods[method].samples),
            *(column[method] for column in entries),
        ]
        for method in order
    ]
    common, shifted = len(results.common("nll")), sum(bool(key[1]) for key in results.test_sets)
    sets = (
        f" and the {common} shifted test sets that all methods have" if common < shifted else ", shifts and intensities"
    )
    return Table(
        "ranking",
        "Ranking, lowest NLL first",
        f"Means over seeds{sets}, with 95 % intervals. {MARKS}",
        ["method", "seeds", "samples", *(title for title, _, _ in columns)],
        rows,
    )


def changes(results: Results) -> Table:
    """Return what the second of two studies changed, for the methods that both have."""
    first, second = results.studies
    pairs = [
        (index, results.names.index(name), method.name.removeprefix(f"{first}: "))
        for index, method in enumerate(results.methods)
        if method.study == 0 and (name := f"{second}: {method.name.removeprefix(f'{first}: ')}") in results.names
    ]
    where = "shifted" if results.shifts else "clean"
    rows: list[list[Cell]] = []
    for before, after, name in pairs:
        for metric in (metric for metric in SCORES if metric in results.values):
            values = results.shifted(metric) if results.shifts else results.at(metric, CLEAN)[:, :, None]
            scores = spread(values[[before, after]])
            low, high = scores.difference(1, 0)
            value = float(scores.value[1] - scores.value[0])
            result = "–" if math.isnan(low) or low <= 0 <= high else _better_or_worse(value, metric)
            entries = (Entry(float(each)) for each in scores.value)
            rows.append([name, f"{where}: {metric_text(metric).title}", *entries, Entry(value, low, high), result])
    return Table(
        "changes",
        f"From {first} to {second}",
        "Methods and shifts that both studies have. The 95 % interval of the change is over shifts and seeds; – : "
        "not significant, or no interval.",
        ["method", "metric", first, second, "change", "result"],
        rows,
    )


def _better_or_worse(change: float, metric: str) -> str:
    return "better" if (change < 0) == _lower(metric) else "worse"


def quartiles(results: Results) -> Table:
    """Return the paper's quartile table, at the strongest intensity."""
    top = results.severities[-1]
    rows: list[list[Cell]] = []
    for metric in (name for name in SCORES if name in results.values):
        values = results.shifted(metric, top)
        for label, statistic in STATISTICS.items():
            rows.append([f"{metric_text(metric).title}, {label}", *_entries(spread(values, statistic), _lower(metric))])
    return Table(
        "quartiles",
        f"Quartiles at intensity {top}",
        f"Over {_kinds(results, 'nll', top)} at intensity {top}, averaged over seeds. {MARKS}",
        ["", *results.names],
        rows,
    )


def spearman(results: Results) -> Table:
    """Return Spearman's ρ between the intensity and a metric's mean over shifts; clean images have intensity 0."""
    rows: list[list[Cell]] = []
    for metric in (name for name in SCORES if name in results.values):
        levels, _, shifted = results.by_intensity(metric)
        # in an unfinished study, some seeds have clean results only: a mean over them is no point of the trend
        seeds = np.isfinite(shifted).any((-2, -1))
        clean = finite_mean(np.where(seeds, results.at(metric, CLEAN), np.nan), axis=1)
        means = np.column_stack([clean, finite_mean(finite_mean(shifted, axis=1), axis=1)])
        rhos = np.array([rank_correlation(np.array([0, *levels], float), each) for each in means])
        nearest = np.nanmin(np.abs(rhos)) if np.isfinite(rhos).any() else math.nan
        rows.append([metric_text(metric).title, *(Entry(float(rho), best=abs(rho) == nearest) for rho in rhos)])
    return Table(
        "spearman",
        "Trend with the intensity: Spearman's ρ",
        f"Spearman's ρ between the intensity {_intensities(results, 'nll')}. 0 means no trend. Bold: closest to 0.",
        ["", *results.names],
        rows,
    )


def detection(results: Results, metric: str) -> Table | None:
    """Return how well entropy separates clean images from each shift at its strongest, and from other data."""
    if metric not in results.values:
        return None
    top = results.severities[-1] if results.severities else 0
    test_sets = [(shift, top) for shift in results.shifts] + [(name, 0) for name in results.outside]
    text, lower = metric_text(metric), _lower(metric)
    rows: list[list[Cell]] = [
        [results.shift_names[key[0]], *_entries(_at(results, metric, key), lower)] for key in test_sets
    ]
    if len(results.shifts) > 1:
        rows.append(
            [
                f"mean over {_kinds(results, metric, top, every='shifts')}",
                *_entries(spread(results.shifted(metric, top)), lower),
            ]
        )
    return Table(
        f"detection-{metric}",
        f"Detecting shifted and out-of-distribution (OOD) {results.units} by entropy: {text.title}",
        f"{text.meaning[:1].upper()}{text.meaning[1:]}. Shifted {results.units} (intensity {top}) count as OOD here. "
        f"{MARKS}",
        ["", *results.names],
        rows,
    )


def _at(results: Results, metric: str, test_set: SetKey) -> Spread:
    return spread(results.at(metric, test_set)[:, :, None], metric=metric)


def _entries(scores: Spread, lower: bool, *, intervals: bool = False) -> list[Entry]:
    bold = scores.marked(lower)
    entries = []
    for method, value in enumerate(scores.value):
        low, high = scores.interval(method) if intervals else (math.nan, math.nan)
        entries.append(Entry(float(value), low, high, method in bold))
    return entries


def _kinds(results: Results, metric: str, severity: int, every: str = "") -> str:
    """Return over how many kinds of shift a mean at one intensity is: those that all methods have."""
    common = sum(key[1] == severity for key in results.common(metric))
    count = len(results.shifts)
    if common < count:
        return f"{common} of {count} kinds of shift"
    return every or f"{count} kind{'s' * (count > 1)} of shift"


def _intensities(results: Results, metric: str) -> str:
    """Return between which intensities a trend is, and over which shifts."""
    levels, kinds, _ = results.by_intensity(metric)
    if len(levels) == len(results.severities) and len(kinds) == len(results.shifts):
        return f"(0 … {results.severities[-1]}) and the mean over shifts"
    listed = ", ".join(map(str, [0, *levels]))
    return (
        f"({listed}) and the mean over the {len(kinds)} of {len(results.shifts)} kinds of shift that have all of them"
    )


def _lower(metric: str) -> bool:
    return metric_text(metric).better == "lower"


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's ρ of the pairs whose second value is finite; NaN if there are fewer than three.

    It is rounded to 12 digits, so that equal correlations compare as equal.
    """
    known = np.isfinite(second)
    if known.sum() < 3:
        return math.nan
    return round(spearman_rho(first[known], second[known]), 12)
