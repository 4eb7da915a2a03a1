"""Logits, probabilities or something else: decided by the name of the scores and by facts of all rows.

A wrong guess gives wrong figures without any sign of it, so what is not clear is refused and `--kind` decides.
"""

from __future__ import annotations

import math
from pathlib import Path

from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import RawScores
from avuc.evaluation.files.summary import ScoreSummary

# rows of probabilities that were rounded when they were saved still count as probabilities
SUM_TOLERANCE = 1e-2
# the most that rounding to 2 digits may take from or add to a sum, however many classes there are
ROUNDING_TOLERANCE = 5e-2
SUM_NOTE = 1e-4
NEGATIVE_TOLERANCE = 1e-6
# percentages are often rounded to whole numbers
PERCENT_TOLERANCE = 5.0
# sums of counts and of scaled probabilities are equal but for rounding
EQUAL_SUMS = 1e-3
# one row has one sum; with this many rows, equal sums are no accident
MANY_ROWS = 10


def decide_kind(path: Path, raw: RawScores, facts: ScoreSummary, kind: str) -> tuple[str, float, list[str]]:
    """Logits or probabilities, and what a certain probability is in the file: as asked, else by name or by values."""
    positive = facts.low >= -NEGATIVE_TOLERANCE
    looks = positive and facts.off(1)[0] <= _sum_tolerance(facts)
    percent = positive and facts.off(100)[0] <= PERCENT_TOLERANCE
    notes: list[str] = []
    if kind == "logits" and (looks or percent):
        like = "1, as probabilities do" if looks else "about 100, as percentages do"
        notes.append(f"read as logits, as asked, but no score is negative and every row sums to {like}")
    if kind == "auto":
        named = raw.name if raw.name in ("logits", "probs") else None
        if percent and (facts.mixed or named != "logits"):
            raise file_error(
                path,
                f"{raw.scores_from} may hold percentages: every row sums to about 100",
                "pass --kind percent, or --kind logits if these are logits",
            )
        if named != "probs":
            _check_clear(path, raw, facts, named, looks)
        kind = named or ("probs" if looks else "logits")
    if kind == "logits":
        return kind, 1.0, notes
    scale, tolerance = (100.0, PERCENT_TOLERANCE) if kind == "percent" else (1.0, _sum_tolerance(facts))
    worst, row, total = facts.off(scale)
    what = "percentages" if kind == "percent" else "probabilities"
    if worst > tolerance:
        problem = f"row {row} sums to {total:.6g}, not {scale:g}"
        raise file_error(
            path, f"{raw.scores_from} should hold {what}, but {problem}", _remedy(facts, positive, percent)
        )
    if not positive:
        problem = f"row {facts.low_row} holds a negative probability, {facts.low:.3g}"
        raise file_error(
            path, f"{raw.scores_from} should hold {what}, but {problem}", _remedy(facts, positive, percent)
        )
    if worst > SUM_NOTE * scale:
        notes.append(f"rows sum to {scale:g} only within {worst:.1g}; each was divided by its sum")
    return "probs", scale, notes


def _sum_tolerance(facts: ScoreSummary) -> float:
    """How far the sum of a row of probabilities may be from 1: each of C numbers of d digits is off by 10^-d / 2."""
    if facts.digits is None or facts.digits < 2:
        return SUM_TOLERANCE
    return max(SUM_TOLERANCE, min(ROUNDING_TOLERANCE, facts.classes * 10.0**-facts.digits / 2) + 1e-6)


def _remedy(facts: ScoreSummary, positive: bool, percent: bool) -> str:
    """What to do with scores that should be probabilities and are not."""
    remedy = "pass --kind logits if these are logits, else save softmax outputs"
    if percent:
        remedy += "; pass --kind percent if these are percentages"
    elif positive:
        remedy += "; divide every row by its sum if these are rounded probabilities or counts"
    if positive and facts.rows == facts.classes:
        remedy += "; save scores.T if every column is a sample"
    return remedy


def _check_clear(path: Path, raw: RawScores, facts: ScoreSummary, named: str | None, looks: bool) -> None:
    """Refuse scores that are not called probabilities, and that are not clearly logits either."""
    where = raw.scores_from
    if named == "logits" and looks:
        raise file_error(
            path,
            f"{where} should hold logits, but no score is negative and every row sums to 1, as probabilities do",
            "pass --kind probs, or --kind logits if these are logits",
        )
    if facts.low < -NEGATIVE_TOLERANCE or looks:
        _check_log_base(path, where, facts)
        return
    _, row, total = facts.off(1)
    divide = "divide every row by its sum if these are counts or scaled probabilities, or pass --kind logits"
    if facts.mixed and facts.low < facts.high and _sums_are_equal(facts):
        problem = f"{where} may hold counts: no score is negative and every row sums to about {facts.sum_high:.6g}"
        raise file_error(path, problem, divide)
    if named == "logits":
        return
    if facts.high <= 1:
        raise file_error(
            path,
            f"{where} holds only numbers from 0 to 1, but row {row} sums to {total:.6g}: these are neither clearly "
            "probabilities nor clearly logits",
            "divide every row by its sum if these are probabilities, or pass --kind logits",
        )
    problem = f"{where} may hold logits, odds or counts: no score is negative, and row {row} sums to {total:.6g}"
    raise file_error(path, problem, divide)


def _sums_are_equal(facts: ScoreSummary) -> bool:
    """Whether every row has the same sum above 0, but for rounding."""
    if facts.rows < MANY_ROWS or facts.sum_low <= 0:
        return False
    rounding = 0.0 if facts.digits is None else facts.classes * 10.0**-facts.digits
    tolerance = max(EQUAL_SUMS, min(rounding / facts.sum_high, ROUNDING_TOLERANCE))
    return facts.sum_high - facts.sum_low <= tolerance * facts.sum_high


def _check_log_base(path: Path, where: str, facts: ScoreSummary) -> None:
    """Refuse logarithms of probabilities to the base 2 or 10; natural logarithms are logits."""
    if facts.log_bases and math.e not in facts.log_bases:
        base = f"{facts.log_bases[0]:g}"
        raise file_error(
            path,
            f"{where} may hold log{base} of probabilities: {base}^x sums to 1 in every row, and logits are natural "
            "logarithms",
            f"multiply the scores by log({base}) = {math.log(facts.log_bases[0]):.6g}, or pass --kind logits",
        )
