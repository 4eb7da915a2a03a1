"""The page of one prediction file: one HTML file without scripts, for light and dark screens and for print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from avuc.report.metric_text import (
    CHANGE_HEAD,
    METRIC_HEAD,
    RANKING_HEAD,
    bounds_text,
    change_rows,
    compared_verdict,
    detection_rows,
    label_rows,
    label_table_head,
    metric_head,
    metric_rows,
    ranking_rows,
    replicates_text,
    verdict,
)
from avuc.report.palette import style_variables
from avuc.report.single import charts

if TYPE_CHECKING:
    from avuc.evaluation.compare import Comparison
    from avuc.evaluation.multilabel_file import MultiLabelEvaluation
    from avuc.evaluation.result import EvaluationResult


STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:34px 0 10px}
p{margin:0 0 8px}
.source{color:var(--soft);overflow-wrap:anywhere}
.verdict{font-size:1.12rem;border-left:4px solid var(--first);padding:2px 0 2px 14px;margin:20px 0}
.warning{background:var(--warnback);border-left:4px solid var(--warn);padding:10px 14px;margin:14px 0}
.warning b{color:var(--warn)}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{padding:6px 12px;text-align:left;border-top:1px solid var(--line);vertical-align:top}
thead th{border-top:0;color:var(--soft);font-weight:600;white-space:nowrap}
tbody th{font-weight:600}
tbody th div{width:max-content;max-width:min(20rem,45vw);overflow-wrap:anywhere}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.m{color:var(--soft)}td.m:last-child{min-width:170px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
figure h3{font-size:1rem;margin:0 0 2px}
figcaption{color:var(--soft);font-size:.88rem;margin-top:4px}
svg{display:block;width:100%;height:auto}
svg text{font-family:system-ui,sans-serif!important}
footer{color:var(--soft);font-size:.85rem;margin-top:34px}
@media(max-width:600px){td.m{white-space:nowrap}main{padding:20px 14px 40px}}
@media print{main{max-width:none;padding:0}.charts{grid-template-columns:1fr 1fr}
figure,.warning,tr{break-inside:avoid}.scroll{overflow:visible}td.m:last-child{min-width:0}}
"""

# heading, head and rows of a table
TitledTable = tuple[str, Sequence[str], Sequence[Sequence[str]]]
# columns with text instead of numbers
TEXTS = {"better", "what it means", "result"}

CAPTIONS = {
    "reliability": (
        "Does the confidence match the accuracy?",
        "Rows grouped by confidence. Below the dashed line the model is overconfident, above it underconfident.",
    ),
    "confidence": ("How confident is the model?", "The distribution of the confidences."),
    "uncertainty": (
        "Does the uncertainty match the error rate?",
        "Rows grouped by uncertainty. Above the dashed line the model is wrong more often than its uncertainty says. A "
        "calibrated model is not on the line: with two classes it is clearly below, with hundreds above.",
    ),
    "avu": (
        "Certain when right, uncertain when wrong",
        "AvU: the share of rows that are right and certain, or wrong and uncertain, for every threshold.",
    ),
    "risk": (
        "What if the model answers only when it is confident?",
        "The error rate on the most confident rows. A low curve on the left means that abstaining helps.",
    ),
    "entropy": (
        "Is the model more uncertain when it is wrong?",
        "The entropy of right and of wrong predictions, and of out-of-distribution rows if there are any.",
    ),
    "loss": (
        "How the temperature was found",
        "The objective of the fit by temperature. The dashed line is the chosen temperature.",
    ),
}


def assessment_page(result: EvaluationResult, *, title: str, source: str, tables: Iterable[TitledTable] = ()) -> str:
    """Return the report of `avuc evaluate` as HTML.

    Args:
        result: metrics, intervals and curves.
        title: heading of the page.
        source: description of the predictions, below the heading.
        tables: heading, head and rows of more tables.
    """
    parts = [
        _verdict(verdict(result)),
        "<h2>Metrics</h2>",
        _table(metric_head(result), metric_rows(result)),
    ]
    if result.detection:
        parts += [
            f"<h2>Detecting {result.outside:,} out-of-distribution (OOD) rows by entropy</h2>",
            _table(metric_head(result), detection_rows(result)),
        ]
    if result.bounds:
        charts_from = "The charts of AvU and of entropy are drawn from histograms with bins of 1/1024 of their values."
        parts.append(f'<p class="source">{escape(bounds_text())} {charts_from}</p>')
    parts += [*_titled(tables), _charts([("", result)], result)]
    return _page(title, source, parts, result)


def labels_page(result: MultiLabelEvaluation, *, title: str, source: str) -> str:
    """Return the report of `avuc evaluate --task multilabel` as HTML.

    Args:
        result: metrics of each label, and of all decisions.
        title: heading of the page.
        source: description of the predictions, below the heading.
    """
    decisions = result.decisions
    parts = [
        _verdict(verdict(decisions)),
        "<h2>Labels</h2>",
        _table(label_table_head(), label_rows(result)),
        "<h2>All decisions</h2>",
        _table(metric_head(decisions), metric_rows(decisions)),
        '<p class="source">Each label of each row is one decision. Intervals resample rows with all their labels.</p>',
        _charts([("", decisions)], decisions),
    ]
    counted = f"{result.rows:,} rows × {len(result.names):,} labels: {decisions.n:,} known decisions"
    return _page(title, source, parts, decisions, counted, "decision")


