"""Logits read at any temperature: the few numbers per row that every objective needs, in one pass without autograd.

With s = 1/T, x = z − max z, Z = Σ e^{s x} and the mean and variance of x under p = softmax(s z):

    log p_y = s x_y − log Z         d(−log p_y)/ds = E_p[x] − x_y        d²(−log p_y)/ds² = Var_p[x]
    max p = 1/Z                     u = log Z − s E_p[x]

so Σ e^{s x}, Σ x e^{s x} and Σ x² e^{s x} are all there is to compute. With draws the softmaxes are averaged first.
Every −log p_y is cut at −log 1e-12, the floor of `avuc.metrics.nll`.
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

from avuc.calibration.inputs import as_labels, as_logits, refuse_not_logits
from avuc.metrics.statistics import NLL_FLOOR
from avuc.uncertainty import entropy

# Blocks below torch's grain of 32,768 elements stay in a core's cache and run on the calling thread; each of ours
# then takes a share of the rows and meets the others once a pass. torch's own threads would meet at every operation,
# which on a busy machine costs more than the work.
BLOCK_ELEMENTS = 32_000
# a fit on no more than this runs on one thread altogether
CALM_ELEMENTS = 1 << 21
# up to this size float64 costs nothing that anyone notices; beyond it float32's rounding averages out over the rows
EXACT_ELEMENTS = 1 << 18
# No row costs more than this: a probability below the floor counts as the floor, as in avuc.metrics.nll. A fit and the
# figures that judge it then minimise and report the same number.
MOST_NLL = -math.log(NLL_FLOOR)


@contextmanager
def calm_threads(logits: Any) -> Iterator[None]:
    """Fits below a few million logits use one thread: torch's threads meet at every operation, which costs more than
    such small work, and on a busy machine ten times as much. The setting before is restored.
    """
    threads = torch.get_num_threads()
    small = (logits.numel() if isinstance(logits, Tensor) else np.size(logits)) <= CALM_ELEMENTS
    if not small or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Columns(NamedTuple):
    """One number per row, float64, at one temperature."""

    confidence: Tensor
    entropy: Tensor
    correct: Tensor
    nll: Tensor


class Derivatives(NamedTuple):
    """The mean negative log-likelihood and its first two derivatives in s = 1/T."""

    value: float
    slope: float
    curvature: float


class ScaledLogits:
    """Logits (S, N, C) and labels (N), to be read at many temperatures; `passes` counts the reading.

    >>> scaled = ScaledLogits(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([0, 0]))
    >>> scaled.columns(1e9).confidence
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.logits, self.labels = logits.detach(), labels
        self.draws, self.rows, self.num_classes = logits.shape
        self.rows_read = 0
        refuse_not_logits(self.logits)
        top, predicted = self.logits.max(dim=-1)
        chosen = self.logits.gather(-1, labels.expand(self.draws, -1).unsqueeze(-1)).squeeze(-1)
        self._correct = predicted[0] == labels
        # how far the true class lies below the largest logit, (S, N)
        self._gap = chosen.double() - top.double()
        self.impossible = torch.isneginf(self._gap).all(dim=0)

    @classmethod
    def read(cls, logits: Any, labels: Any) -> Self:
        """From what a user gives to `fit`."""
        tensor = as_logits(logits)
        return cls(tensor if tensor.ndim == 3 else tensor.unsqueeze(0), as_labels(labels, tensor))

    @property
    def passes(self) -> float:
        """How many times the data was read, a sample of the rows counted by its share."""
        return self.rows_read / self.rows

    def sample(self, elements: int) -> ScaledLogits:
        """Evenly spaced rows with at most about `elements` logits; the whole where it is not larger."""
        stride = math.ceil(self.logits.numel() / elements)
        if stride <= 1:
            return self
        return ScaledLogits(self.logits[:, ::stride], self.labels[::stride])

    def derivatives(self, s: float, floored: Tensor | None = None) -> Derivatives:
        """Mean −log p_y of a single draw with its slope and curvature in s, from one pass.

        The rows in `floored` (N, bool) count as the floor at every s; with these rows fixed the mean is convex in s.
        None: the rows that are below the floor at this s.
        """
        total, first, second = self._moments(s, powers=2)
        mean, gap = first / total, self._gap[0]
        columns = torch.stack((total.log() - s * gap, mean - gap, second / total - mean * mean))
        held = columns[0] > MOST_NLL if floored is None else floored
        columns = columns.where(~held, columns.new_tensor([[MOST_NLL], [0.0], [0.0]]))
        value, slope, curvature = columns.mean(dim=1).tolist()
        return Derivatives(value, slope, max(curvature, 0.0))

    def floored(self, temperature: float) -> Tensor:
        """Which rows (N, bool) give their true class less than the floor at this temperature."""
        # no row costs more than log C − gap/T: mostly that is below the limit, and no pass is needed
        if self.draws == 1 and not bool((math.log(self.num_classes) - self._gap[0] / temperature > MOST_NLL).any()):
            return torch.zeros_like(self.impossible)
        return self._nll_rows(temperature) > MOST_NLL

    def nll(self, temperature: float) -> float:
        """Mean −log p_y."""
        return float(self._nll_rows(temperature).clamp(max=MOST_NLL).mean())

    def _nll_rows(self, temperature: float) -> Tensor:
        """−log p_y of each row, without the floor."""
        if self.draws > 1:
            return self._mean_of_draws(1 / temperature).nll
        total, *_ = self._moments(1 / temperature, powers=0)
        return total.log() - self._gap[0] / temperature

    def columns(self, temperature: float) -> Columns:
        """Confidence, entropy, correctness and −log p_y (at most `MOST_NLL`) of each row, in float64."""
        s = 1 / temperature
        if self.draws > 1:
            found = self._mean_of_draws(s)
            return found._replace(nll=found.nll.clamp(max=MOST_NLL))
        total, first = self._moments(s, powers=1, exact=True)
        log_total = total.log()
        losses = (log_total - s * self._gap[0]).clamp(max=MOST_NLL)
        return Columns(1 / total, log_total - s * first / total, self._correct, losses)

    def _moments(self, s: float, powers: int, exact: bool = False) -> list[Tensor]:
        """Σ xᵏ e^{s x} of each row of the only draw, k = 0 … powers, x the logit minus the row's largest."""
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
                # a class ruled out by −inf keeps weight 0, and 0 · x must stay 0
                torch.sub(block, block.amax(dim=1, keepdim=True), out=x).clamp_(min=_lowest(s))
                # torch.exp would call its threads from 2,048 elements on, torch.exp2 does not
                torch.mul(x, s / math.log(2), out=w).exp2_()
                torch.sum(w, dim=1, out=sums[0][rows])
                for power in range(1, powers + 1):
                    torch.sum(w.mul_(x), dim=1, out=sums[power][rows])

        self._share(work)
        return [column.double() for column in sums]

    def _mean_of_draws(self, s: float) -> Columns:
        confidence, u, losses = torch.empty(3, self.rows, dtype=torch.float64, device=self.logits.device)
        correct = torch.empty_like(self._correct)
        step = self._step(draws=self.draws)
        for start in range(0, self.rows, step):
            rows = slice(start, start + step)
            block = self.logits[:, rows].double()
            x = (block - block.amax(dim=-1, keepdim=True)).clamp_(min=_lowest(s)).mul_(s).exp_()
            total = x.sum(dim=-1, keepdim=True)
            probs = x.div_(total).mean(dim=0)
            confidence[rows], predicted = probs.max(dim=-1)
            u[rows], correct[rows] = entropy(probs), predicted == self.labels[rows]
            # in logarithms, so that a true class every draw finds very unlikely keeps its slope
            each = s * self._gap[:, rows] - total.squeeze(-1).log()
            losses[rows] = math.log(self.draws) - torch.logsumexp(each, dim=0)
        self.rows_read += self.rows
        return Columns(confidence, u, correct, losses)

    def _share(self, work: Callable[[int, int], None]) -> None:
        """Give every thread an equal run of rows."""
        alone = self.logits.is_cuda or self.logits.numel() <= CALM_ELEMENTS
        threads = 1 if alone else torch.get_num_threads()
        cuts = [self.rows * k // threads for k in range(threads + 1)]
        if threads == 1:
            work(0, self.rows)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, cuts[:-1], cuts[1:]))
        self.rows_read += self.rows

    def _step(self, draws: int = 1) -> int:
        """Rows in a block; with draws torch's own threads work, on larger ones."""
        elements = 1 << 26 if self.logits.is_cuda else BLOCK_ELEMENTS if draws == 1 else 1 << 18
        return max(1, elements // (draws * self.num_classes))


def _lowest(s: float) -> float:
    """So low that e^{s x} is exactly 0, in float64 and in float32."""
    return -750.0 / s
