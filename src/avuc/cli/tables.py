"""The results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from avuc.cli.console import Console
from avuc.report.metric_text import (
    CHANGE_HEAD,
    DETECTION_HEAD,
    METRIC_HEAD,
    change_rows,
    detection_rows,
    metric_rows,
    replicates_text,
)

if TYPE_CHECKING:
    from avuc.evaluation import Comparison, EvaluationResult
    from avuc.evaluation.files import ScoreFile, ScoreStream

__all__ = ["show_assessment", "show_comparison", "show_file", "show_warnings", "show_written"]


def show_file(console: Console, file: ScoreFile | ScoreStream, lead: str = "") -> None:
    """What was found in the file, and what is odd about it."""
    from avuc.evaluation.files import describe

    console.paragraph(f"{lead}{file.path}: {describe(file)}")
    for note in file.notes:
        console.paragraph(f"note: {note}", lead="  ")


def show_assessment(console: Console, result: EvaluationResult) -> None:
    console.table(METRIC_HEAD, metric_rows(result), "<>><<")
    if result.detection:
        console.line()
        console.line(f"Telling {result.outside:,} outside rows from these by entropy", "bold")
        console.table(DETECTION_HEAD, detection_rows(result), "<>><<")
    show_replicates(console, result)


def show_comparison(console: Console, result: Comparison) -> None:
    shown = result.shown
    console.table(CHANGE_HEAD, change_rows(shown), "<>>>><")
    console.paragraph(f"Figures from {shown.how}.", style="dim")
    show_replicates(console, shown.after)


def show_replicates(console: Console, result: EvaluationResult) -> None:
    """Where the intervals come from: few or many replicates are a choice that is said."""
    if result.replicates:
        console.paragraph(f"Intervals from {replicates_text(result)}.", style="dim")


def show_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.line()
        console.paragraph(warning, style="warn", lead="WARNING  ")


def show_written(console: Console, names: Iterable[str | None]) -> None:
    for name in names:
        if name:
            console.line(f"written: {name}", "dim")
