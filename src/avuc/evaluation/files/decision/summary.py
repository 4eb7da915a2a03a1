"""Summaries of scores and labels, computed block by block: all that is needed to decide how to read them.

An array in memory is one block. A large file has many blocks, whose summaries are merged in any order:

    summary = Summary.of(first_scores, first_labels)
    summary = summary.merge(Summary.of(more_scores, more_labels, start=len(first_labels)))
    decision = decide(path, raw, summary, kind="auto")        # avuc.evaluation.files.decision.checks
    probabilities, classes = decision.scores(block), decision.labels(labels_block)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

# more distinct labels than this are not classes; they are not stored
MOST_LABELS = 1 << 20
# scores with at most this many decimals count as rounded
MOST_DIGITS = 4
# possible bases of logarithms
BASES = (math.e, 2.0, 10.0)
# tolerance for sums of probabilities whose logarithms may have been rounded
POWER_TOLERANCE = 2e-2
# a logarithm of a probability of 1 may have been rounded up
POSITIVE = 1e-6


@dataclass(frozen=True)
class ScoreSummary:
    """Summary of float32 scores (N, C) or (S, N, C)."""

    rows: int
    classes: int
    draws: int | None  # None for (N, C)
    low: float  # smallest finite score; inf if there are none
    low_row: int
    high: float  # largest finite score; -inf if there are none
    sum_low: float  # smallest and largest sum over the classes, in float64
    sum_low_row: int
    sum_high: float
    sum_high_row: int
    digits: int | None = None  # decimals of the scores, 0 … 4; None if some score has more
    mixed: bool = False  # whether some row has several positive scores
    log_bases: tuple[float, ...] = ()  # bases among e, 2 and 10 for which Σ base^x is 1 in every row
    nan: int = 0  # number of NaNs
    infinite: int = 0  # number of infinite scores
    bad: tuple[int, int, float] | None = None  # row, class and value of the first NaN or infinite score

    @classmethod
    def of(cls, scores: Any, start: int = 0) -> ScoreSummary:
        """Summarise one block; `start` is the number of its first row in the file."""
        block = torch.as_tensor(scores).to(torch.float32)
        draws = block.shape[0] if block.ndim == 3 else None
        rows, classes = int(block.shape[-2]), int(block.shape[-1])
        if not block.numel():
            return cls(rows, classes, draws, math.inf, 0, -math.inf, math.inf, 0, -math.inf, 0, 0, False, BASES)
        finite = torch.isfinite(block)
        sums = block.sum(-1, dtype=torch.float64)
        bad = None
        nan = infinite = 0
        if not bool(finite.all()):
            index = (~finite).reshape(-1).to(torch.uint8).argmax()
            nan = int(block.isnan().sum())
            infinite = block.numel() - int(finite.sum()) - nan
            row, column = divmod(int(index) % (rows * classes), classes)
            bad = (start + row, column, float(block.reshape(-1)[index]))
            low, high = block.where(finite, torch.inf), block.where(finite, -torch.inf)
            sums = sums.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        else:
            low = high = block
        top = float(high.max())
        # over the classes and draws of each row; among equal values the first row counts, as in merge
        lows, low_sums = low.amin(-1).reshape(-1, rows).amin(0), sums.reshape(-1, rows).amin(0)
        high_sums = sums.reshape(-1, rows).amax(0)
        least, least_sum, most_sum = int(lows.argmin()), int(low_sums.argmin()), int(high_sums.argmax())
        return cls(
            rows=rows,
            classes=classes,
            draws=draws,
            low=float(lows[least]),
            low_row=start + least,
            high=top,
            sum_low=float(low_sums[least_sum]),
            sum_low_row=start + least_sum,
            sum_high=float(high_sums[most_sum]),
            sum_high_row=start + most_sum,
            digits=_digits(low),
            mixed=bool(((block > 0).sum(-1) > 1).any()),
            log_bases=_bases(high) if top <= POSITIVE else (),
            nan=nan,
            infinite=infinite,
            bad=bad,
        )

    def merge(self, other: ScoreSummary) -> ScoreSummary:
        """Return the summary of both blocks; they must have the same classes and draws."""
        low = min((self.low, self.low_row), (other.low, other.low_row))
        sum_low = min((self.sum_low, self.sum_low_row), (other.sum_low, other.sum_low_row))
        sum_high = max((self.sum_high, -self.sum_high_row), (other.sum_high, -other.sum_high_row))
        bad = [part.bad for part in (self, other) if part.bad is not None]
        return replace(
            self,
            rows=self.rows + other.rows,
            low=low[0],
            low_row=low[1],
            high=max(self.high, other.high),
            sum_low=sum_low[0],
            sum_low_row=sum_low[1],
            sum_high=sum_high[0],
            sum_high_row=-sum_high[1],
            digits=None if self.digits is None or other.digits is None else max(self.digits, other.digits),
            mixed=self.mixed or other.mixed,
            log_bases=tuple(base for base in self.log_bases if base in other.log_bases),
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            bad=min(bad, key=lambda position: position[:2]) if bad else None,
        )

    def off(self, total: float) -> tuple[float, int, float]:
        """Return the largest distance of a row's sum from `total`, the row, and its sum."""
        down = (abs(self.sum_low - total), self.sum_low_row, self.sum_low)
        up = (abs(self.sum_high - total), self.sum_high_row, self.sum_high)
        return down if down[0] > up[0] else up


