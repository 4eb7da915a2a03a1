"""Detection metrics from histograms of fixed size, for entropies that arrive in batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array, as_scores
from avuc.metrics.detection import DETECTION
from avuc.metrics.log_histogram import LOG_BINS, in_wider_bins, log_bin_edges, log_bin_index
from avuc.metrics.selective import harmonic_difference
from avuc.metrics.streaming.accumulator import Accumulator, Streaming


class StreamingDetection(Streaming):
    """The metrics of `detection` over batches of entropies, with memory that does not grow with their number.

    Entropies are counted in bins that are at most 1/1024 of their values wide. The order inside a bin is not known:
    `bounds()` takes the best and the worst, `compute()` the middle of the two.

    >>> stream = StreamingDetection().update([0.1, 0.2, 0.3], [0.4, 0.9])
    >>> stream.compute()["auroc"]
    1.0
    """

    def __init__(self) -> None:
        self._state = Accumulator("avuc.StreamingDetection.v1", {}, {"inside": (LOG_BINS,), "outside": (LOG_BINS,)})

    def update(self, in_entropy: Any = None, out_entropy: Any = None) -> StreamingDetection:
        """Add a batch of entropies.

        Args:
            in_entropy: (N,) entropies of in-distribution inputs; None or empty: none.
            out_entropy: (M,) entropies of OOD inputs; None or empty: none.
        """
        for name, values in (("inside", in_entropy), ("outside", out_entropy)):
            if values is not None and len(values):
                scores = as_scores(values, "in_entropy" if name == "inside" else "out_entropy")
                if scores.min() < 0:
                    raise InputError("entropies must not be negative")
                self._state[name][:] += np.bincount(log_bin_index(scores), minlength=LOG_BINS)
        return self

    def _empty(self) -> StreamingDetection:
        return StreamingDetection()

    def entropy_histogram(self, edges: Array) -> tuple[Array, Array]:
        """Return in-distribution and OOD inputs between the edges; within 1/1024 of an edge, the side may be wrong."""
        return in_wider_bins(self._state["inside"], edges), in_wider_bins(self._state["outside"], edges)

    def compute(self) -> dict[str, float]:
        """Return the metrics of `detection`, each as the middle of its bounds."""
        return {name: float(low + high) / 2 for name, (low, high) in self.bounds().items()}

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Return two numbers between which the exact value lies, for each metric."""
        inside, outside = self._state["inside"], self._state["outside"]
        n_in, n_out = inside.sum(), outside.sum()
        if n_in == 0 or n_out == 0:
            raise InputError(f"both kinds of entropies are needed, found {n_in:.0f} in and {n_out:.0f} out")
        below, above = np.cumsum(inside) - inside, (np.cumsum(outside[::-1]) - outside[::-1])[::-1]
        # flagged as OOD: from the start of a bin on, or from just above it
        tpr = (above + outside) / n_out
        fpr_above, fpr = (n_in - below - inside) / n_in, (n_in - below) / n_in
        reached = len(tpr) - 1 - int(np.argmax(tpr[::-1] >= 0.95))
        auroc = float(outside @ below) / (n_in * n_out)
        out = {
            "auroc": (auroc, auroc + float(outside @ inside) / (n_in * n_out)),
            "aupr_in": _precision_bounds(inside, outside),
            "aupr_out": _precision_bounds(outside[::-1], inside[::-1]),
            "detection_accuracy": (
                float(max(0.5, ((tpr + 1 - fpr) / 2).max())),
                float(max(0.5, ((tpr + 1 - fpr_above) / 2).max())),
            ),
            "fpr95": (float(fpr_above[reached]), float(fpr[reached])),
            "wasserstein": _wasserstein_bounds(inside / n_in, outside / n_out),
        }
        return {name: out[name] for name in DETECTION}


def _precision_bounds(hits: Array, misses: Array) -> tuple[float, float]:
    """Return average precision with the hits of each bin after its misses, and before them; best bin first."""
    tp, fp = np.cumsum(hits) - hits, np.cumsum(misses) - misses
    best = hits @ ((tp + hits) / np.maximum(tp + hits + fp, 1))
    # hits one by one after all misses: Σ_{j=1..h} (tp + j)/(tp + fp + m + j) = h − (fp + m)(H(n + h) − H(n))
    n = tp + fp + misses
    worst = (hits - (fp + misses) * harmonic_difference(n, hits)).sum()
    return float(worst / hits.sum()), float(best / hits.sum())


def _wasserstein_bounds(inside: Array, outside: Array) -> tuple[float, float]:
    """Return the distance between the middles of the bins, ± how far the entropies can be from these."""
    edges = log_bin_edges()
    # the last bin has no upper edge; entropies of fewer than e^32 classes do not reach it
    edges[-1] = edges[-2]
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    distance = float(np.abs(np.cumsum(inside - outside))[:-1] @ np.diff(middle))
    slack = float((inside + outside) @ half)
    return max(0.0, distance - slack), distance + slack
