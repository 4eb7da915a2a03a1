"""A study's file becomes `Results`. Every value is checked: whoever wrote the file, it gives a page or one line."""

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
from avuc.report.study.results import CLEAN, METRICS, Array, CellKey, MethodFacts, Results
from avuc.study.portable import without_folder

if TYPE_CHECKING:
    from avuc.study.store import Store
    from avuc.study.stored_recipe import StoredMethod, StoredRecipe

__all__ = ["read"]

# every metric is a share, or a few nats; what is larger was not computed by avuc
LARGEST = 1e12
HISTOGRAMS, DIAGRAMS = ("entropy", "confidence"), ("reliability", "uncertainty")
MOST_BINS = 100_000
SHOWN = {"samples": str, "rows": int, "top": float, "mistakes": list, "tempered": dict}
MISTAKE = {"entropy": float, "confidence": float, "said": str, "is": str, "png": str}
PNG = b"\x89PNG"
CHANGED = "the file was changed by another program: run the study again in another folder"


def read(store: Store) -> Results:
    """Everything the report needs, in a few queries."""
    recipe = store.stored_recipe()
    rows = [_checked(store, row) for row in store.rows()]
    if store.lost and not rows:
        raise InputError(f"{store.damage()}; avuc study computes them again")
    if not any(row[2] != "validation" for row in rows):
        raise InputError(f"{store.path}: no results yet; run avuc study again, it goes on where it stopped")
    present = {row[0] for row in rows if row[2] != "validation"}
    order = [row for row in recipe.methods if row.name in present]
    if not order:
        raise InputError(f"{store.path}: has no results of a method that its recipe names; run avuc study again")
    cells = _in_order({(row[2], row[3]) for row in rows if row[2] != "validation"}, recipe.study.shifts)
    facts = [_facts(store, row, place, rows) for place, row in enumerate(order)]
    places = {method.name: place for place, method in enumerate(facts)}
    where = {cell: place for place, cell in enumerate(cells)}
    axis = sorted({seed for method in facts for seed in method.seeds})
    seats = {seed: seat for seat, seed in enumerate(axis)}
    values: dict[str, Array] = {}
    for name, seed, shift, severity, metric, value in rows:
        if metric in METRICS and shift != "validation" and name in places:
            if metric not in values:
                values[metric] = np.full((len(facts), len(axis), len(cells)), np.nan)
            values[metric][places[name], seats[seed], where[shift, severity]] = value
    if "nll" not in values:
        raise InputError(f"{store.path}: has no results on images with labels yet; run avuc study again")
    with _as_written(store, "the list of runs"):
        seconds = sum(_seconds(store, run) for run in store.runs())
    sizes = store.select("SELECT rows FROM cells WHERE shift='clean' LIMIT 1")
    rehearsal = recipe.data.evaluate_on_validation
    judged = " (a rehearsal: held-out training images instead of test images)" if rehearsal else ""
    data = without_folder(recipe.data.source)
    source = (
        f"{data}{judged}, {recipe.net.name}, up to {recipe.study.samples} draws for each prediction; "
        f"{len(store.done()):,} results (a method with a seed on a set of images), computed in {_time(seconds)}"
    )
    results = Results(
        recipe.study.name,
        source,
        (recipe.to_toml(),),
        facts,
        cells,
        values,
        _pooled_curves(store, places, where),
        _shown(store, facts, where),
        {key: data for key, data in store.gallery().items() if isinstance(data, bytes) and data.startswith(PNG)},
        missing=recipe.missing(store.done()),
        studies=(recipe.study.name,),
        rows=sizes[0][0] if sizes and isinstance(sizes[0][0], int) else 0,
        notes=tuple(_notes(store, recipe, {row[0] for row in rows})),
        damaged=tuple(str(unit) for unit in store.lost),
    )
    store.still_there()
    return results


