"""`avuc evaluate`: the truth about a model's confidence, from its saved predictions."""

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
    open_file,
    open_other,
    text_job,
    write_all,
)
from avuc.cli.tables import show_assessment, show_file, show_written
from avuc.report.metric_text import verdict

if TYPE_CHECKING:
    from avuc.evaluation import EvaluationResult
    from avuc.evaluation.files import ScoreFile, ScoreStream

    Scores = ScoreFile | ScoreStream

__all__ = ["COMMAND"]

EXAMPLES = """\
examples:
  avuc evaluate test.npz
  avuc evaluate test.npz --ood other.npz --json figures.json --report report.html
  avuc evaluate logits.npy --labels test.csv --label class"""


def arguments(parser: Parser) -> None:
    add_input_options(parser)
    parser.add_argument(
        "--ood", metavar="FILE", help="predictions on data of another kind; needs no labels; adds detection figures"
    )
    add_output_options(parser)


def run(args: Namespace) -> int:
    check_outputs({"--json": args.json, "--report": args.report}, [args.file, args.labels, args.ood])
    from avuc.evaluation.files import describe

    console = Console()
    file = open_file(args)
    show_file(console, file)
    file.check_labelled()
    other = None
    if args.ood:
        other = open_other(args, args.ood, file, "both must come from one model")
        show_file(console, other, "outside: ")
    result = _judged(args, file, other)
    page = ""
    if args.report:
        from avuc.report.single.page import assessment_page

        page = assessment_page(result, title=shown(Path(args.file).name), source=describe(file))
    write_all(
        {args.json: text_job(json_text(result.as_json() | {"notes": list(file.notes)})), args.report: text_job(page)}
    )
    console.line()
    show_assessment(console, result)
    console.line()
    for sentence in verdict(result):
        console.paragraph(sentence)
    show_written(console, [args.json, args.report])
    return 0


def _judged(args: Namespace, file: Scores, other: Scores | None) -> EvaluationResult:
    from torch import from_numpy

    from avuc.evaluation import evaluate, evaluate_large
    from avuc.evaluation.files import ScoreFile
    from avuc.evaluation.large import entropies
    from avuc.metrics.blockwise import needs_blocks

    outside = None if other is None else entropies(other)
    if isinstance(file, ScoreFile) and not needs_blocks(file.num_rows, file.num_classes, file.samples):
        rows = None if outside is None else from_numpy(outside)
        return evaluate(file.predictions(), outside_entropy=rows, **judging(args, file.num_rows))
    return evaluate_large(file, outside_entropy=outside, **judging(args, file.num_rows, by_cells=True))


COMMAND = Command(
    summary="judge saved predictions: every metric, with intervals, in plain words",
    text=f"Judge saved predictions: every metric with its 95 % interval, and what it means.\n\n{FILE_HELP}",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
