"""Compare a study with published numbers: `figure` gives a number of the study, `read_published` the published ones.

The file of published numbers has one line for each number, as it was printed; `unit` is "%" or empty:

    table,dataset,method,shift,intensity,metric,statistic,printed,unit
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.report.study.intervals import STATISTICS
from avuc.report.study.result_arrays import CLEAN, Results, SetKey, finite_mean
from avuc.report.study.tables import rank_correlation

Array = NDArray[np.float64]
COLUMNS = ("table", "dataset", "method", "shift", "intensity", "metric", "statistic", "printed", "unit")


@dataclass(frozen=True)
class Published:
    """One published number."""

    table: str
    dataset: str
    method: str
    shift: str  # empty: over all shifts
    intensity: str  # empty if it has none
    metric: str
    statistic: str
    printed: str
    unit: str = ""

    @property
    def value(self) -> float:
        """The number; a printed percentage as a share."""
        return float(self.printed) / (100 if self.unit == "%" else 1)


@dataclass(frozen=True)
class Figure:
    """One number of a study, for each seed.

    Args:
        by_seed: one value per seed.
        seed_numbers: the seed of each value; empty if unknown.
    """

    by_seed: tuple[float, ...]
    seed_numbers: tuple[int, ...] = ()

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.by_seed)

    @property
    def value(self) -> float:
        """The mean over seeds; NaN without seeds."""
        return sum(self.by_seed) / self.seeds if self.by_seed else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; NaN for one seed."""
        return float(np.std(self.by_seed, ddof=1)) if self.seeds > 1 else math.nan


def read_published(path: str | Path) -> list[Published]:
    """Return the published numbers of a CSV file; see above for its columns."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        head = tuple(next(lines, ()))
        if head != COLUMNS:
            raise InputError(f"{path}: expected the columns {', '.join(COLUMNS)}, found {', '.join(head) or 'none'}")
        published = []
        for number, line in enumerate(lines, 2):
            try:
                entry = Published(*line)
                _ = entry.value
            except (TypeError, ValueError) as error:
                wanted = f"expected {len(COLUMNS)} cells and a number in `printed`"
                raise InputError(f"{path}: line {number}: {wanted}") from error
            published.append(entry)
    return published


def published_value(published: Iterable[Published], **wanted: str) -> float:
    """Return the published number with these properties; NaN if there is none, `InputError` if there are several."""
    matching = [entry for entry in published if all(getattr(entry, name) == value for name, value in wanted.items())]
    if len(matching) > 1:
        raise InputError(f"{len(matching)} published figures are {wanted}; expected one")
    return matching[0].value if matching else math.nan


def figure(results: Results, method: str, metric: str, where: str, statistic: str = "mean") -> Figure:
    """Return a number of a method for each seed; without seeds if the study does not have it.

    Args:
        results: a study's results.
        method: name of the method.
        metric: name of the metric.
        where: the images. "clean" or "0"; an intensity like "5", for `statistic` over the kinds of shift at this
            intensity; "shifted", for the same over all intensities; a shift with its intensity like "gaussian_blur 5";
            or out-of-distribution data like "svhn".
        statistic: "mean", "median", "lower quartile", "upper quartile"; or "spearman", the rank correlation of the mean
            over shifts with the intensity, where clean images have intensity 0.
    """
    if method not in results.names or metric not in results.values:
        return Figure(())
    index = results.names.index(method)
    if statistic == "spearman":
        values = _spearman(results, index, metric)
    elif where in ("clean", "0"):
        values = results.at(metric, CLEAN)[index]
    elif where == "shifted" or where.isdigit():
        shifted = results.shifted(metric, None if where == "shifted" else int(where))
        shifted = shifted[:, :, np.isfinite(shifted).any((0, 1))]  # shifts that all methods have
        values = STATISTICS[statistic](shifted[index]) if shifted.shape[2] else np.full(results.seeds, np.nan)
    else:
        values = results.at(metric, _set_key(results, where))[index]
    known = [(seed, float(v)) for seed, v in zip(results.seed_numbers, values, strict=True) if math.isfinite(v)]
    return Figure(tuple(value for _, value in known), tuple(seed for seed, _ in known))


def outside_set(results: Results, name: str) -> SetKey | None:
    """Return the out-of-distribution data called `name`, in any spelling: svhn, ood:svhn-test, ood:CIFAR-100."""
    wanted = _letters(name)
    matching = [key for key in results.outside if _letters(key.removeprefix("ood:")).startswith(wanted)]
    return (min(matching, key=len), 0) if matching else None


outside_cell = outside_set  # the name in version 0.1.0


def _set_key(results: Results, where: str) -> SetKey:
    shift, _, severity = where.rpartition(" ")
    if shift and severity.isdigit():
        return shift, int(severity)
    return outside_set(results, where) or (where, 0)


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _spearman(results: Results, method: int, metric: str) -> Array:
    levels, _, shifted = results.by_intensity(metric)
    means = np.column_stack([results.at(metric, CLEAN)[method], finite_mean(shifted[method], axis=1)])
    return np.array([rank_correlation(np.array([0, *levels], float), each) for each in means])
