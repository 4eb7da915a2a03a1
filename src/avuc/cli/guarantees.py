"""Shared parts of `avuc conformal` and `avuc select`: options, rows in the class order of the fit, a check, files."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from avuc.cli.command import Namespace, Parser
from avuc.cli.console import Console
from avuc.cli.inputs import add_content_options, add_group_option, groups_of, read_file, read_unlabelled
from avuc.cli.outputs import add_quiet_option, check_outputs, console_for, file_title, text_job, write_results
from avuc.cli.tables import show_file, show_matching, show_warnings, show_written
from avuc.core.errors import InputError
from avuc.core.text import visible

if TYPE_CHECKING:
    from avuc.conformal import ConformalClassifier, SelectiveClassifier
    from avuc.evaluation.files import ScoreFile
    from avuc.predictions import Predictions
    from avuc.report.single.page import TitledTable as Titled

    Fitted = TypeVar("Fitted", ConformalClassifier, SelectiveClassifier)

# formats that --to can have
RESULTS = (".csv", ".tsv", ".npz")
# files with fewer rows are not split into two halves for a check
LEAST_ROWS = 20
FILES_HELP = """\
FILE has labelled predictions that the model was not trained or calibrated on, in any format of avuc evaluate; or it is
a .json that --out wrote. The figures come from held-out rows: a fit on a random half of FILE, checked on the other
half. The fit that is saved and applied uses all rows.

Pixels of one image, tokens of one sentence and rows of one patient are not independent. For dense scores,
(N, C, *spatial) or (N, T, C), the unit is therefore the image or the sentence; in other files, --group names the
column with the unit. Thresholds, halves, tests and intervals then count units instead of rows."""


def share(text: str) -> float:
    """Parse a number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1; 5 % is 0.05")
    return value


