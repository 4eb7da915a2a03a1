"""`--task multilabel` of evaluate and calibrate, and `avuc apply` with the calibrator of a multi-label model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avuc.cli.command import Namespace
from avuc.cli.console import Console
from avuc.cli.inputs import evaluation_options
from avuc.cli.outputs import console_for, file_title, text_job, write_all, write_results
from avuc.cli.tables import show_comparison, show_result, show_warnings, show_written
from avuc.core.errors import InputError
from avuc.core.text import visible
from avuc.report.metric_text import compared_verdict, label_rows, label_table_head, verdict

if TYPE_CHECKING:
    from avuc.evaluation.files.multilabel import MultiLabelFile

TASK = "multilabel"
# longer tables of labels are cut on the terminal
MOST_LABELS = 40


def evaluate_labels(args: Namespace) -> int:
    """Run `avuc evaluate --task multilabel`."""
    _refuse(args, "ood", "fixed_memory", "positive", "class_dim", "first_label")
    from avuc.evaluation.multilabel_file import evaluate_multilabel

    console = console_for(args)
    file = _read(args, args.file)
    _show_file(console, file)
    assert file.labels is not None
    result = evaluate_multilabel(file, **evaluation_options(args, file.labels.numel()))
    page = ""
    if args.report:
        from avuc.report.single.page import labels_page

        page = labels_page(result, title=visible(file_title(args)), source=file.describe())
    write_results(result.as_json() | {"notes": list(file.notes)}, args.json, {args.report: text_job(page)})
    rows = label_rows(result)
    console.line()
    hidden = max(0, len(rows) - 2 - MOST_LABELS)
    console.table(label_table_head(), [*rows[:MOST_LABELS], *rows[-2:]] if hidden else rows, "<>>>>>>>")
    if hidden:
        console.paragraph(f"{hidden:,} more labels: --json and --report have all of them.")
    console.line()
    console.line("All decisions", "bold")
    show_result(console, result.decisions)
    console.line()
    for sentence in verdict(result.decisions):
        console.paragraph(sentence)
    show_written(console, [args.json, args.report])
    return 0


def calibrate_labels(args: Namespace) -> int:
    """Run `avuc calibrate --task multilabel`."""
    if args.method == "auto":
        raise InputError("--method auto is not for --task multilabel; choose one of temperature, vector and the others")
    _refuse(args, "positive", "class_dim", "first_label", "group")
    from avuc.evaluation.files.multilabel import write_multilabel
    from avuc.evaluation.multilabel_file import compare_multilabel

    console = console_for(args)
    file = _read(args, args.file)
    _show_file(console, file)
    other = None
    if args.apply:
        other = _read(args, args.apply, needs_labels=False)
        _show_file(console, other, "to calibrate: ")
    assert file.labels is not None
    options = evaluation_options(args, file.labels.numel())
    calibrator, result, document = compare_multilabel(
        file, args.method, shared=args.shared, folds=args.folds, keep_worse=args.keep_worse, **options
    )
    page = ""
    if args.report:
        from avuc.report.single.page import comparison_page

        page = comparison_page(result, title=visible(file_title(args)), source=file.describe())
    jobs: dict[str | None, Any] = {args.out: text_job(calibrator.to_json() + "\n"), args.report: text_job(page)}
    if other is not None:
        scores = _calibrated(console, other, calibrator, args.out)
        jobs[args.to] = lambda path: write_multilabel(other, scores, path)
    write_results(result.as_json() | document | {"notes": list(file.notes)}, args.json, jobs)
    console.line()
    show_comparison(console, result)
    console.line()
    for sentence in compared_verdict(result):
        console.paragraph(sentence)
    if calibrator.each_ is None:
        console.paragraph(f"Temperatures: {_temperatures(document['temperatures'])}.")
    show_warnings(Console(sys.stderr) if args.quiet else console, result.warnings)
    console.line()
    show_written(console, [args.out, args.to, args.json, args.report])
    return 0


def apply_labels(args: Namespace, calibrator: Any) -> int:
    """Run `avuc apply` with a `MultiLabelCalibrator`."""
    _refuse(args, "class_dim")
    if args.task != "auto":
        raise InputError(f"--task {args.task}: {args.calibrator} is for a multi-label model; leave it out")
    if not hasattr(calibrator, "temperature_"):
        raise InputError(f"{args.calibrator}: the calibrator is not fitted; write it with avuc calibrate --out")
    from avuc.evaluation.files.multilabel import write_multilabel

    console = console_for(args)
    file = _read(args, args.file, needs_labels=False)
    _show_file(console, file)
    scores = _calibrated(console, file, calibrator, args.calibrator)
    write_all({args.to: lambda path: write_multilabel(file, scores, path)})
    names = calibrator.class_names_ or [str(number) for number in range(calibrator.num_classes_)]
    temperatures = dict(zip(names, calibrator.temperature_.tolist(), strict=True))
    by = (
        f"temperatures {_temperatures(temperatures)}"
        if calibrator.each_ is None
        else f"{calibrator.method} of each label"
    )
    console.paragraph(f"calibrated by {by}")
    show_written(console, [args.to])
    return 0


def _refuse(args: Namespace, *options: str) -> None:
    """Raise for options that would have no effect."""
    for option in options:
        value = getattr(args, option)
        if value is not None and value is not False:  # 0 is a value
            raise InputError(f"--{option.replace('_', '-')} is not for multi-label models; leave it out")


def _read(args: Namespace, path: str, *, needs_labels: bool = True) -> MultiLabelFile:
    from avuc.evaluation.files.multilabel import read_multilabel

    return read_multilabel(
        path,
        kind=args.kind,
        labels=args.labels if needs_labels else None,
        scores_key=args.scores_key,
        labels_key=args.labels_key,
        max_gb=args.max_gb,
        columns=args.columns,
        classes=args.classes,
        ignore_index=args.ignore_index if needs_labels else None,
        needs_labels=needs_labels,
    )


def _calibrated(console: Console, file: MultiLabelFile, calibrator: Any, name: str) -> Any:
    """Return calibrated logits; the labels must be those of the fit, in any order if both have names."""
    from avuc.evaluation.files.match_classes import check_counted, match_classes

    if calibrator.num_classes_ != len(file.names):
        raise InputError(
            f"{file.path}: has {len(file.names)} labels, but {Path(name).name} was fitted on "
            f"{calibrator.num_classes_}; apply it to scores of the same model"
        )
    check_counted(file.path, file.names if file.named else None, calibrator.class_names_)
    if (calibrator.class_names_ is None) == file.named:
        named = file.path if file.named else Path(name).name
        console.paragraph(f"note: only {named} has names of labels, so labels are matched by position", lead="  ")
    return file.calibrated(match_classes(file.path, file.names if file.named else None, calibrator))


def _show_file(console: Console, file: MultiLabelFile, lead: str = "") -> None:
    console.paragraph(f"{lead}{file.path}: {file.describe()}")
    for note in file.notes:
        console.paragraph(f"note: {note}", lead="  ")


def _temperatures(temperatures: dict[str, float]) -> str:
    values = list(temperatures.items())
    if len({value for _, value in values}) == 1:
        return f"{values[0][1]:.4g} for every label"
    text = ", ".join(f"{name} {value:.4g}" for name, value in values[:8])
    return text + (f", … ({len(values):,} in all)" if len(values) > 8 else "")