def comparison_page(result: Comparison, *, title: str, source: str) -> str:
    """Return the report of `avuc calibrate` as HTML.

    Args:
        result: the predictions before and after calibration.
        title: heading of the page; the calibrator's name is added.
        source: description of the predictions, below the heading.
    """
    fit = result.shown  # of a refused calibrator: what it would have changed
    parts = [
        _verdict(compared_verdict(result)),
        *(_warning(text) for text in result.warnings),
        "<h2>Before and after</h2>" if result.refused is None else "<h2>Before and after the refused calibrator</h2>",
        _table(CHANGE_HEAD, change_rows(fit)),
        f'<p class="source">Figures from {escape(fit.how)}.</p>',
        _charts([("before", fit.before), ("after", fit.after)], fit.after, fit),
    ]
    return _page(f"{title}: {result.method} calibration", source, parts, fit.after)


def ranking_page(results: Mapping[str, EvaluationResult], sentences: Sequence[str], *, title: str, source: str) -> str:
    """Return the comparison of several methods on the same rows as HTML; the first is the uncalibrated model."""
    named = list(results.items())
    parts = [
        _verdict(sentences),
        "<h2>Ranking, lowest NLL first</h2>",
        _table(RANKING_HEAD, ranking_rows(results)),
        _charts(named, named[0][1]),
        f"<h2>All metrics: {escape(named[0][0])}</h2>",
        _table(METRIC_HEAD, metric_rows(named[0][1])),
    ]
    return _page(title, source, parts, named[0][1])


def _charts(
    named: Sequence[tuple[str, EvaluationResult]], result: EvaluationResult, fit: Comparison | None = None
) -> str:
    drawings = {
        "reliability": charts.reliability_chart(named),
        "confidence": charts.confidence_chart(named),
        "uncertainty": charts.uncertainty_chart(named),
        "avu": charts.avu_chart(named),
        "risk": charts.risk_chart(named),
        "entropy": charts.entropy_chart(result),
    }
    if fit is not None and fit.curve:
        drawings["loss"] = charts.loss_chart(fit.curve, fit.temperature)
    figures = []
    for name, drawing in drawings.items():
        heading, caption = CAPTIONS[name]
        drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{escape(heading)}"', 1)
        figures.append(
            f"<figure><h3>{escape(heading)}</h3>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
        )
    return '<h2>Charts</h2><div class="charts">' + "".join(figures) + "</div>"


def _page(
    title: str, source: str, parts: Iterable[str], result: EvaluationResult, counted: str = "", unit: str = "row"
) -> str:
    counted = counted or f"{result.n:,} rows, {result.num_classes:,} classes"
    samples = f", mean of {result.samples:,} samples" if result.samples > 1 else ""
    footer = (
        f"{counted}{samples}; {result.bins} bins; a {unit} is certain "
        f"up to an entropy of {result.threshold:.4g} nats (maximum {math.log(max(result.num_classes, 1)):.4g}); "
        f"intervals from {replicates_text(result)}."
    )
    return _document(title, source, parts, footer)


def _document(title: str, source: str, parts: Iterable[str], footer: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # nothing may load or run, even if a name in the page contains HTML
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} – avuc</title><style>{style_variables()}{STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="source">{escape(source)}</p>'
        + "".join(parts)
        + f"<footer>{footer} Made by avuc.</footer></main></body></html>\n"
    )


def tables_page(
    title: str, source: str, sentences: Iterable[str], warnings: Iterable[str], tables: Iterable[TitledTable]
) -> str:
    """Return a page of sentences and tables as HTML: the report of `avuc conformal` and `avuc select`.

    Args:
        title: heading of the page.
        source: description of the predictions, below the heading.
        sentences: the results in words.
        warnings: printed so that they are not overlooked.
        tables: heading, head and rows of each table.
    """
    parts = [_verdict(sentences), *(_warning(text) for text in warnings), *_titled(tables)]
    return _document(title, source, parts, "")


def _titled(tables: Iterable[TitledTable]) -> list[str]:
    return [f"<h2>{escape(heading)}</h2>{_table(head, rows)}" for heading, head, rows in tables]


def _warning(text: str) -> str:
    return f'<div class="warning" role="alert"><b>Warning.</b> {escape(text)}</div>'


def _verdict(sentences: Iterable[str]) -> str:
    return '<div class="verdict">' + "".join(f"<p>{escape(text)}</p>" for text in sentences) + "</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; its first column names the rows."""
    kinds = ["", *("m" if name in TEXTS else "n" for name in head[1:])]
    top = "".join(f'<th scope="col" class="{kind}">{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        f'<tr><th scope="row"><div>{escape(row[0])}</div></th>'
        + "".join(f'<td class="{kind}">{escape(cell)}</td>' for cell, kind in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