def add_file_options(parser: Parser, result: str) -> None:
    """Add FILE and the options for reading, applying, checking and writing; `result` says what --to gets."""
    add_content_options(parser)
    add_group_option(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed, from 0 up (default: 0)")
    parser.add_argument("--out", metavar="OUT.json", help="save the fit, to use it as FILE later")
    parser.add_argument("--apply", metavar="FILE", help="new predictions; labels are not needed")
    parser.add_argument("--to", metavar="FILE", help=f"file for {result} of --apply, .csv, .tsv or .npz")
    parser.add_argument(
        "--check",
        metavar="FILE",
        nargs="+",
        help="new labelled predictions, one or more files: says whether the guarantee still holds there",
    )
    group = parser.add_argument_group("output files")
    group.add_argument(
        "--json",
        metavar="OUT.json",
        help="write the figures as JSON; -: to standard output, and everything else to standard error",
    )
    group.add_argument("--report", metavar="OUT.html", help="write one HTML page")
    add_quiet_option(parser)


def check_arguments(args: Namespace, of_fit: Sequence[str]) -> None:
    """Raise before any work if options conflict; `of_fit` names the options that a saved fit already has."""
    if (args.apply is None) != (args.to is None):
        raise InputError(
            "--apply and --to need each other; pass both: the new predictions, and the file for the result"
        )
    if args.to is not None and Path(args.to).suffix.lower() not in RESULTS:
        raise InputError(f"{args.to}: --to must end with {', '.join(RESULTS)}; choose one of these")
    if args.task == "multilabel":
        raise InputError(
            "--task multilabel: a row of many labels has no single true class; use --columns for one label"
        )
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: must be 0 or more; choose another")
    if is_saved(args):
        if args.apply is None and args.check is None:
            raise InputError(f"{args.file}: is a saved fit; pass --apply FILE --to FILE, or --check FILE")
        if args.positive is not None and args.check is None:
            raise InputError(
                "--positive is about files with labels; in --apply, name the column of the numbers by their class: "
                f"prob_{args.positive}"
            )
        if args.out is not None:
            raise InputError(f"--out: {args.file} is a saved fit already; leave --out out")
        if conflicting := [f"--{name.replace('_', '-')}" for name in of_fit if getattr(args, name)]:
            option = conflicting[0]
            raise InputError(f"{option}: {args.file} is a saved fit, which has its own; leave {option} out")
    outputs = {"--out": args.out, "--to": args.to, "--json": args.json, "--report": args.report}
    check_outputs(outputs, [args.file, args.labels, args.apply, *(args.check or ())])


def is_saved(args: Namespace) -> bool:
    """Return whether FILE is a fit that --out wrote."""
    return Path(args.file).suffix.lower() == ".json"


def read_labelled(args: Namespace, console: Console, path: str, fitted: Any = None) -> ScoreFile:
    """Read a file with labels, FILE or one to check by a fit, and print a description of it."""
    other = {} if path == args.file else {"labels": None}
    lead, names = ("", None) if fitted is None else ("to check: ", fitted.class_names_)
    file = read_file(Namespace(**vars(args) | {"file": path} | other), None if names is None else tuple(names))
    show_file(console, file, lead)
    file.check_labelled()
    return file


def fitted_on(classifier: Fitted, file: ScoreFile, groups: Any) -> Fitted:
    """Fit on all rows of a file."""
    fitted = classifier.fit(file.predictions(), groups=groups)
    labels = file.class_labels
    fitted.class_names_ = None if labels == tuple(map(str, range(file.num_classes))) else labels
    return fitted


def in_order(console: Console, file: ScoreFile, fitted: Any) -> Predictions:
    """Return the predictions of a file with its classes in the order of the fit; rows without labels have −1."""
    import torch

    from avuc.evaluation.files.match_classes import check_counted, class_order, only_count
    from avuc.predictions import Predictions

    if file.num_classes != fitted.num_classes_:
        raise InputError(
            f"{file.path}: has {file.num_classes} classes, but the fit had {fitted.num_classes_}; use the same model"
        )
    known = fitted.class_names_
    known = None if known is None or only_count(known) else known
    names = file.names_for(known)
    if known is not None and names is None and all(name.isdecimal() for name in known):
        names = file.class_names  # classes 1, 2, 3 are not the classes 3, 5, 7
    check_counted(file.path, names, known)
    numbers = tuple(map(str, file.label_numbers or ()))
    if known is not None and names is None and sorted(numbers) == sorted(known):
        names = numbers
    elif known is None or names is None or file.class_names is None:
        show_matching(console, "the fit", file, known)
    order = class_order(file.path, names, known)
    labels = torch.full((file.num_rows,), -1) if file.labels is None else file.labels
    predictions = replace(file, labels=labels).predictions()
    if order is None:
        return predictions
    columns = torch.tensor(order)
    inverse = torch.empty_like(columns)
    inverse[columns] = torch.arange(len(columns))
    labels = torch.where(labels < 0, labels, inverse[labels.clamp(min=0)])
    return Predictions(predictions.probs[:, columns], labels, predictions.expected_entropy, predictions.samples)


def new_checks(
    args: Namespace, console: Console, fitted: Fitted, lines: list[str], warnings: list[str]
) -> list[tuple[str, Any]]:
    """Return path and check of each file of --check. Its sentence goes to `lines`, or with drift to `warnings`."""
    checks = []
    for path in args.check or ():
        file = read_labelled(args, console, path, fitted)
        groups = groups_of(args, file)
        check = fitted.check(in_order(console, file, fitted), groups=groups)
        checks.append((path, check))
        if groups is not None and fitted.images_ is None:
            warnings.append(
                f"{path}: has several rows of each image or group, but the fit counted its rows as independent, so its "
                "guarantee may promise too much; unless it had one row of each image, fit it again with dense scores "
                "or --group"
            )
        (warnings if check.drift else lines).append(f"{path}: {check.sentence}")
    return checks


def held_out_check(classifier: Fitted, file: ScoreFile, seed: int, groups: Any) -> Any:
    """Return the check of a random half of the rows, or groups, by a fit on the other half; None if there are few."""
    import torch

    from avuc.evaluation.decomposition import rows_of

    predictions = file.predictions()
    numbers = torch.arange(len(predictions)) if groups is None else torch.as_tensor(groups)
    kinds = numbers.unique()
    if len(kinds) < LEAST_ROWS:
        return None
    order = kinds[torch.randperm(len(kinds), generator=torch.Generator().manual_seed(seed))]
    halves = []
    for half in order.chunk(2):
        rows = half if groups is None else torch.isin(numbers, half).nonzero()[:, 0]
        halves.append((rows_of(predictions, rows), None if groups is None else numbers[rows]))
    fitted = type(classifier)(**classifier.get_params()).fit(halves[0][0], groups=halves[0][1])
    return fitted.check(halves[1][0], groups=halves[1][1])


def read_applied(args: Namespace, console: Console) -> ScoreFile:
    """Read the file of --apply; labels only mark its padding (`ScoreFile.ignored`)."""
    named = Namespace(**vars(args) | {"file": args.apply})
    file = read_unlabelled(named, ignore_index=args.ignore_index)
    show_file(console, file, "to apply: ")
    return file


def show_table(console: Console, table: Titled) -> None:
    """Print a table below its heading."""
    heading, head, rows = table
    console.line()
    console.line(heading, "bold")
    console.table(head, rows, "<" + ">" * (len(head) - 2) + "<")


def table_job(path: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Callable[[Path], object]:
    """Return a job for `write_all` that writes a .csv or .tsv table."""

    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.lower().endswith(".tsv") else ",", lineterminator="\n")
            writer.writerow(head)
            writer.writerows(rows)

    return write


def arrays_job(arrays: dict[str, Any]) -> Callable[[Path], object]:
    """Return a job for `write_all` that writes an .npz file."""

    def write(target: Path) -> None:
        import numpy as np

        with target.open("wb") as file:
            np.savez(file, **arrays)

    return write


def finish(
    args: Namespace,
    document: dict[str, Any],
    fitted: Any,
    result: Callable[[Path], object] | None,
    lines: Sequence[str],
    warnings: Sequence[str],
    tables: Sequence[Titled],
) -> int:
    """Write all files or none, then print the results."""
    console = console_for(args)
    jobs: dict[str | None, Callable[[Path], object]] = {args.out: text_job(fitted.to_json() + "\n")}
    if result is not None:
        jobs[args.to] = result
    if args.report:
        from avuc.report.single.page import tables_page

        heading = f"{file_title(args)}: {args.command}"
        jobs[args.report] = text_job(tables_page(visible(heading), repr(fitted), lines, warnings, tables))
    write_results(document, args.json, jobs)
    console.line()
    for line in lines:
        console.paragraph(line)
    show_warnings(Console(sys.stderr) if args.quiet else console, warnings)
    console.line()
    show_written(console, [args.out, args.to, args.json, args.report])
    return 0
