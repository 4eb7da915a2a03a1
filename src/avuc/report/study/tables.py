"""Every table of the paper, of any study."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from avuc.report.metric_text import words_of
from avuc.report.study.intervals import Spread, spread
from avuc.report.study.results import CLEAN, Results
from avuc.report.table import Cell, Entry, Table

__all__ = ["all_tables", "rank_correlation", "ranking"]

Array = NDArray[np.float64]
SCORES = ("ece", "uce", "nll", "brier", "accuracy", "avu_auc")
MARKS = (
    "Bold: the best method, and every method not significantly different from it; nothing is bold where one seed on "
    "one set says nothing about that."
)
DETECTION = ("auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95")
QUARTILES: dict[str, Callable[[Array], Array] | None] = {
    "lower quartile": lambda values: np.quantile(values, 0.25, axis=-1),
    "median": lambda values: np.quantile(values, 0.5, axis=-1),
    "mean": None,
    "upper quartile": lambda values: np.quantile(values, 0.75, axis=-1),
}


def all_tables(results: Results) -> list[Table]:
    """In the order of the page."""
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
                caption="Between clean images and others, in nats; a larger distance tells them apart better. " + MARKS,
            )
        )
    return tables


def ranking(results: Results) -> Table:
    """One line for each method, best NLL first."""
    columns: list[tuple[str, Spread, bool]] = []
    for metric in ("accuracy", "ece"):
        columns.append((f"clean: {words_of(metric).title}", _at(results, metric, CLEAN), metric != "accuracy"))
    for metric in ("nll", "brier", "ece", "uce", "accuracy") if results.shifts else ("nll", "brier", "uce"):
        found = spread(results.shifted(metric)) if results.shifts else _at(results, metric, CLEAN)
        columns.append((f"{'shifted' if results.shifts else 'clean'}: {words_of(metric).title}", found, _lower(metric)))
    for name in results.outside:
        columns.append((f"AUROC {name.removeprefix('ood:')}", _at(results, "auroc", (name, 0)), False))
    deciding = next(found for title, found, _ in columns if title.endswith(": NLL"))
    order = np.argsort(np.where(np.isfinite(deciding.value), deciding.value, np.inf), kind="stable")
    entries = [_entries(found, lower, intervals=True) for _, found, lower in columns]
    rows = [
        [
            results.names[method],
            str(len(results.methods[method].seeds)),
            str(results.methods[method].draws),
            *(each[method] for each in entries),
        ]
        for method in order
    ]
    common, shifted = len(results.common("nll")), sum(bool(cell[1]) for cell in results.cells)
    over = f"the {common} shifted sets that all methods have" if common < shifted else "shifts and intensities"
    return Table(
        "ranking",
        "Ranking, best NLL first",
        f"Means over seeds, {over} with 95 % intervals. " + MARKS,
        ["method", "seeds", "draws", *(title for title, _, _ in columns)],
        rows,
    )


def changes(results: Results) -> Table:
    """Two studies: what the second changed, for methods that both have."""
    first, second = results.studies
    pairs = [
        (place, results.names.index(name), one.name.removeprefix(f"{first}: "))
        for place, one in enumerate(results.methods)
        if one.study == 0 and (name := f"{second}: {one.name.removeprefix(f'{first}: ')}") in results.names
    ]
    rows: list[list[Cell]] = []
    for before, after, name in pairs:
        for metric in (metric for metric in SCORES if metric in results.values):
            where = "shifted" if results.shifts else "clean"
            values = results.shifted(metric) if results.shifts else results.at(metric, CLEAN)[:, :, None]
            found = spread(values[[before, after]])
            low, high = found.difference(1, 0)
            value = float(found.value[1] - found.value[0])
            better = "–" if math.isnan(low) or low <= 0 <= high else _which(value, metric)
            entries = (Entry(float(each)) for each in found.value)
            rows.append([name, f"{where}: {words_of(metric).title}", *entries, Entry(value, low, high), better])
    return Table(
        "changes",
        f"From {first} to {second}",
        "Methods and shifts that both studies have; 95 % interval of the change, by shifts and seeds.",
        ["method", "metric", first, second, "change", "which is"],
        rows,
    )


def _which(change: float, metric: str) -> str:
    better = words_of(metric).better
    return "better" if (change < 0) == (better == "lower") else "worse"


def quartiles(results: Results) -> Table:
    """The paper's quartile table, at the strongest intensity."""
    top = results.severities[-1]
    rows: list[list[Cell]] = []
    for metric in (name for name in SCORES if name in results.values):
        values = results.shifted(metric, top)
        for label, statistic in QUARTILES.items():
            entries = _entries(spread(values, statistic), _lower(metric))
            rows.append([f"{words_of(metric).title}, {label}", *entries])
    return Table(
        "quartiles",
        f"Quartiles at intensity {top}",
        f"Over {len(results.shifts)} kinds of shift at intensity {top}, seeds averaged. " + MARKS,
        ["", *results.names],
        rows,
    )


