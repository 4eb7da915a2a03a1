"""Decide whether scores are logits, probabilities or percentages, from their name and a summary of all rows.

A wrong guess gives wrong metrics and no error. So ambiguous scores are refused, and the user decides with `--kind`.
"""

from __future__ import annotations

import math
from pathlib import Path

from avuc.core.probabilities import MOST_ROUNDING, rounding_error, sum_tolerance
from avuc.evaluation.files.decision.summary import ScoreSummary
from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import RawScores

# larger differences of a row's sum from 1 are mentioned in a note
SUM_NOTE = 1e-4
NEGATIVE_TOLERANCE = 1e-6
# percentages are often rounded to whole numbers
PERCENT_TOLERANCE = 5.0
# counts and scaled probabilities have equal row sums except for rounding
EQUAL_SUMS = 1e-3
# with fewer rows, equal sums may be chance
MANY_ROWS = 10


def decide_kind(path: Path, raw: RawScores, summary: ScoreSummary, kind: str) -> tuple[str, float, list[str]]:
    """Return "logits" or "probs", the number that stands for probability 1 (1 or 100), and notes for the user.

    Args:
        path: the file, for messages.
        raw: where the scores were found and their name.
        summary: of all rows.
        kind: `auto`, `logits`, `probs` or `percent`. `auto` decides by the name, else by the values.
    """
    nonnegative = summary.low >= -NEGATIVE_TOLERANCE
    tolerance = sum_tolerance(summary.classes, summary.digits)
    like_probs = nonnegative and summary.off(1)[0] <= tolerance
    like_percent = nonnegative and summary.off(100)[0] <= PERCENT_TOLERANCE
    notes: list[str] = []
    if kind == "logits" and (like_probs or like_percent):
        like = "1, like probabilities" if like_probs else "about 100, like percentages"
        notes.append(f"read as logits, as requested, although no score is negative and every row sums to {like}")
    if kind == "auto":
        name = raw.name if raw.name in ("logits", "probs") else None
        if like_percent and (summary.mixed or name != "logits"):
            raise file_error(
                path,
                f"{raw.scores_from} may contain percentages: every row sums to about 100",
                "pass --kind percent, or --kind logits if these are logits",
            )
        if name != "probs":
            _check_logits(path, raw.scores_from, summary, name, like_probs)
        kind = name or ("probs" if like_probs else "logits")
    if kind == "logits":
        return kind, 1.0, notes
    scale = 100.0 if kind == "percent" else 1.0
    worst, row, total = summary.off(scale)
    problem = None
    if worst > (PERCENT_TOLERANCE if kind == "percent" else tolerance):
        problem = f"row {row} sums to {total:.6g}, not {scale:g}"
    elif not nonnegative:
        problem = f"row {summary.low_row} contains a negative number, {summary.low:.3g}"
    if problem is not None:
        what = "percentages" if kind == "percent" else "probabilities"
        remedy = _remedy(summary, nonnegative, like_percent)
        raise file_error(path, f"{raw.scores_from} should contain {what}, but {problem}", remedy)
    if worst > SUM_NOTE * scale:
        notes.append(f"row sums differ from {scale:g} by up to {worst:.1g}; each row was divided by its sum")
    return "probs", scale, notes


def _remedy(summary: ScoreSummary, nonnegative: bool, like_percent: bool) -> str:
    """Return what to do with scores that should be probabilities and are not."""
    remedy = "pass --kind logits if these are logits, else save softmax outputs"
    if like_percent:
        remedy += "; pass --kind percent if these are percentages"
    elif nonnegative:
        remedy += "; divide every row by its sum if these are rounded probabilities or counts"
        if summary.high <= 1:
            remedy += "; pass --task multilabel if each is the probability of a label of its own"
    if nonnegative and summary.rows == summary.classes:
        remedy += "; save scores.T if every column is a sample"
    return remedy


def _check_logits(path: Path, where: str, summary: ScoreSummary, name: str | None, like_probs: bool) -> None:
    """Refuse scores that are not named probabilities and are not clearly logits or probabilities either."""
    if name == "logits" and like_probs:
        raise file_error(
            path,
            f"{where} should contain logits, but no score is negative and every row sums to 1, like probabilities",
            "pass --kind probs, or --kind logits if these are logits",
        )
    if summary.low < -NEGATIVE_TOLERANCE or like_probs:
        _check_log_base(path, where, summary)
        return
    _, row, total = summary.off(1)
    divide = "divide every row by its sum if these are counts or scaled probabilities, or pass --kind logits"
    if summary.mixed and summary.low < summary.high and _sums_are_equal(summary):
        problem = f"{where} may contain counts: no score is negative and every row sums to about {summary.sum_high:.6g}"
        raise file_error(path, problem, divide)
    if name == "logits":
        return
    if summary.high <= 1:
        raise file_error(
            path,
            f"{where} contains only numbers from 0 to 1, but row {row} sums to {total:.6g}, so these are neither "
            "clearly probabilities nor clearly logits",
            "divide every row by its sum if these are probabilities, or pass --kind logits; pass --task multilabel "
            "if each is the probability of a label of its own",
        )
    problem = f"{where} may contain logits, odds or counts: no score is negative, and row {row} sums to {total:.6g}"
    raise file_error(path, problem, divide)


def _sums_are_equal(summary: ScoreSummary) -> bool:
    """Return whether all rows have the same positive sum, except for rounding."""
    if summary.rows < MANY_ROWS or summary.sum_low <= 0:
        return False
    # two sums may differ by the rounding error of each
    rounding = 0.0 if summary.digits is None else 2 * rounding_error(summary.classes, summary.digits, math.inf)
    tolerance = max(EQUAL_SUMS, min(rounding / summary.sum_high, MOST_ROUNDING))
    return summary.sum_high - summary.sum_low <= tolerance * summary.sum_high


def _check_log_base(path: Path, where: str, summary: ScoreSummary) -> None:
    """Refuse log2 and log10 of probabilities; natural logarithms are logits."""
    if summary.log_bases and math.e not in summary.log_bases:
        base = f"{summary.log_bases[0]:g}"
        raise file_error(
            path,
            f"{where} may contain log{base} of probabilities: {base}^x sums to 1 in every row, but logits are natural "
            "logarithms",
            f"multiply the scores by log({base}) = {math.log(summary.log_bases[0]):.6g}, or pass --kind logits",
        )
