"""`avuc apply`: calibrate saved predictions with a saved calibrator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from avuc.cli.command import SAMPLE_FILES, Command, Namespace, Parser
from avuc.cli.inputs import FILE_HELP, add_content_options, read_unlabelled
from avuc.cli.multilabel import TASK, apply_labels
from avuc.cli.outputs import add_quiet_option, check_outputs, console_for, write_all
from avuc.cli.tables import show_file, show_matching, show_written
from avuc.core.errors import InputError

if TYPE_CHECKING:
    from avuc.evaluation.files import ScoreFile

TEXT = f"""\
Write a copy of saved predictions with calibrated scores, in the same format. Logits stay logits and probabilities stay
probabilities; labels, other arrays and other columns are copied. CAL.json is a calibrator that avuc calibrate --out
wrote. Labels are not needed.

{FILE_HELP}"""
# what the command calls the calibrators that are no temperature
NAMED = {
    "vector": "vector scaling",
    "matrix": "matrix scaling",
    "structured-vector": "structured vector scaling",
    "dirichlet": "Dirichlet calibration",
    "venn-abers": "Venn–Abers calibration",
    "isotonic": "isotonic calibration",
    "histogram": "histogram binning",
    "blend": "a mixture of calibrators",
}
EXAMPLES = """\
examples:
  avuc apply cal.json test.npz --to test-calibrated.npz
  cat test.csv | avuc apply cal.json - --to test-calibrated.csv"""


def arguments(parser: Parser) -> None:
    parser.add_argument("calibrator", metavar="CAL.json", help="a calibrator, written by avuc calibrate --out")
    add_content_options(parser, labels=False)
    parser.add_argument("--to", metavar="FILE", required=True, help="file for the result, in the format of FILE")
    add_quiet_option(parser)


def run(args: Namespace) -> int:
    check_outputs({"--to": args.to}, [args.calibrator, args.file])
    if Path(args.file).suffix.lower() == ".json":
        raise InputError(f"{args.file}: these are no scores; name the calibrator first, then the scores")
    if Path(args.to).suffix.lower() != Path(args.file).suffix.lower():
        raise InputError(
            f"{args.to}: --to must have the format of {args.file}; use the suffix {Path(args.file).suffix}"
        )
    from avuc.calibration import Calibrator
    from avuc.evaluation.files import write_scores

    console = console_for(args)
    calibrator = Calibrator.load(args.calibrator)
    if calibrator.name == TASK:
        return apply_labels(args, calibrator)
    file = read_unlabelled(args)
    show_file(console, file)
    _check_classes(args, calibrator, file)
    show_matching(console, args.calibrator, file, _names(calibrator))
    scores = file.calibrated(calibrator)
    write_all({args.to: lambda path: write_scores(file, scores, path)})
    console.line(f"calibrated by {_described(calibrator)}")
    show_written(console, [args.to])
    return 0


def _check_classes(args: Namespace, calibrator: Any, file: ScoreFile) -> None:
    """Raise if the classes of the calibrator are not those of the file."""
    if not hasattr(calibrator, "temperature_"):
        raise InputError(f"{args.calibrator}: the calibrator is not fitted; write it with avuc calibrate --out")
    if calibrator.num_classes_ != file.num_classes:
        raise InputError(
            f"{args.file}: has {file.num_classes} classes, but {args.calibrator} was fitted on "
            f"{calibrator.num_classes_}; apply it to scores of the same model"
        )
    from avuc.evaluation.files.match_classes import check_counted

    fitted, names = _names(calibrator), file.class_names
    check_counted(file.path, names, fitted)
    if fitted and names and file.names is None and all(name.isdecimal() for name in (*fitted, *names)):
        from avuc.evaluation.files.messages import listing

        # by position, class 3 of 3, 5, 7 would match class 1 of 1, 2, 3
        raise InputError(
            f"{args.file}: has the classes {listing(names)}, but the calibrator was fitted on {listing(fitted)}; "
            "apply it to scores with the same class numbers"
        )


def _names(calibrator: Any) -> tuple[str, ...] | None:
    """Return the class names of the fit; None for names that only count, as those of scikit-learn may: 0, 1, 2, …"""
    from avuc.evaluation.files.match_classes import only_count

    names: tuple[str, ...] | None = calibrator.class_names_
    return None if names is None or only_count(names) else names


def _described(calibrator: Any) -> str:
    if calibrator.name in NAMED:
        return NAMED[calibrator.name]
    if getattr(calibrator, "is_identity", False):
        return "temperature 1, which changes nothing"
    return f"{calibrator.name} scaling, temperature {calibrator.temperature_:.4g}".replace("temperature scaling, ", "")


COMMAND = Command(
    summary="calibrate saved predictions with a saved calibrator",
    text=TEXT,
    examples=EXAMPLES + SAMPLE_FILES,
    arguments=arguments,
    run=run,
)
