"""A study beside figures that somebody published: numbers of a study by name, and the published ones from a file.

    table,dataset,method,shift,intensity,metric,statistic,printed,unit

is one line for each published number, as it was printed; `unit` is "%" or empty.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.report.study.results import CLEAN, CellKey, Results, finite_mean
from avuc.report.study.tables import rank_correlation

__all__ = ["Figure", "Published", "figure", "outside_cell", "published_value", "read_published"]

Array = NDArray[np.float64]
COLUMNS = ("table", "dataset", "method", "shift", "intensity", "metric", "statistic", "printed", "unit")
STATISTICS: dict[str, Callable[[Array], Array]] = {
    "lower quartile": lambda values: np.quantile(values, 0.25, axis=-1),
    "median": lambda values: np.quantile(values, 0.5, axis=-1),
    "mean": lambda values: values.mean(-1),
    "upper quartile": lambda values: np.quantile(values, 0.75, axis=-1),
}


@dataclass(frozen=True)
class Published:
    """One printed number."""

    table: str
    dataset: str
    method: str
    shift: str  # empty: over all of them
    intensity: str  # empty where there is none
    metric: str
    statistic: str
    printed: str
    unit: str = ""

    @property
    def value(self) -> float:
        """A share, where a percentage is printed."""
        return float(self.printed) / (100 if self.unit == "%" else 1)


@dataclass(frozen=True)
class Figure:
    """One number of a study, for each seed it was trained with."""

    by_seed: tuple[float, ...]

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def value(self) -> float:
        return sum(self.by_seed) / self.seeds if self.by_seed else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return float(np.std(self.by_seed, ddof=1)) if self.seeds > 1 else math.nan


def read_published(path: str | Path) -> list[Published]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        head = tuple(next(lines, ()))
        if head != COLUMNS:
            raise InputError(f"{path}: expected the columns {', '.join(COLUMNS)}, found {', '.join(head) or 'none'}")
        found = []
        for number, line in enumerate(lines, 2):
            try:
                one = Published(*line)
                _ = one.value
            except (TypeError, ValueError) as error:
                wanted = f"expected {len(COLUMNS)} cells and a number in `printed`"
                raise InputError(f"{path}: line {number}: {wanted}") from error
            found.append(one)
    return found


def published_value(published: Iterable[Published], **wanted: str) -> float:
    """The one number with these properties; NaN where nobody printed it."""
    found = [one for one in published if all(getattr(one, name) == value for name, value in wanted.items())]
    if len(found) > 1:
        raise InputError(f"{len(found)} published figures are {wanted}; expected one")
    return found[0].value if found else math.nan


def figure(results: Results, method: str, metric: str, where: str, statistic: str = "mean") -> Figure:
    """A number of a row, by seed; without seeds where the study does not have it.

    where: "clean" or "0"; an intensity like "5": `statistic` over the kinds of shift at it; "shifted": over all of
    them; a kind and its intensity like "gaussian_blur 5"; or data of another kind like "svhn". The statistic
    "spearman" is the rank correlation of the mean over shifts with the intensities, clean images being 0.
    """
    if method not in results.names or metric not in results.values:
        return Figure(())
    place = results.names.index(method)
    if statistic == "spearman":
        found = _spearman(results, place, metric)
    elif where in ("clean", "0"):
        found = results.at(metric, CLEAN)[place]
    elif where == "shifted" or where.isdigit():
        level = None if where == "shifted" else int(where)
        values = results.shifted(metric, level)
        values = values[:, :, np.isfinite(values).any((0, 1))]  # shifts that all methods have
        found = STATISTICS[statistic](values[place]) if values.shape[2] else np.zeros(0)
    else:
        found = results.at(metric, _cell(results, where))[place]
    return Figure(tuple(float(value) for value in found if math.isfinite(value)))


def outside_cell(results: Results, name: str) -> CellKey | None:
    """The set of other data called `name`, however its files are spelled: svhn, ood:svhn-test, ood:CIFAR-100."""
    wanted = _letters(name)
    found = [cell for cell in results.outside if _letters(cell.removeprefix("ood:")).startswith(wanted)]
    return (min(found, key=len), 0) if found else None


def _cell(results: Results, where: str) -> CellKey:
    shift, _, severity = where.rpartition(" ")
    if shift and severity.isdigit():
        return shift, int(severity)
    return outside_cell(results, where) or (where, 0)


def _letters(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _spearman(results: Results, place: int, metric: str) -> Array:
    levels = [0, *results.severities]
    means = [results.at(metric, CLEAN)[place]]
    means += [finite_mean(results.shifted(metric, level)[place], axis=-1) for level in levels[1:]]
    return np.array([rank_correlation(np.array(levels, float), each) for each in np.stack(means, axis=1)])
