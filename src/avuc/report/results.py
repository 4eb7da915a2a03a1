"""What a report reads of a study: every value as one array, the curves pooled over seeds. Stores in, NumPy out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.errors import InputError
from avuc.report.words import DETECTION_WORDS, METRIC_WORDS

if TYPE_CHECKING:
    from avuc.study.store import Store

__all__ = ["CLEAN", "MethodFacts", "Results", "read_results", "side_by_side"]

Array = NDArray[np.float64]
CellKey = tuple[str, int]
CLEAN: CellKey = ("clean", 0)
METRICS = (*METRIC_WORDS, *DETECTION_WORDS)


@dataclass(frozen=True)
class MethodFacts:
    """One row of a study."""

    name: str
    place: int  # decides its colour
    of: str = ""  # the row whose model it shares
    study: int = 0  # which of the studies that are compared
    seeds: tuple[int, ...] = ()
    draws: int = 1
    beta: float | None = None  # weight of the AvUC term, where there is one
    errors: int | None = None  # mistakes on validation data, from which the threshold was learned; fewest of the seeds
    temperatures: tuple[float, ...] = ()
    at_bound: bool = False
    history: tuple[tuple[dict[str, Any], ...], ...] = ()  # for each seed, members averaged


@dataclass(frozen=True)
class Results:
    """values[metric] has the axes method, seed, cell; NaN where there is nothing."""

    title: str
    source: str
    recipes: tuple[str, ...]
    methods: list[MethodFacts]
    cells: list[CellKey]  # clean, shifts by severity, other data
    values: dict[str, Array]
    curves: dict[tuple[int, int], dict[str, Any]]  # (method, cell): counts pooled over seeds
    shown: dict[tuple[int, int], dict[str, Any]]  # (method, cell): single images, of the first seed
    gallery: dict[CellKey, bytes]
    missing: int = 0  # cells of the recipe that have no results yet
    studies: tuple[str, ...] = ()
    rows: int = 0  # clean test images
    damaged: tuple[str, ...] = ()  # results that are lost because the file is damaged
    places: dict[CellKey, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {cell: place for place, cell in enumerate(self.cells)})

    @property
    def names(self) -> list[str]:
        return [method.name for method in self.methods]

    @cached_property
    def shifts(self) -> list[str]:
        return list(dict.fromkeys(shift for shift, severity in self.cells if severity))

    @cached_property
    def severities(self) -> list[int]:
        return sorted({severity for _, severity in self.cells if severity})

    @cached_property
    def outside(self) -> list[str]:
        return [shift for shift, _ in self.cells if shift.startswith("ood:")]

    @cached_property
    def metrics(self) -> list[str]:
        return [name for name in METRICS if name in self.values]

    def at(self, metric: str, cell: CellKey) -> Array:
        """(method, seed)."""
        if metric not in self.values or cell not in self.places:
            return np.full((len(self.methods), self.seeds), np.nan)
        return self.values[metric][:, :, self.places[cell]]

    def shifted(self, metric: str, severity: int | None = None) -> Array:
        """(method, seed, shift), at one severity or averaged over all of them."""
        levels = self.severities if severity is None else [severity]
        stacked = [[self.at(metric, (shift, level)) for level in levels] for shift in self.shifts]
        if not stacked or not levels:
            return np.full((len(self.methods), self.seeds, 0), np.nan)
        return finite_mean(np.array(stacked), axis=1).transpose(1, 2, 0)

    @property
    def seeds(self) -> int:
        return max((len(method.seeds) for method in self.methods), default=0)

    def mean(self, metric: str, cell: CellKey) -> Array:
        """(method): seeds averaged."""
        return finite_mean(self.at(metric, cell), axis=1)


def finite_mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """The mean of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    count = there.sum(axis)
    total = np.where(there, values, 0.0).sum(axis)
    mean: Array = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    return mean


