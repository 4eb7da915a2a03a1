"""A study on one page: what it says in sentences, the ranking, box plots by intensity. Numbers in, text out."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.atomic import write_text
from avuc.errors import require
from avuc.report import charts
from avuc.report.html import STYLE
from avuc.report.palette import style_variables
from avuc.report.words import number

if TYPE_CHECKING:
    from avuc.study.store import Store

__all__ = ["Summary", "ranking", "summary_page", "verdict"]

Array = NDArray[np.float64]
Row = tuple[str, ...]
REPLICATES = 2000
LOWER = ("nll", "brier", "ece", "uce")
BOXES = {
    "ece": (
        "ECE by intensity",
        "Gap between stated confidence and accuracy; one value for each shift, seeds averaged.",
    ),
    "uce": ("UCE by intensity", "Gap between stated uncertainty and error rate."),
    "nll": ("NLL by intensity", "Surprise at the true class, in nats; the proper score that the ranking goes by."),
    "accuracy": ("Accuracy by intensity", "Share that is right."),
}
# distinct for colour-blind readers, on light and dark pages; repeated beyond ten rows
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#a6761d", "#737373", "#66a61e")


@dataclass(frozen=True)
class Summary:
    """The results by method, seeds averaged."""

    methods: list[str]
    seeds: dict[str, int]
    values: dict[tuple[str, str, int, str], float]  # method, shift, severity, metric

    @classmethod
    def of(cls, store: Store) -> Summary:
        found: dict[tuple[str, str, int, str], list[float]] = {}
        seeds: dict[str, set[int]] = {}
        for method, seed, shift, severity, metric, value in store.rows():
            found.setdefault((method, shift, severity, metric), []).append(value)
            seeds.setdefault(method, set()).add(seed)
        order = [row.name for row in store.recipe().methods if row.name in seeds]
        values = {key: _mean(each) for key, each in found.items()}
        return cls(order, {method: len(each) for method, each in seeds.items()}, values)

    def clean(self, method: str, metric: str) -> float:
        return self.values.get((method, "clean", 0, metric), math.nan)

    def shifted(self, method: str, metric: str, severity: int | None = None) -> dict[str, Array]:
        """By shift: the values at one severity, or at all of them."""
        found: dict[str, list[float]] = {}
        for (name, shift, level, what), value in self.values.items():
            if name == method and what == metric and level and severity in (None, level):
                found.setdefault(shift, []).append(value)
        return {shift: np.array(each) for shift, each in sorted(found.items())}

    def over_shifts(self, method: str, metric: str, severity: int | None = None) -> float:
        by_shift = self.shifted(method, metric, severity)
        return _mean([_mean(each.tolist()) for each in by_shift.values()])

    def interval(self, method: str, metric: str) -> tuple[float, float]:
        """95 % bootstrap interval of the mean over shifts: how it would vary with other shifts of this kind."""
        means = np.array([_mean(each.tolist()) for each in self.shifted(method, metric).values()])
        if len(means) < 2:
            return math.nan, math.nan
        rng = np.random.default_rng(0)
        replicates = means[rng.integers(len(means), size=(REPLICATES, len(means)))].mean(1)
        low, high = np.quantile(replicates, (0.025, 0.975))
        return float(low), float(high)

    @property
    def severities(self) -> list[int]:
        return sorted({severity for _, _, severity, _ in self.values if severity})

    @property
    def shifts(self) -> list[str]:
        return sorted({shift for _, shift, severity, _ in self.values if severity})

    @property
    def outside(self) -> list[str]:
        return sorted({shift for _, shift, _, _ in self.values if shift.startswith("ood:")})

    def ranked(self) -> list[str]:
        """Best first: by the NLL over all shifts, else on clean images."""
        shifted = bool(self.shifts)
        return sorted(self.methods, key=lambda m: self.over_shifts(m, "nll") if shifted else self.clean(m, "nll"))


def ranking(store: Store) -> tuple[Row, list[Row], str]:
    """Head, rows and alignment of the ranking."""
    return _ranking(Summary.of(store))


def _ranking(summary: Summary) -> tuple[Row, list[Row], str]:
    outside = summary.outside
    head = ["method", "seeds", "accuracy", "ECE"]
    if summary.shifts:
        head += ["shifted: accuracy", "NLL", "Brier", "UCE", "ECE", "95 % over shifts"]
    head += [f"AUROC {name.removeprefix('ood:')}" for name in outside]
    rows = []
    for method in summary.ranked():
        cells = [method, str(summary.seeds[method])]
        cells += [number(summary.clean(method, "accuracy"), percent=True), number(summary.clean(method, "ece"))]
        if summary.shifts:
            cells.append(number(summary.over_shifts(method, "accuracy"), percent=True))
            cells += [number(summary.over_shifts(method, metric)) for metric in ("nll", "brier", "uce", "ece")]
            low, high = summary.interval(method, "ece")
            cells.append("" if math.isnan(low) else f"{low:.3f} … {high:.3f}")
        cells += [number(summary.values.get((method, name, 0, "auroc"), math.nan)) for name in outside]
        rows.append(tuple(cells))
    return tuple(head), rows, "<" + ">" * (len(head) - 1)


def verdict(summary: Summary) -> list[str]:
    """What the study says, in sentences."""
    told = []
    best = summary.ranked()[0]
    if summary.shifts and len(summary.methods) > 1:
        last = summary.ranked()[-1]
        where = f"Over {len(summary.shifts)} shifts × {len(summary.severities)} intensities"
        told.append(
            f"{where}, {best} predicts best (NLL {number(summary.over_shifts(best, 'nll'))}) and {last} worst "
            f"({number(summary.over_shifts(last, 'nll'))})."
        )
        top = summary.severities[-1]
        for metric, words in (("ece", "Confidence"), ("uce", "Uncertainty")):
            at_top = {method: summary.over_shifts(method, metric, top) for method in summary.methods}
            calm = min(at_top, key=lambda method: at_top[method])
            first = summary.methods[0]
            told.append(
                f"{words} is most honest at intensity {top} in {calm}: {metric.upper()} {number(at_top[calm])} "
                f"(clean {number(summary.clean(calm, metric))}); {first} goes from "
                f"{number(summary.clean(first, metric))} to {number(at_top[first])}."
            )
    for name in summary.outside:
        aurocs = {method: summary.values.get((method, name, 0, "auroc"), math.nan) for method in summary.methods}
        keen = max(aurocs, key=lambda method: aurocs[method])
        told.append(f"{keen} tells {name.removeprefix('ood:')} from test images best: AUROC {number(aurocs[keen])}.")
    fewest = min(summary.seeds.values())
    if fewest == 1:
        told.append("One seed: differences between rows of a few per cent of their value may be chance.")
    return told


def summary_page(store: Store, path: Path) -> None:
    """Write the page."""
    summary = Summary.of(store)
    recipe = store.recipe()
    head, rows, _ = _ranking(summary)
    seconds = sum(run["seconds"] or 0 for run in store.runs())
    source = (
        f"{recipe.data.source}, {recipe.net.name}, {recipe.study.samples} draws for each prediction, "
        f"{len(store.done()):,} cells in {store.path.name}, {seconds:.0f} s in all"
    )
    parts = [
        '<div class="verdict">' + "".join(f"<p>{escape(text)}</p>" for text in verdict(summary)) + "</div>",
        "<h2>Ranking, best NLL under shift first</h2>",
        _table(head, rows),
    ]
    if summary.severities:
        figures = []
        for metric, (title, caption) in BOXES.items():
            drawing = _boxes(summary, metric).replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
            figures.append(f"<figure><h3>{title}</h3>{drawing}<figcaption>{caption}</figcaption></figure>")
        wide = '<div class="charts" style="grid-template-columns:1fr">'
        parts.append(f"<h2>By intensity of the shift</h2>{wide}" + "".join(figures) + "</div>")
    parts.append(f"<h2>Recipe</h2><div class='scroll'><pre>{escape(recipe.to_toml())}</pre></div>")
    write_text(path, _page(recipe.study.name, source, parts))


def _boxes(summary: Summary, metric: str) -> str:
    """A box for each method at each intensity, over the shifts; a dash for clean images."""

    def paint(axes: Any) -> None:
        count = len(summary.methods)
        width = 0.84 / count
        for place, method in enumerate(summary.methods):
            colour = COLOURS[place % len(COLOURS)]
            offset = (place - (count - 1) / 2) * width
            for severity in summary.severities:
                values = [float(v) for each in summary.shifted(method, metric, severity).values() for v in each]
                values = [value for value in values if math.isfinite(value)]
                axes.boxplot(
                    [values],
                    positions=[severity + offset],
                    widths=width * 0.8,
                    patch_artist=True,
                    manage_ticks=False,
                    boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour},
                    medianprops={"color": colour, "linewidth": 2},
                    whiskerprops={"color": colour},
                    capprops={"color": colour},
                    flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
                )
            axes.plot([offset], [summary.clean(method, metric)], marker="D", markersize=5, color=colour, linestyle="")
            axes.bar([0], [0], color=colour, label=method)
        ticks = [0, *summary.severities]
        axes.set_xticks(ticks, ["clean", *(str(severity) for severity in summary.severities)])
        axes.set(xlabel="intensity of the shift", ylabel=metric.upper() if metric in LOWER else metric)
        axes.set_xlim(-0.5, ticks[-1] + 0.5)
        if metric != "accuracy":
            axes.set_ylim(bottom=0)

    return _wide_drawing(f"box-{metric}", paint)


def _wide_drawing(name: str, paint: Any) -> str:
    require("matplotlib", "report", "a report")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    out = io.StringIO()
    with mpl.rc_context(charts.SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=(10.5, 4.2), layout="constrained")
        paint(figure.add_subplot())
        figure.legend(loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return charts._for_page(out.getvalue(), name)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col" class="{"n" if i else ""}">{escape(cell)}</th>' for i, cell in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td class="n">{escape(c)}</td>' for c in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(title: str, source: str, parts: Iterable[str]) -> str:
    style = f"{style_variables()}{STYLE}pre{{margin:0;padding:10px 14px;font-size:.85rem}}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # nothing on this page may load or run anything, whatever a name in it says
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} – avuc</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="source">{escape(source)}</p>'
        + "".join(parts)
        + "<footer>Shifted figures are means over shifts and intensities, seeds averaged; intervals by bootstrap over "
        "shifts. Temperatures and uncertainty thresholds were learned on validation data. Made by avuc.</footer>"
        "</main></body></html>\n"
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
