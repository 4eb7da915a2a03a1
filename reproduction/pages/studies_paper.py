"""The paper's printed figures beside those of a study, for docs/studies/*.md.

`python reproduction/pages/make_studies.py` writes the table into the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from reproduction_tables import markdown
from studies_figures import figure
from studies_tables import number, title

from avuc.report.study.paper_comparison import published_value, read_published
from avuc.report.study.result_arrays import Results

PRINTED = Path(__file__).parents[1] / "results" / "paper" / "tables.csv"
INTENSITY = "5"
KEYS = ("table", "shift", "intensity", "metric", "statistic")
# columns, with these keys: medians of the quartile table; rank correlation with the intensity; detection of the
# strongest blur by entropy
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
    """Return one table: the paper's methods on `dataset`, then those of the study, if it was run.

    Args:
        dataset: the paper's data set, "cifar10" or "imagenet".
        results: results of the study; None if it was not run.
    """
    printed = [entry for entry in read_published(PRINTED) if entry.dataset == dataset]
    names = dict.fromkeys(entry.method for entry in printed if entry.table in ("quartiles", "spearman", "detection"))
    rows = []
    for name in names:
        values = [published_value(printed, method=name, **dict(zip(KEYS, column, strict=True))) for column in COLUMNS]
        rows.append(_row("paper", name, values))
    for name in results.names if results is not None else ():
        rows.append(_row("here", name, [_our_value(results, name, *column) for column in COLUMNS]))
    return markdown(["", "method", *(_head(*column) for column in COLUMNS)], rows)


def _our_value(results: Results, name: str, _: str, shift: str, intensity: str, metric: str, statistic: str) -> float:
    """Return the study's figure of a method in a column."""
    where = f"{shift} {intensity}" if shift else intensity
    return figure(results, name, metric, where, "mean" if statistic == "value" else statistic).value


def _row(source: str, name: str, values: Sequence[float]) -> list[str]:
    """Return a line of the table; `values` are the figures of the columns."""
    cells = []
    for value, (_, _, _, metric, statistic) in zip(values, COLUMNS, strict=True):
        text = f"{value:.2f}".replace("-", "−") if statistic == "spearman" else number(value, metric)
        cells.append(text if math.isfinite(value) else "–")
    return [source, name, *cells]


def _head(table: str, shift: str, intensity: str, metric: str, _: str) -> str:
    """Return the heading of a column."""
    if table == "spearman":
        return f"ρ of {title(metric).partition(',')[0]}"
    where = f"{shift.replace('_', ' ')} {intensity}" if shift else f"median at {intensity}"
    return f"{title(metric)}, {where}"
