"""The data inside the study page, as JSON that is safe in HTML whatever the names in it are."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.text import visible
from avuc.report.colours import colour_of, symbol_of
from avuc.report.metric_text import metric_text
from avuc.report.study.result_arrays import CLEAN, PNG, Results, finite_mean

Array = NDArray[np.float64]
MOST_PICTURES = 1_000_000  # base64 characters of all pictures; beyond that, fewer mistakes of each method are kept
MOST_SETS = 4  # test sets with single images: clean images and the worst shifts
TRAINING = (
    *("nll", "validation_nll", "accuracy", "validation_accuracy", "avuc", "avu", "kl", "total"),
    *("uncertainty_right", "uncertainty_wrong"),
)


def payload(results: Results) -> dict[str, Any]:
    """Return everything the page draws."""
    return {
        "methods": [
            {
                "name": method.name,
                "symbol": symbol_of(method.colour_index),
                "study": method.study,
                "seeds": len(method.seeds),
                "beta": method.beta,
            }
            for method in results.methods
        ],
        "cells": [list(key) for key in results.test_sets],
        "shifts": results.shifts,
        "severities": results.severities,
        "outside": results.outside,
        "shift_names": results.shift_names,
        "unit": results.unit,
        "units": results.units,
        "metrics": [{"key": name, **metric_text(name)._asdict()} for name in results.metrics],
        "values": {name: _short(results.values[name]) for name in results.metrics},
        "curves": _curves(results),
        "top": top_entropy(results),
        "tempered": _tempered(results),
        **_explorer(results),
        "gallery": [
            {"shift": shift, "severity": severity, **_sample(results.gallery[shift, severity])}
            for shift, severity in results.test_sets
            if (shift, severity) in results.gallery
        ],
        "training": [_training(method.history) for method in results.methods],
    }


def safe_json(content: Any) -> str:
    r"""Return JSON for a <script> element: ASCII, without NaN, and without characters that could form an HTML tag.

    >>> safe_json({"a": "</script>\u2028"})
    '{"a":"\\u003c/script\\u003e\\u2028"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(values: Array) -> Any:
    """Return nested lists with four significant digits."""
    if values.ndim > 1:
        return [_short(part) for part in values]
    return [_digits(value) for value in values.tolist()]