@dataclass(frozen=True)
class LabelSummary:
    """Summary of numeric labels, and of how they agree with the scores."""

    rows: int
    values: tuple[int, ...] | None  # distinct integers, sorted; None if there are too many to be classes
    low: float
    high: float
    low_row: int
    high_row: int
    not_integer: tuple[int, float] | None = None  # row and value of the first label that is not an integer
    right_from_0: int = 0  # rows whose largest score is at index `label`; of one number: if it is a probability
    right_from_1: int = 0  # rows whose largest score is at index `label - 1`; of one number: if it is a logit

    @classmethod
    def of(cls, labels: Any, scores: Any = None, start: int = 0) -> LabelSummary:
        """Summarise one block of labels (N); with scores, also count the rows that agree with labels from 0 or 1."""
        exact = torch.as_tensor(labels)
        exact = exact.to(torch.float64 if exact.is_floating_point() else torch.int64)
        rows = len(exact)
        if not rows:
            return cls(0, (), math.inf, -math.inf, 0, 0)
        whole = torch.isfinite(exact) & (exact == exact.floor()) if exact.is_floating_point() else None
        if whole is not None and not bool(whole.all()):
            row = int((~whole).to(torch.uint8).argmax())
            return cls(rows, (), math.inf, -math.inf, 0, 0, (start + row, float(exact[row])))
        distinct = np.unique(exact.numpy())
        least, most = int(exact.argmin()), int(exact.argmax())
        right = (0, 0)
        if scores is not None and torch.as_tensor(scores).shape[-1] == 1:
            # one number per row: as a probability, and as a logit
            score = torch.as_tensor(scores).reshape(-1, rows).to(torch.float32).mean(0)
            right = (int(((score > 0.5) == exact).sum()), int(((score > 0) == exact).sum()))
        elif scores is not None:
            predicted = _predicted_classes(torch.as_tensor(scores))
            right = (int((predicted == exact).sum()), int((predicted == exact - 1).sum()))
        return cls(
            rows,
            tuple(int(value) for value in distinct) if len(distinct) <= MOST_LABELS else None,
            float(exact[least]),
            float(exact[most]),
            start + least,
            start + most,
            None,
            *right,
        )

    def merge(self, other: LabelSummary) -> LabelSummary:
        values = None
        if self.values is not None and other.values is not None:
            union = tuple(sorted({*self.values, *other.values}))
            values = union if len(union) <= MOST_LABELS else None
        low = min((self.low, self.low_row), (other.low, other.low_row))
        high = max((self.high, -self.high_row), (other.high, -other.high_row))
        odd = [part.not_integer for part in (self, other) if part.not_integer is not None]
        return LabelSummary(
            self.rows + other.rows,
            values,
            low[0],
            high[0],
            low[1],
            -high[1],
            min(odd, key=lambda position: position[0]) if odd else None,
            self.right_from_0 + other.right_from_0,
            self.right_from_1 + other.right_from_1,
        )


@dataclass(frozen=True)
class Summary:
    """Summary of scores and, if there are any, labels."""

    scores: ScoreSummary
    labels: LabelSummary | None = None

    @classmethod
    def of(cls, scores: Any, labels: Any = None, start: int = 0) -> Summary:
        score_summary = ScoreSummary.of(scores, start)
        return cls(score_summary, None if labels is None else LabelSummary.of(labels, scores, start))

    def merge(self, other: Summary) -> Summary:
        labels = None
        if self.labels is not None and other.labels is not None:
            labels = self.labels.merge(other.labels)
        return Summary(self.scores.merge(other.scores), labels)


def _digits(block: Tensor) -> int | None:
    """Return how many decimals the numbers have, up to `MOST_DIGITS`; None if they have more."""
    for digits in range(MOST_DIGITS + 1):
        if all(_rounded(rows, digits) for rows in _rows(block)):
            return digits
    return None


def _rounded(block: Tensor, digits: int) -> bool:
    # 0.17 * 100 is 17 except for float32 rounding
    scaled = block.double() * 10**digits
    return bool(((scaled - scaled.round()).abs() <= 2e-7 * scaled.abs()).all())


def _bases(block: Tensor) -> tuple[float, ...]:
    """Return the bases b for which Σ b^x = 1 in every row: the possible bases of log-probabilities."""
    return tuple(base for base in BASES if all(_sums_to_one(rows, base) for rows in _rows(block)))


def _sums_to_one(block: Tensor, base: float) -> bool:
    sums = (block.double() * math.log(base)).exp_().sum(-1)
    return bool(((sums - 1).abs() <= POWER_TOLERANCE).all())


def _rows(block: Tensor) -> Iterator[Tensor]:
    """Yield a few rows first, which usually decide; then all rows in parts, so that float64 copies stay small."""
    yield block[..., :64, :]
    yield from block.split(max(1, (1 << 20) // (block.shape[-1] * (len(block) if block.ndim == 3 else 1))), dim=-2)


def _predicted_classes(scores: Tensor) -> Tensor:
    """Return the index of each row's largest score, or of its largest mean over draws."""
    return (scores.to(torch.float32).mean(0) if scores.ndim == 3 else scores).argmax(-1)
