"""Error rates of answers to pixels, tokens or other rows of groups: tests and intervals that count images.

Image i has labels for all or some of its pixels: a_i is the share of these that is answered, e_i the share that is
answered wrongly. The error rate is r = E[e] / E[a], in which every image counts the same: the share of wrong answers
among all answers, if all images have equally many labels. It is at most r exactly if E[r a − e] ≥ 0, the mean of a
number between r − 1 and r, so any distribution of images can be tested with finitely many of them: the product of
1 + λ (r a_i − e_i) over the first images of any number of independent ones ever exceeds 1/δ with probability δ at most
if the mean is 0 or below, for every bet 0 ≤ λ ≤ 1/(1 − r) (Waudby-Smith & Ramdas 2024,
https://arxiv.org/abs/2010.09686). A weighted mean over several bets does the same. Pixels of one image may depend on
each other in any way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# bets as shares of the largest allowed bet; large bets win faster, small bets survive if images differ much
BELOW = 2.0 ** -np.arange(5)
BELOW_WEIGHTS = np.log(BELOW / BELOW.sum())
ABOVE = 2.0 ** -np.arange(8)
# one in this many images chooses the candidates for the threshold; the other images test them
CHOOSING = 4
# candidates: thresholds that answer 1/STEPS, 2/STEPS, … of the choosing images' pixels
STEPS = 50


class Answers(NamedTuple):
    """For each image, the shares of its labelled pixels that are answered, and answered wrongly; (n,) or (n, K)."""

    answered: Array
    wrong: Array

    @property
    def error(self) -> float | None:
        """The error rate of all answers, every image counting the same; None without answers."""
        return float(self.wrong.sum() / self.answered.sum()) if self.answered.any() else None


def answers_of(scores: Array, wrong: Array, numbers: Array, thresholds: Array) -> Answers:
    """Return the answers (n, K) of n images, a pixel being answered if its score is above a threshold.

    Args:
        scores: (M,) of each pixel.
        wrong: (M,) whether its prediction is wrong.
        numbers: (M,) its image, 0 … n − 1.
        thresholds: (K,) in ascending order.

    >>> answers_of(np.array([0.9, 0.4]), np.array([False, True]), np.array([0, 0]), np.array([-np.inf, 0.5])).wrong
    array([[0.5, 0. ]])
    """
    size, images = len(thresholds) + 1, int(numbers.max()) + 1
    cell = numbers * size + np.searchsorted(thresholds, scores)
    counts = [np.bincount(part, minlength=images * size).reshape(images, size) for part in (cell, cell[wrong])]
    above = [np.cumsum(each[:, :0:-1], 1)[:, ::-1] for each in counts]
    rows = counts[0].sum(1, keepdims=True)
    return Answers(above[0] / rows, above[1] / rows)


def evidence_below(answers: Answers, risk: float) -> Array:
    """Return, for each bet, the log of the winnings against "the error rate is `risk` or more", (J,)."""
    gains = (risk * answers.answered - answers.wrong) / (1 - risk)
    return _winnings(gains, BELOW)


def most_evidence_below(answers: Answers, risk: float, weights: Array) -> float:
    """Return the log of the largest winnings of a weighted mean of bets, on the way from the first image to the last.

    Args:
        answers: of each image, in an order that does not depend on them; (n,).
        risk: as in `evidence_below`.
        weights: the log of the weight of each bet.
    """
    gains = (risk * answers.answered - answers.wrong) / (1 - risk)
    with np.errstate(divide="ignore"):
        paths = np.cumsum(np.log1p(np.maximum(BELOW[:, None] * gains, -1)), 1)
    return float(np.logaddexp.reduce(weights[:, None] + paths, 0).max())


def evidence_above(answers: Answers, risk: float) -> float:
    """Return the log of the winnings against "the error rate is `risk` or less"."""
    return total(_winnings((answers.wrong - risk * answers.answered) / risk, ABOVE) - math.log(len(ABOVE)))


def _winnings(gains: Array, bets: Array) -> Array:
    with np.errstate(divide="ignore"):  # everything is lost: −inf
        return np.array([np.log1p(np.maximum(bet * gains, -1)).sum() for bet in bets])


def total(logs: Array) -> float:
    """Return log Σ exp."""
    return float(np.logaddexp.reduce(logs))


def error_interval(answers: Answers, level: float) -> tuple[float, float]:
    """Return the interval of the error rate: all rates that no one-sided test at level (1 − level)/2 rejects."""
    needed = math.log(2 / (1 - level))
    low = _border(lambda risk: evidence_above(answers, risk) < needed)
    high = _border(lambda risk: total(evidence_below(answers, risk) + BELOW_WEIGHTS) >= needed)
    return (low if low > 1e-12 else 0.0), (high if high < 1 - 1e-12 else 1.0)


def _border(holds: Any) -> float:
    """Return the smallest share for which a monotone condition holds, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def choose_threshold(scores: Array, wrong: Array, numbers: Array, *, risk: float, level: float) -> float:
    """Return the lowest threshold above which the error rate is at most `risk` with probability `level`; or infinity.

    A quarter of the images chooses: candidate thresholds, the one whose test will most likely pass, and the weights
    of the bets. The other images test it, then the next one that answers more, and so on until a test fails: a fixed
    sequence, so every test has the whole level (Angelopoulos et al. 2021).

    Args:
        scores, wrong, numbers: as in `answers_of`.
        risk: highest error rate of the answers.
        level: probability that it holds.
    """
    images = int(numbers.max()) + 1
    choosing, testing = np.split(np.random.default_rng(0).permutation(images), [images // CHOOSING])
    if not len(choosing):
        return math.inf
    chosen = np.isin(np.arange(images), choosing)
    own = scores[chosen[numbers]]
    indices = sorted({len(own) - 1 - len(own) * step // STEPS for step in range(1, STEPS)})
    thresholds = np.unique(np.concatenate([[-math.inf], np.partition(own, indices)[indices]]))
    answers = answers_of(scores, wrong, numbers, thresholds)

    def of(images: Array, k: int) -> Answers:
        return Answers(answers.answered[images, k], answers.wrong[images, k])

    before = [evidence_below(of(choosing, k), risk) + BELOW_WEIGHTS for k in range(len(thresholds))]
    best = math.inf
    for k in range(int(np.argmax([total(each) for each in before])), -1, -1):
        weights = before[k] - total(before[k])
        if most_evidence_below(of(testing, k), risk, weights) < -math.log(1 - level):
            break
        best = float(thresholds[k])
    return best


def least_images(risk: float, level: float) -> int:
    """Return the number of images from which on the guarantee is possible, if all answers are right.

    >>> least_images(0.02, 0.95)
    219
    """
    gain = np.log1p(BELOW * risk / (1 - risk))

    def enough(images: int) -> bool:
        before = BELOW_WEIGHTS + images // CHOOSING * gain
        after = total(before - total(before) + (images - images // CHOOSING) * gain)
        return images >= CHOOSING and after >= -math.log(1 - level)

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
