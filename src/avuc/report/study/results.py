"""What a report reads of a study: every value as one array, the curves pooled over seeds. Stores in, NumPy out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.report.metric_text import DETECTION_WORDS, METRIC_WORDS

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
    notes: tuple[str, ...] = ()  # what else a reader must know of how it was computed
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
            return self._nothing()
        return self.values[metric][:, :, self.places[cell]]

    def shifted(self, metric: str, severity: int | None = None, *, common: bool = True) -> Array:
        """(method, seed, shift), at one severity or averaged over all of them.

        common: only from sets that every method was judged on, so that means are means over the same images; NaN
        elsewhere. Otherwise whatever is there.
        """
        levels = self.severities if severity is None else [severity]
        shared = self.common(metric) if common else set(self.cells)
        stacked = [
            [self.at(metric, cell) if cell in shared else self._nothing() for cell in ((shift, one) for one in levels)]
            for shift in self.shifts
        ]
        if not stacked or not levels:
            return np.full((len(self.methods), self.seeds, 0), np.nan)
        return finite_mean(np.array(stacked), axis=1).transpose(1, 2, 0)

    def common(self, metric: str) -> set[CellKey]:
        """The shifted sets on which every method has a value for every seed it has.

        A method or a seed without any value under shift does not count: it would leave nothing.
        """
        cells = [cell for cell in self.cells if cell[1]]
        if not cells or metric not in self.values:
            return set()
        there = np.isfinite(np.stack([self.at(metric, cell) for cell in cells], axis=-1))  # (method, seed, cell)
        counted = there.any(-1, keepdims=True)
        whole = np.atleast_1d((there | ~counted).all((0, 1)))
        return {cell for cell, use in zip(cells, whole, strict=True) if use}

    def _nothing(self) -> Array:
        return np.full((len(self.methods), self.seeds), np.nan)

    @cached_property
    def axis(self) -> list[int]:
        """The seeds of all methods: a method has NaN at those that it was not trained with."""
        return sorted({seed for method in self.methods for seed in method.seeds})

    @property
    def seeds(self) -> int:
        return len(self.axis)

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
    from avuc.report.study.reading import read  # which builds on this module

    return read(store)


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
    axis = sorted({*first.axis, *second.axis})
    offset = len(first.methods)
    values = {}
    curves: dict[tuple[int, int], dict[str, Any]] = {}
    shown: dict[tuple[int, int], dict[str, Any]] = {}
    for metric in (name for name in METRICS if name in first.values and name in second.values):
        values[metric] = np.full((len(methods), len(axis), len(cells)), np.nan)
    for start, results in ((0, first), (offset, second)):
        for metric, into in values.items():
            found = results.values[metric][:, :, [results.places[cell] for cell in cells]]
            seats = [axis.index(seed) for seed in results.axis]
            into[start : start + len(results.methods), seats] = found
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
        notes=tuple(dict.fromkeys(first.notes + second.notes)),
        damaged=first.damaged + second.damaged,
    )
