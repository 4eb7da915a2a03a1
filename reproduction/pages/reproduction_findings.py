"""The pictures of docs/reproduction/index.md, one for each finding.

A picture of a finding is a list of `Point`; it ends with a comment that holds them, so that `--check` of
make_reproduction.py sees whether it is of the published rows.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reproduction_seeds import SET_TITLES, WITH, WITHOUT, by_seed
from reproduction_tables import PERCENT, Study

from avuc.report.colours import colour_of
from avuc.report.metric_text import metric_text
from avuc.report.study.figures import saved
from avuc.report.study.paired import over_seeds
from avuc.report.study.paper_comparison import Published, published_value

SIZE, TALLER = (6.5, 2.6), (6.5, 3.1)
FONT = 11  # legible where a page is 390 pixels wide
OURS, PAPER, WORSE, UNCLEAR = (colour_of(place)[0] for place in (0, 4, 1, 6))
MEASURED = ("ece", "nll", "brier", "uce")
VARIANTS = {WITH: "AvUC, printed", "SVI-AvUC, monotone": "monotone", "SVI-AUAvUC": "AUAvUC"}
TEMPERATURES = {"SVI-TS": "TS", "SVI-AvUTS": "AvUTS, printed", "SVI-AvUTS (ours)": "AvUTS, ours"}
TEMPERATURES |= {"SVI-AUAvUTS": "AUAvUTS", WITH: "SVI-AvUC"}
# the readings of svhn.csv, in rows of the picture; ours and printed are above them
READINGS = {
    "another score": ("mutual information", "expected entropy", "1 - confidence"),
    "fewer samples": ("entropy, 1 draws", "entropy, 8 draws", "entropy, 32 draws"),
    "all SVHN images": ("entropy, all SVHN test images",),
    "SVHN pixels scaled": ("SVHN pixels in [-1, 1], clean in [0, 1]", "SVHN pixels standardised, clean in [0, 1]"),
    "all pixels scaled": ("both in [-1, 1]", "both standardised"),
    "batch normalisation": ("batch normalisation by the test batch of 500",),
}


@dataclass(frozen=True)
class Point:
    """A mark of a picture; `low` and `high` are the ends of its bar."""

    panel: str
    row: str
    kind: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def bar(self) -> list[list[float]]:
        """How far the bar reaches below and above."""
        return [[self.value - self.low], [self.high - self.value]]

    def __str__(self) -> str:
        ends = "" if math.isnan(self.low) else f" {self.low:.5f} {self.high:.5f}"
        return f"{self.panel}, {self.row}, {self.kind}: {self.value:.5f}{ends}"


def beside_printed(study: Study, printed: Sequence[Published]) -> list[Point]:
    """Return the printed figures of SVI and SVI-AvUC at intensity 5, and ours: mean ± standard deviation over seeds."""
    points = []
    for metric in MEASURED:
        for row in (WITHOUT, WITH):
            wanted = {"table": "quartiles", "dataset": "cifar10", "method": row, "metric": metric, "statistic": "mean"}
            points.append(Point(_name(metric), row, "printed", published_value(printed, **wanted)))
            values = list(by_seed(study, row, metric, "5").values())
            middle, wide = statistics.mean(values), statistics.stdev(values)
            points.append(Point(_name(metric), row, "ours", middle, middle - wide, middle + wide))
    return points


def seed_by_seed(study: Study) -> list[Point]:
    """Return ECE and NLL of SVI and of SVI-AvUC, for every seed that both have."""
    points = []
    for metric in ("ece", "nll"):
        values = {row: by_seed(study, row, metric, "5") for row in (WITHOUT, WITH)}
        for seed in sorted(set(values[WITHOUT]) & set(values[WITH])):
            points += [Point(_name(metric), f"seed {seed}", row, values[row][seed]) for row in (WITHOUT, WITH)]
    return points


def against_svi(study: Study, rows: Mapping[str, str], figures: Iterable[tuple[str, str]]) -> list[Point]:
    """Return the difference of each method to SVI, with its interval over the seeds that both have."""
    points = []
    for metric, where in figures:
        share = 100 if metric in PERCENT else 1
        panel = f"{_name(metric)}{' in points' * (share > 1)}, {SET_TITLES[where]}"
        for row, told in rows.items():
            first, second = (by_seed(study, name, metric, where) for name in (row, WITHOUT))
            seeds = sorted(set(first) & set(second))
            found = over_seeds(*(tuple(each[s] for s in seeds) for each in (first, second)), same_seeds=True)
            points.append(Point(panel, told, f"{len(seeds)} seeds", *(share * value for value in found)))
    return points


def svhn_points(study: Study, printed: Sequence[Published], path: Path) -> list[Point]:
    """Return AUROC for SVHN in %: printed, ours for every seed, and every reading of the file."""
    points = []
    for row in (WITH, WITHOUT):
        wanted = {"table": "detection", "dataset": "cifar10", "method": row, "metric": "auroc", "shift": "svhn"}
        points.append(Point("AUROC", row, "printed", 100 * published_value(printed, **wanted)))
        values = by_seed(study, row, "auroc", "svhn")
        points += [Point("AUROC", row, f"seed {seed}", 100 * values[seed]) for seed in sorted(values)]
    rows = {reading: row for row, readings in READINGS.items() for reading in readings}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["reading"] in rows:
                kind = f"{line['method']} seed {line['seed']}, {line['reading']}"
                points.append(Point("AUROC", rows[line["reading"]], kind, 100 * float(line["auroc"])))
    return points


def finding_points(
    studies: Mapping[str, Study], printed: Sequence[Published], svhn: Path
) -> dict[str, tuple[list[Point], tuple[float, float], Callable[..., None]]]:
    """Return what each picture shows, its size and who paints it, by file name; empty without the study of the code."""
    study = studies.get("code")
    needed = {WITHOUT, *VARIANTS, *TEMPERATURES}
    if study is None or not needed <= set(study.results.names) or not svhn.is_file():
        return {}
    shifted, clean = (("ece", "5"), ("nll", "5")), ("accuracy", "clean")
    return {
        "finding-1-printed.svg": (beside_printed(study, printed), SIZE, paint_beside),
        "finding-2-seeds.svg": (seed_by_seed(study), SIZE, paint_seeds),
        "finding-3-variants.svg": (against_svi(study, VARIANTS, (*shifted, clean)), TALLER, paint_differences),
        "finding-4-temperatures.svg": (against_svi(study, TEMPERATURES, shifted), TALLER, paint_differences),
        "finding-5-svhn.svg": (svhn_points(study, printed, svhn), TALLER, paint_svhn),
    }


def finding_values(studies: Mapping[str, Study], printed: Sequence[Published], svhn: Path) -> dict[str, str]:
    """Return the end of each file: a comment with what it shows."""
    found = finding_points(studies, printed, svhn)
    return {name: "<!-- " + "\n".join(map(str, points)) + " -->\n" for name, (points, _, _) in found.items()}


def finding_drawings(studies: Mapping[str, Study], printed: Sequence[Published], svhn: Path) -> dict[str, bytes]:
    """Return the pictures by their file names."""
    values = finding_values(studies, printed, svhn)
    return {
        name: saved(name, size, partial(paint, points=points))["svg"] + values[name].encode()
        for name, (points, size, paint) in finding_points(studies, printed, svhn).items()
    }


def _name(metric: str) -> str:
    return metric_text(metric).title.removesuffix(" score")


def _panels(figure: Any, points: Sequence[Point], **more: Any) -> list[tuple[Any, list[Point]]]:
    """Return the axes and the points of each panel, side by side."""
    import matplotlib as mpl

    # `saved` sets smaller sizes, and takes all of them back
    mpl.rcParams.update({"font.size": FONT, "axes.titlesize": FONT, "legend.fontsize": FONT})
    names = list(dict.fromkeys(point.panel for point in points))
    grid = figure.subplots(1, len(names), squeeze=False, **more)[0]
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(name)
        axes.locator_params(axis="x", nbins=4)
    return [(axes, [point for point in points if point.panel == name]) for axes, name in zip(grid, names, strict=True)]


def paint_beside(figure: Any, points: Sequence[Point]) -> None:
    for axes, shown in _panels(figure, points):
        for point in shown:
            place = [WITHOUT, WITH].index(point.row)
            if point.kind == "printed":
                axes.plot([place - 0.15], [point.value], "D", color=PAPER, markersize=7)
            else:
                axes.errorbar([place + 0.15], [point.value], point.bar, fmt="o", color=OURS, capsize=3)
        axes.set_xticks([0, 1], ["SVI", "AvUC"])
        axes.set_xlim(-0.6, 1.6)
        axes.margins(y=0.12)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(visible=False, axis="x")
    axes.plot([], [], "D", color=PAPER, label="printed")
    axes.plot([], [], "o-", color=OURS, label="ours, ± standard deviation over seeds")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def paint_seeds(figure: Any, points: Sequence[Point]) -> None:
    for axes, shown in _panels(figure, points):
        pairs = [(one.value, other.value) for one, other in zip(shown[::2], shown[1::2], strict=True)]
        for before, after in pairs:
            axes.plot(
                [0, 1], [before, after], "o-", color=OURS if after < before else WORSE, markersize=4, linewidth=1.2
            )
        axes.plot([0, 1], [statistics.mean(each) for each in zip(*pairs, strict=True)], color="black", linewidth=3)
        axes.set_xticks([0, 1], [WITHOUT, WITH])
        axes.set_xlim(-0.3, 1.3)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(visible=False, axis="x")
    for colour, wide, told in ((OURS, 1.2, "better with AvUC"), (WORSE, 1.2, "worse"), ("black", 3, "mean")):
        axes.plot([], [], color=colour, linewidth=wide, label=told)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def paint_differences(figure: Any, points: Sequence[Point]) -> None:
    panels = _panels(figure, points, sharey=True)
    for axes, shown in panels:
        axes.axvline(0, color="0.4", linewidth=1)
        higher = shown[0].panel.startswith("Accuracy")
        for place, point in enumerate(shown):
            clear, better = point.low > 0 or point.high < 0, (point.value > 0) == higher
            colour = (OURS if better else WORSE) if clear else UNCLEAR
            axes.errorbar([point.value], [place], xerr=point.bar, fmt="o", color=colour, capsize=3)
        axes.set_title(shown[0].panel.replace(", ", ",\n") if len(panels) > 2 else shown[0].panel)
    axes.set_yticks(range(len(shown)), [point.row for point in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    for colour, told in ((OURS, "better"), (WORSE, "worse"), (UNCLEAR, "not clear")):
        axes.plot([], [], "o-", color=colour, label=told)
    title = "Difference to SVI, 95 % interval over paired seeds:"
    figure.legend(loc="outside lower center", ncols=3, frameon=False, title=title, title_fontsize=FONT)


def paint_svhn(figure: Any, points: Sequence[Point]) -> None:
    ((axes, shown),) = _panels(figure, points)
    rows = list(dict.fromkeys(point.row for point in shown))
    count = sum(point.row == WITH and point.kind != "printed" for point in shown)
    for point in shown:
        place, printed = rows.index(point.row), point.kind == "printed"
        style = (
            {"marker": "D", "markersize": 7, "color": PAPER}
            if printed
            else {"marker": "o", "color": OURS, "alpha": 0.6}
        )
        axes.plot([point.value], [place], linestyle="", **{"markersize": 5, **style})
    axes.plot([], [], "D", color=PAPER, label="printed")
    axes.plot([], [], "o", color=OURS, label="ours, one model")
    axes.set_yticks(range(len(rows)), [f"{row}, {count} seeds" if row in (WITH, WITHOUT) else row for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axhline(1.5, color="0.4", linewidth=0.8)
    axes.set_title("AUROC for SVHN, in %")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
