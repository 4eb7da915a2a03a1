"""`avuc demo`: a first story on real images, in a minute."""

from __future__ import annotations

import time
from pathlib import Path

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.cli.inputs import text_job, write_all
from avuc.errors import InputError, require
from avuc.report.words import RANKING_HEAD, ranking_rows, ranking_verdict

__all__ = ["COMMAND"]

TEXT = """\
Train a small network on real handwritten digits, save its predictions, calibrate it two ways and judge the result,
also on photographs, which are no digits at all. Takes about a minute; nothing is downloaded."""
TITLE = "Does a small network know when it is wrong?"


def arguments(parser: Parser) -> None:
    parser.add_argument("--out", default="avuc-demo", metavar="DIR", help="folder for all files (default: avuc-demo)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of every random draw (default: 0)")


def run(args: Namespace) -> int:
    started = time.monotonic()
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be a folder ({error.strerror}); choose another --out") from error
    require("matplotlib", "report", "the demo's report")
    from avuc.demo import tell
    from avuc.report.html import ranking_page
    from avuc.scores import describe

    console = Console()
    story = tell(out, seed=args.seed)
    for file in story.files.values():
        console.line(f"saved {file.path}: {describe(file)}")
    for note in story.notes:
        console.paragraph(f"note: {note}")
    source = (
        f"{describe(story.files['test'])}; calibrators fitted on {story.files['validation'].num_rows:,} other digits"
    )
    sentences = ranking_verdict(story.results, story.temperatures)
    page = ranking_page(story.results, sentences, title=TITLE, source=source)
    report = out / "report.html"
    write_all({str(report): text_job(page)})
    console.line()
    console.table(RANKING_HEAD, ranking_rows(story.results), "<" + ">" * (len(RANKING_HEAD) - 1))
    console.line()
    for sentence in sentences:
        console.paragraph(sentence)
    console.line()
    console.paragraph(f"Try it on your own predictions: avuc evaluate {story.files['test'].path}")
    took = time.monotonic() - started
    console.line(f"Made in {took:.0f} s. Open the report in a browser: {report.resolve()}", "bold")
    return 0


COMMAND = Command(
    summary="a first story on real images, in a minute",
    text=TEXT,
    examples="example:\n  avuc demo --out demo",
    arguments=arguments,
    run=run,
)
