"""Print results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from avuc.cli.console import Console
from avuc.report.metric_text import (
    CHANGE_HEAD,
    bounds_text,
    change_rows,
    detection_rows,
    metric_head,
    metric_rows,
    replicates_text,
)

if TYPE_CHECKING:
    from avuc.evaluation import Comparison, EvaluationResult
    from avuc.evaluation.files import ScoreFile, ScoreStream


def show_file(console: Console, file: ScoreFile | ScoreStream, lead: str = "") -> None:
    """Print a description of the file, and the notes about it."""
    from avuc.evaluation.files import describe

    console.paragraph(f"{lead}{file.path}: {describe(file)}")
    for note in file.notes:
        console.paragraph(f"note: {note}", lead="  ")


def show_matching(console: Console, fit: object, file: ScoreFile, fitted: Sequence[str] | None) -> None:
    """Print how the classes of a file are matched with those of a fit, unless both have names.

    Args:
        console: where to print.
        fit: what the user calls the fit.
        file: the file that it is applied to.
        fitted: names of the classes of the fit.
    """
    names, positive = file.names_for(fitted), file.raw.positive
    binary = file.raw.layout is not None and file.raw.layout.binary
    note = ""
    if (fitted is None) != (names is None):
        note = f"only {file.path if fitted is None else fit} has class names, so classes are matched by position"
        note += f": one number per row was read as the score of {fitted[1]!r}" if binary and fitted is not None else ""
    elif names is not None and file.names is None:
        note = f"one number per row was read as the score of {positive!r}, by the name of its column"
    elif fitted is None and positive is not None and not positive.isdecimal():
        note = f"{fit} has no class names, so the number of {positive!r} was read as that of its second class"
    if note:
        console.paragraph(f"note: {note}", lead="  ")


def show_result(console: Console, result: EvaluationResult) -> None:
    """Print the metrics, and the detection metrics if there are any."""
    console.table(metric_head(result), metric_rows(result), "<>><<")
    if result.detection:
        console.line()
        console.line(f"Detection of {result.outside:,} out-of-distribution rows by entropy", "bold")
        console.table(metric_head(result), detection_rows(result), "<>><<")
    if result.bounds:
        console.paragraph(bounds_text())
    show_replicates(console, result)


def show_comparison(console: Console, result: Comparison) -> None:
    """Print the metrics before and after calibration."""
    fitted = result.shown
    console.table(CHANGE_HEAD, change_rows(fitted), "<>>>><")
    console.paragraph(f"Metrics from {fitted.how}.", style="dim")
    show_replicates(console, fitted.after)


def show_candidates(console: Console, result: Comparison) -> None:
    """Print what each calibrator that "auto" tried did in cross-validation."""
    if not result.candidates:
        return
    console.line()
    rows = []
    for row in result.candidates:
        known = row["nll"] == row["nll"]
        change = f"{row['change']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]" if known else ""
        figures = [f"{row[name]:.4f}" if row[name] == row[name] else "–" for name in ("nll", "brier", "ece")]
        rows.append([row["method"], figures[0], change, figures[1], figures[2]])
    console.table(["tried by auto", "NLL", "change [95 % interval]", "Brier", "ECE"], rows, "<>>>>")
    for row in result.candidates:
        if row["note"]:
            console.paragraph(f"{row['method']}: {row['note']}", lead="  ")
    console.paragraph(
        "The table of all metrics repeats this choice in every part, on the rows of the other parts. So its figures "
        "after calibration differ from those of the candidates, which do not count the choice itself.",
        style="dim",
    )


def show_replicates(console: Console, result: EvaluationResult) -> None:
    """Print how many bootstrap replicates the intervals come from."""
    if result.replicates:
        console.paragraph(f"Intervals from {replicates_text(result)}.", style="dim")


def show_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print warnings so that they are not overlooked."""
    for warning in warnings:
        console.line()
        console.paragraph(warning, style="warn", lead="WARNING  ")


def show_written(console: Console, names: Iterable[str | None]) -> None:
    """Print the names of the files that were written."""
    for name in names:
        if name and name != "-":  # standard output
            console.line(f"written: {name}", "dim")


show_assessment = show_result  # the name in version 0.1.0
