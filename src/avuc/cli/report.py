"""`avuc report`: the results of a study as one HTML page, with every figure and table as files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.core.errors import InputError

if TYPE_CHECKING:
    from avuc.report.study.result_arrays import Results


DAMAGED = 65  # EX_DATAERR: the page is written, without the results that the damaged file has lost

TEXT = """\
Write one HTML file about a study: which method to use and why, every figure and table of the paper, and interactive
charts. The page needs no network and no other file. A folder of the same name gets every figure as SVG and PNG,
and every table as CSV, LaTeX and Markdown."""
EXAMPLES = """\
examples:
  avuc report out/demo
  avuc report out/demo --out demo.html --no-exports
  avuc report --compare out/before out/after --out compared.html"""


def arguments(parser: Parser) -> None:
    parser.add_argument("directory", nargs="?", metavar="DIR", help="the folder of a study, written by avuc study")
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: report.html in the study's folder)")
    parser.add_argument("--compare", nargs=2, metavar="DIR", help="compare two studies, instead of one DIR")
    parser.add_argument("--no-exports", action="store_true", help="write the page only, no figure and table files")


def run(args: Namespace) -> int:
    if bool(args.directory) == bool(args.compare):
        raise InputError("name the folder of a study, or two folders after --compare")
    from avuc.report.study.exports import write_figures, write_tables
    from avuc.report.study.results import side_by_side

    console = Console()
    folders = args.compare or [args.directory]
    studies, damage = zip(*(_read(folder) for folder in folders), strict=True)
    out = Path(args.out or Path(folders[-1]) / ("compared.html" if args.compare else "report.html"))
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: expected a file that ends in .html")
    results = studies[0]
    if args.compare:
        results = side_by_side(studies[0], studies[1], _names(folders, studies))
    conclude(results, out, console)
    if not args.no_exports:
        exports = out.with_suffix("")
        tables = write_tables(results, exports / "tables")
        figures = write_figures(results, exports / "figures")
        console.line(f"{len(figures)} figure files and {len(tables)} table files in {exports}", "dim")
    console.line(f"Open the report in a browser: {out.resolve()}", "bold")
    for line in filter(None, damage):
        print(f"avuc: {line}; the report leaves them out, run avuc study again to compute them", file=sys.stderr)
    return DAMAGED if any(damage) else 0


def conclude(results: Results, page: Path, console: Console) -> None:
    """Write the page; print the ranking, the verdict and the warnings."""
    from avuc.report.study.page import write_study_page
    from avuc.report.study.tables import ranking
    from avuc.report.study.verdict import alarms, verdict
    from avuc.report.table import Entry

    write_study_page(results, page)
    table = ranking(results)
    rows = [[Entry(cell.value).text if isinstance(cell, Entry) else cell for cell in row] for row in table.rows]
    console.line()
    console.table(_short(table.head), rows, "<" + ">" * (len(table.head) - 1))
    console.line()
    for sentence in verdict(results):
        console.paragraph(sentence)
    for sentence in alarms(results):
        console.paragraph(f"note: {sentence}")
    console.line()


def _short(head: Sequence[str]) -> list[str]:
    """Return shorter column titles: only the first column under shift says so.

    >>> _short(["clean: ECE", "shifted: NLL", "shifted: Brier score"])
    ['ECE', 'shifted: NLL', 'Brier']
    """
    first = next((title for title in head if title.startswith("shifted: ")), "")
    plain = [title.split(": ", 1)[-1].replace(" score", "") for title in head]
    return [title if title == first else short for title, short in zip(head, plain, strict=True)]


def _read(folder: str) -> tuple[Results, str]:
    """Return the results, and a text about lost results if the study's file is damaged."""
    from avuc.report.study.results import read_results
    from avuc.study.store.store import Store

    store = Store(folder, create=False)
    try:
        return read_results(store), store.damage() if store.lost else ""
    finally:
        store.close()


def _names(folders: list[str], studies: Sequence[Results]) -> tuple[str, str]:
    """Return two different names: of the studies, else of the folders, else numbered."""
    first, second = (results.title for results in studies)
    if first == second:
        first, second = (Path(folder).resolve().name for folder in folders)
    return (f"1 {first}", f"2 {second}") if first == second else (first, second)


COMMAND = Command(
    summary="write a study's results as one HTML page, with figures and tables as files",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
