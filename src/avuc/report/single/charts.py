"""The charts of one prediction file, as SVG text. Colours are CSS variables of the page, so dark mode works."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from avuc.core.errors import require
from avuc.core.palette import CHART_STYLE, ROLES, light

if TYPE_CHECKING:
    from avuc.evaluation.result import EvaluationResult, Series


Named = Sequence[tuple[str, "EvaluationResult"]]
SIZE = (5.2, 4.0)
# by number of results: one model; before and after calibration; an uncalibrated model and two calibrations
STYLES = {1: ["first"], 2: ["second", "first"], 3: ["second", "first", "wrong"]}
SETTINGS = CHART_STYLE


def reliability_chart(results: Named) -> str:
    """Return the reliability diagram: accuracy by confidence."""
    return _reliability(results, "reliability", "confidence", "accuracy", "perfect calibration")


def uncertainty_chart(results: Named) -> str:
    """Return the uncertainty diagram: error rate by uncertainty."""
    line = "error rate = uncertainty"
    return _reliability(results, "uncertainty", "uncertainty (entropy / log C)", "error rate", line)


def _reliability(results: Named, name: str, x_label: str, y_label: str, line: str) -> str:
    def paint(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=light("soft"), linewidth=1, linestyle=(0, (4, 3)), label=line)
        for (title, result), role in zip(results, STYLES[len(results)], strict=True):
            curve = result.curves[name]
            full = [i for i, count in enumerate(curve["rows"]) if count]
            if len(results) == 1:
                widths = [curve["high"][i] - curve["low"][i] for i in full]
                axes.bar(
                    [curve["low"][i] for i in full],
                    [curve["observed"][i] for i in full],
                    widths,
                    align="edge",
                    color=light(role),
                    alpha=0.3,
                    linewidth=0,
                )
            most = max((curve["rows"][i] for i in full), default=1)
            axes.plot([curve["stated"][i] for i in full], [curve["observed"][i] for i in full], color=light(role))
            axes.scatter(
                [curve["stated"][i] for i in full],
                [curve["observed"][i] for i in full],
                # the area of a point grows with the rows in its bin
                s=[18 + 90 * curve["rows"][i] / most for i in full],
                color=light(role),
                label=title or "this model (larger: more rows)",
                zorder=3,
                clip_on=False,  # a point on the edge is shown as a whole
            )
        axes.set(xlabel=x_label, ylabel=y_label, xlim=(0, 1), ylim=(0, 1.03))

    return _drawing(name, paint)


def confidence_chart(results: Named) -> str:
    """Return the histogram of the confidences."""

    def paint(axes: Any) -> None:
        for (title, result), role in zip(results, STYLES[len(results)], strict=True):
            curve = result.curves["reliability"]
            shares = [count / result.n for count in curve["rows"]]
            if len(results) == 1:
                axes.stairs(shares, [*curve["low"], curve["high"][-1]], color=light(role), fill=True, alpha=0.45)
                axes.axvline(
                    result.confidence,
                    color=light("wrong"),
                    linestyle=(0, (4, 3)),
                    label=f"mean confidence {100 * result.confidence:.1f} %",
                )
                accuracy = result.metrics["accuracy"]
                axes.axvline(accuracy, color=light("right"), label=f"accuracy {100 * accuracy:.1f} %")
            else:
                axes.stairs(shares, [*curve["low"], curve["high"][-1]], color=light(role), linewidth=2, label=title)
        axes.set(xlabel="confidence", ylabel="share of rows", xlim=(0, 1.005))

    return _drawing("confidence", paint)


def avu_chart(results: Named) -> str:
    """Return AvU by threshold: with the shares it is made of for one result, AvU alone for several."""

    def paint(axes: Any) -> None:
        if len(results) == 1:
            curve = results[0][1].curves["avu"]
            for key, role, line, title in (
                ("avu", "first", "-", "AvU"),
                ("p_accurate_given_certain", "right", "-", "p(right | certain)"),
                ("p_uncertain_given_inaccurate", "wrong", "-", "p(uncertain | wrong)"),
                ("certain", "soft", (0, (4, 3)), "share of certain rows"),
            ):
                _line(axes, curve["threshold"], curve[key], color=light(role), linestyle=line, label=title)
            axes.axvline(results[0][1].threshold, color=light("soft"), linewidth=1, linestyle=(0, (1, 2)))
        else:
            for (title, result), role in zip(results, STYLES[len(results)], strict=True):
                curve = result.curves["avu"]
                _line(axes, curve["threshold"], curve["avu"], color=light(role), label=f"AvU {title}")
        axes.set(xlabel="entropy threshold: certain up to here (nats)", ylabel="share", ylim=(0, 1.03))

    return _drawing("avu", paint)


def risk_chart(results: Named) -> str:
    """Return the risk-coverage curve: the error rate by the share of rows that are answered."""

    def paint(axes: Any) -> None:
        for (title, result), role in zip(results, STYLES[len(results)], strict=True):
            curve = result.curves["risk"]
            _line(axes, curve["coverage"], curve["risk"], color=light(role), label=title or "this model")
        error = 1 - results[-1][1].metrics["accuracy"]
        axes.axhline(error, color=light("soft"), linewidth=1, linestyle=(0, (4, 3)), label="error rate on all rows")
        axes.set(xlabel="coverage: share of rows answered, most confident first", ylabel="error rate", xlim=(0, 1))
        axes.set_ylim(bottom=0)

    return _drawing("risk", paint)


def entropy_chart(result: EvaluationResult) -> str:
    """Return the entropy distributions of right and wrong predictions, and of out-of-distribution rows."""

    def paint(axes: Any) -> None:
        curve = result.curves["entropy"]
        edges = curve["edges"]
        step = edges[1] - edges[0] if len(edges) > 1 else 1.0
        for key, title in (("right", "right"), ("wrong", "wrong"), ("outside", "out of distribution")):
            total = sum(curve.get(key, []))
            if total:
                density = [count / total / step for count in curve[key]]
                axes.stairs(density, edges, color=light(key), fill=True, alpha=0.22)
                axes.stairs(density, edges, color=light(key), linewidth=1.8, label=f"{title} ({total:,.0f} rows)")
        axes.set(xlabel="entropy (nats)", ylabel="density", xlim=(0, edges[-1]))

    return _drawing("entropy", paint)


def loss_chart(curve: Series, temperature: float | None) -> str:
    """Return the objective of a temperature fit by temperature."""

    def paint(axes: Any) -> None:
        axes.plot(curve["temperature"], curve["loss"], color=light("first"))
        if temperature is not None:
            axes.axvline(temperature, color=light("wrong"), linestyle=(0, (4, 3)), label=f"T = {temperature:.4g}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="temperature T", ylabel="objective of the fit")

    return _drawing("loss", paint)


def _line(axes: Any, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    """Draw a curve; if all rows are equally certain it is one point, which only a marker shows."""
    axes.plot(x, y, marker="o" if len(set(x)) == 1 else None, clip_on=len(set(x)) > 1, **style)


def _drawing(name: str, paint: Callable[[Any], None]) -> str:
    """Return a chart that `paint` draws, with its legend below the axes."""
    require("matplotlib", "report", "a report")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    out = io.StringIO()
    # the salt makes the ids inside the SVG the same in every run
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        paint(axes)
        handles, _ = axes.get_legend_handles_labels()
        if handles:
            columns = len(handles) if len(handles) <= 3 else 2
            figure.legend(loc="outside lower center", ncols=columns, frameon=False)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(out.getvalue(), name)


def _for_page(text: str, name: str) -> str:
    """Return the <svg> element as wide as its container, with colours by role and ids unique on the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for side in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    for role, (bright, _) in ROLES.items():
        text = text.replace(bright, f"var(--{role})")
    return text
