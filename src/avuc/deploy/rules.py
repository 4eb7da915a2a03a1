"""NumPy functions of logits for the calibrators that are more than a scale and a bias, from their learned numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.ties import without_floor, without_last_bits

Array = np.ndarray[Any, np.dtype[Any]]
Rule = Callable[[Array], Array]


def number(key: str, value: Any) -> float:
    """Return a finite number of the file, or raise InputError."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that no float can hold
        pass
    raise InputError(f"{key} must be a finite number; found {str(value)[:40]}")


def vector(key: str, value: Any, length: int, what: str = ", one for each class") -> Array:
    """Return a list of finite numbers of this length, or raise InputError."""
    if not isinstance(value, list) or len(value) != length:
        raise InputError(f"{key} must be a list of {length} numbers{what}")
    if set(map(type, value)) == {float} and np.isfinite(fast := np.array(value)).all():
        return fast
    return np.array([number(key, entry) for entry in value])


def log_softmax(z: Array, temperature: float = 1.0) -> Array:
    """Return log softmax(z/T) in float64; −inf for impossible classes only."""
    most, impossible = np.finfo(np.float64).max, np.isneginf(z)
    wide = z.astype(np.float64)
    top = np.clip(np.clip(wide - wide.max(axis=-1, keepdims=True), -most, 0) / temperature, -most, 0)
    total = np.where(impossible, 0, np.exp(top)).sum(axis=-1, keepdims=True)
    return np.where(impossible, -np.inf, top - np.log(total))


def mixture(temperature: float, weights: Array) -> Rule:
    """Return log(w₁ softmax(z/T) + w₂ softmax(z) + w₃/C) as a function of z."""

    def rule(z: Array) -> Array:
        with np.errstate(divide="ignore"):
            tempered, plain, uniform = np.log(weights / [1, 1, z.shape[-1]])
        both = np.logaddexp(log_softmax(z, temperature) + tempered, log_softmax(z) + plain)
        return np.asarray(np.logaddexp(both, uniform))

    return rule


def _smoothed(learned: dict[str, Any], classes: int) -> Rule:
    share = number("smoothing", learned.get("smoothing"))
    if not 0 <= share < 1:
        raise InputError(f"smoothing must be at least 0 and below 1; found {share}")
    return mixture(learned["temperature"], np.array([1 - share, 0.0, share]))


def _ensemble(learned: dict[str, Any], classes: int) -> Rule:
    weights = vector("weights", learned.get("weights"), 3, "")
    if weights.min() < 0 or abs(weights.sum() - 1) > 1e-6:
        raise InputError("weights must be at least 0 and have the sum 1")
    return mixture(learned["temperature"], weights)


def _each_class(learned: dict[str, Any], classes: int, *, linear: bool, coarse: bool = True) -> Rule:
    lengths = vector("lengths", learned.get("lengths"), classes)
    if (lengths < 1).any() or (lengths != np.floor(lengths)).any():
        raise InputError("lengths must be whole numbers above 0")
    ends = np.cumsum(lengths).astype(np.int64)
    breakpoints, values = (
        np.split(vector(key, learned.get(key), int(ends[-1]), ", as many as lengths says"), ends[:-1])
        for key in ("places", "values")
    )
    if any(v.min() < 0 or v.max() > 1 or (np.diff(p) < 0).any() for p, v in zip(breakpoints, values, strict=True)):
        raise InputError("places must rise in each class, and values be from 0 to 1")

    def rule(z: Array) -> Array:
        probs = without_floor(np.exp(log_softmax(z)))
        probs = without_last_bits(probs, coarse=coarse and z.dtype != np.float64)
        mapped = np.empty_like(probs)
        for k, (x, y) in enumerate(zip(breakpoints, values, strict=True)):
            column = probs[..., k]
            mapped[..., k] = np.interp(column, x, y) if linear else y[np.maximum(np.searchsorted(x, column) - 1, 0)]
        total = mapped.sum(axis=-1, keepdims=True)
        shares = np.where(total > 0, mapped / np.where(total > 0, total, 1), 1 / classes)
        return np.asarray(np.log(np.maximum(shares, 1e-12)))

    return rule


def _structured(learned: dict[str, Any], classes: int) -> Rule:
    weights, bias = _linear(learned, classes), vector("bias", learned.get("bias"), classes)
    # matrices of the first version have no smoothing; their log-probabilities have a lower limit instead
    first, lowest = weights.ndim == 2 and not learned.get("smoothing"), -87.33654475
    temperature, share = learned["temperature"], 0.0 if first else number("smoothing", learned.get("smoothing"))
    if not (first or 0 < share < 1):
        raise InputError(f"smoothing must be above 0 and below 1; found {share}")

    def rule(z: Array) -> Array:
        x = log_softmax(z, temperature)
        x = np.maximum(x, lowest) if first else np.log(np.exp(x) * (1 - share) + share / classes)
        return np.asarray((x * weights if weights.ndim == 1 else x @ weights.T) + bias)

    return rule


def _dirichlet(learned: dict[str, Any], classes: int) -> Rule:
    weights, bias = _linear(learned, classes), vector("bias", learned.get("bias"), classes)

    def rule(z: Array) -> Array:
        return np.asarray(np.maximum(log_softmax(z), math.log(1e-12)) @ weights.T + bias)

    return rule


def _linear(learned: dict[str, Any], classes: int) -> Array:
    """Return the matrix (C, C), or the scales (C,) of a calibrator that has no matrix."""
    if "matrix" not in learned:
        return vector("scale", learned.get("scale"), classes)
    matrix = vector("matrix", learned["matrix"], classes * classes, ", one for each pair of classes")
    return matrix.reshape(classes, classes)


RULES: dict[str, Callable[[dict[str, Any], int], Rule]] = {
    "smoothed": _smoothed,
    "ets": _ensemble,
    "isotonic": partial(_each_class, linear=True),
    "histogram": partial(_each_class, linear=False),
    "matrix": _structured,
    "structured-vector": _structured,
    "dirichlet": _dirichlet,
    "venn-abers": partial(_each_class, linear=False, coarse=False),
}