def spearman(results: Results) -> Table:
    """Rank correlation of a metric, averaged over shifts, with the intensity; clean images are intensity 0."""
    levels = [0, *results.severities]
    rows: list[list[Cell]] = []
    for metric in (name for name in SCORES if name in results.values):
        means = np.stack(
            [results.mean(metric, CLEAN)] + [spread(results.shifted(metric, level)).value for level in levels[1:]],
            axis=1,
        )
        found = np.array([rank_correlation(np.array(levels, float), each) for each in means])
        nearest = np.nanmin(np.abs(found)) if np.isfinite(found).any() else math.nan
        rows.append([words_of(metric).title, *(Entry(float(rho), best=abs(rho) == nearest) for rho in found)])
    return Table(
        "spearman",
        "Trend with the intensity: Spearman's ρ",
        f"Spearman's ρ of the mean over shifts with intensities 0 … {levels[-1]}; 0: no trend. Bold: nearest to 0.",
        ["", *results.names],
        rows,
    )


def detection(results: Results, metric: str) -> Table | None:
    """Clean images against each shift at its strongest, and against other data, told apart by entropy."""
    if metric not in results.values:
        return None
    top = results.severities[-1] if results.severities else 0
    cells = [(shift, top) for shift in results.shifts] + [(name, 0) for name in results.outside]
    words = words_of(metric)
    rows: list[list[Cell]] = [
        [_plain(shift), *_entries(_at(results, metric, (shift, level)), words.better == "lower")]
        for shift, level in cells
    ]
    if len(results.shifts) > 1:
        mean = _entries(spread(results.shifted(metric, top)), words.better == "lower")
        rows.append(["mean over shifts", *mean])
    return Table(
        f"detection-{metric}",
        f"Telling shifted images from clean ones: {words.title}",
        f"{words.meaning[:1].upper()}{words.meaning[1:]}; shifts at intensity {top}. " + MARKS,
        ["", *results.names],
        rows,
    )


def _at(results: Results, metric: str, cell: tuple[str, int]) -> Spread:
    return spread(results.at(metric, cell)[:, :, None])


def _entries(found: Spread, lower: bool, *, intervals: bool = False) -> list[Entry]:
    ties = found.marked(lower)
    out = []
    for method, value in enumerate(found.value):
        low, high = found.interval(method) if intervals else (math.nan, math.nan)
        out.append(Entry(float(value), low, high, method in ties))
    return out


def _lower(metric: str) -> bool:
    return words_of(metric).better == "lower"


def rank_correlation(first: Array, second: Array) -> float:
    """Pearson's correlation of the ranks, ties at their mean rank."""
    known = np.isfinite(second)
    if known.sum() < 3:
        return math.nan
    ranks = [_ranks(values[known]) for values in (first, second)]
    centred = [each - each.mean() for each in ranks]
    scale = math.sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return round(float((centred[0] * centred[1]).sum()) / scale, 12) if scale else math.nan


def _ranks(values: Array) -> Array:
    below = (values[:, None] > values[None]).sum(1)
    equal = (values[:, None] == values[None]).sum(1)
    ranks: Array = below + (equal - 1) / 2
    return ranks


def _plain(shift: str) -> str:
    return shift.removeprefix("ood:").replace("_", " ")
