"""Venn–Abers calibration: isotonic regression with the row itself, once with each label."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array
from avuc.calibration.inputs import are_numbers
from avuc.calibration.one_vs_rest import OneVsRest, hits_and_weights
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

# more probabilities than this are rounded, unless `spacing` says otherwise
EXACT_ELEMENTS = 1 << 18
SPACING = 1 / 32
# probabilities of the fit are equal if they differ by less than this share of p or 1 − p, the rounding of a softmax of
# float64 logits and of shorter ones
TIE, SHORT_TIE = 1e-10, 4e-6
# a group of equal probabilities is at most this many of these shares wide
MOST_TIES = 4
TINY = 1e-300


class VennAbersCalibration(OneVsRest):
    """Venn–Abers calibration, one class against the rest (Vovk et al. 2015, https://arxiv.org/abs/1511.00213).

        p_k = g_k(q_k) / Σ_j g_j(q_j),    q = softmax(z)
        g_k(q) = p₁ / (1 − p₀ + p₁)

    p₁ is the value at q of the isotonic regression of the rows of the fit and (q, 1), and p₀ that with (q, 0). Unlike
    plain isotonic regression it never gives a probability of 0. For two classes, one of p₀ and p₁ is calibrated for
    any distribution of the data (the inductive form of the method). The results are those of the library venn-abers
    with `va_type="one_vs_all"`. Posterior samples and scaled logits are treated as by `IsotonicCalibration`.

    Args:
        spacing: log-odds of q are rounded to multiples of it first, which limits time and size; 0: no rounding.
            Default None: 0 up to 262,144 probabilities, 1/32 for more.

    Learned attributes:
        lengths_, places_, values_: the number of steps of each g, where they begin and their values.
        loss_: NLL of the rows of the fit.
        temperature_: 1, because there is none.

    >>> logits, labels = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), np.array([0, 1, 0, 1])
    >>> VennAbersCalibration().fit(logits, labels).predict_proba(logits)[:, 1].round(4)
    array([0.3333, 0.5   , 0.5   , 0.6667])
    """

    name: ClassVar[str] = "venn-abers"
    linear: ClassVar[bool] = False
    coarse: ClassVar[bool] = False

    def __init__(self, *, spacing: float | None = None) -> None:
        self.spacing = spacing

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        many = (logits.numel() if isinstance(logits, torch.Tensor) else np.size(logits)) > EXACT_ELEMENTS
        self._width = (SPACING if many else 0.0) if self.spacing is None else float(self.spacing)
        super()._fit(logits, labels, sample_weight)
        del self._width, self._tie

    def _columns(self, logits: Tensor) -> Array:
        self._tie = TIE if logits.dtype == torch.float64 else SHORT_TIE
        return super()._columns(logits)

    def _function(self, probs: Array, labelled: Array, weight: Array | None) -> tuple[Array, Array]:
        hit, weight = hits_and_weights(probs, labelled, weight)
        low, high, cell = _rounded(probs, self._width) if self._width else _tied(probs, self._tie)
        mass, hits = (np.bincount(cell, each, len(low)) for each in (weight, weight * hit))
        lower, upper = venn_abers_bounds(mass, hits)
        breakpoints, values = np.empty(2 * len(low) + 1), np.empty(2 * len(low) + 1)
        breakpoints[0], breakpoints[1::2], breakpoints[2::2] = -1.0, low, high
        # even entries: between two probabilities of the fit; odd entries: at one of them
        values[0::2] = upper / (1 - lower + upper)
        values[1::2] = upper[:-1] / (1 - lower[1:] + upper[:-1])
        new = np.append(True, values[1:] != values[:-1])
        return breakpoints[new], values[new]

    def _check_params(self) -> None:
        right = self.spacing is None or (are_numbers(self.spacing) and 0 <= self.spacing <= 1)
        if not right:
            raise InputError(f"spacing must be None or a number from 0 to 1; found {self.spacing!r}")


def _tied(probs: Array, tie: float) -> tuple[Array, Array, Array]:
    """Return lower and upper ends of the distinct probabilities, and the number of each row's.

    The ends leave room for the rounding of float32 logits, so that a row has the same result in every precision.
    """
    order = np.argsort(probs)
    ordered = probs[order]
    width = _width(ordered, tie)
    new = np.append(True, np.diff(ordered) > width[1:])
    # a long chain of close probabilities is cut into groups that are at most MOST_TIES widths wide
    first = ordered[np.maximum.accumulate(np.where(new, np.arange(len(ordered)), 0))]
    part = np.floor((ordered - first) / (MOST_TIES * width + TINY))
    new |= np.append(True, np.diff(part) != 0)
    starts = np.flatnonzero(new)
    cell = np.empty(len(probs), dtype=np.int64)
    cell[order] = np.cumsum(new) - 1
    low, high = ordered[starts], ordered[np.append(starts[1:], len(probs)) - 1]
    room = (low[1:] - high[:-1]) / 3
    below = np.minimum(_width(low, SHORT_TIE), np.append(np.inf, room))
    above = np.minimum(_width(high, SHORT_TIE), np.append(room, np.inf))
    return low - below - TINY, high + above, cell


def _width(probs: Array, tie: float) -> Array:
    """Return by how much equal probabilities differ; near 1, the rounding of float64 exceeds the share of 1 − p."""
    width: Array = np.maximum(tie * np.minimum(probs, 1 - probs), TIE * probs)
    return width


def _rounded(probs: Array, spacing: float) -> tuple[Array, Array, Array]:
    """Return the same with log-odds rounded to multiples of `spacing`."""
    clipped = np.clip(probs, NLL_FLOOR, 1 - NLL_FLOOR)
    number = np.rint(np.log(clipped / (1 - clipped)) / spacing).astype(np.int64)
    lowest = number.min()
    used = np.bincount(number - lowest) > 0
    cell = (np.cumsum(used) - 1)[number - lowest]
    at = np.flatnonzero(used) + lowest
    low, high = (1 / (1 + np.exp(-(at + side) * spacing)) for side in (-0.5, 0.5))
    # probabilities beyond the floor are in the cell of the floor
    return np.where(low <= NLL_FLOOR, -0.5, low), np.where(high >= 1 - NLL_FLOOR, 2.0, high), cell


def venn_abers_bounds(mass: Array, hits: Array) -> tuple[Array, Array]:
    """Return p₀ and p₁ of a new row of weight 1 after the first i of M rising probabilities, (M + 1,) each.

    Args:
        mass: (M,) weight of the rows at each probability, above 0.
        hits: (M,) weight of those with label 1.

    >>> venn_abers_bounds(np.array([1.0, 1.0]), np.array([0.0, 1.0]))
    (array([0. , 0. , 0.5]), array([0.5, 1. , 1. ]))
    """
    upper = _upper(mass, hits)
    # the mirror image: probabilities in falling order, the other label
    lower = 1 - _upper(mass[::-1], (mass - hits)[::-1])[::-1]
    return lower, upper


def _upper(mass: Array, hits: Array) -> Array:
    """Return p₁: the slopes of the common tangents from below of two convex hulls.

    With the sums Q_i = (W_i, H_i) of the first i entries, p₁ = max_{a ≤ i} min_{b ≥ i} slope from Q_a to Q_b + (1, 1).
    The slope rises with i, and so do a and b: all tangents together take time in M.
    """
    w, h = ([0.0, *np.cumsum(each).tolist()] for each in (mass, hits))
    count = len(w) - 1
    after = _hull_from_the_right(w, h)
    hull: list[int] = []  # corners of the hull of Q_0 … Q_i
    result, corner, b = np.empty(count + 1), 0, 0
    for i in range(count + 1):
        x, y = w[i], h[i]
        while len(hull) > 1:
            last, before = hull[-1], hull[-2]
            if (h[last] - h[before]) * (x - w[last]) < (y - h[last]) * (w[last] - w[before]):
                break
            hull.pop()
        hull.append(i)
        corner, b = min(corner, len(hull) - 1), max(b, i)
        while True:
            a = hull[corner]
            rise, run = h[b] - h[a] + 1, w[b] - w[a] + 1
            while b < count:
                further = after[b]
                new_rise, new_run = h[further] - h[a] + 1, w[further] - w[a] + 1
                if new_rise * run > rise * new_run:
                    break
                b, rise, run = further, new_rise, new_run
            if corner + 1 == len(hull):
                break
            right = hull[corner + 1]
            if (h[right] - h[a]) * run > rise * (w[right] - w[a]):
                break
            corner += 1
        result[i] = rise / run
    return result


def _hull_from_the_right(w: list[float], h: list[float]) -> list[int]:
    """Return for each i the next corner of the hull of Q_i … Q_M."""
    after, stack = [len(w) - 1] * len(w), [len(w) - 1]
    for i in range(len(w) - 2, -1, -1):
        while len(stack) > 1:
            near, far = stack[-1], stack[-2]
            if (h[near] - h[i]) * (w[far] - w[near]) < (h[far] - h[near]) * (w[near] - w[i]):
                break
            stack.pop()
        after[i] = stack[-1]
        stack.append(i)
    return after
