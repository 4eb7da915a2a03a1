"""What a study's file keeps besides figures, read with checks: histograms, diagrams and single images."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.report.study.result_arrays import PNG, MethodFacts, SetKey

if TYPE_CHECKING:
    from avuc.study.store.store import Store

# every metric is a share or a few nats; avuc computes no larger value
LARGEST = 1e12
HISTOGRAMS, DIAGRAMS = ("entropy", "confidence"), ("reliability", "uncertainty")
MOST_BINS = 100_000
EXAMPLES: dict[str, type[Any]] = {"samples": str, "rows": int, "top": float, "mistakes": list, "tempered": dict}
MISTAKE: dict[str, type[Any]] = {"entropy": float, "confidence": float, "said": str, "is": str}
CHANGED = "the file was changed by another program: run the study again in another folder"


@contextmanager
def as_written(store: Store, what: str) -> Iterator[None]:
    """Turn errors from content that avuc did not write into one `InputError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{store.path}: {what:.200} cannot be read ({type(error).__name__}: {error!s:.80}); {CHANGED}"
        ) from error


def pooled_curves(
    store: Store, method_index: dict[str, int], set_index: dict[SetKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return histograms and reliability diagrams summed over seeds, by method and test set."""
    pooled: dict[tuple[int, int], dict[str, Any]] = {}
    for method, shift, severity, name, text in store.select("SELECT method, shift, severity, name, data FROM curves"):
        if name not in (*HISTOGRAMS, *DIAGRAMS) or method not in method_index or (shift, severity) not in set_index:
            continue
        with as_written(store, f"the curve {name!r} of {method!r} on {shift!r} {severity}"):
            curve = json.loads(text)
            sums = pooled.setdefault((method_index[method], set_index[shift, severity]), {})
            if name in HISTOGRAMS:
                groups = {key: _counts(curve[key]) for key in ("right", "wrong", "outside") if key in curve}
                before = sums.get(name, {"high": _positive(curve["high"])})
                sums[name] = before | {key: counts + before.get(key, 0) for key, counts in groups.items()}
            else:
                rows, stated, observed = (
                    _counts([value or 0.0 for value in curve[key]]) for key in ("rows", "stated", "observed")
                )
                before = sums.get(name, {"rows": 0.0, "stated": 0.0, "observed": 0.0})
                sums[name] = {
                    "rows": before["rows"] + rows,
                    "stated": before["stated"] + rows * stated,  # sums; divided by the counts where they are drawn
                    "observed": before["observed"] + rows * observed,
                }
    return pooled


def _counts(values: Any) -> NDArray[Any]:
    counts = np.array(values)
    is_list = counts.ndim == 1 and 0 < len(counts) <= MOST_BINS and counts.dtype.kind in "if"
    if not is_list or not (np.isfinite(counts) & (counts >= 0) & (counts <= LARGEST)).all():
        raise ValueError("expected a list of numbers from 0 up")
    return counts


def _positive(value: Any) -> float:
    if not isinstance(value, float | int) or not 0 < value <= LARGEST:
        raise ValueError("expected a number above 0")
    return float(value)


def examples_of(
    store: Store, methods: Sequence[MethodFacts], set_index: dict[SetKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return single images by method and test set, of the smallest seed that has any."""
    known = {method.name: (index, method.seeds) for index, method in enumerate(methods)}
    examples: dict[tuple[int, int], dict[str, Any]] = {}
    seed_used: dict[tuple[int, int], int] = {}
    query = "SELECT method, seed, shift, severity, data FROM shown"
    for method, seed, shift, severity, text in store.select(query):
        if method not in known or seed not in known[method][1] or (shift, severity) not in set_index:
            continue
        key = known[method][0], set_index[shift, severity]
        if key in seed_used and seed_used[key] <= seed:
            continue
        with as_written(store, f"the single images of {method!r} on {shift!r} {severity}"):
            examples[key] = _checked_examples(json.loads(text))
            seed_used[key] = seed
    return examples


def _checked_examples(data: dict[str, Any]) -> dict[str, Any]:
    for content, kinds in [(data, EXAMPLES), *((mistake, MISTAKE) for mistake in data["mistakes"])]:
        for name, kind in kinds.items():
            if not isinstance(content[name], (float, int) if kind is float else kind):
                raise ValueError(f"{name} is of the wrong kind")
    for mistake in data["mistakes"]:
        if not isinstance(mistake.get("png", mistake.get("text")), str):
            raise ValueError("a mistake has neither a picture nor a text")
    tempered = data["tempered"]
    shapes = Counter(np.array(tempered[name], float).shape for name in ("count", "stated", "observed"))
    temperatures = np.array([tempered["temperature"], tempered["nll"]], float)
    numbers = [data["top"], *(mistake[name] for mistake in data["mistakes"] for name in ("entropy", "confidence"))]
    if len(shapes) != 1 or next(iter(shapes))[0] != temperatures.shape[1] or not all(map(math.isfinite, numbers)):
        raise ValueError("its diagrams do not fit each other")
    return data


def can_be_shown(example: bytes) -> bool:
    """Whether an example of a set is a picture or a sentence."""
    try:
        return example.startswith(PNG) or bool(example.decode("utf-8"))
    except UnicodeDecodeError:
        return False
