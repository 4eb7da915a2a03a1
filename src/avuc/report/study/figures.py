"""The paper's figures for any study, as SVG and PNG files: matplotlib, in the colours of the page."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np

from avuc.core.errors import require
from avuc.core.palette import light
from avuc.core.text import short
from avuc.report.colours import colour_of, symbol_of
from avuc.report.metric_text import metric_text
from avuc.report.single import charts
from avuc.report.study.embed import top_entropy
from avuc.report.study.intervals import spread
from avuc.report.study.pooled import by_confidence, by_entropy, diagram, histogram
from avuc.report.study.result_arrays import CLEAN, PNG, Results, SetKey, finite_mean

Paint = Callable[[Any], None]  # draws on a matplotlib Figure
BOXES = ("ece", "uce", "nll", "brier", "accuracy", "avu_auc")
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "star": "*", "cross": "P", "wye": "1"}
COLUMNS = 3  # of the small charts, one per method
WIDE, PLAIN = (7.0, 3.2), (4.2, 3.2)
LONGEST = 40  # characters of a name; longer names would leave no room for the figure
LINE = 24  # characters of a line above a small chart
# inches of a legend: width of a character, width of the rest of a column, height of a row
CHARACTER, HANDLE, ROW = 0.06, 0.5, 0.15


def all_figures(results: Results) -> Iterator[tuple[str, tuple[float, float], Paint]]:
    """Yield each figure: its name, its size in inches, and the function that draws it."""
    chart_rows = math.ceil(len(results.methods) / COLUMNS)
    for metric in (name for name in BOXES if name in results.values and results.severities):
        yield f"box-{metric}", WIDE, partial(_boxes, results=results, metric=metric)
        yield f"heatmap-{metric}", (7.0, 0.6 + 2.4 * chart_rows), partial(_maps, results=results, metric=metric)
    sets: dict[str, list[SetKey]] = {"clean": [CLEAN]}
    if results.severities:
        common, top = results.common("nll"), results.severities[-1]
        sets[f"intensity-{top}"] = [(shift, top) for shift in results.shifts if (shift, top) in common]
    for label, keys in sets.items():
        for name, paint in _curve_painters(results, keys).items():
            yield f"{name}-{label}", PLAIN, paint
    others = {name.removeprefix("ood:"): [(name, 0)] for name in results.outside}
    for label, keys in (others or {label: keys for label, keys in sets.items() if label != "clean"}).items():
        paint = partial(_densities, results=results, test_sets=keys, label=label)
        yield f"entropy-{label}", (7.0, 0.4 + 1.7 * chart_rows), paint
    for quantity in ("nll", "accuracy", "avuc"):
        # skip a loss term that no method has: it is 0 in every epoch
        if any(record.get(quantity) for method in results.methods for seed in method.history for record in seed):
            yield f"training-{quantity}", PLAIN, partial(_training, results=results, quantity=quantity)
    if len({method.beta for method in results.methods if method.beta is not None}) > 1:
        for metric in ("ece", "uce", "nll"):
            yield f"beta-{metric}", PLAIN, partial(_ablation, results=results, metric=metric)
    if any(data.startswith(PNG) for data in results.gallery.values()) and _gallery_rows(results):
        yield "gallery", (5.0, 0.5 + 0.55 * len(_gallery_rows(results))), partial(_gallery, results=results)


def saved(name: str, size: tuple[float, float], paint: Paint) -> dict[str, bytes]:
    """Return the content of the files, by kind: svg and png."""
    require("matplotlib", "report", "the exported figures")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings = charts.SETTINGS | {"svg.hashsalt": name, "font.size": 8, "legend.fontsize": 7}
    out = {}
    settings["font.sans-serif"] = ["DejaVu Sans", *_other_scripts()]
    with mpl.rc_context(settings), warnings.catch_warnings():
        # a character that no installed font has is a box in the PNG; the SVG holds the text itself
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # names too long for the layout
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, dpi=200, metadata=metadata, facecolor="white")
            figure.set_layout_engine(None)  # keep the layout of the first file
            out[kind] = file.getvalue()
    return out


@cache
def _other_scripts() -> list[str]:
    """Return installed fonts for scripts that DejaVu does not have."""
    from matplotlib.font_manager import fontManager

    wanted = ("Noto Sans", "Droid Sans Fallback", "WenQuanYi", "Source Han", "IPA", "Nanum", "Lohit", "PingFang")
    return sorted({font.name for font in fontManager.ttflist if font.name.startswith(wanted)})


def _style(results: Results, method: int) -> dict[str, Any]:
    facts = results.methods[method]
    style: dict[str, Any] = {"color": colour_of(facts.colour_index)[0], "label": _safe(facts.name)}
    return style | {"linestyle": "--" if facts.study else "-", "marker": MARKERS[symbol_of(facts.colour_index)]}


def _safe(text: str) -> str:
    """Return a name without TeX mathematics; one that begins with an underscore still appears in the legend."""
    safe = short(text, LONGEST).replace("$", r"\$")
    return "\u200b" + safe if safe.startswith("_") else safe


def _title(text: str) -> str:
    """Return a name in lines that are as wide as a small chart."""
    return "\n".join(_safe(line) for line in textwrap.wrap(short(text, LONGEST), LINE)) or _safe(text)


def _legend(figure: Any, results: Results, most: int = 4) -> None:
    """Draw the legend of the methods below, in as many columns as have room. Many rows make the figure taller."""
    width, height = figure.get_size_inches()
    longest = max(len(short(name, LONGEST)) for name in results.names)
    columns = max(1, min(most, int(width / (CHARACTER * longest + HANDLE))))
    rows = math.ceil(len(results.names) / columns)
    figure.set_size_inches(width, height + ROW * max(0, rows - 2))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _boxes(figure: Any, results: Results, metric: str) -> None:
    axes = figure.add_subplot()
    count = len(results.methods)
    width = 0.84 / count
    levels = [0, *results.severities]
    for method, facts in enumerate(results.methods):
        colour = colour_of(facts.colour_index)[0]
        values = [
            results.shifted(metric, level, common=False)[method] if level else results.at(metric, CLEAN)[method]
            for level in levels
        ]
        axes.boxplot(
            [each[np.isfinite(each)] for each in values],
            positions=[index + (method - (count - 1) / 2) * width for index in range(len(levels))],
            widths=width * 0.8,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour + "73", "edgecolor": colour},
            medianprops={"color": colour, "linewidth": 1.6},
            flierprops={"marker": ".", "markersize": 2, "markeredgecolor": colour},
            whiskerprops={"color": colour},
            capprops={"color": colour},
        )
        axes.plot([], [], color=colour, linewidth=5, label=_safe(facts.name))
    axes.set_xticks(range(len(levels)), ["clean", *map(str, levels[1:])])
    axes.set(xlabel="intensity of the shift", ylabel=metric_text(metric).title, xlim=(-0.5, len(levels) - 0.5))
    _legend(figure, results, 6)


def _maps(figure: Any, results: Results, metric: str) -> None:
    columns = min(COLUMNS, len(results.methods))
    grid = figure.subplots(math.ceil(len(results.methods) / columns), columns, squeeze=False, sharex=True, sharey=True)
    by_level = [results.shifted(metric, level, common=False) for level in results.severities]
    values = np.stack([finite_mean(each, axis=1) for each in by_level], axis=2)
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    palette = "cividis" if metric_text(metric).better == "higher" else "cividis_r"
    for method, axes in enumerate(grid.flat):
        if method >= len(results.methods):
            axes.set_axis_off()
            continue
        image = axes.imshow(values[method], vmin=low, vmax=high, cmap=palette, aspect="auto")
        axes.set_title(_title(results.names[method]), fontsize=8)
        axes.tick_params(labelbottom=method + columns >= len(results.methods))  # the lowest chart of its column
        axes.set_xticks(range(len(results.severities)), results.severities)
        axes.set_yticks(
            range(len(results.shifts)), [_safe(results.shift_names[shift]) for shift in results.shifts], fontsize=6
        )
        axes.grid(visible=False)
    figure.colorbar(image, ax=grid, label=metric_text(metric).title, shrink=0.6)


def _curve_painters(results: Results, test_sets: Sequence[SetKey]) -> dict[str, Paint]:
    top = top_entropy(results)

    def lines(points: Callable[[int], tuple[Any, Any]], x_label: str, y_label: str) -> Paint:
        def paint(figure: Any) -> None:
            axes = figure.add_subplot()
            for method in range(len(results.methods)):
                x, y = points(method)
                axes.plot(x, y, markevery=(method % 5, 6), markersize=3, linewidth=1.2, **_style(results, method))
            axes.set(xlabel=x_label, ylabel=y_label)
            _legend(figure, results)

        return paint

    def bins(name: str, x_label: str, y_label: str) -> Paint:
        def paint(figure: Any) -> None:
            axes = figure.add_subplot()
            axes.plot([0, 1], [0, 1], color=light("soft"), linewidth=0.8, linestyle=(0, (4, 3)))
            for method in range(len(results.methods)):
                _, stated, observed = diagram(results, name, method, test_sets)
                axes.plot(stated, observed, markersize=3, linewidth=1.2, **_style(results, method))
            axes.set(xlabel=x_label, ylabel=y_label, xlim=(0, 1), ylim=(0, 1.02))
            _legend(figure, results)

        return paint

    confidence = "minimum confidence"
    entropy = "entropy threshold (nats)"
    return {
        "accuracy-confidence": lines(lambda m: by_confidence(results, m, test_sets)[:2], confidence, "accuracy"),
        "count-confidence": lines(
            lambda m: by_confidence(results, m, test_sets)[::2], confidence, f"share of {results.units}"
        ),
        "p-accurate-certain": lines(
            lambda m: by_entropy(results, m, test_sets, top)[:2], entropy, "p(right | certain)"
        ),
        "p-uncertain-wrong": lines(
            lambda m: by_entropy(results, m, test_sets, top)[::2], entropy, "p(uncertain | wrong)"
        ),
        "reliability": bins("reliability", "confidence", "accuracy"),
        "uncertainty-reliability": bins("uncertainty", "uncertainty (entropy / log C)", "error rate"),
    }


def _densities(figure: Any, results: Results, test_sets: Sequence[SetKey], label: str) -> None:
    top, columns = top_entropy(results), min(COLUMNS, len(results.methods))
    grid = figure.subplots(math.ceil(len(results.methods) / columns), columns, squeeze=False, sharex=True)
    for method, axes in enumerate(grid.flat):
        if method >= len(results.methods):
            axes.set_axis_off()
            continue
        for name, keys, colour in (("clean", [CLEAN], "first"), (label.removeprefix("ood:"), test_sets, "outside")):
            counts = sum(histogram(results, "entropy", method, keys).values(), np.zeros(1))
            edges = np.linspace(0, top, len(counts) + 1)
            density = counts / max(counts.sum(), 1) / (edges[1] - edges[0])
            axes.stairs(density, edges, color=light(colour), fill=True, alpha=0.25)
            axes.stairs(density, edges, color=light(colour), label=_safe(name), linewidth=1.2)
        distance = finite_mean(np.array([results.mean("wasserstein", key)[method] for key in test_sets]), axis=0)
        distance_text = f"\nW = {distance:.2f}" if np.isfinite(distance) else ""
        axes.set_title(_title(results.names[method]) + distance_text, fontsize=8)
        axes.tick_params(labelbottom=method + columns >= len(results.methods))
        axes.set_yscale("symlog")
    figure.supxlabel("entropy (nats)")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)


def _training(figure: Any, results: Results, quantity: str) -> None:
    axes = figure.add_subplot()
    for method, facts in enumerate(results.methods):
        by_epoch: dict[int, list[float]] = {}
        for record in (record for seed in facts.history for record in seed if quantity in record):
            by_epoch.setdefault(record["epoch"] + 1, []).append(record[quantity])
        if by_epoch and any(any(values) for values in by_epoch.values()):
            means = [sum(values) / len(values) for values in by_epoch.values()]
            style = _style(results, method) | {"marker": ""}
            axes.plot(list(by_epoch), means, linewidth=1.2, **style)
    axes.set(xlabel="epoch", ylabel={"avuc": "AvUC loss"}.get(quantity, metric_text(quantity).title))
    _legend(figure, results)


def _ablation(figure: Any, results: Results, metric: str) -> None:
    axes = figure.add_subplot()
    order = sorted((method.beta, index) for index, method in enumerate(results.methods) if method.beta is not None)
    levels = [0, *results.severities]
    for level in levels:
        values = spread(results.shifted(metric, level)).value if level else results.mean(metric, CLEAN)
        shade = str(0.65 - 0.6 * level / max(levels[-1], 1))
        points = [values[index] for _, index in order]
        axes.plot(
            [beta for beta, _ in order], points, marker="o", markersize=3, color=shade, label=str(level or "clean")
        )
    axes.set(xlabel="β", ylabel=metric_text(metric).title)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, title="intensity")


def _gallery_rows(results: Results) -> list[str]:
    return [*results.shifts, *results.outside]


def _gallery(figure: Any, results: Results) -> None:
    """Draw one image under every shift: a row for each shift, the clean image first."""
    from matplotlib.image import imread

    pictures = {}
    for key, data in results.gallery.items():
        with suppress(Exception):  # an unreadable picture is left blank; readers raise many kinds of errors
            pictures[key] = np.atleast_3d(imread(io.BytesIO(data)))[:, :, :3]
    height, width = np.max([(1, 1), *(each.shape[:2] for each in pictures.values())], axis=0) + 2
    names, levels = _gallery_rows(results), [0, *results.severities]
    sheet = np.ones((height * len(names), width * len(levels), 3))
    for row, name in enumerate(names):
        for column, level in enumerate(levels):
            picture = pictures.get((name, level), pictures.get(CLEAN) if not level else None)
            if picture is not None:
                top, left = row * height, column * width
                sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    axes = figure.add_subplot()
    axes.imshow(sheet, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_frame_on(False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks((np.arange(len(levels)) + 0.5) * width, ["clean", *map(str, levels[1:])])
    labels = [_safe(results.shift_names[name]) for name in names]
    axes.set_yticks((np.arange(len(names)) + 0.5) * height, labels, fontsize=6)
