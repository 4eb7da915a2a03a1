"""The numbers inside the page, as JSON that no name in it can break out of."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.report.colours import colour_of, symbol_of
from avuc.report.metric_text import words_of
from avuc.report.study.results import CLEAN, Results, finite_mean

__all__ = ["method_styles", "payload", "safe_json", "top_entropy"]

Array = NDArray[np.float64]
MOST_PICTURES = 1_000_000  # characters of them, before the surest mistakes of each method are cut to fewer
MOST_SETS = 4  # whose single images can be explored: the clean ones and the worst shifts
TRAINING = (
    *("nll", "validation_nll", "accuracy", "validation_accuracy", "avuc", "avu", "kl", "total"),
    *("uncertainty_right", "uncertainty_wrong"),
)


def payload(results: Results) -> dict[str, Any]:
    """Everything the page draws from."""
    return {
        "methods": [
            {
                "name": method.name,
                "symbol": symbol_of(method.place),
                "study": method.study,
                "seeds": len(method.seeds),
                "beta": method.beta,
            }
            for method in results.methods
        ],
        "cells": [list(cell) for cell in results.cells],
        "shifts": results.shifts,
        "severities": results.severities,
        "outside": results.outside,
        "metrics": [{"key": name, **words_of(name)._asdict()} for name in results.metrics],
        "values": {name: _short(results.values[name]) for name in results.metrics},
        "curves": _curves(results),
        "top": top_entropy(results),
        "tempered": _tempered(results),
        **_explorer(results),
        "gallery": [
            {"shift": shift, "severity": severity, "png": base64.b64encode(results.gallery[shift, severity]).decode()}
            for shift, severity in results.cells
            if (shift, severity) in results.gallery
        ],
        "training": [_training(method.history) for method in results.methods],
    }


def safe_json(content: Any) -> str:
    r"""JSON for inside a <script>: ASCII, no NaN, and nothing that HTML could take for a tag.

    >>> safe_json({"a": "</script>\u2028"})
    '{"a":"\\u003c/script\\u003e\\u2028"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(values: Array) -> Any:
    """Nested lists; four digits are enough to draw and to read."""
    if values.ndim > 1:
        return [_short(each) for each in values]
    return [_digits(value) for value in values.tolist()]


def _digits(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _curves(results: Results) -> list[list[Any]]:
    """[method][cell]: histograms as counts of right and wrong (or of all, outside), diagrams as count, sum, sum."""
    out: list[list[Any]] = [[None] * len(results.cells) for _ in results.methods]
    for (method, cell), curves in results.curves.items():
        told: dict[str, Any] = {}
        for name, short in (("entropy", "e"), ("confidence", "c")):
            curve = curves.get(name, {})
            groups = [curve[key] for key in ("right", "wrong", "outside") if key in curve]
            told[short] = [[int(count) for count in group] for group in groups]
        for name, short in (("reliability", "r"), ("uncertainty", "u")):
            if name in curves:
                curve = curves[name]
                told[short] = [
                    [int(count) for count in curve["rows"]],
                    *([_digits(float(value)) for value in curve[key]] for key in ("stated", "observed")),
                ]
        out[method][cell] = told
    return out


def top_entropy(results: Results) -> float:
    """The largest entropy there can be: log C."""
    return max((curves["entropy"]["high"] for curves in results.curves.values() if "entropy" in curves), default=1.0)


def _tempered(results: Results) -> list[dict[str, Any]]:
    """Reliability by temperature: on clean images, and pooled over the shifts at their strongest."""
    groups = {"clean images": [CLEAN]}
    if results.severities:
        groups["strongest shifts"] = [(shift, results.severities[-1]) for shift in results.shifts]
    out = []
    for method in range(len(results.methods)):
        for label, cells in groups.items():
            places = [results.places[cell] for cell in cells if cell in results.places]
            found = [results.shown[method, place]["tempered"] for place in places if (method, place) in results.shown]
            if found:
                out.append({"method": method, "set": label, **_pooled(found)})
    return out


def _pooled(found: list[dict[str, Any]]) -> dict[str, Any]:
    counts = np.array([each["count"] for each in found], float)  # set, temperature, bin
    total = counts.sum(0)
    means = {
        key: np.divide(
            (counts * np.array([each[key] for each in found])).sum(0), total, out=np.zeros_like(total), where=total > 0
        )
        for key in ("stated", "observed")
    }
    return {
        "temperature": found[0]["temperature"],
        "count": total.astype(int).tolist(),
        **{key: [[round(value, 3) for value in line] for line in mean.tolist()] for key, mean in means.items()},
        "nll": [_digits(value) for value in np.mean([each["nll"] for each in found], axis=0).tolist()],
    }


def _explorer(results: Results) -> dict[str, Any]:
    """Single images of a few sets; a picture that several methods got wrong is there once."""
    cells = [CLEAN]
    if results.severities:
        top = results.severities[-1]
        harm = _harm_by_shift(results, top)
        cells += [(results.shifts[place], top) for place in np.argsort(-harm, kind="stable")[: MOST_SETS - 1]]
    places = [results.places[cell] for cell in cells if cell in results.places]
    keys = [(method, place) for place in places for method in range(len(results.methods))]
    found = {key: results.shown[key] for key in keys if key in results.shown}
    size = sum(len(one["png"]) for each in found.values() for one in each["mistakes"])
    share = min(1.0, MOST_PICTURES / max(size, 1))
    pictures: dict[str, int] = {}
    shown = []
    for (method, place), each in found.items():
        few = each["mistakes"][: math.ceil(share * len(each["mistakes"]))]
        mistakes = [
            {**{key: value for key, value in one.items() if key != "png"}, "picture": number}
            for one in few
            for number in [pictures.setdefault(one["png"], len(pictures))]
        ]
        kept = {key: each[key] for key in ("samples", "rows", "top")}
        shown.append({"method": method, "cell": place, **kept, "mistakes": mistakes})
    return {"shown": shown, "pictures": list(pictures)}


def _harm_by_shift(results: Results, severity: int) -> Array:
    """How far confidence is off under each shift, over all methods."""
    known: Array = np.nan_to_num(finite_mean(results.shifted("ece", severity, common=False), axis=(0, 1)))
    return known


def _training(history: tuple[tuple[dict[str, Any], ...], ...]) -> dict[str, Any]:
    """The mean over seeds, epoch by epoch."""
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
    """CSS variables --m0, --m1, …: the colour of each row, on light and on dark pages."""
    pairs = [colour_of(method.place) for method in results.methods]
    bright, dark = ("".join(f"--m{n}:{pair[side]};" for n, pair in enumerate(pairs)) for side in (0, 1))
    return f":root{{{bright}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
