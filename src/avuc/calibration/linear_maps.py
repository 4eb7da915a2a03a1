"""The likelihood of softmax(W x + b) with its gradient: x are log-probabilities, W is a matrix or one scale per class.

Both forms store the distance to the identity: θ = (W − I, b), (C, C + 1), and θ = (diag W − 1, b), (2, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from avuc.calibration.curvature import matrix_solver, vector_solver
from avuc.calibration.minimise import Optimum, minimised
from avuc.calibration.scaled_logits import BLOCK_ELEMENTS, EXACT_ELEMENTS, ONE_THREAD_ELEMENTS, ScaledLogits
from avuc.calibration.user_warnings import warn

# at most this many log-probabilities are used to measure the curvature and to start near the minimum
SAMPLE_ELEMENTS = 1 << 21
# fewer than this many log-probabilities are not sampled
LEAST_ELEMENTS = 1 << 17
# block of rows for one matrix product
PRODUCT_ELEMENTS = 1 << 23
LOG2_E = 1 / math.log(2)


class Rows(NamedTuple):
    """What a fit reads; rows whose true class is impossible have weight 0.

    x        (S, N, C) log-probabilities of S samples; float32 if there are many
    labels   (N,)
    weight   (N,), with the sum 1 over all possible rows
    lost     (S, N, C) classes that are excluded, or None: their logit is −inf, or no row has this label
    """

    x: Tensor
    labels: Tensor
    weight: Tensor
    lost: Tensor | None

    @classmethod
    def of(cls, scaled: ScaledLogits, features: Callable[[Tensor], Tensor]) -> Self:
        """Return the rows of the logits, with x = features(logits)."""
        exact = scaled.logits.numel() <= EXACT_ELEMENTS
        x = features(scaled.logits.double() if exact else scaled.logits)
        weight = torch.ones(scaled.rows, dtype=torch.float64, device=x.device)
        weight = (weight if scaled.weight is None else scaled.weight) / scaled.total
        lost = torch.isneginf(scaled.logits) | unseen_classes(scaled)
        if not bool(lost.any()):
            return cls(x, scaled.labels, weight, None)
        lost = torch.where(lost.all(-1, keepdim=True), torch.isneginf(scaled.logits), lost)
        return cls(x, scaled.labels, weight.masked_fill(scaled.impossible, 0.0), lost)

    def some(self, kept: Tensor | slice) -> Rows:
        """Return some of the rows; their weights have the sum 1 again."""
        lost = None if self.lost is None else self.lost[:, kept]
        weight = self.weight[kept]
        total = weight.sum()
        return Rows(self.x[:, kept], self.labels[kept], weight / total if total > 0 else weight, lost)

    def sample(self, elements: int) -> Rows:
        """Return evenly spaced rows with about this many log-probabilities."""
        stride = math.ceil(self.x.numel() / elements)
        return self if stride <= 1 else self.some(slice(None, None, stride))


class LinearNLL:
    """NLL + Σ strength · θ² of softmax(W x + b) and its gradient in θ; `form` is "matrix" or "vector".

    Args:
        rows: what to fit on.
        strength: the ridge, of the shape of θ.

    >>> x, weight = torch.log(torch.tensor([[[0.25, 0.75]]])), torch.ones(1, dtype=torch.float64)
    >>> rows = Rows(x, torch.tensor([1]), weight, None)
    >>> value, gradient = LinearNLL(rows, torch.zeros(2, 2))(torch.zeros(2, 2))
    >>> round(value, 4), gradient[1]
    (0.2877, tensor([ 0.2500, -0.2500]))
    """

    def __init__(self, rows: Rows, strength: Tensor) -> None:
        self.rows: Rows = rows
        self.strength: Tensor = strength
        self.vector: bool = len(strength) == 2 and strength.shape[1] == rows.x.shape[-1]
        self.passes: int = 0

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        value, gradient = self.likelihood(theta)
        pulled = self.strength * theta
        return value + float((pulled * theta).sum()), gradient + 2 * pulled

    def likelihood(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the mean NLL and its gradient, without the ridge."""
        self.passes += 1
        x, labels, weight, lost = self.rows
        if lost is None and len(x) == 1 and x.numel() <= EXACT_ELEMENTS:
            return self._at_once(theta, x[0], labels.unsqueeze(-1), weight)
        parts = self._each_thread(lambda first, last: self._part(theta, first, last))
        return sum(value for value, _ in parts), torch.stack([gradient for _, gradient in parts]).sum(0)

    def _at_once(self, theta: Tensor, x: Tensor, labels: Tensor, weight: Tensor) -> tuple[float, Tensor]:
        """Return the same for few rows of one sample, with few calls."""
        own = theta.to(x.dtype)
        log_probs = torch.log_softmax(self._outputs(x, own), dim=-1)
        value = -float(log_probs.gather(1, labels)[:, 0].double() @ weight)
        share = weight.unsqueeze(-1).to(x.dtype)
        residual = log_probs.exp_().mul_(share).scatter_add_(1, labels, -share)
        gradient = torch.zeros_like(theta)
        self._add(gradient, residual, x)
        return value, gradient

    def losses(self, theta: Tensor) -> Tensor:
        """Return −log p_y of each row (N,)."""
        self.passes += 1
        result = torch.zeros_like(self.rows.weight)

        def work(first: int, last: int) -> tuple[float, Tensor]:
            for rows, _, log_chosen, *_ in self._blocks(theta, first, last):
                result[rows] = math.log(len(log_chosen)) - torch.logsumexp(log_chosen, dim=0)
            return 0.0, theta

        self._each_thread(work)
        return result

    def _part(self, theta: Tensor, first: int, last: int) -> tuple[float, Tensor]:
        weight, samples = self.rows.weight, len(self.rows.x)
        total, gradient = 0.0, torch.zeros_like(theta)
        for rows, x, log_chosen, probs, sums, at in self._blocks(theta, first, last):
            joint = torch.logsumexp(log_chosen, dim=0)
            # a row whose true class is impossible has weight 0
            losses = torch.where(weight[rows] > 0, math.log(samples) - joint, 0.0)
            total += float(losses @ weight[rows])
            share = torch.where(weight[rows] > 0, (log_chosen - joint).exp(), 0.0) * weight[rows]
            share = share.unsqueeze(-1).to(x.dtype)
            residual = probs.mul_(share / sums).scatter_add_(-1, at, -share)
            self._add(gradient, residual, x)
        return total, gradient

    def _blocks(
        self, theta: Tensor, first: int, last: int
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Yield blocks of rows: which they are, x, log p_y (S, rows), probabilities · sums, sums, and the labels."""
        x, labels, _, lost = self.rows
        own = theta.to(x.dtype)
        step = max(1, (BLOCK_ELEMENTS if self.vector else PRODUCT_ELEMENTS) // (len(x) * x.shape[-1]))
        for start in range(first, last, step):
            rows = slice(start, min(start + step, last))
            out = self._outputs(x[:, rows], own)
            if lost is not None:
                out.masked_fill_(lost[:, rows], -math.inf)
            out.sub_(out.amax(-1, keepdim=True))
            at = labels[rows].expand(len(x), -1).unsqueeze(-1)
            chosen = out.gather(-1, at)
            probs = out.mul_(LOG2_E).exp2_()  # torch.exp starts threads from 2,048 elements on
            sums = probs.sum(-1, keepdim=True)
            yield rows, x[:, rows], (chosen - sums.log()).squeeze(-1).double(), probs, sums, at

    def _outputs(self, x: Tensor, theta: Tensor) -> Tensor:
        if self.vector:
            return torch.addcmul(theta[1], x, 1 + theta[0])
        return torch.matmul(x, theta[:, :-1].T).add_(x).add_(theta[:, -1])

    def _add(self, gradient: Tensor, residual: Tensor, x: Tensor) -> None:
        """Add the gradient of a block; `residual` is its derivative in the outputs."""
        flat, inputs = (each.flatten(0, 1) if each.ndim == 3 else each for each in (residual, x))
        summed = flat.sum(0)
        if self.vector:
            gradient[0] += (flat * inputs).sum(0)
            gradient[1] += summed
        else:
            gradient[:, :-1] += flat.T @ inputs
            gradient[:, -1] += summed

    def _each_thread(self, work: Callable[[int, int], tuple[float, Tensor]]) -> list[tuple[float, Tensor]]:
        """Return `work(first, last)` of equal ranges of rows. The threads of a matrix product are torch's own."""
        count = len(self.rows.labels)
        alone = not self.vector or self.rows.x.is_cuda or self.rows.x.numel() <= ONE_THREAD_ELEMENTS
        threads = 1 if alone else torch.get_num_threads()
        if threads == 1:
            return [work(0, count)]
        cuts = [count * k // threads for k in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, cuts[:-1], cuts[1:]))

    # ---- curvature

    def solver(self, theta: Tensor) -> Callable[[Tensor], Tensor]:
        """Return g ↦ H₀⁻¹ g with the curvature at θ, from a sample of the rows."""
        rows = self.rows.sample(_sampled(self.rows))
        x = rows.x.flatten(0, 1).double()
        out = self._outputs(rows.x, theta.to(rows.x.dtype))
        probs = (out if rows.lost is None else out.masked_fill(rows.lost, -math.inf)).softmax(-1)
        probs = probs.flatten(0, 1).double()
        weight = rows.weight.repeat(len(rows.x)).unsqueeze(-1) / len(rows.x)
        ridge = 2 * self.strength + 1e-9
        return vector_solver(x, probs, weight, ridge) if self.vector else matrix_solver(x, probs, weight, ridge)


@dataclass
class Search:
    """Where a search has ended, and its rough Hessian; the next one, on nearly the same rows, starts there."""

    theta: Tensor | None = None
    solve: Callable[[Tensor], Tensor] | None = None


def linear_minimum(
    nll: LinearNLL, theta: Tensor, tolerance: float, max_iterations: int, search: Search | None = None
) -> tuple[Optimum, float]:
    """Return the minimum of NLL + ridge, and the number of passes over the rows.

    Many rows are first replaced by a sample of them. float32 features allow no tolerance below 1e-4.

    Args:
        nll: what to minimise.
        theta: where to start.
        tolerance: length of the gradient, in units of the curvature, at which to stop.
        max_iterations: limit on the iterations.
        search: the search on nearly the same rows, from which this one starts; it is then replaced by this one.
    """
    passes, least = 0.0, max(tolerance, _least(nll.rows))
    if search is not None and search.theta is not None and search.solve is not None and nll.rows.lost is None:
        minimum = minimised(nll, search.theta, search.solve, least, max_iterations)
        search.theta = minimum.theta
        return minimum, nll.passes
    solve = nll.solver(theta)
    few = nll.rows.sample(_sampled(nll.rows))
    if few is not nll.rows:
        sampled = LinearNLL(few, nll.strength)
        theta = minimised(sampled, theta, solve, 1e-3, max_iterations).theta
        passes = sampled.passes * len(few.labels) / len(nll.rows.labels)
    minimum = minimised(nll, theta, solve, least, max_iterations)
    if search is not None and nll.rows.lost is None:
        search.theta, search.solve = minimum.theta, nll.solver(minimum.theta)
    return minimum, passes + nll.passes


def _sampled(rows: Rows) -> int:
    """Return how many log-probabilities are a sample: an eighth of all."""
    return max(LEAST_ELEMENTS, min(SAMPLE_ELEMENTS, rows.x.numel() // 8))


def smoothed_log_probs(logits: Tensor, temperature: float, smoothing: float) -> Tensor:
    """Return log((1 − ε) softmax(z/T) + ε/C), which is finite for every class; ε is `smoothing`."""
    top = (logits - logits.amax(dim=-1, keepdim=True)).clamp(min=torch.finfo(logits.dtype).min / 2)
    probs = torch.softmax(top / temperature, dim=-1)
    return probs.mul_(1 - smoothing).add_(smoothing / logits.shape[-1]).log_()


def log_probs(logits: Tensor) -> Tensor:
    """Return log softmax(z), 0 for impossible classes."""
    return torch.log_softmax(logits, dim=-1).masked_fill_(torch.isneginf(logits), 0.0)


def has_converged(minimum: Optimum, tolerance: float, rows: Rows) -> bool:
    """Return whether the search came to its end, up to a factor of 10."""
    return minimum.length <= 10 * max(tolerance, _least(rows))


def _least(rows: Rows) -> float:
    """Return the smallest tolerance that the precision of the rows allows."""
    return 0.0 if rows.x.dtype == torch.float64 else 1e-4


def unseen_classes(scaled: ScaledLogits) -> Tensor:
    """Return which classes (C,) no row is labelled as."""
    return torch.bincount(scaled.labels, minlength=scaled.num_classes) == 0


def warn_unseen(name: str, scaled: ScaledLogits) -> None:
    """Warn about classes without a row, about which nothing was learned; not about those that are never possible.

    Args:
        name: of the calibrator.
        scaled: what it was fitted on.
    """
    unseen = unseen_classes(scaled)
    if bool(unseen.any()):
        unseen &= ~torch.isneginf(scaled.logits).flatten(0, 1).all(0)
    classes = unseen.nonzero().flatten().tolist()
    if not classes:
        return
    listed = " or ".join(str(number) for number in classes[:8]) + (", …" if len(classes) > 8 else "")
    warn(
        f"{name}: no row is labelled class {listed}, so plain temperature scaling is kept there; fit on rows of "
        "every class"
    )


def warn_unfinished(name: str, length: float, max_iterations: int) -> None:
    """Warn that the search stopped early."""
    warn(
        f"{name} stopped with a derivative of {length:.1e} after at most {max_iterations} iterations; raise "
        "max_iterations or tolerance"
    )
