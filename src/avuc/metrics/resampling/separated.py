"""Intervals of detection if the entropy separates two samples without a mistake: no resample has one, either.

For N in-distribution and M OOD rows and an AUROC of exactly 1: n = min(N, M) pairs without a row in common are
independent, and each is in order with a probability of at most the true AUROC A. All of them are in order with a
probability of at most A^n, so A ≥ 0.025^(1/n) = 1 − s at a level of 95 %, the bound of Clopper & Pearson for n of n.

The true detection accuracy D has the same bound. At the threshold where both error rates are equal, each is at least
1 − D. The samples are separated only if one of them has no error there, which has a probability of at most 2 D^n: 5 %
at D = 1 − s.

With a few mistakes, `likely_bounds` has the same bounds from the mean of the pairs instead of "all in order".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from avuc.metrics.resampling.one_outcome import unseen_share
from avuc.metrics.resampling.percentile import Interval


def widened_detection(
    intervals: Mapping[str, Interval], rows: tuple[int, int], units: tuple[int, int], level: float
) -> dict[str, Interval]:
    """Return the intervals of `detection`, wider if the AUROC is exactly 1 or 0, or FPR95 is.

    N and M rows may have none of a share s_in of in-distribution rows that lie above all OOD rows, nor of a share s_out
    of OOD rows that lie below all others (`unseen_share`). With them,

    auroc, detection_accuracy   are lower by at most the larger share; see the top of this file.
    fpr95                       is s_in instead of 0, and 1 if s_out is above 5 %: with fewer than 72 OOD rows.
    aupr_out                    is at least the smaller of 1 − s_out and ∫₀¹ t / (t + c) dt = 1 − c log(1 + 1/c) with
                                c = N s_in / M: a few rows above all OOD rows lower the precision at each of these.
    aupr_in                     the same with the two samples exchanged.

    An AUROC of 0 is the reverse: the first four are higher by at most the larger share.

    Args:
        intervals: of the metrics of `detection`.
        rows: numbers N and M of in-distribution and OOD rows.
        units: numbers of independent in-distribution and OOD rows, images or groups.
        level: of the intervals.

    >>> one, zero = Interval(1.0, 1.0, 1.0), Interval(0.0, 0.0, 0.0)
    >>> metrics = dict.fromkeys(("auroc", "detection_accuracy", "aupr_in", "aupr_out"), one) | {"fpr95": zero}
    >>> found = widened_detection(metrics, (500, 300), (500, 300), 0.95)
    >>> round(found["auroc"].low, 4), round(found["fpr95"].high, 4)
    (0.9878, 0.0074)
    """
    auroc, fpr95 = intervals["auroc"].value, intervals["fpr95"].value
    inside, outside = (unseen_share(many, level) for many in units)
    larger = max(inside, outside)
    lower, higher = dict.fromkeys(intervals, 0.0), dict.fromkeys(intervals, 0.0)
    if auroc == 1:
        lower |= {
            "auroc": larger,
            "detection_accuracy": larger,
            "aupr_out": max(outside, _lost_precision(inside * rows[0] / rows[1])),
            "aupr_in": max(inside, _lost_precision(outside * rows[1] / rows[0])),
        }
    elif auroc == 0:
        higher |= dict.fromkeys(("auroc", "detection_accuracy", "aupr_out", "aupr_in"), larger)
    if fpr95 == 0:
        higher["fpr95"] = 1.0 if auroc == 1 and outside > 0.05 else inside
    elif fpr95 == 1:
        lower["fpr95"] = inside
    changed = {name for name, each in intervals.items() if lower[name] + higher[name] > 0 and not math.isnan(each.low)}
    return {
        name: Interval(each.value, max(0.0, each.low - lower[name]), min(1.0, each.high + higher[name]))
        if name in changed
        else each
        for name, each in intervals.items()
    }


def lowest_auroc(auroc: float, pairs: int, level: float) -> float:
    """Return the lowest true AUROC for which one as high as this has a probability of (1 − level)/2 or more, at most.

    The AUROC is a mean over all ways to form n = `pairs` pairs without a row in common, so Hoeffding's bound for n
    independent pairs holds (1963, https://doi.org/10.1080/01621459.1963.10500830, section 5): a true AUROC of A gives
    Â or more with a probability of at most exp(−n KL(Â‖A)), KL(a‖b) = a log(a/b) + (1 − a) log((1 − a)/(1 − b)). For an
    AUROC of 1 this is Aⁿ.

    Args:
        auroc: of the data.
        pairs: number n of rows, images or groups in the smaller sample.
        level: of the interval.

    >>> round(lowest_auroc(1.0, 300, 0.95), 4), round(lowest_auroc(0.999, 300, 0.95), 4)
    (0.9878, 0.984)
    """
    most = -math.log((1 - level) / 2) / max(pairs, 1)
    low, high = 0.0, auroc
    for _ in range(60):
        middle = (low + high) / 2
        likely = 0 < middle < 1 and _divergence(auroc, middle) <= most
        low, high = (low, middle) if likely else (middle, high)
    return high


def _divergence(a: float, b: float) -> float:
    return (a * math.log(a / b) if a > 0 else 0.0) + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0)


def likely_bounds(
    auroc: float, rows: tuple[int, int], units: tuple[int, int], level: float
) -> dict[str, tuple[float, float]]:
    """Return ends of AUROC and AUPR that hold for any number of mistakes, with the arguments of `widened_detection`.

    They are wide. An interval that would be even wider, because it comes from one or two mistakes, ends here. AUPR has
    the formulas of `widened_detection`, with the share of rows on the wrong side that `lowest_auroc` allows.
    """
    inside, outside = (1 - lowest_auroc(auroc, many, level) for many in units)
    pairs = min(units)
    return {
        "auroc": (lowest_auroc(auroc, pairs, level), 1 - lowest_auroc(1 - auroc, pairs, level)),
        "aupr_out": (1 - max(outside, _lost_precision(inside * rows[0] / rows[1])), 1.0),
        "aupr_in": (1 - max(inside, _lost_precision(outside * rows[1] / rows[0])), 1.0),
    }


def _lost_precision(ratio: float) -> float:
    """Return ∫₀¹ c / (t + c) dt for the ratio c."""
    return ratio * math.log1p(1 / ratio)
