"""Recorded figures of bench_posthoc.py: one line for each prediction set and method, and the tables made from them.

The first line of a file says when and with which versions it was made. `seconds` are CPU seconds of the fit on one
thread. A figure is of the test rows of a set, which no fit has seen.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "auto-calibrator.md"
# the halves of which the page has a table, and its mark there
MARKS = {"choose": "posthoc-choose", "report": "posthoc", "fresh": "posthoc-fresh", "third": "posthoc-third"}
LIBRARIES = ("avuc", "torch", "scikit-learn", "probmetrics", "netcal", "mapie", "torchcp")
# larger sets are not in the tables
MOST_CLASSES = 32
# what the data of the third collection are; all others are tables
TEXTS = ("trec", "subj", "movie-reviews")


class Row(NamedTuple):
    """One method on one prediction set."""

    set: str
    data: str
    rows: int
    classes: int
    unseen: int
    method: str
    nll: float
    brier: float
    ece: float
    seconds: float


def figures(probs: np.ndarray, labels: np.ndarray, bins: int = 15) -> tuple[float, float, float]:
    """Return NLL (a probability below 1e-12 counts as that), the Brier score and ECE with 15 bins.

    >>> figures(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 0]))
    (0.34657359027997264, 0.25, 0.25)
    """
    chosen = probs[np.arange(len(labels)), labels]
    brier = (probs**2).sum(1) - 2 * chosen + 1
    confidence = probs.max(1)
    gap = (probs.argmax(1) == labels) - confidence
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    ece = np.abs(np.bincount(place, gap, bins)).sum() / len(labels)
    return float(-np.log(np.clip(chosen, 1e-12, None)).mean()), float(brier.mean()), float(ece)


def path(half: str) -> Path:
    return RESULTS / f"posthoc-{half}.csv"


def save(half: str, rows: Iterable[Row]) -> None:
    """Write the rows of a half, with the date and versions.

    Args:
        half: choose, report, fresh or third.
        rows: of all sets and methods.
    """
    with path(half).open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {made()}")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])


def load(half: str) -> tuple[list[Row], str]:
    """Return the rows of a half, and when they were made."""
    with path(half).open(newline="", encoding="utf-8") as file:
        when = file.readline().removeprefix("# ")
        rows = [
            Row(
                set=line["set"],
                data=line["data"],
                method=line["method"],
                **{name: int(line[name]) for name in ("rows", "classes", "unseen")},
                **{name: float(line[name]) for name in ("nll", "brier", "ece", "seconds")},
            )
            for line in csv.DictReader(file)
        ]
    return rows, when


def made() -> str:
    return f"{datetime.date.today():%d %B %Y}, {os.cpu_count()} cores, {versions()}.\n"


def versions() -> str:
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def page_table(half: str) -> str:
    """Return what the page shows of a half: the mean test NLL, and how `auto` compares.

    Args:
        half: choose, report, fresh or third.
    """
    rows, when = load(half)
    # not all methods can take many classes; the page names these sets apart
    rows = [row for row in rows if row.classes <= MOST_CLASSES]
    if half == "third":
        rows = [row._replace(data="texts" if row.data in TEXTS else "tables") for row in rows]
    return f"{nll_table(rows)}{compared(rows)}{others(rows)}{when}"


def nll_table(rows: Sequence[Row]) -> str:
    """Return the mean test NLL of each method for each data set; methods are sorted by the mean over all sets."""
    seen = [row for row in rows if not row.unseen]
    columns = {data: {row.set for row in seen if row.data == data} for data in dict.fromkeys(row.data for row in seen)}
    total = "**mean of all sets**"
    columns[total] = {row.set for row in seen}
    if other := {row.set for row in rows if row.unseen}:
        columns["test rows shifted"] = other
    found = {(row.set, row.method): row.nll for row in rows}

    def mean(method: str, sets: set[str]) -> float:
        return float(np.mean([found.get((one, method), math.nan) for one in sorted(sets)]))

    methods = dict.fromkeys(row.method for row in rows)
    order = sorted(methods, key=lambda name: (math.isnan(mean(name, columns[total])), mean(name, columns[total])))
    lines = [f"| mean test NLL | {' | '.join(f'{data} ({len(sets)})' for data, sets in columns.items())} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in order:
        cells = [f"{mean(name, sets):.4f}" for sets in columns.values()]
        lines.append(f"| {name} | {' | '.join('–' if cell == 'nan' else cell for cell in cells)} |")
    return "\n".join([*lines, "", ""])


def best_peer(rows: Sequence[Row]) -> str:
    """Return the method of probmetrics with the lowest mean NLL of those that ran on all sets."""
    losses: dict[str, list[float]] = {}
    for row in rows:
        if row.method.startswith("probmetrics") and not row.unseen:
            losses.setdefault(row.method, []).append(row.nll)
    most = max(map(len, losses.values()), default=0)
    return min((name for name in losses if len(losses[name]) == most), key=lambda n: np.mean(losses[n]), default="")


def paired(rows: Sequence[Row], method: str, other: str) -> np.ndarray:
    """Return NLL(method) − NLL(other) of each set with test rows like those of the fit."""
    found = {(row.set, row.method): row.nll for row in rows if not row.unseen}
    sets = dict.fromkeys(row.set for row in rows if not row.unseen)
    return np.array([found[one, method] - found[one, other] for one in sets])


def compared(rows: Sequence[Row]) -> str:
    """Return how `auto` compares with the best single method of probmetrics."""
    peer = best_peer(rows)
    if not peer:
        return ""
    change = paired(rows, "auto", peer)
    reach = 1.96 * change.std(ddof=1) / math.sqrt(len(change)) if len(change) > 1 else math.inf
    return (
        f"`auto` − best single method of probmetrics ({peer.split()[1]}): {change.mean():+.4f}, 95 % interval over "
        f"{len(change)} sets {change.mean() - reach:+.4f} to {change.mean() + reach:+.4f}; lower in "
        f"{int((change < -1e-4).sum())}, equal within 0.0001 in {int((abs(change) <= 1e-4).sum())}, higher in "
        f"{int((change > 1e-4).sum())} sets. Goal (mean at most that of probmetrics): "
        f"{'met' if change.mean() <= 0 else 'GOAL MISSED'}.\n"
    )


def others(rows: Sequence[Row]) -> str:
    """Return the mean Brier score, ECE and time of some methods, and how often they are worse than none."""
    lines = [
        "",
        "| all sets | Brier score | ECE | CPU seconds of the fits | higher NLL than none | worst |",
        "|---" * 6 + "|",
    ]
    seen = [row for row in rows if not row.unseen]
    for name in ("auto", "auto, always a mixture", "matrix", "temperature", best_peer(rows), "none"):
        mine = [row for row in seen if row.method == name]
        if not mine:
            continue
        rise = paired(rows, name, "none")
        figures = [float(np.mean([getattr(row, key) for row in mine])) for key in ("brier", "ece")]
        lines.append(
            f"| {name} | {figures[0]:.4f} | {figures[1]:.4f} | {sum(row.seconds for row in mine):.1f} | "
            f"{int((rise > 1e-4).sum())} of {len(rise)} | {rise.max():+.3f} |"
        )
    return "\n".join([*lines, "", ""])


def equal(rows: Sequence[Row], peers: dict[str, str], least_rows: int, most: float) -> str:
    """Return the largest difference of the test NLL to the same method of probmetrics.

    Args:
        rows: of a half.
        peers: name of ours for each name of probmetrics.
        least_rows: sets with fewer rows are left out.
        most: difference that counts as equal.
    """
    found = {(row.set, row.method): row.nll for row in rows if row.rows >= least_rows}
    lines = []
    for name, same in peers.items():
        pairs = [
            (found[one, same], value)
            for (one, method), value in found.items()
            if method == f"probmetrics {name}" and (one, same) in found
        ]
        if pairs:
            largest = max(abs(a - b) for a, b in pairs)
            verdict = "" if largest <= most else " DIFFERENT"
            lines.append(f"{same} = probmetrics {name}: largest difference of NLL {largest:.2e}{verdict}")
    return "\n".join(lines)
