"""`avuc calibrate`: fit a calibrator on saved predictions, show honestly what it changes, and apply it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console, shown
from avuc.cli.inputs import (
    FILE_HELP,
    add_input_options,
    add_output_options,
    check_outputs,
    json_text,
    judging,
    read_file,
    read_other,
    text_job,
    write_all,
)
from avuc.cli.tables import show_comparison, show_file, show_warnings, show_written
from avuc.core.errors import InputError
from avuc.report.metric_text import compared_verdict

if TYPE_CHECKING:
    from avuc.evaluation.files import ScoreFile

__all__ = ["COMMAND", "METHODS"]

# the names in avuc.calibration.CALIBRATORS, here without importing torch; a test compares the two
METHODS = ("temperature", "cautious", "avuts", "auavuts", "vector")
TEXT = f"""\
Fit a calibrator on saved predictions, write it as JSON, and say what it changes.

The calibrator that is written is fitted on all rows. The figures before and after come from held-out rows: the rows
are split into --folds parts, and each part is transformed by a calibrator fitted on the others. A calibrator that is
worse than leaving the scores alone, by these figures, is refused: the scores stay as they are, unless --keep-worse.

{FILE_HELP}"""
EXAMPLES = """\
examples:
  avuc calibrate validation.npz --method temperature --out cal.json
  avuc calibrate validation.npz --method avuts --out cal.json --apply test.npz --to test-calibrated.npz"""


def arguments(parser: Parser) -> None:
    add_input_options(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        required=True,
        help="temperature: by likelihood; cautious: a little less sure than that, for data that may shift; "
        "avuts: accuracy versus uncertainty; auavuts: the same without a threshold; "
        "vector: one scale and one shift per class",
    )
    parser.add_argument("--out", metavar="CAL.json", required=True, help="the fitted calibrator")
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="parts for the held-out figures (default: 5)")
    parser.add_argument(
        "--keep-worse",
        action="store_true",
        help="write the calibrator also where the held-out figures find it worse than leaving the scores alone "
        "(default: it is refused, with a warning, and --out and --to leave every score as it is)",
    )
    parser.add_argument("--apply", metavar="FILE", help="predictions to transform; labels are not needed")
    parser.add_argument("--to", metavar="FILE", help="where they go, in the same format and under the same name")
    add_output_options(parser)


def check_numbers(file: ScoreFile, other: ScoreFile) -> None:
    """Refuse classes 3, 5, 7 beside classes 1, 2, 3: matched by position, class 3 would be taken for class 7."""
    both = [one.class_names or () for one in (file, other)]
    if all(both) and all(name.isdecimal() for names in both for name in names):
        from avuc.evaluation.files.messages import listing

        raise InputError(
            f"{other.path}: its classes are {listing(both[1])}, but the calibrator is fitted on {listing(both[0])}; "
            "apply it to scores of the same classes, under the same numbers"
        )


def run(args: Namespace) -> int:
    if (args.apply is None) != (args.to is None):
        raise InputError("--apply and --to belong together: the file to transform, and where the result goes")
    if args.folds < 2:
        raise InputError(f"--folds {args.folds} leaves nothing to hold out; give 2 or more")
    if args.to is not None and Path(args.to).suffix.lower() != Path(args.apply).suffix.lower():
        raise InputError(f"{args.to}: the result keeps the format of {args.apply}; end its name in the same suffix")
    outputs = {"--out": args.out, "--to": args.to, "--json": args.json, "--report": args.report}
    check_outputs(outputs, [args.file, args.labels, args.apply])
    from avuc.evaluation import compare
    from avuc.evaluation.files import describe, write_scores

    console = Console()
    file = read_file(args)
    show_file(console, file)
    other = None
    if args.apply:
        other = read_other(args, args.apply, file, "a calibrator is for one model")
        show_file(console, other, "to transform: ")
        if (file.names is None) != (other.names is None):
            check_numbers(file, other)
            named = file if other.names is None else other
            console.paragraph(f"note: only {named.path} names its classes, so they are matched by position", lead="  ")
    options = judging(args, file.num_rows)
    calibrator, result = compare(file, args.method, folds=args.folds, keep_worse=args.keep_worse, **options)
    page = ""
    if args.report:
        from avuc.report.single.page import comparison_page

        page = comparison_page(result, title=shown(Path(args.file).name), source=describe(file))
    jobs = {
        args.out: text_job(calibrator.to_json() + "\n"),
        args.json: text_job(json_text(result.as_json() | {"notes": list(file.notes)})),
        args.report: text_job(page),
    }
    if other is not None:
        scores = other.calibrated(calibrator)
        jobs[args.to] = lambda path: write_scores(other, scores, path)
    write_all(jobs)
    console.line()
    show_comparison(console, result)
    console.line()
    for sentence in compared_verdict(result):
        console.paragraph(sentence)
    show_warnings(console, result.warnings)
    console.line()
    show_written(console, outputs.values())
    return 0


COMMAND = Command(
    summary="fit a calibrator on saved predictions, and apply it",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
