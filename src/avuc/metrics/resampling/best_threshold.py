"""The estimation error of the detection accuracy, a maximum over thresholds, for which the percentile bootstrap fails.

The detection accuracy is D = max_t g(t) with g(t) = (TPR + TNR)/2, estimated by the maximum of ĝ. The maximum picks the
threshold whose noise is most favourable: the estimate is too high, and a resampled estimate is too high once more. With
t* the best threshold and t̂ the one of the data,

    ĝ(t*) − g(t*)  ≤  D̂ − D  ≤  ĝ(t̂) − g(t̂)  ≤  the largest ĝ(t) − g(t) of all t that may be t*

The upper end of the interval uses the left side, at t̂. The lower end uses the right side: t may be t* if ĝ(t) is at
most κ standard errors below ĝ(t̂) (the directional derivative of Fang & Santos 2019, https://doi.org/10.1093/restud/rdy049).
"""

from __future__ import annotations

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.resampling.absolute_error import KAPPA
from avuc.metrics.resampling.percentile import Errors


class BestThreshold:
    """Collects g of resamples in blocks and returns the errors of its maximum.

    >>> best = BestThreshold(np.array([3, 1, 0]), np.array([0, 1, 3]), (4, 4))
    >>> best.add(np.array([[0.75, 0.5, 0.0], [1.0, 0.75, 0.0]]))
    >>> best.errors()
    Errors(over=array([0.   , 0.125]), under=array([0.   , 0.125]))
    """

    def __init__(self, negative: Array, positive: Array, units: tuple[int, int]) -> None:
        """Args:
        negative: (G,) in-distribution rows with each entropy, entropies ascending.
        positive: (G,) OOD rows.
        units: number of independent in-distribution and OOD rows, images or groups.
        """
        fpr, tpr = (np.cumsum(counts[::-1]) / counts.sum() for counts in (negative, positive))
        gain = tpr - fpr
        self.best: int = int(gain.argmax())
        between = [np.abs(rate - rate[self.best]) for rate in (fpr, tpr)]
        variance = sum(share * (1 - share) / many for share, many in zip(between, units, strict=True))
        # share · (1 − share) can be −1e-16
        candidates = np.flatnonzero(gain[self.best] - gain <= KAPPA * np.sqrt(np.maximum(variance, 0)))
        self.range: slice = slice(int(candidates[0]), int(candidates[-1]) + 1)
        # thresholds between the candidates that cannot be the best have no error
        self.reference: Array = np.full(len(gain), np.inf)
        self.reference[candidates] = gain[candidates]
        self._over: list[Array] = []
        self._under: list[Array] = []

    def add(self, gains: Array) -> None:
        """Add TPR − FPR of a block of resamples, (B, G), highest entropy first."""
        self._over.append((gains[:, self.range] - self.reference[self.range]).max(-1) / 2)
        self._under.append((gains[:, self.best] - self.reference[self.best]) / 2)

    def errors(self) -> Errors:
        """Return the errors of all resamples so far."""
        return Errors(np.concatenate(self._over), np.concatenate(self._under))
