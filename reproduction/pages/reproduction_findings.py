"""The figures of docs/reproduction/index.md, one for each finding.

    python reproduction/pages/make_reproduction.py

A figure shows a list of `Point`. Its file ends with a comment that lists them, so that make_reproduction.py --check can
tell whether the figure matches the published results.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reproduction_seeds import SET_TITLES, WITH, WITHOUT, by_seed, read_svhn, shared_difference
from reproduction_tables import PERCENT, Study, printed_mean, short_title

from avuc.report.colours import colour_of
from avuc.report.study.figures import saved
from avuc.report.study.paper_comparison import Published, published_value

SIZE, TALLER = (6.5, 2.6), (6.5, 3.1)
FONT = 11  # legible on a page that is 390 pixels wide
OURS, PAPER, WORSE, UNCLEAR, READ = (colour_of(index)[0] for index in (0, 4, 1, 6, 2))
MEASURED = ("ece", "nll", "brier", "uce")
VARIANTS = {WITH: "AvUC, printed", "SVI-AvUC, monotone": "monotone", "SVI-AUAvUC": "AUAvUC"}
TEMPERATURES = {"SVI-TS": "TS", "SVI-AvUTS": "AvUTS, printed", "SVI-AvUTS (ours)": "AvUTS, ours"}
TEMPERATURES |= {"SVI-AUAvUTS": "AUAvUTS", WITH: "SVI-AvUC"}
# row of the figure → readings of svhn.csv; the rows of our and the printed figures are above them
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
    """A mark of a figure.

    Args:
        panel: title of the panel.
        row: the method, the seed or the group of readings that it belongs to.
        kind: what is measured, for example "printed" or "5 seeds".
        value: position of the mark.
        low: lower end of its bar; NaN: no bar.
        high: upper end of its bar.
    """

    panel: str
    row: str
    kind: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def bar(self) -> list[list[float]]:
        """Return how far the bar extends below and above the mark."""
        return [[self.value - self.low], [self.high - self.value]]

    def __str__(self) -> str:
        ends = "" if math.isnan(self.low) else f" {self.low:.5f} {self.high:.5f}"
        return f"{self.panel}, {self.row}, {self.kind}: {self.value:.5f}{ends}"


def beside_printed(study: Study, printed: Sequence[Published]) -> list[Point]:
    """Return the printed figures of SVI and SVI-AvUC at intensity 5, and ours: mean ± standard deviation over seeds."""
    points = []
    for metric in MEASURED:
        for method in (WITHOUT, WITH):
            points.append(Point(short_title(metric), method, "printed", printed_mean(printed, method, metric)))
            values = list(by_seed(study, method, metric, "5").values())
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            points.append(Point(short_title(metric), method, "ours", mean, mean - deviation, mean + deviation))
    return points


def seed_by_seed(study: Study) -> list[Point]:
    """Return ECE and NLL of SVI and of SVI-AvUC, for every seed that both have."""
    points = []
    for metric in ("ece", "nll"):
        values = {method: by_seed(study, method, metric, "5") for method in (WITHOUT, WITH)}
        for seed in sorted(set(values[WITHOUT]) & set(values[WITH])):
            points += [
                Point(short_title(metric), f"seed {seed}", method, values[method][seed]) for method in (WITHOUT, WITH)
            ]
    return points


def against_svi(study: Study, methods: Mapping[str, str], figures: Iterable[tuple[str, str]]) -> list[Point]:
    """Return the difference of each method from SVI, with its interval over the seeds that both have.

    Args:
        study: the study of the code.
        methods: method → its label in the figure.
        figures: metric and where it is measured; one panel each.
    """
    points = []
    for metric, where in figures:
        scale = 100 if metric in PERCENT else 1
        panel = f"{short_title(metric)}{' in points' * (scale > 1)}, {SET_TITLES[where]}"
        for method, label in methods.items():
            difference, seeds = shared_difference(*(by_seed(study, name, metric, where) for name in (method, WITHOUT)))
            points.append(Point(panel, label, f"{seeds} seeds", *(scale * value for value in difference)))
    return points


def svhn_points(study: Study, printed: Sequence[Published], paths: Iterable[Path]) -> list[Point]:
    """Return the AUROC of SVHN in %: printed, ours for every seed, and every reading of the files `paths`."""
    points = []
    for row in (WITH, WITHOUT):
        properties = {"table": "detection", "dataset": "cifar10", "method": row, "metric": "auroc", "shift": "svhn"}
        points.append(Point("AUROC", row, "printed", 100 * published_value(printed, **properties)))
        values = by_seed(study, row, "auroc", "svhn")
        points += [Point("AUROC", row, f"seed {seed}", 100 * values[seed]) for seed in sorted(values)]
    rows = {reading: row for row, readings in READINGS.items() for reading in readings}
    for line in (line for path in paths for line in read_svhn(path)):
        if line["reading"] in rows:
            kind = f"{line['models']} seed {line['seed']}, {line['reading']}"
            points.append(Point("AUROC", rows[line["reading"]], kind, 100 * float(line["auroc"])))
    return points


def finding_points(
    studies: Mapping[str, Study], printed: Sequence[Published], svhn: Sequence[Path]
) -> dict[str, tuple[list[Point], tuple[float, float], Callable[..., None]]]:
    """Return file name → (points, size, painting function) of each figure; empty without the study of the code."""
    study = studies.get("code")
    needed = {WITHOUT, *VARIANTS, *TEMPERATURES}
    if study is None or not needed <= set(study.results.names) or not svhn[0].is_file():
        return {}
    shifted, clean = (("ece", "5"), ("nll", "5")), ("accuracy", "clean")
    return {
        "finding-1-printed.svg": (beside_printed(study, printed), SIZE, paint_beside),
        "finding-2-seeds.svg": (seed_by_seed(study), SIZE, paint_seeds),
        "finding-3-variants.svg": (against_svi(study, VARIANTS, (*shifted, clean)), TALLER, paint_differences),
        "finding-4-temperatures.svg": (against_svi(study, TEMPERATURES, shifted), TALLER, paint_differences),
        "finding-5-svhn.svg": (svhn_points(study, printed, svhn), TALLER, paint_svhn),
    }


def finding_values(studies: Mapping[str, Study], printed: Sequence[Published], svhn: Sequence[Path]) -> dict[str, str]:
    """Return file name → the comment at the end of the file, which lists its points."""
    all_points = finding_points(studies, printed, svhn)
    return {name: "<!-- " + "\n".join(map(str, points)) + " -->\n" for name, (points, _, _) in all_points.items()}


def finding_drawings(
    studies: Mapping[str, Study], printed: Sequence[Published], svhn: Sequence[Path]
) -> dict[str, bytes]:
    """Return file name → the figure as SVG."""
    values = finding_values(studies, printed, svhn)
    return {
        name: saved(name, size, partial(paint, points=points))["svg"] + values[name].encode()
        for name, (points, size, paint) in finding_points(studies, printed, svhn).items()
    }


def _panels(figure: Any, points: Sequence[Point], **options: Any) -> list[tuple[Any, list[Point]]]:
    """Return the axes and the points of each panel; the panels are side by side."""
    import matplotlib as mpl

    # `saved` sets smaller sizes and restores all settings afterwards
    mpl.rcParams.update({"font.size": FONT, "axes.titlesize": FONT, "legend.fontsize": FONT})
    names = list(dict.fromkeys(point.panel for point in points))
    grid = figure.subplots(1, len(names), squeeze=False, **options)[0]
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(name)
        axes.locator_params(axis="x", nbins=4)
    return [(axes, [point for point in points if point.panel == name]) for axes, name in zip(grid, names, strict=True)]


def paint_beside(figure: Any, points: Sequence[Point]) -> None:
    """Draw the printed figures beside ours."""
    for axes, panel_points in _panels(figure, points):
        for point in panel_points:
            index = [WITHOUT, WITH].index(point.row)
            if point.kind == "printed":
                axes.plot([index - 0.15], [point.value], "D", color=PAPER, markersize=7)
            else:
                axes.errorbar([index + 0.15], [point.value], point.bar, fmt="o", color=OURS, capsize=3)
        axes.set_xticks([0, 1], ["SVI", "AvUC"])
        axes.set_xlim(-0.6, 1.6)
        axes.margins(y=0.12)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(visible=False, axis="x")
    axes.plot([], [], "D", color=PAPER, label="printed")
    axes.plot([], [], "o-", color=OURS, label="ours, ± standard deviation over seeds")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def paint_seeds(figure: Any, points: Sequence[Point]) -> None:
    """Draw a line for each seed, from SVI to SVI-AvUC, and their mean."""
    for axes, panel_points in _panels(figure, points):
        values = [point.value for point in panel_points]
        pairs = list(zip(values[::2], values[1::2], strict=True))  # without and with AvUC
        for before, after in pairs:
            axes.plot(
                [0, 1], [before, after], "o-", color=OURS if after < before else WORSE, markersize=4, linewidth=1.2
            )
        axes.plot([0, 1], [statistics.mean(side) for side in zip(*pairs, strict=True)], color="black", linewidth=3)
        axes.set_xticks([0, 1], [WITHOUT, WITH])
        axes.set_xlim(-0.3, 1.3)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(visible=False, axis="x")
    for colour, width, label in ((OURS, 1.2, "better with AvUC"), (WORSE, 1.2, "worse"), ("black", 3, "mean")):
        axes.plot([], [], color=colour, linewidth=width, label=label)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def paint_differences(figure: Any, points: Sequence[Point]) -> None:
    """Draw the differences from SVI with their intervals."""
    panels = _panels(figure, points, sharey=True)
    for axes, panel_points in panels:
        axes.axvline(0, color="0.4", linewidth=1)
        higher_is_better = panel_points[0].panel.startswith("Accuracy")
        for index, point in enumerate(panel_points):
            clear, better = point.low > 0 or point.high < 0, (point.value > 0) == higher_is_better
            colour = (OURS if better else WORSE) if clear else UNCLEAR
            axes.errorbar([point.value], [index], xerr=point.bar, fmt="o", color=colour, capsize=3)
        axes.set_title(panel_points[0].panel.replace(", ", ",\n") if len(panels) > 2 else panel_points[0].panel)
    axes.set_yticks(range(len(panel_points)), [point.row for point in panel_points])
    axes.set_ylim(len(panel_points) - 0.5, -0.5)
    for colour, label in ((OURS, "better"), (WORSE, "worse"), (UNCLEAR, "not clear")):
        axes.plot([], [], "o-", color=colour, label=label)
    title = "Difference to SVI, 95 % interval over paired seeds:"
    figure.legend(loc="outside lower center", ncols=3, frameon=False, title=title, title_fontsize=FONT)


def paint_svhn(figure: Any, points: Sequence[Point]) -> None:
    """Draw the AUROC of SVHN: the printed figures, ours, and the other readings."""
    ((axes, panel_points),) = _panels(figure, points)
    rows = list(dict.fromkeys(point.row for point in panel_points))
    count = sum(point.row == WITH and point.kind != "printed" for point in panel_points)
    both = any(point.kind.startswith(WITH) for point in panel_points)  # models of both methods are read
    for point in panel_points:
        index, printed = rows.index(point.row), point.kind == "printed"
        colour = READ if both and WITH in (point.row, point.kind[: len(WITH)]) else OURS
        style = (
            {"marker": "D", "markersize": 7, "color": PAPER}
            if printed
            else {"marker": "o", "color": colour, "alpha": 0.6}
        )
        axes.plot([point.value], [index], linestyle="", **{"markersize": 5, **style})
    axes.plot([], [], "D", color=PAPER, label="printed")
    axes.plot([], [], "o", color=OURS, label="ours, one SVI model" if both else "ours, one model")
    if both:
        axes.plot([], [], "o", color=READ, label="ours, one SVI-AvUC model")
    axes.set_yticks(range(len(rows)), [f"{row}, {count} seeds" if row in (WITH, WITHOUT) else row for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axhline(1.5, color="0.4", linewidth=0.8)
    axes.set_title("AUROC for SVHN, in %")
    figure.legend(loc="outside lower center", ncols=3 if both else 2, frameon=False)
