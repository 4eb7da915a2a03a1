"""Conformity scores of classes, and the sets of classes whose score is at most a threshold.

p is sorted so that p_(1) ≥ p_(2) ≥ …; among equal probabilities the class with the smaller number comes first. A class
at place j has the score

    threshold   1 − p_(j)                                          Sadinle et al. 2019, https://arxiv.org/abs/1609.00451
    aps         p_(1) + … + p_(j) − U p_(j)                        Romano et al. 2020, https://arxiv.org/abs/2006.02544
    raps        the same + penalty · max(0, j − k_reg)             Angelopoulos et al. 2021, https://arxiv.org/abs/2009.14193

U is one number per row: uniform in [0, 1), or 0 without randomisation. Scores grow with the place j, so a set with one
threshold for all classes is the first places of a row. Only values are sorted, not indices, which is several times
faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]

METHODS = ("threshold", "aps", "raps")
# elements of a block: sorting needs several copies of it
BLOCK = 1 << 20


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

    def of_labels(self, probs: Tensor, labels: Array, uniform: Array) -> Array:
        """Return the score of each row's label, (N,).

        Args:
            probs: (N, C) probabilities.
            labels: (N,) class numbers.
            uniform: (N,) values of U.
        """
        scores = np.empty(len(labels))
        for rows, block in blocks(probs):
            here = labels[rows]
            own = np.take_along_axis(block, here[:, None], 1)
            stated = own[:, 0].astype(np.float64)
            if self.method == "threshold":
                scores[rows] = 1 - stated
                continue
            # the places before the label: larger probabilities, and equal ones of smaller class numbers
            before = block > own
            equal = block == own
            if equal.sum() > len(block):
                before |= equal & (np.arange(block.shape[1]) < here[:, None])
            place = before.sum(1)
            total = np.take_along_axis(np.cumsum(descending(block), 1), place[:, None], 1)
            scores[rows] = total[:, 0] - uniform[rows] * stated + self._penalty(place + 1)
        return scores

    def sets(self, probs: Tensor, thresholds: Array, uniform: Array) -> Array:
        """Return which classes have a score of at most their threshold, (N, C) bool.

        Args:
            probs: (N, C) probabilities.
            thresholds: (1,) for all classes, or (C,).
            uniform: (N,) values of U.
        """
        chosen = np.empty(tuple(probs.shape), np.bool_)
        for rows, block in blocks(probs):
            if self.method == "threshold":
                chosen[rows] = 1 - block.astype(np.float64) <= thresholds
            elif len(thresholds) == 1:
                chosen[rows] = self._first_places(block, float(thresholds[0]), uniform[rows])
            else:
                chosen[rows] = self._all_scores(block, uniform[rows]) <= thresholds
        return chosen

    def _first_places(self, block: Array, threshold: float, uniform: Array) -> Array:
        ordered = descending(block)
        scores = np.cumsum(ordered, 1) - uniform[:, None] * ordered + self._penalty(np.arange(1, block.shape[1] + 1))
        size = (scores <= threshold).sum(1)
        last = np.take_along_axis(ordered, np.maximum(size - 1, 0)[:, None], 1)
        last[size == 0] = np.inf
        chosen: Array = block >= last
        # equal probabilities at the border: only the first ones belong to the set
        for row in np.flatnonzero(chosen.sum(1) > size):
            chosen[row] = False
            chosen[row, np.argsort(-block[row], kind="stable")[: size[row]]] = True
        return chosen

    def _all_scores(self, block: Array, uniform: Array) -> Array:
        order = np.argsort(-block, axis=1, kind="stable")
        ordered = np.take_along_axis(block, order, 1).astype(np.float64)
        by_place = np.cumsum(ordered, 1) - uniform[:, None] * ordered
        scores: Array = np.empty_like(by_place)
        np.put_along_axis(scores, order, by_place + self._penalty(np.arange(1, block.shape[1] + 1)), 1)
        return scores

    def _penalty(self, place: Array) -> Array:
        added: Array = self.penalty * np.maximum(0, place - self.k_reg)
        return added


def blocks(probs: Tensor) -> Iterator[tuple[slice, Array]]:
    """Yield ranges of rows and their probabilities on the CPU; float32 is kept, which sorts faster."""
    step = max(1, BLOCK // probs.shape[1])
    for start in range(0, len(probs), step):
        rows = slice(start, start + step)
        yield rows, probs[rows].detach().cpu().numpy()


def descending(block: Array) -> Array:
    """Return every row from its largest to its smallest value, in float64."""
    return np.sort(block, axis=1)[:, ::-1].astype(np.float64)


def top_class(probs: Tensor) -> Array:
    """Return a (N, C) bool array with the predicted class of each row."""
    chosen = np.zeros(tuple(probs.shape), np.bool_)
    np.put_along_axis(chosen, probs.argmax(1)[:, None].cpu().numpy(), True, 1)
    return chosen
