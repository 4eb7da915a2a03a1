"""The page of a study: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from avuc.core.atomic import write_text
from avuc.core.text import visible
from avuc.report.palette import style_variables
from avuc.report.study.coverage import HINT, NOT_STORED, coverage_tables
from avuc.report.study.embed import method_styles, payload, safe_json
from avuc.report.study.result_arrays import Results
from avuc.report.study.tables import all_tables
from avuc.report.study.verdict import alarms, verdict
from avuc.report.table import Table

SCRIPTS = ("d3.min.js", "plot.min.js", "data.js", "charts.js", "explore.js", "app.js")


def write_study_page(results: Results, path: str | Path) -> None:
    """Write the page of a study to `path`."""
    write_text(path, study_page(results))


def study_page(results: Results) -> str:
    """Return the page of a study as HTML."""
    tables = all_tables(results)
    scripts = [_asset(name) for name in SCRIPTS]
    parts = {
        "policy": _policy(scripts),
        "title": escape(visible(results.title)),
        "source": escape(visible(results.source)),
        "units": results.units,
        "Units": results.units.capitalize(),
        "style": style_variables() + method_styles(results) + _asset("page.css"),
        "verdict": _paragraphs(verdict(results)),
        "alarms": _alarms(alarms(results)),
        "ranking": _table(tables[0]),
        "coverage": _coverage(results),
        "tables": _folded(table for table in tables[1:] if not table.name.startswith("coverage")),
        "recipe": "".join(_recipe(name, text) for name, text in zip(results.studies, results.recipes, strict=True)),
        "data": safe_json(payload(results)),
        "scripts": "".join(f"<script>{script}</script>" for script in scripts),
    }
    pieces = _asset("page.html").split("%%")
    # odd pieces are names of parts; parts are inserted once, so "%%" inside a part is never read as a name
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _policy(scripts: Iterable[str]) -> str:
    """Return a content security policy: only these scripts may run, and nothing may be loaded."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _asset(name: str) -> str:
    return resources.files("avuc.report.study").joinpath("page_files", name).read_text(encoding="utf-8")


def _paragraphs(sentences: Iterable[str]) -> str:
    return "".join(f"<p>{escape(visible(text))}</p>" for text in sentences)


def _alarms(sentences: Sequence[str]) -> str:
    if not sentences:
        return '<p class="calm">No warnings.</p>'
    items = "".join(f"<li>{escape(visible(text))}</li>" for text in sentences)
    return f'<div class="warning" role="note" aria-label="Warnings"><b>Warnings</b><ul>{items}</ul></div>'


def _table(table: Table) -> str:
    return f'<h2 id="table-{table.name}">{escape(visible(table.title))}</h2>{table.html()}'


def _folded(tables: Iterable[Table]) -> str:
    """Return tables as <details> elements; the page opens them for printing."""
    return "".join(
        f'<details class="table" id="table-{table.name}">'
        f"<summary>{escape(visible(table.title))}</summary>{table.html()}</details>"
        for table in tables
    )


def _coverage(results: Results) -> str:
    """Return coverage and sizes of conformal sets: an overview, and tables to open."""
    tables = coverage_tables(results)
    if not tables:
        return f'<p class="hint">{escape(NOT_STORED)}</p>'
    return f'<p class="hint">{escape(HINT)}</p>{tables[0].html()}{_folded(tables[1:])}'


def _recipe(name: str, text: str) -> str:
    return (
        f"<details><summary>Recipe of {escape(visible(name))}</summary><pre tabindex='0'>{escape(text)}</pre></details>"
    )
