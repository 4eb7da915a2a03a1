"""`Results`: everything a report knows about a study, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.report.metric_text import DETECTION_TEXT, METRIC_TEXT
from avuc.report.study.shift_names import shift_names

Array = NDArray[np.float64]
SetKey = tuple[str, int]  # a set of images: the shift ("clean", "fog", "ood:svhn") and its intensity, 0 if it has none
CLEAN: SetKey = ("clean", 0)
METRICS = (*METRIC_TEXT, *DETECTION_TEXT)
PNG = b"\x89PNG"  # first bytes of a picture in the gallery; entries without them are sentences


@dataclass(frozen=True)
class MethodFacts:
    """One method of a study."""

    name: str
    colour_index: int  # selects the colour and the symbol of the method
    reuse_model: str = ""  # the method whose trained networks it uses
    study: int = 0  # 0 or 1: which of two compared studies
    seeds: tuple[int, ...] = ()
    samples: int = 1  # forward passes per prediction
    beta: float | None = None  # weight of the AvUC term, if there is one
    errors: int | None = None  # validation errors from which the threshold was learned; the minimum over seeds
    temperatures: tuple[float, ...] = ()
    at_bound: bool = False  # whether the search for a temperature ended at a bound
    history: tuple[tuple[dict[str, Any], ...], ...] = ()  # per seed, per epoch; averaged over the ensemble's networks


@dataclass(frozen=True)
class Coverage:
    """Coverage and set sizes of a study.

    Args:
        wanted: the coverage that the sets were fitted for.
        values: by kind of set and quantity: (method, seed, test set), NaN where nothing is stored.
        clean: by kind of set: (method, class, 3): rows, covered rows and sum of sizes on clean data, means over seeds.
        shifted: by kind of set: (method, test set, class, 3): sums over seeds; 0 for data that are not shifted.
        names: names of the classes.
    """

    wanted: float
    values: Mapping[tuple[str, str], Array]
    clean: Mapping[str, Array]
    shifted: Mapping[str, Array]
    names: tuple[str, ...]

    def outside(self, kind: str) -> Array:
        """Return whether the coverage leaves its interval, 1 or 0, (method, seed, test set); NaN if not known."""
        coverage, low, high = (self.values[kind, name] for name in ("coverage", "low", "high"))
        left = ((coverage < low) | (coverage > high)).astype(np.float64)
        return np.where(np.isfinite(coverage) & np.isfinite(low), left, np.nan)

    def common(self, kind: str, test_sets: Sequence[SetKey]) -> set[SetKey]:
        """Return the shifted test sets on which every method has a coverage for each of its seeds."""
        chosen = [index for index, key in enumerate(test_sets) if key[1]]
        return _complete(self.values[kind, "coverage"][:, :, chosen], [test_sets[index] for index in chosen])


@dataclass(frozen=True)
class Results:
    """The results of a study. `values[metric]` has the axes method, seed, test set; NaN where there is no value."""

    title: str
    source: str
    recipes: tuple[str, ...]
    methods: list[MethodFacts]
    test_sets: list[SetKey]  # clean images, shifts by intensity, out-of-distribution data
    values: dict[str, Array]
    curves: dict[tuple[int, int], dict[str, Any]]  # (method, test set): counts summed over seeds
    examples: dict[tuple[int, int], dict[str, Any]]  # (method, test set): single images, of the first seed
    gallery: dict[SetKey, bytes]
    missing: int = 0  # evaluations of the recipe that have no result yet
    studies: tuple[str, ...] = ()
    rows: int = 0  # predictions on clean test data
    notes: tuple[str, ...] = ()  # further warnings about how the results were computed
    damaged: tuple[str, ...] = ()  # results that are lost because the file is damaged
    unit: str = "image"  # what one prediction is about: image, pixel, sentence, word, token or example
    coverage: Coverage | None = None  # of conformal sets; None in files of older versions
    conditions: Mapping[str, str] = field(default_factory=dict)  # what else the results depend on, see conditions.py
    set_index: dict[SetKey, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "set_index", {key: index for index, key in enumerate(self.test_sets)})

    @property
    def units(self) -> str:
        return f"{self.unit}s"

    @property
    def names(self) -> list[str]:
        """The names of the methods."""
        return [method.name for method in self.methods]

    @cached_property
    def shifts(self) -> list[str]:
        """The kinds of shift."""
        return list(dict.fromkeys(shift for shift, severity in self.test_sets if severity))

    @cached_property
    def severities(self) -> list[int]:
        """The intensities of the shifts, in ascending order; clean images are not included."""
        return sorted({severity for _, severity in self.test_sets if severity})

    @cached_property
    def outside(self) -> list[str]:
        """The out-of-distribution data, like "ood:svhn"."""
        return [shift for shift, _ in self.test_sets if shift.startswith("ood:")]

    @cached_property
    def shift_names(self) -> dict[str, str]:
        """How texts, tables and charts name the shifts and the out-of-distribution data."""
        return shift_names(dict.fromkeys(shift for shift, _ in self.test_sets))

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that have values."""
        return [name for name in METRICS if name in self.values]

    def at(self, metric: str, test_set: SetKey) -> Array:
        """Return (method, seed): a metric on one test set."""
        if metric not in self.values or test_set not in self.set_index:
            return self._nothing()
        return self.values[metric][:, :, self.set_index[test_set]]

    def shifted(self, metric: str, severity: int | None = None, *, common: bool = True) -> Array:
        """Return (method, seed, shift): a metric at one severity, or averaged over all severities.

        Args:
            metric: name of the metric.
            severity: intensity of the shift; by default the mean over all of them.
            common: use only test sets that every method was evaluated on, so that methods are compared on the same
                images; the other values are NaN. Otherwise use every value there is.
        """
        severities = self.severities if severity is None else [severity]
        used = self.common(metric) if common else set(self.test_sets)
        stacked = [
            [
                self.at(metric, key) if key in used else self._nothing()
                for key in ((shift, level) for level in severities)
            ]
            for shift in self.shifts
        ]
        if not stacked or not severities:
            return np.full((len(self.methods), self.seeds, 0), np.nan)
        return finite_mean(np.array(stacked), axis=1).transpose(1, 2, 0)

    def by_intensity(self, metric: str) -> tuple[list[int], list[str], Array]:
        """Return intensities, kinds of shift that have all of them, and (method, seed, shift, intensity).

        In an unfinished study, each intensity has other kinds of shift. Means of these would show which shifts are
        finished, not the trend. Intensities that no shift has, as in the comparison of two studies, are left out.
        """
        common = self.common(metric)
        levels = [level for level in self.severities if any(key[1] == level for key in common)]
        kinds = [shift for shift in self.shifts if levels and all((shift, level) in common for level in levels)]
        if not kinds:
            return levels, kinds, np.full((len(self.methods), self.seeds, 0, len(levels)), np.nan)
        stacked = np.array([[self.at(metric, (shift, level)) for level in levels] for shift in kinds])
        return levels, kinds, stacked.transpose(2, 3, 0, 1)

    def common(self, metric: str) -> set[SetKey]:
        """Return the shifted test sets on which every method has a value for each of its seeds.

        Methods and seeds without any value under shift are ignored; otherwise the set would be empty.
        """
        keys = [key for key in self.test_sets if key[1]]
        if not keys or metric not in self.values:
            return set()
        return _complete(np.stack([self.at(metric, key) for key in keys], axis=-1), keys)

    def incomplete(self, metric: str) -> list[str]:
        """Return the methods that lack a value on a shifted test set, for a seed that has values on others."""
        known = np.isfinite(self.values[metric][:, :, [index for index, key in enumerate(self.test_sets) if key[1]]])
        lacking = known.any(-1, keepdims=True) & ~known
        return [self.names[index] for index in np.flatnonzero(lacking.any((1, 2)))]

    def _nothing(self) -> Array:
        return np.full((len(self.methods), self.seeds), np.nan)

    @cached_property
    def seed_numbers(self) -> list[int]:
        """The seeds of the seed axis: those of all methods. A method has NaN for seeds it was not trained with."""
        return sorted({seed for method in self.methods for seed in method.seeds})

    @property
    def seeds(self) -> int:
        """The length of the seed axis."""
        return len(self.seed_numbers)

    def mean(self, metric: str, test_set: SetKey) -> Array:
        """Return (method): the mean over seeds of a metric on one test set."""
        return finite_mean(self.at(metric, test_set), axis=1)


def _complete(values: Array, keys: Sequence[SetKey]) -> set[SetKey]:
    """Return the test sets of (method, seed, test set) on which every method has a value for each seed that has any."""
    known = np.isfinite(values)
    complete = np.atleast_1d((known | ~known.any(-1, keepdims=True)).all((0, 1)))
    return {key for key, use in zip(keys, complete, strict=True) if use}


def finite_mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Return the mean of the finite values along `axis`; NaN where there are none.

    >>> finite_mean(np.array([[1.0, np.nan, 3.0]]), axis=1)
    array([2.])
    """
    known = np.isfinite(values)
    count = known.sum(axis)
    total = np.where(known, values, 0.0).sum(axis)
    mean: Array = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    return mean