def read_results(store: Store) -> Results:
    """Everything the report needs, in a few queries."""
    from avuc.study.grid import Plan

    recipe = store.recipe()
    rows = store.rows()
    if not any(row[2] != "validation" for row in rows):
        raise InputError(f"{store.path}: no results yet; run avuc study again, it goes on where it stopped")
    present = {row[0] for row in rows}
    order = [row for row in recipe.methods if row.name in present]
    cells = _in_order({(row[2], row[3]) for row in rows if row[2] != "validation"}, recipe.study.shifts)
    facts = [_facts(store, row, place, rows) for place, row in enumerate(order)]
    places = {method.name: place for place, method in enumerate(facts)}
    where = {cell: place for place, cell in enumerate(cells)}
    width = max(len(method.seeds) for method in facts)
    values: dict[str, Array] = {}
    for name, seed, shift, severity, metric, value in rows:
        if metric in METRICS and shift != "validation" and name in places:
            if metric not in values:
                values[metric] = np.full((len(facts), width, len(cells)), np.nan)
            seat = facts[places[name]].seeds.index(seed)
            values[metric][places[name], seat, where[shift, severity]] = value
    runs = store.runs()
    seconds = sum(run["seconds"] or 0 for run in runs)
    sizes = store.select("SELECT rows FROM cells WHERE shift='clean' LIMIT 1")
    judged = " (a rehearsal: held-out training images instead of test images)" if recipe.data.rehearsal else ""
    source = (
        f"{recipe.data.source}{judged}, {recipe.net.name}, up to {recipe.study.samples} draws for each prediction; "
        f"{len(store.done()):,} results (a method with a seed on a set of images), computed in {_time(seconds)}"
    )
    return Results(
        recipe.study.name,
        source,
        (recipe.to_toml(),),
        facts,
        cells,
        values,
        _pooled_curves(store, places, where),
        _shown(store, facts, where),
        store.gallery(),
        missing=Plan(recipe).cells - len(store.done()),
        studies=(recipe.study.name,),
        rows=sizes[0][0] if sizes else 0,
        damaged=tuple(str(unit) for unit in store.lost),
    )


def side_by_side(first: Results, second: Results, names: tuple[str, str]) -> Results:
    """Two studies as one: rows of both, named after their study, on the images that both were judged on.

    A method has one colour in both.
    """
    places: dict[str, int] = {}
    methods: list[MethodFacts] = []
    for study, (results, label) in enumerate(zip((first, second), names, strict=True)):
        for one in results.methods:
            place = places.setdefault(one.name, len(places))
            of = f"{label}: {one.of}" if one.of else ""
            renamed = {"name": f"{label}: {one.name}", "of": of, "place": place, "study": study}
            methods.append(MethodFacts(**{**vars(one), **renamed}))
    cells = [cell for cell in first.cells if cell in second.places]
    if not cells:
        raise InputError(f"{names[0]} and {names[1]} have no images in common; nothing can be compared")
    where = {cell: place for place, cell in enumerate(cells)}
    width, offset = max(first.seeds, second.seeds), len(first.methods)
    values = {}
    curves: dict[tuple[int, int], dict[str, Any]] = {}
    shown: dict[tuple[int, int], dict[str, Any]] = {}
    for metric in (name for name in METRICS if name in first.values and name in second.values):
        values[metric] = np.full((len(methods), width, len(cells)), np.nan)
    for start, results in ((0, first), (offset, second)):
        for metric, into in values.items():
            found = results.values[metric][:, :, [results.places[cell] for cell in cells]]
            into[start : start + len(results.methods), : results.seeds] = found
        for kept, pieces in ((results.curves, curves), (results.shown, shown)):
            for (method, place), data in kept.items():
                if results.cells[place] in where:
                    pieces[start + method, where[results.cells[place]]] = data
    return Results(
        f"{names[0]} beside {names[1]}",
        f"{names[0]}: {first.source}. {names[1]}: {second.source}. "
        f"Compared on the {len(cells)} sets of images that both have",
        first.recipes + second.recipes,
        methods,
        cells,
        values,
        curves,
        shown,
        second.gallery | first.gallery,
        missing=first.missing + second.missing,
        studies=names,
        rows=first.rows,
        damaged=first.damaged + second.damaged,
    )


