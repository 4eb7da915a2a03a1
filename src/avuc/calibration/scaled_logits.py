"""Logits divided by any temperature: the few numbers per row that every objective needs, in one pass without autograd.

With s = 1/T, x = z − max z, Z = Σ e^{s x}, and the mean and variance of x under p = softmax(s z):

    log p_y = s x_y − log Z         d(−log p_y)/ds = E_p[x] − x_y        d²(−log p_y)/ds² = Var_p[x]
    max p = 1/Z                     u = log Z − s E_p[x]

Only Σ e^{s x}, Σ x e^{s x} and Σ x² e^{s x} have to be computed. With several posterior samples the softmaxes are
averaged first. −log p_y is at most −log 1e-12, because `avuc.metrics.nll` has the floor 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.inputs import as_labels, as_logits, as_weights, refuse_not_logits
from avuc.metrics.statistics import NLL_FLOOR
from avuc.uncertainty import entropy, midpoint_threshold

# Blocks below torch's grain size of 32,768 elements stay in the cache of a core and run on the calling thread. The
# threads started here take a range of rows each and synchronise once a pass. torch's own threads synchronise at every
# operation, which costs more than the work on a busy machine.
BLOCK_ELEMENTS = 32_000
# a fit on at most this many logits uses one thread
ONE_THREAD_ELEMENTS = 1 << 21
# up to this size float64 costs little; beyond it, float32 rounding averages out over the rows
EXACT_ELEMENTS = 1 << 18
# The largest −log p_y of a row: a probability below the floor counts as the floor, as in avuc.metrics.nll. A fit thus
# minimises the number that is reported.
MOST_NLL = -math.log(NLL_FLOOR)


@contextmanager
def limited_threads(logits: Any) -> Iterator[None]:
    """Run small fits on one torch thread, and restore the setting afterwards.

    torch's threads synchronise at every operation. For fewer than 2 million logits this costs more than the work, and
    ten times as much on a busy machine.
    """
    threads = torch.get_num_threads()
    small = (logits.numel() if isinstance(logits, Tensor) else np.size(logits)) <= ONE_THREAD_ELEMENTS
    if not small or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class ScaledPredictions(NamedTuple):
    """Confidence, entropy, correctness and −log p_y of each row at one temperature; (N,), float64."""

    confidence: Tensor
    entropy: Tensor
    correct: Tensor
    nll: Tensor
    weight: Tensor | None = None  # weight of each row; None: all rows count the same

    def threshold(self) -> float:
        """Return the midpoint of the mean entropies of correct and of wrong predictions."""
        u, right = self.entropy, self.correct
        w = torch.ones_like(u) if self.weight is None else self.weight
        u = u * w
        return float(midpoint_threshold(u[right].sum(), u[~right].sum(), w[right].sum(), w[~right].sum()))

    def mean(self, column: Tensor) -> float:
        """Return the (weighted) mean of a column over the rows."""
        return float(mean_over_rows(column.double(), self.weight))


class Derivatives(NamedTuple):
    """A value and its first two derivatives; here the mean negative log-likelihood as a function of s = 1/T."""

    value: float
    slope: float
    curvature: float


class ScaledLogits:
    """Logits and labels that are evaluated at many temperatures; `passes` counts the passes over the data.

    Args:
        logits: (S, N, C), S posterior samples of N rows; S = 1 for an ordinary network.
        labels: (N,) class numbers, int64, on the same device.
        weight: (N,) weights of the rows, above 0, float64; None: all rows count the same.

    >>> scaled = ScaledLogits(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([0, 0]))
    >>> scaled.at(1e9).confidence
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> None:
        self.logits: Tensor = logits.detach()
        self.labels: Tensor = labels
        self.weight: Tensor | None = weight
        samples, rows, classes = logits.shape
        self.samples: int = samples
        self.rows: int = rows
        self.num_classes: int = classes
        self.rows_read: int = 0
        refuse_not_logits(self.logits)
        top, predicted = self.logits.max(dim=-1)
        chosen = self.logits.gather(-1, labels.expand(self.samples, -1).unsqueeze(-1)).squeeze(-1)
        self._correct = predicted[0] == labels
        # logit of the true class minus the largest logit, (S, N)
        self._gap = chosen.double() - top.double()
        self.impossible: Tensor = torch.isneginf(self._gap).all(dim=0)

    @property
    def right(self) -> Tensor:
        """Whether the label of each row (N,) has the largest logit of the first sample."""
        return self._correct

    @property
    def num_right(self) -> int:
        """Number of rows whose label has the largest logit of the first sample."""
        return int(self._correct.sum())

    @classmethod
    def read(cls, logits: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Return the object for logits, labels and weights as a user passes them to `fit`; rows of weight 0 go."""
        tensor = as_logits(logits)
        tensor, targets = tensor if tensor.ndim == 3 else tensor.unsqueeze(0), as_labels(labels, tensor)
        if sample_weight is None:
            return cls(tensor, targets)
        weight = as_weights(sample_weight, len(targets)).to(tensor.device)
        kept = weight > 0
        return cls(tensor[:, kept], targets[kept], weight[kept])

    @property
    def total(self) -> float:
        """Number of rows, or the sum of their weights."""
        return float(self.rows if self.weight is None else self.weight.sum())

    @property
    def passes(self) -> float:
        """Number of passes over the data; a pass over some of the rows counts by their share."""
        return self.rows_read / self.rows

    def subsample(self, elements: int) -> ScaledLogits:
        """Return evenly spaced rows with about `elements` logits, or this object if it has no more than that."""
        stride = math.ceil(self.logits.numel() / elements)
        if stride <= 1:
            return self
        weight = None if self.weight is None else self.weight[::stride]
        return ScaledLogits(self.logits[:, ::stride], self.labels[::stride], weight)

    def derivatives(self, s: float, floored: Tensor | None = None) -> Derivatives:
        """Return the mean −log p_y with its slope and curvature in s = 1/T, from one pass; for one sample only.

        Args:
            s: 1/T.
            floored: (N,) bool, rows that count as the floor at every s; with these rows fixed, the mean is convex in
                s. None: the rows that are below the floor at this s.
        """
        total, first, second = self._moments(s, powers=2)
        mean, gap = first / total, self._gap[0]
        columns = torch.stack((total.log() - s * gap, mean - gap, second / total - mean * mean))
        held = columns[0] > MOST_NLL if floored is None else floored
        columns = columns.where(~held, columns.new_tensor([[MOST_NLL], [0.0], [0.0]]))
        value, slope, curvature = mean_over_rows(columns, self.weight).tolist()
        return Derivatives(value, slope, max(curvature, 0.0))

    def floored(self, temperature: float) -> Tensor:
        """Return which rows (N,) give their true class a probability below the floor at this temperature."""
        # −log p_y is at most log S C − gap/T of the best sample, usually below the limit, so that no pass is needed
        most = math.log(self.samples * self.num_classes) - self._gap.amax(0) / temperature
        if not bool((most > MOST_NLL).any()):
            return torch.zeros_like(self.impossible)
        return self.nll_rows(temperature) > MOST_NLL

    def nll(self, temperature: float) -> float:
        """Return the mean −log p_y, each at most `MOST_NLL`."""
        return float(mean_over_rows(self.nll_rows(temperature).clamp(max=MOST_NLL), self.weight))

    def nll_rows(self, temperature: float) -> Tensor:
        """Return −log p_y of each row, without the floor."""
        if self.samples > 1:
            return self._mean_over_samples(1 / temperature).nll
        total, *_ = self._moments(1 / temperature, powers=0)
        return total.log() - self._gap[0] / temperature

    def at(self, temperature: float) -> ScaledPredictions:
        """Return confidence, entropy, correctness and −log p_y (at most `MOST_NLL`) of each row."""
        s = 1 / temperature
        if self.samples > 1:
            predictions = self._mean_over_samples(s)
            return predictions._replace(nll=predictions.nll.clamp(max=MOST_NLL))
        total, first = self._moments(s, powers=1, exact=True)
        log_total = total.log()
        losses = (log_total - s * self._gap[0]).clamp(max=MOST_NLL)
        return ScaledPredictions(1 / total, log_total - s * first / total, self._correct, losses, self.weight)

    def _moments(self, s: float, powers: int, exact: bool = False) -> list[Tensor]:
        """Return Σ xᵏ e^{s x} of each row for k = 0 … powers; x is the logit minus the largest one of the row."""
        logits = self.logits[0]
        dtype = torch.float64 if exact or logits.numel() <= EXACT_ELEMENTS else logits.dtype
        sums = [logits.new_empty(self.rows, dtype=dtype) for _ in range(powers + 1)]
        step = min(self._step(), self.rows)

        def work(first: int, last: int) -> None:
            below, weight = (logits.new_empty(step, self.num_classes, dtype=dtype) for _ in range(2))
            for start in range(first, last, step):
                rows = slice(start, min(start + step, last))
                block = logits[rows].to(dtype)
                x, w = below[: len(block)], weight[: len(block)]
                # a class with logit −inf has weight 0, and 0 · x must be 0
                torch.sub(block, block.amax(dim=1, keepdim=True), out=x).clamp_(min=_lowest(s))
                # torch.exp starts threads from 2,048 elements on, torch.exp2 does not
                torch.mul(x, s / math.log(2), out=w).exp2_()
                torch.sum(w, dim=1, out=sums[0][rows])
                for power in range(1, powers + 1):
                    torch.sum(w.mul_(x), dim=1, out=sums[power][rows])

        self._run_threads(work)
        return [column.double() for column in sums]

    def _mean_over_samples(self, s: float) -> ScaledPredictions:
        confidence, u, losses = torch.empty(3, self.rows, dtype=torch.float64, device=self.logits.device)
        correct = torch.empty_like(self._correct)
        step = self._step(samples=self.samples)
        for start in range(0, self.rows, step):
            rows = slice(start, start + step)
            block = self.logits[:, rows].double()
            x = (block - block.amax(dim=-1, keepdim=True)).clamp_(min=_lowest(s)).mul_(s).exp_()
            total = x.sum(dim=-1, keepdim=True)
            probs = x.div_(total).mean(dim=0)
            confidence[rows], predicted = probs.max(dim=-1)
            u[rows], correct[rows] = entropy(probs), predicted == self.labels[rows]
            # in logarithms, so that a true class that is very unlikely in every sample keeps its slope
            each = s * self._gap[:, rows] - total.squeeze(-1).log()
            losses[rows] = math.log(self.samples) - torch.logsumexp(each, dim=0)
        self.rows_read += self.rows
        return ScaledPredictions(confidence, u, correct, losses, self.weight)

    def _run_threads(self, work: Callable[[int, int], None]) -> None:
        """Call `work(first, last)` on every thread with an equal range of rows."""
        alone = self.logits.is_cuda or self.logits.numel() <= ONE_THREAD_ELEMENTS
        threads = 1 if alone else torch.get_num_threads()
        cuts = [self.rows * k // threads for k in range(threads + 1)]
        if threads == 1:
            work(0, self.rows)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, cuts[:-1], cuts[1:]))
        self.rows_read += self.rows

    def _step(self, samples: int = 1) -> int:
        """Return the rows of a block; with several samples blocks are larger, and torch's own threads are used."""
        elements = 1 << 26 if self.logits.is_cuda else BLOCK_ELEMENTS if samples == 1 else 1 << 18
        return max(1, elements // (samples * self.num_classes))


def calibrated_nll(scaled: ScaledLogits, apply: Callable[[Tensor], Tensor], elements: int = BLOCK_ELEMENTS) -> float:
    """Return the mean −log p_y, each at most `MOST_NLL`, of p = mean over the samples of softmax(apply(logits)).

    Args:
        scaled: logits and labels.
        apply: the calibrator.
        elements: logits that are calibrated at once. More than the default: on torch's own threads.
    """
    losses = torch.empty_like(scaled.labels, dtype=torch.float64)
    step = max(1, elements // (scaled.samples * scaled.num_classes))

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            rows = slice(start, min(start + step, last))
            chosen = torch.log_softmax(apply(scaled.logits[:, rows].double()), dim=-1)
            chosen = chosen.gather(-1, scaled.labels[rows].expand(scaled.samples, -1).unsqueeze(-1)).squeeze(-1)
            losses[rows] = math.log(scaled.samples) - torch.logsumexp(chosen, dim=0)

    if elements == BLOCK_ELEMENTS:
        scaled._run_threads(work)
    else:
        work(0, scaled.rows)
        scaled.rows_read += scaled.rows
    return float(mean_over_rows(losses.clamp(max=MOST_NLL), scaled.weight))


def mean_over_rows(columns: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over the last dimension, weighted if `weight` is given."""
    return columns.mean(dim=-1) if weight is None else (columns * weight).sum(dim=-1) / weight.sum()


def _lowest(s: float) -> float:
    """Return an x so low that e^{s x} is exactly 0, in float64 and in float32."""
    return -750.0 / s