def _digits(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _curves(results: Results) -> list[list[Any]]:
    """Return [method][test set]: histograms as counts by group, diagrams as counts and two sums."""
    out: list[list[Any]] = [[None] * len(results.test_sets) for _ in results.methods]
    for (method, index), curves in results.curves.items():
        content: dict[str, Any] = {}
        for name, short in (("entropy", "e"), ("confidence", "c")):
            curve = curves.get(name, {})
            groups = [curve[key] for key in ("right", "wrong", "outside") if key in curve]
            content[short] = [[int(count) for count in group] for group in groups]
        for name, short in (("reliability", "r"), ("uncertainty", "u")):
            if name in curves:
                curve = curves[name]
                content[short] = [
                    [int(count) for count in curve["rows"]],
                    *([_digits(float(value)) for value in curve[key]] for key in ("stated", "observed")),
                ]
        out[method][index] = content
    return out


def top_entropy(results: Results) -> float:
    """Return the largest possible entropy, log C."""
    return max((curves["entropy"]["high"] for curves in results.curves.values() if "entropy" in curves), default=1.0)


def _tempered(results: Results) -> list[dict[str, Any]]:
    """Return reliability diagrams by temperature: on clean images, and over all shifts at the strongest intensity."""
    groups = {f"clean {results.units}": [CLEAN]}
    if results.severities:
        groups["strongest shifts"] = [(shift, results.severities[-1]) for shift in results.shifts]
    out = []
    for method in range(len(results.methods)):
        for label, test_sets in groups.items():
            keys = [(method, results.set_index[key]) for key in test_sets if key in results.set_index]
            diagrams = [results.examples[key]["tempered"] for key in keys if key in results.examples]
            if diagrams:
                out.append({"method": method, "set": label, **_pooled(diagrams)})
    return out


def _pooled(diagrams: list[dict[str, Any]]) -> dict[str, Any]:
    counts = np.array([each["count"] for each in diagrams], float)  # test set, temperature, bin
    total = counts.sum(0)
    means = {
        key: np.divide(
            (counts * np.array([each[key] for each in diagrams])).sum(0),
            total,
            out=np.zeros_like(total),
            where=total > 0,
        )
        for key in ("stated", "observed")
    }
    return {  # with four decimals, which the page shows of ECE and NLL
        "temperature": diagrams[0]["temperature"],
        "count": total.astype(int).tolist(),
        **{key: [[round(value, 4) for value in line] for line in mean.tolist()] for key, mean in means.items()},
        "nll": [
            round(value, 4) if math.isfinite(value) else None
            for value in np.mean([each["nll"] for each in diagrams], axis=0).tolist()
        ],
    }


def _explorer(results: Results) -> dict[str, Any]:
    """Return the single images of a few test sets; a picture that several methods got wrong is stored once."""
    test_sets = [CLEAN]
    if results.severities:
        top = results.severities[-1]
        order = np.argsort(-_ece_by_shift(results, top), kind="stable")
        test_sets += [(results.shifts[index], top) for index in order[: MOST_SETS - 1]]
    indices = [results.set_index[key] for key in test_sets if key in results.set_index]
    keys = [(method, index) for index in indices for method in range(len(results.methods))]
    examples = {key: results.examples[key] for key in keys if key in results.examples}
    size = sum(
        len(mistake.get("png", mistake.get("text", ""))) for each in examples.values() for mistake in each["mistakes"]
    )
    share = min(1.0, MOST_PICTURES / max(size, 1))
    pictures: dict[str, int] = {}
    content = []
    for (method, index), each in examples.items():
        mistakes = []
        for mistake in each["mistakes"][: math.ceil(share * len(each["mistakes"]))]:
            entry = {key: value for key, value in mistake.items() if key != "png"}
            if "png" in mistake:
                entry["picture"] = pictures.setdefault(mistake["png"], len(pictures))
            mistakes.append(entry)
        kept = {key: each[key] for key in ("samples", "rows", "top")}
        content.append({"method": method, "cell": index, **kept, "mistakes": mistakes})
    return {"shown": content, "pictures": list(pictures)}


def _sample(example: bytes) -> dict[str, str]:
    """Return one example of a set: a picture, or a sentence."""
    if example.startswith(PNG):
        return {"png": base64.b64encode(example).decode()}
    return {"text": visible(example.decode("utf-8", "replace"))}


def _ece_by_shift(results: Results, severity: int) -> Array:
    """Return the ECE of each shift, averaged over methods and seeds."""
    means: Array = np.nan_to_num(finite_mean(results.shifted("ece", severity, common=False), axis=(0, 1)))
    return means


def _training(history: tuple[tuple[dict[str, Any], ...], ...]) -> dict[str, Any]:
    """Return the training curves of a method: the mean over seeds of every quantity, for each epoch."""
    epochs = sorted({record["epoch"] for seed in history for record in seed})
    out: dict[str, Any] = {"epoch": epochs}
    for name in TRAINING:
        known: dict[int, list[float]] = {}
        for seed in history:
            for record in seed:
                if isinstance(record.get(name), float) and math.isfinite(record[name]):
                    known.setdefault(record["epoch"], []).append(record[name])
        if known and any(any(values) for values in known.values()):
            out[name] = [_digits(sum(known[e]) / len(known[e])) if e in known else None for e in epochs]
    return out


def method_styles(results: Results) -> str:
    """Return CSS variables --m0, --m1, …: the colour of each method, on light and on dark pages."""
    pairs = [colour_of(method.colour_index) for method in results.methods]
    bright, dark = ("".join(f"--m{n}:{pair[mode]};" for n, pair in enumerate(pairs)) for mode in (0, 1))
    return f":root{{{bright}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