def _in_order(cells: set[CellKey], shifts: Sequence[str]) -> list[CellKey]:
    known = list(shifts)

    def key(cell: CellKey) -> tuple[int, int, str, int]:
        shift, severity = cell
        group = 0 if cell == CLEAN else 1 if severity else 2
        return group, known.index(shift) if shift in known else len(known), shift, severity

    return sorted(cells, key=key)


def _facts(store: Store, row: Any, place: int, rows: Sequence[tuple[Any, ...]]) -> MethodFacts:
    mine = [line for line in rows if line[0] == row.name]
    seeds = tuple(sorted({line[1] for line in mine}))
    judged = store.select(
        "SELECT c.rows, r.value FROM cells c JOIN rows r USING(method, seed, shift, severity) "
        "WHERE method=? AND shift='validation' AND metric='accuracy'",
        (row.name,),
    )
    errors = [round(count * (1 - accuracy)) for count, accuracy in judged if count and accuracy is not None]
    draws = store.select("SELECT max(samples) FROM cells WHERE method=?", (row.name,))[0][0]
    fitted = [json.loads(text) for text in (store.calibrator(row.name, seed) for seed in seeds) if text]
    return MethodFacts(
        row.name,
        place,
        row.of,
        seeds=seeds,
        draws=draws or 1,
        beta=float(row.objective.beta) if row.method is not None and row.objective.kind == "avuc" else None,
        errors=min(errors, default=None),
        temperatures=tuple(line[5] for line in mine if line[2] == "validation" and line[4] == "temperature"),
        at_bound=any(content.get("learned", {}).get("at_bound") is True for content in fitted),
        history=tuple(_averaged(store.history(row.name, seed)) for seed in seeds),
    )


def _averaged(history: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """One record for each epoch: the mean over the members of an ensemble."""
    epochs: dict[int, list[dict[str, Any]]] = {}
    for record in history:
        epochs.setdefault(record["epoch"], []).append(record)
    told = []
    for epoch, records in sorted(epochs.items()):
        names = [name for name, value in records[0].items() if isinstance(value, float)]
        means = {}
        for name in names:
            known = [record[name] for record in records if isinstance(record.get(name), float)]
            means[name] = sum(known) / len(known)
        told.append({"epoch": epoch, **means})
    return tuple(told)


def _pooled_curves(
    store: Store, places: dict[str, int], where: dict[CellKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Counts add up over seeds; the means of bins are weighted by their counts."""
    pooled: dict[tuple[int, int], dict[str, Any]] = {}
    names = ("entropy", "confidence", "reliability", "uncertainty")
    for method, shift, severity, name, text in store.select("SELECT method, shift, severity, name, data FROM curves"):
        if name not in names or method not in places or (shift, severity) not in where:
            continue
        curve, into = json.loads(text), pooled.setdefault((places[method], where[shift, severity]), {})
        if name in ("entropy", "confidence"):
            groups = {key: np.array(curve[key]) for key in ("right", "wrong", "outside") if key in curve}
            old = into.get(name, {"high": curve["high"]})
            into[name] = old | {key: counts + old.get(key, 0) for key, counts in groups.items()}
        else:
            rows, stated, observed = (
                np.array([value or 0.0 for value in curve[key]]) for key in ("rows", "stated", "observed")
            )
            old = into.get(name, {"rows": 0.0, "stated": 0.0, "observed": 0.0})
            into[name] = {
                "rows": old["rows"] + rows,
                "stated": old["stated"] + rows * stated,  # sums until divided where they are drawn
                "observed": old["observed"] + rows * observed,
            }
    return pooled


def _shown(
    store: Store, facts: Sequence[MethodFacts], where: dict[CellKey, int]
) -> dict[tuple[int, int], dict[str, Any]]:
    first = {method.name: (place, method.seeds[0]) for place, method in enumerate(facts)}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for method, seed, shift, severity, text in store.select("SELECT method, seed, shift, severity, data FROM shown"):
        if method in first and first[method][1] == seed and (shift, severity) in where:
            found[first[method][0], where[shift, severity]] = json.loads(text)
    return found


def _time(seconds: float) -> str:
    """
    >>> _time(75), _time(7300)
    ('75 s', '2 h 2 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
