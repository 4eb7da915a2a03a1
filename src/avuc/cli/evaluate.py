"""`avuc evaluate`: metrics of saved predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from avuc.cli.command import SAMPLE_FILES, Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.cli.inputs import (
    FILE_HELP,
    add_input_options,
    evaluation_options,
    open_file,
    open_other,
    read_file,
)
from avuc.cli.more import (
    add_more_options,
    check_more,
    more_figures,
    more_tables,
    outside_groups,
    resampled_groups,
    show_more,
)
from avuc.cli.multilabel import TASK, evaluate_labels
from avuc.cli.outputs import add_output_options, check_outputs, console_for, file_title, text_job, write_results
from avuc.cli.tables import show_file, show_result, show_written
from avuc.core.errors import InputError, out_of_memory
from avuc.core.text import visible
from avuc.report.metric_text import verdict

if TYPE_CHECKING:
    from avuc.evaluation import EvaluationResult
    from avuc.evaluation.files import ScoreFile, ScoreStream

    Scores = ScoreFile | ScoreStream

ONE_OUTSIDE = "one image out of distribution tells nothing about others, so detection has no intervals"
EXAMPLES = """\
examples:
  avuc evaluate test.npz
  avuc evaluate test.npz --ood other.npz --json figures.json --report report.html
  avuc evaluate logits.npy --labels test.csv --label class
  avuc evaluate huge_logits.npy --labels huge_labels.npy --fixed-memory
  avuc evaluate test.csv --more --group hospital
  avuc evaluate tags.csv --task multilabel
  python predict.py | avuc evaluate - --format npz --json - | jq .metrics.ece"""


def arguments(parser: Parser) -> None:
    add_input_options(parser)
    parser.add_argument(
        "--ood",
        metavar="FILE",
        help="predictions on out-of-distribution data; needs no labels; adds detection metrics",
    )
    parser.add_argument(
        "--fixed-memory",
        action="store_true",
        help="use memory that does not grow with the number of rows: no intervals, and metrics that need the order of "
        "all rows are given within bounds",
    )
    add_more_options(parser)
    add_output_options(parser)


def run(args: Namespace) -> int:
    check_outputs({"--json": args.json, "--report": args.report}, [args.file, args.labels, args.ood])
    check_more(args)
    if args.task == TASK:
        return evaluate_labels(args)
    from avuc.evaluation.files import ScoreFile, describe

    if args.fixed_memory and args.replicates:
        raise InputError(
            "--replicates: with --fixed-memory no rows are kept, so there are no intervals; leave out one of the two"
        )
    console = console_for(args)
    # the rows of a group are spread over the file, so all are read into memory
    file: Scores = read_file(args) if args.group else open_file(args)
    show_file(console, file)
    file.check_labelled()
    check_more(args, file)
    other = None
    if args.ood:
        other = open_other(args, args.ood, file, "both files must come from the same model")
        show_file(console, other, "out of distribution: ")
    notes = [*file.notes, *(_memory_notes(console, file, other) if args.fixed_memory else ())]
    units, by_group, few = resampled_groups(args, file) if isinstance(file, ScoreFile) else (None, False, None)
    outside = none = None
    if other is not None and not args.fixed_memory:
        outside, none = outside_groups(args, other, by_group=by_group)
    for note in filter(None, (few, none)):
        notes.append(note)
        console.paragraph(f"note: {note}", lead="  ")
    result = _evaluate(args, file, other, units, outside)
    if note := _missing_intervals(args, result):
        notes.append(note)
        console.paragraph(f"note: {note}", lead="  ")
    more: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    if (args.more or args.group) and isinstance(file, ScoreFile):
        more, figures = more_figures(args, file, result.replicates, units)
    page = ""
    if args.report:
        from avuc.report.single.page import assessment_page

        tables = more_tables(args, more)
        page = assessment_page(result, title=visible(file_title(args)), source=describe(file), tables=tables)
    write_results(result.as_json() | figures | {"notes": notes}, args.json, {args.report: text_job(page)})
    console.line()
    show_result(console, result)
    show_more(console, args, more)
    console.line()
    for sentence in verdict(result):
        console.paragraph(sentence)
    show_written(console, [args.json, args.report])
    return 0


def _evaluate(
    args: Namespace, file: Scores, other: Scores | None, groups: Any, outside_groups: Any
) -> EvaluationResult:
    from torch import from_numpy

    from avuc.evaluation import evaluate, evaluate_large, evaluate_streaming
    from avuc.evaluation.files import ScoreFile
    from avuc.evaluation.large import entropies
    from avuc.metrics.blockwise import needs_blocks
    from avuc.metrics.dependent_rows import MOST_ROWS

    if args.fixed_memory:
        return evaluate_streaming(file, outside=other, threshold=args.threshold, bins=args.bins)
    try:
        outside = None if other is None else entropies(other)
        large = needs_blocks(file.num_rows, file.num_classes, file.samples)
        if isinstance(file, ScoreFile) and (groups is not None or not large):
            rows = None if outside is None else from_numpy(outside)
            options = evaluation_options(args, min(file.num_rows, MOST_ROWS) if groups is not None else file.num_rows)
            both: dict[str, Any] = {"outside_entropy": rows, "outside_groups": outside_groups}
            return evaluate(file.predictions(), groups=groups, **both, **options)
        both = {"outside_entropy": outside, "outside_groups": outside_groups}
        return evaluate_large(file, **both, **evaluation_options(args, file.num_rows, by_cells=True))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"{args.file}: there is not enough memory to evaluate it; use --fixed-memory, or a larger machine"
        ) from error


def _missing_intervals(args: Namespace, result: EvaluationResult) -> str:
    """Return why there are no intervals, or none of the detection, although they were asked for; else an empty text."""
    if not (result.replicates or args.fixed_memory) and args.replicates != 0:
        from avuc.evaluation.compare import ONE_GROUP

        return ONE_GROUP
    return ONE_OUTSIDE if result.replicates and result.detection and not result.detection_intervals else ""


def _memory_notes(console: Console, file: Scores, other: Scores | None) -> list[str]:
    """Print and return notes about files that are read into memory as a whole despite --fixed-memory."""
    from avuc.evaluation.streaming import memory_note

    notes = [
        f"{scores.path.name}: {note}"
        for scores in (file, other)
        if scores is not None and (note := memory_note(scores))
    ]
    for note in notes:
        console.paragraph(f"note: {note}", lead="  ")
    return notes


COMMAND = Command(
    summary="metrics of saved predictions, with intervals and explanations",
    text=f"Print every metric of saved predictions with its 95 % interval and its meaning.\n\n{FILE_HELP}",
    examples=EXAMPLES + SAMPLE_FILES,
    arguments=arguments,
    run=run,
)
