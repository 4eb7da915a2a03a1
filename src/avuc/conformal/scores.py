"""Conformity scores of classes, and the sets of classes whose score is at most a threshold.

p is sorted so that p_(1) ≥ p_(2) ≥ …; among equal probabilities the class with the smaller number comes first. The
class of rank j has the score

    threshold   1 − p_(j)                                          Sadinle et al. 2019, https://arxiv.org/abs/1609.00451
    aps         p_(1) + … + p_(j) − U p_(j)                        Romano et al. 2020, https://arxiv.org/abs/2006.02544
    raps        the same + penalty · max(0, j − k_reg)             Angelopoulos et al. 2021, https://arxiv.org/abs/2009.14193

U is one number per row: uniform in [0, 1), or 0 without randomisation. The sum is computed as 1 − (p_(j+1) + …), and U
is multiplied by at least `LEAST`: a sum of the largest ones is 1 only up to the rounding of its type, which alone would
decide about classes of probability 0, as votes have them.

Scores grow with the rank j, so a set with one threshold for all classes has the classes of the first ranks of a row.
Only values are sorted, not indices, which is several times faster. Blocks of rows fit into the cache of a CPU; logits
become probabilities block by block, and all probabilities are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]

METHODS = ("threshold", "aps", "raps")
# elements of a block: sorting needs several copies of it, and all should stay in the cache
BLOCK = 1 << 18
# rows whose confidence decides about random numbers
FIRST_ROWS, STEP_BEGIN = 16, 0.2718281828
# of so few rows the logarithm of the second largest probability decides, too, in steps of 1/256 of a doubling
FINE_STEPS, LEAST_SECOND = 256, 2.0**-100
# how far a sum of float32 probabilities may be from the same sum in float64
SUM_ROUNDING = 2.0**-22
# U times this is far above the rounding of float64 near 1, and far below any probability that matters
LEAST = 2.0**-36


@dataclass(frozen=True)
class Score:
    """One of the scores above.

    Args:
        method: "threshold", "aps" or "raps".
        penalty: what RAPS adds for every place after the first `k_reg` ones.
        k_reg: number of places without a penalty.
    """

    method: str
    penalty: float = 0.0
    k_reg: int = 0

    def of_labels(self, probs: Tensor, labels: Array, uniform: Array, *, logits: bool = False) -> Array:
        """Return the score of each row's label, (N,).

        Args:
            probs: (N, C) probabilities.
            labels: (N,) class numbers.
            uniform: (N,) values of U.
            logits: whether `probs` are logits.
        """
        scores = np.empty(len(labels))
        for rows, block in blocks(probs, logits, ranks=self.penalty > 0):
            here = labels[rows]
            own = np.take_along_axis(block, here[:, None], 1)
            stated = own[:, 0].astype(np.float64)
            if self.method == "threshold":
                scores[rows] = 1 - stated
                continue
            # classes ranked before the label: larger probabilities, and equal ones of smaller class numbers
            before = block > own
            equal = block == own
            if equal.sum() > len(block):
                before |= equal & (np.arange(block.shape[1]) < here[:, None])
            rank = before.sum(1)
            rest = np.take_along_axis(sums_below(ascending(block)), block.shape[1] - 1 - rank[:, None], 1)
            scores[rows] = self._of_rest(rest[:, 0], stated, uniform[rows], rank + 1)
        return scores

    def sets(self, probs: Tensor, thresholds: Array, uniform: Array, *, logits: bool = False) -> Array:
        """Return which classes have a score of at most their threshold, (N, C) bool.

        Args:
            probs: (N, C) probabilities.
            thresholds: (1,) for all classes, or (C,).
            uniform: (N,) values of U.
            logits: whether `probs` are logits.
        """
        chosen = np.empty(tuple(probs.shape), np.bool_)
        # a forest's 0.4 is one probability, also if one of the fit and the new rows has float32 and the other float64;
        # below 1e-8 several numbers of float32 have the same 1 − p, so the smallest one is searched in float64
        single = np.dtype(np.float32)
        least = smallest_probs(thresholds, np.dtype(np.float64)).astype(single)
        # scores of float64 near 0 differ where float32 probabilities are all 1; a threshold of float64 tells them apart
        most = np.where((1 - thresholds).astype(single) == 1 - thresholds, np.inf, thresholds).astype(single)
        limits = thresholds if uniform.any() else thresholds + SUM_ROUNDING
        for rows, block in blocks(probs, logits, ranks=self.penalty > 0):
            if self.method == "threshold":
                np.greater_equal(block.astype(np.float32, copy=False), least, out=chosen[rows])
                if block.dtype == np.float64 and np.isfinite(most).any():
                    chosen[rows] &= (1 - block).astype(np.float32) <= most
            elif len(thresholds) == 1:
                chosen[rows] = self._largest_classes(block, float(limits[0]), uniform[rows])
            else:
                chosen[rows] = self._all_scores(block, uniform[rows]) <= limits
        return chosen

    def _largest_classes(self, block: Array, threshold: float, uniform: Array) -> Array:
        ordered = ascending(block)
        classes = block.shape[1]
        size = (self._by_rank(ordered, uniform) <= threshold).sum(1)
        last = np.take_along_axis(ordered, np.minimum(classes - size, classes - 1)[:, None], 1)
        last[size == 0] = np.inf
        chosen: Array = block >= last
        # equal probabilities at the border: only the first ones belong to the set
        for row in np.flatnonzero(chosen.sum(1) > size):
            chosen[row] = False
            chosen[row, np.argsort(-block[row], kind="stable")[: size[row]]] = True
        return chosen

    def _all_scores(self, block: Array, uniform: Array) -> Array:
        order = np.argsort(-block, axis=1, kind="stable")[:, ::-1]
        ordered = np.take_along_axis(block, order, 1).astype(np.float64)
        scores: Array = np.empty_like(ordered)
        np.put_along_axis(scores, order, self._by_rank(ordered, uniform), 1)
        return scores

    def _by_rank(self, ordered: Array, uniform: Array) -> Array:
        """Return the scores of rows of probabilities in ascending order."""
        return self._of_rest(sums_below(ordered), ordered, uniform[:, None], np.arange(ordered.shape[1], 0, -1))

    def _of_rest(self, rest: Array, own: Array, uniform: Array, rank: Array) -> Array:
        """Return the scores of classes from their probability and the sum of all smaller ones."""
        scores: Array = 1 - rest - uniform * np.maximum(own, LEAST) + self._penalty(rank)
        return scores

    def _penalty(self, ranks: Array) -> Array:
        added: Array = self.penalty * np.maximum(0, ranks - self.k_reg)
        return added


def blocks(probs: Tensor, logits: bool = False, *, ranks: bool = False) -> Iterator[tuple[slice, Array]]:
    """Yield ranges of rows and their probabilities on the CPU; float32 is kept, which sorts faster.

    Args:
        probs: (N, C) probabilities, or logits.
        logits: whether they are logits.
        ranks: whether the ranks of improbable classes count: float64 then tells apart what is 0 in float32.
    """
    step = max(1, BLOCK // probs.shape[1])
    for start in range(0, len(probs), step):
        rows = slice(start, start + step)
        block = probs[rows].detach()
        if logits:
            block = (block if block.dtype == torch.float64 else block.float()).softmax(1)
            if ranks and block.dtype == torch.float32 and bool(block.amin() == 0):
                block = probs[rows].detach().double().softmax(1)
            # one logit that is NaN or +infinity makes its whole row NaN
            if bool(block[:, 0].isnan().any()):
                raise InputError(f"logits contain NaN or +infinity (rows {start}…{start + len(block) - 1})")
        yield rows, block.cpu().numpy()


def smallest_probs(thresholds: Array, dtype: np.dtype[Any]) -> Array:
    """Return the smallest p ≥ 0 of a type with 1 − p ≤ threshold, computed in float64; so sets need one comparison.

    Args:
        thresholds: (K,); infinity: every p.
        dtype: float32 or float64.

    >>> smallest_probs(np.array([0.25, np.inf]), np.dtype(np.float64)).tolist()
    [0.75, 0.0]
    """
    whole = np.dtype(f"i{dtype.itemsize}")
    # floats that are not negative are ordered as their bits are; 2 is above all probabilities
    low = np.zeros(len(thresholds), whole)
    high = np.full(len(thresholds), np.array(2, dtype).view(whole))
    while (low < high).any():
        middle = low + (high - low) // 2
        inside = 1 - middle.view(dtype).astype(np.float64) <= thresholds
        low, high = np.where(inside, low, np.minimum(middle + 1, high)), np.where(inside, middle, high)
    return high.view(dtype)


def ascending(block: Array) -> Array:
    """Return every row from its smallest to its largest value, in float64."""
    return np.sort(block, axis=1).astype(np.float64)


def sums_below(ordered: Array) -> Array:
    """Return for each entry of a row the sum of the entries before it.

    >>> sums_below(np.array([[0.0, 0.25, 0.75]]))
    array([[0.  , 0.  , 0.25]])
    """
    sums = np.zeros_like(ordered)
    np.cumsum(ordered[:, :-1], axis=1, out=sums[:, 1:])
    return sums


def top_class(probs: Tensor) -> Array:
    """Return a (N, C) bool array with the predicted class of each row; the largest logit is the same class."""
    chosen = np.zeros(tuple(probs.shape), np.bool_)
    np.put_along_axis(chosen, probs.argmax(1)[:, None].cpu().numpy(), True, 1)
    return chosen


def predicted_roughly(scores: Tensor, logits: bool = False) -> bytes:
    """Return the predicted class of each row, and the confidence of the first rows in eight steps.

    Other rows have other bytes. A batch of few rows, such as one request, has finer steps: a sure model would otherwise
    have about as many random numbers as classes. The same rows in float32 and float64 have the same ones: no vote and
    no rounded probability lies where a step begins.

    Args:
        scores: (N, C) probabilities, or logits.
        logits: whether they are logits.
    """
    classes = scores.argmax(1).cpu().numpy().astype("<i8")
    steps = []
    for _, block in blocks(scores[:FIRST_ROWS], logits):
        steps.append(np.floor(8 * block.max(1).astype(np.float64) + STEP_BEGIN))
        if len(scores) <= FIRST_ROWS and block.shape[1] > 1:
            second = np.partition(block, -2, axis=1)[:, -2].astype(np.float64)
            steps.append(np.floor(FINE_STEPS * np.log2(np.maximum(second, LEAST_SECOND)) + STEP_BEGIN))
    return bytes(classes.tobytes() + b"".join(step.astype("<i8").tobytes() for step in steps))
