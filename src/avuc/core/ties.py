"""Equal probabilities that rounding has made different. Without torch or NumPy: it takes tensors and arrays."""

from __future__ import annotations

from typing import Any

# 2^18 + 1 and 2^36 + 1: a float64 of 53 bits keeps 35 of them, or 17 (Veltkamp's splitting)
FINE, COARSE = 262145.0, 68719476737.0
# smaller probabilities are 0: near 1e-308, where float64 loses its digits, libraries round in different ways
SMALLEST = 1e-280
# a probability of 0 was set to 1e-12 before its logarithm was taken; up to this it counts as such a one
FLOOR = 2e-12


def without_floor(probs: Any) -> Any:
    """Return rows divided by the sum of their probabilities above the floor: 3 of 10 votes are 0.3 in every row again.

    Logits of probabilities with zeros have the floor, 1e-12, in place of the zeros, so their softmax divides the other
    probabilities by 1 + 1e-12 for each zero.

    Args:
        probs: tensor or array (..., C) in float64, a softmax.
    """
    return probs / (probs * (probs > FLOOR)).sum(-1)[..., None]


def without_last_bits(probs: Any, *, coarse: bool = False) -> Any:
    """Return float64 numbers rounded to a share of 3e-11: equal probabilities of a softmax are equal again.

    The sum of a softmax has another rounding error in torch, in NumPy, on a GPU and for another order of classes.
    Numbers below 1e-280 become 0.

    Args:
        probs: tensor or array in float64, from 0 to 1.
        coarse: whether the logits were float32 or half, whose rounding is a share of up to 1e-6 of p or 1 − p: the
            smaller of these is then rounded to a share of 8e-6.

    >>> without_last_bits(0.1 + 0.2) == without_last_bits(0.3)
    True
    >>> without_last_bits(0.9, coarse=True) == without_last_bits(0.90000004, coarse=True)
    True
    """
    fine = _rounded(probs * (probs >= SMALLEST), FINE)
    if not coarse:
        return fine
    high = fine > 0.5
    smaller = _rounded(fine + (1 - 2 * fine) * high, COARSE)
    return smaller + (1 - 2 * smaller) * high


def without_float32_rounding(numbers: Any) -> Any:
    """Return float64 numbers rounded to a share of 8e-6, more than two computations in float32 and float64 differ by.

    >>> without_float32_rounding(0.1) == without_float32_rounding(0.10000001)
    True
    """
    return _rounded(numbers, COARSE)


def _rounded(numbers: Any, factor: float) -> Any:
    wide = numbers * factor
    return wide - (wide - numbers)
