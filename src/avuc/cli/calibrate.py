"""`avuc calibrate`: fit a calibrator on saved predictions, show its effect on held-out rows, and apply it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from avuc._old_names import forward
from avuc.cli.command import SAMPLE_FILES, Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.cli.inputs import (
    FILE_HELP,
    add_group_option,
    add_input_options,
    evaluation_options,
    groups_of,
    read_file,
    read_other,
)
from avuc.cli.multilabel import TASK, calibrate_labels
from avuc.cli.outputs import add_output_options, check_outputs, console_for, file_title, text_job, write_results
from avuc.cli.tables import show_candidates, show_comparison, show_file, show_matching, show_warnings, show_written
from avuc.core.calibrator_names import CALIBRATOR_NAMES
from avuc.core.errors import InputError
from avuc.core.text import visible
from avuc.report.metric_text import compared_verdict

if TYPE_CHECKING:
    from avuc.evaluation.files import ScoreFile

__getattr__: Callable[[str], object] = forward(__name__)

TEXT = f"""\
Fit a calibrator on saved predictions, write it as JSON, and print what it changes.

The saved calibrator is fitted on all rows. The metrics before and after come from held-out rows: the rows are split
into --folds parts, and each part is calibrated by a fit on the other parts. If these metrics are worse than without
a calibrator, it is rejected and the scores stay unchanged; --keep-worse keeps it.

methods:
  auto               chosen by cross-validation; a good start
  temperature        one number; the predicted classes do not change
  cautious           a slightly higher temperature, for data that may shift
  smoothed           a temperature for probabilities with zeros, such as those of forests
  vector             one scale and one bias per class
  structured-vector  the same, regularised
  matrix             structured matrix scaling
  dirichlet          Dirichlet calibration
  venn-abers         Venn-Abers calibration of each class, for thousands of rows
  isotonic           isotonic regression of each class
  histogram          histogram binning of each class
  ets                a mixture of a temperature, no temperature and the uniform distribution
  avuts              the temperature with the best accuracy versus uncertainty
  auavuts            the same without a threshold

Pixels of one image, tokens of one sentence and rows of one patient are not independent. For dense scores, the unit is
therefore the image or the sentence; in other files, --group names the column with the unit. Units are held out as a
whole, and the intervals count units instead of rows.

{FILE_HELP}"""
EXAMPLES = """\
examples:
  avuc calibrate validation.npz --method temperature --out cal.json
  avuc calibrate validation.npz --method auto --out cal.json
  avuc calibrate validation.npz --method avuts --out cal.json --apply test.npz --to test-calibrated.npz"""


def arguments(parser: Parser) -> None:
    add_input_options(parser)
    parser.add_argument(
        "--method",
        choices=(*CALIBRATOR_NAMES, "auto"),
        required=True,
        metavar="NAME",
        help="auto, temperature or another name of the list above",
    )
    parser.add_argument("--out", metavar="CAL.json", required=True, help="file for the fitted calibrator")
    add_group_option(parser)
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="parts for the held-out metrics (default: 5)")
    parser.add_argument(
        "--keep-worse",
        action="store_true",
        help="write the calibrator even if the held-out metrics are worse with it (default: it is rejected with a "
        "warning, and --out and --to leave every score unchanged)",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="with --task multilabel: one calibrator for all labels (default: one for each)",
    )
    parser.add_argument("--apply", metavar="FILE", help="predictions to calibrate; labels are not needed")
    parser.add_argument("--to", metavar="FILE", help="file for the calibrated predictions, in the format of --apply")
    add_output_options(parser)


def check_numbers(file: ScoreFile, other: ScoreFile) -> None:
    """Raise for classes 3, 5, 7 in one file and 1, 2, 3 in the other: by position, class 3 would match class 7."""
    both = [scores.class_names or () for scores in (file, other)]
    if all(both) and all(name.isdecimal() for names in both for name in names):
        from avuc.evaluation.files.messages import listing

        raise InputError(
            f"{other.path}: has the classes {listing(both[1])}, but the calibrator is fitted on {listing(both[0])}; "
            "apply it to scores with the same class numbers"
        )


def run(args: Namespace) -> int:
    if (args.apply is None) != (args.to is None):
        raise InputError(
            "--apply and --to need each other; pass both: the file to calibrate, and the file for the result"
        )
    if args.folds < 2:
        raise InputError(f"--folds {args.folds} holds out no rows; pass 2 or more")
    if args.to is not None and Path(args.to).suffix.lower() != Path(args.apply).suffix.lower():
        raise InputError(f"{args.to}: --to must have the format of {args.apply}; use the same suffix")
    outputs = {"--out": args.out, "--to": args.to, "--json": args.json, "--report": args.report}
    check_outputs(outputs, [args.file, args.labels, args.apply])
    if args.task == TASK:
        return calibrate_labels(args)
    if args.shared:
        raise InputError("--shared is for --task multilabel; leave it out")
    from avuc.evaluation import compare
    from avuc.evaluation.files import describe, write_scores
    from avuc.evaluation.files.match_classes import check_counted
    from avuc.metrics.dependent_rows import MOST_ROWS, draws_cells

    console = console_for(args)
    file = read_file(args)
    show_file(console, file)
    groups = groups_of(args, file)
    other = None
    if args.apply:
        other = read_other(args, args.apply, file, "both files must come from the same model")
        show_file(console, other, "to calibrate: ")
        if (file.names is None) != (other.names_for(file.names) is None):
            check_counted(other.path, other.names, file.names)
            check_numbers(file, other)
        show_matching(console, file.path, other, file.names)
    resampled = file.num_rows if groups is None else min(file.num_rows, MOST_ROWS)
    by_cells = groups is None and draws_cells(file.num_rows, file.num_classes)
    options = evaluation_options(args, resampled, by_cells=by_cells) | {"groups": groups}
    calibrator, result = compare(file, args.method, folds=args.folds, keep_worse=args.keep_worse, **options)
    page = ""
    if args.report:
        from avuc.report.single.page import comparison_page

        page = comparison_page(result, title=visible(file_title(args)), source=describe(file))
    jobs = {
        args.out: text_job(calibrator.to_json() + "\n"),
        args.report: text_job(page),
    }
    if other is not None:
        scores = other.calibrated(calibrator)
        jobs[args.to] = lambda path: write_scores(other, scores, path)
    write_results(result.as_json() | {"notes": list(file.notes)}, args.json, jobs)
    console.line()
    show_comparison(console, result)
    show_candidates(console, result)
    console.line()
    for sentence in compared_verdict(result):
        console.paragraph(sentence)
    show_warnings(Console(sys.stderr) if args.quiet else console, result.warnings)
    console.line()
    show_written(console, outputs.values())
    return 0


COMMAND = Command(
    summary="fit a calibrator on saved predictions, and apply it",
    text=TEXT,
    examples=EXAMPLES + SAMPLE_FILES,
    arguments=arguments,
    run=run,
)
