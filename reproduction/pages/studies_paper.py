"""The paper's printed figures beside those of a study, for docs/studies/*.md; used by make_studies.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from reproduction_tables import markdown
from studies_tables import number, title

from avuc.report.study.paper_comparison import figure, published_value, read_published
from avuc.report.study.result_arrays import Results

PRINTED = Path(__file__).parents[1] / "results" / "paper" / "tables.csv"
INTENSITY = "5"
# the quartile table; rank correlation with the intensity; detection of the strongest blur by entropy
COLUMNS = (
    ("quartiles", "", INTENSITY, "ece", "median"),
    ("quartiles", "", INTENSITY, "uce", "median"),
    ("quartiles", "", INTENSITY, "nll", "median"),
    ("quartiles", "", INTENSITY, "brier", "median"),
    ("spearman", "", "", "ece", "spearman"),
    ("spearman", "", "", "uce", "spearman"),
    ("spearman", "", "", "avu_auc", "spearman"),
    ("detection", "gaussian_blur", INTENSITY, "auroc", "value"),
)


def beside_the_paper(dataset: str, results: Results | None) -> str:
    """One table: the paper's methods on `dataset`, then those of the study, if it was run.

    Args:
        dataset: the paper's data set, "cifar10" or "imagenet".
        results: of the study; None if it was not run.
    """
    printed = [entry for entry in read_published(PRINTED) if entry.dataset == dataset]
    names = dict.fromkeys(entry.method for entry in printed if entry.table in ("quartiles", "spearman", "detection"))
    rows = []
    for name in names:
        keys = [dict(zip(("table", "shift", "intensity", "metric", "statistic"), c, strict=True)) for c in COLUMNS]
        rows.append(_row("paper", name, lambda place: published_value(printed, method=name, **keys[place])))  # noqa: B023
    for name in results.names if results is not None else ():
        rows.append(_row("here", name, lambda place: _here(results, name, place)))  # noqa: B023
    return markdown(["", "method", *(_head(place) for place in range(len(COLUMNS)))], rows)


def _here(results: Results, name: str, place: int) -> float:
    _, shift, intensity, metric, statistic = COLUMNS[place]
    where = f"{shift} {intensity}" if shift else intensity
    return figure(results, name, metric, where, "mean" if statistic == "value" else statistic).value


def _row(source: str, name: str, value: Callable[[int], float]) -> list[str]:
    cells = []
    for place, (_, _, _, metric, statistic) in enumerate(COLUMNS):
        found = value(place)
        text = f"{found:.2f}".replace("-", "−") if statistic == "spearman" else number(found, metric)
        cells.append(text if math.isfinite(found) else "–")
    return [source, name, *cells]


def _head(place: int) -> str:
    table, shift, intensity, metric, _ = COLUMNS[place]
    if table == "spearman":
        return f"ρ of {title(metric).partition(',')[0]}"
    where = f"{shift.replace('_', ' ')} {intensity}" if shift else f"median at {intensity}"
    return f"{title(metric)}, {where}"