def _checked(store: Store, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of results, if avuc can have written it."""
    kinds = (str, int, str, int, str)
    if not all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=False)):
        raise InputError(f"{store.path}: a row of results has a name or number of the wrong kind: {row[:5]!r:.200}")
    value = row[5]
    if not isinstance(value, float) or (not math.isnan(value) and not abs(value) <= LARGEST):
        raise InputError(
            f"{store.path}: {row[4]!r:.60} of {row[0]!r:.60} (seed {row[1]}) on {row[2]!r:.60} {row[3]} is "
            f"{value!r:.60}, which no metric can be; {CHANGED}"
        )
    return row


@contextmanager
def _as_written(store: Store, what: str) -> Iterator[None]:
    """One line where a text in the file is not what avuc writes there."""
    try:
        yield
    except (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{store.path}: {what:.200} cannot be read ({type(error).__name__}: {error!s:.80}); {CHANGED}"
        ) from error


def _notes(store: Store, recipe: StoredRecipe, found: set[str]) -> Iterator[str]:
    others = sorted(found - {row.name for row in recipe.methods})
    if others:
        shown = ", ".join(others[:8]) + (" and more" if len(others) > 8 else "")
        yield f"The file also has results of {shown}, which the recipe does not name; this page leaves them out."
    with _as_written(store, "the list of runs"):
        used = {row[0] for row in store.select("SELECT DISTINCT run FROM cells")}
        runs = [run for run in store.runs() if run["id"] in used]
        for what, values in (
            ("versions of torch", [str(run["versions"].get("torch", "")) for run in runs]),
            ("versions of avuc", [str(run["versions"].get("avuc", "")) for run in runs]),
            ("kinds of device", [str(run["device"]).partition(":")[0] for run in runs]),
        ):
            different = sorted(set(filter(None, values)))
            if len(different) > 1:
                yield (
                    f"Results were computed with different {what} ({', '.join(different)}): figures of one method "
                    "may differ in their last digits for that reason alone."
                )


def _seconds(store: Store, run: dict[str, Any]) -> float:
    found = run["seconds"] or 0.0
    if not isinstance(found, float | int) or not 0 <= found <= LARGEST:
        raise InputError(f"{store.path}: run {run['id']} took {found!r:.60} seconds; {CHANGED}")
    return float(found)


def _in_order(cells: set[CellKey], shifts: Sequence[str]) -> list[CellKey]:
    known = list(shifts)

    def key(cell: CellKey) -> tuple[int, int, str, int]:
        shift, severity = cell
        group = 0 if cell == CLEAN else 1 if severity else 2
        return group, known.index(shift) if shift in known else len(known), shift, severity

    return sorted(cells, key=key)


def _facts(store: Store, row: StoredMethod, place: int, rows: Sequence[tuple[Any, ...]]) -> MethodFacts:
    mine = [line for line in rows if line[0] == row.name]
    seeds = tuple(sorted({line[1] for line in mine if line[2] != "validation"}))
    judged = store.select(
        "SELECT c.rows, r.value FROM cells c JOIN rows r USING(method, seed, shift, severity) "
        "WHERE method=? AND shift='validation' AND metric='accuracy'",
        (row.name,),
    )
    with _as_written(store, f"what is stored of {row.name!r}"):
        errors = [round(int(count) * (1 - accuracy)) for count, accuracy in judged if count and accuracy is not None]
        draws = store.select("SELECT max(samples) FROM cells WHERE method=?", (row.name,))[0][0]
        fitted = [json.loads(text) for text in (store.calibrator(row.name, seed) for seed in seeds) if text]
        return MethodFacts(
            row.name,
            place,
            row.reuse_model,
            seeds=seeds,
            draws=int(draws or 1),
            beta=row.beta if row.objective == "avuc" else None,
            errors=min(errors, default=None),
            temperatures=tuple(line[5] for line in mine if line[2] == "validation" and line[4] == "temperature"),
            at_bound=any(content.get("learned", {}).get("at_bound") is True for content in fitted),
            history=tuple(_averaged(store.history(row.name, seed)) for seed in seeds),
        )


def _averaged(history: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """One record for each epoch: the mean over the members of an ensemble."""
    epochs: dict[int, list[dict[str, Any]]] = {}
    for record in history:
        epochs.setdefault(int(record["epoch"]), []).append(record)
    told = []
    for epoch, records in sorted(epochs.items()):
        means = {}
        for name in (name for name, value in records[0].items() if isinstance(value, float)):
            known = [record[name] for record in records if isinstance(record.get(name), float)]
            means[name] = sum(known) / len(known)
        told.append({"epoch": epoch, **means})
    return tuple(told)


def _pooled_curves(
    store: Store, places: dict[str, int], where: dict[CellKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Counts add up over seeds; the means of bins are weighted by their counts."""
    pooled: dict[tuple[int, int], dict[str, Any]] = {}
    for method, shift, severity, name, text in store.select("SELECT method, shift, severity, name, data FROM curves"):
        if name not in (*HISTOGRAMS, *DIAGRAMS) or method not in places or (shift, severity) not in where:
            continue
        with _as_written(store, f"the curve {name!r} of {method!r} on {shift!r} {severity}"):
            curve, into = json.loads(text), pooled.setdefault((places[method], where[shift, severity]), {})
            if name in HISTOGRAMS:
                groups = {key: _counts(curve[key]) for key in ("right", "wrong", "outside") if key in curve}
                old = into.get(name, {"high": _positive(curve["high"])})
                into[name] = old | {key: counts + old.get(key, 0) for key, counts in groups.items()}
            else:
                rows, stated, observed = (
                    _counts([value or 0.0 for value in curve[key]]) for key in ("rows", "stated", "observed")
                )
                old = into.get(name, {"rows": 0.0, "stated": 0.0, "observed": 0.0})
                into[name] = {
                    "rows": old["rows"] + rows,
                    "stated": old["stated"] + rows * stated,  # sums until divided where they are drawn
                    "observed": old["observed"] + rows * observed,
                }
    return pooled


def _counts(values: Any) -> NDArray[Any]:
    found = np.array(values)
    sound = found.ndim == 1 and 0 < len(found) <= MOST_BINS and found.dtype.kind in "if"
    if not sound or not (np.isfinite(found) & (found >= 0) & (found <= LARGEST)).all():
        raise ValueError("expected a list of numbers from 0 up")
    return found


def _positive(value: Any) -> float:
    if not isinstance(value, float | int) or not 0 < value <= LARGEST:
        raise ValueError("expected a number above 0")
    return float(value)


def _shown(
    store: Store, facts: Sequence[MethodFacts], where: dict[CellKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Single images, of the smallest seed of each method that has any."""
    first = {method.name: (place, method.seeds) for place, method in enumerate(facts)}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    taken: dict[tuple[int, int], int] = {}
    query = "SELECT method, seed, shift, severity, data FROM shown"
    for method, seed, shift, severity, text in store.select(query):
        if method not in first or seed not in first[method][1] or (shift, severity) not in where:
            continue
        key = first[method][0], where[shift, severity]
        if key in taken and taken[key] <= seed:
            continue
        with _as_written(store, f"the single images of {method!r} on {shift!r} {severity}"):
            found[key] = _single_images(json.loads(text))
            taken[key] = seed
    return found


def _single_images(data: dict[str, Any]) -> dict[str, Any]:
    for content, kinds in [(data, SHOWN), *((one, MISTAKE) for one in data["mistakes"])]:
        for name, kind in kinds.items():
            if not isinstance(content[name], (float, int) if kind is float else kind):
                raise ValueError(f"{name} is of the wrong kind")
    tempered = data["tempered"]
    shapes = Counter(np.array(tempered[name], float).shape for name in ("count", "stated", "observed"))
    temperatures = np.array([tempered["temperature"], tempered["nll"]], float)
    numbers = [data["top"], *(one[name] for one in data["mistakes"] for name in ("entropy", "confidence"))]
    if len(shapes) != 1 or next(iter(shapes))[0] != temperatures.shape[1] or not all(map(math.isfinite, numbers)):
        raise ValueError("its diagrams do not fit each other")
    return data


def _time(seconds: float) -> str:
    """
    >>> _time(75), _time(7300)
    ('75 s', '2 h 2 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
