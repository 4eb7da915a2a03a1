"""Conformal sets in a report: coverage and set size on clean data, by class, and under each shift.

The sets were fitted on validation data by `avuc.study.evaluation.coverage`, which says what is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from avuc.conformal.distributions import clopper_pearson
from avuc.report.study.result_arrays import CLEAN, Array, Coverage, Results, SetKey, finite_mean
from avuc.report.table import Cell, Entry, Table

METHODS = ("threshold", "aps", "raps")
QUANTITIES = ("coverage", "size", "low", "high")
# a longer list of classes is cut to those with the lowest coverage
MOST_CLASSES = 20
MOST = 1 << 53  # the largest count that is accepted
# share of a method's seeds that must leave the interval before it counts as drift
MANY = 0.5
NOT_STORED = (
    "This study's file has no coverage of conformal sets: an older version of avuc made it, or it is a published copy "
    "without them. A new run in another folder stores it."
)
HINT = (
    "A conformal set contains the true class with a chosen probability, if new data are like the data it was fitted "
    "on. Here all sets were fitted on validation data, never on test data. Under shift there is no guarantee: these "
    "tables show what is left of it."
)


def read_coverage(
    curves: Iterable[tuple[str, int, str, int, str]],
    methods: Mapping[str, int],
    seeds: Mapping[int, int],
    test_sets: Mapping[SetKey, int],
) -> Coverage | None:
    """Return the coverage of the conformal sets that a study stored; None if it stored none.

    Args:
        curves: method, seed, shift, severity and JSON of each evaluation.
        methods, seeds, test_sets: their indices on the axes of `Results.values`.
    """
    shape = len(methods), len(seeds), len(test_sets)
    values = {(kind, name): np.full(shape, np.nan) for kind in METHODS for name in QUANTITIES}
    wanted, names = math.nan, tuple[str, ...]()
    clean, shifted = dict[str, Array](), dict[str, Array]()
    cells = np.zeros(len(methods))  # evaluations on clean data
    for method, seed, shift, severity, text in curves:
        content = json.loads(text)
        if shift == "validation":
            names = names or tuple(str(name) for name in content.get("classes", ()))
        if method not in methods or seed not in seeds or (shift, severity) not in test_sets:
            continue
        wanted, rows = float(content["wanted"]), _whole(content["rows"])
        index = methods[method], seeds[seed], test_sets[shift, severity]
        by_class = _list(content["class_rows"]) if "class_rows" in content else None
        cells[index[0]] += by_class is not None and (shift, severity) == CLEAN
        for kind, stored in content["methods"].items():
            counts = [stored[name] for name in ("covered", "size", "low", "high")]
            for name, count in zip(QUANTITIES, counts, strict=True):
                values[kind, name][index] = math.nan if count is None else _whole(count) / rows
            if by_class is not None:
                part = np.stack([by_class, _list(stored["class_covered"]), _list(stored["class_size"])], 1)
                if (shift, severity) == CLEAN:
                    clean.setdefault(kind, np.zeros((len(methods), *part.shape)))[index[0]] += part
                else:
                    sums = shifted.setdefault(kind, np.zeros((len(methods), len(test_sets), *part.shape)))
                    sums[index[0], index[2]] += part
    if not math.isfinite(wanted):
        return None
    each = np.maximum(cells, 1)[:, None, None]
    classes = max((sums.shape[-2] for sums in (*clean.values(), *shifted.values())), default=0)
    return Coverage(
        wanted,
        values,
        {kind: sums / each for kind, sums in clean.items()},
        shifted,
        names if len(names) == classes else tuple(map(str, range(classes))),
    )


def joined(
    first: Coverage | None,
    second: Coverage | None,
    values: Mapping[tuple[str, str], Array],
    sets: tuple[Sequence[int], Sequence[int]],
) -> Coverage | None:
    """Return the coverage of two compared studies; by class only if they have the same classes.

    Args:
        first, second: the coverage of the two studies.
        values: the values of both, on common axes.
        sets: the indices of the common test sets in each study.
    """
    if first is None or second is None or first.wanted != second.wanted:
        return None
    parts = [
        {kind: sums[:, list(chosen)] for kind, sums in each.shifted.items()}
        for each, chosen in zip((first, second), sets, strict=True)
    ]
    return replace(
        first,
        values=values,
        clean=_both(first.clean, second.clean) if first.names == second.names else {},
        shifted=_both(*parts) if first.names == second.names else {},
    )


def _both(first: Mapping[str, Array], second: Mapping[str, Array]) -> dict[str, Array]:
    return {kind: np.concatenate([first[kind], second[kind]]) for kind in METHODS if kind in first and kind in second}


def coverage_tables(results: Results) -> list[Table]:
    """Return the tables: an overview; for each kind of set, every shift and intensity; and the classes."""
    coverage = results.coverage
    if coverage is None:
        return []
    kinds = [kind for kind in METHODS if np.isfinite(coverage.values[kind, "coverage"]).any()]
    if not kinds:
        return []
    tables = [_overview(results, coverage, kinds)]
    if results.shifts:
        tables += [_by_shift(results, coverage, kind) for kind in kinds]
    return tables + [_by_class(results, coverage, kind) for kind in kinds if kind in coverage.clean]


def coverage_alarms(results: Results) -> list[str]:
    """Return a warning for clean data, and one for shifted data, on which the coverage leaves its interval."""
    coverage, sentences = results.coverage, list[str]()
    if coverage is None:
        return sentences
    for where in ("clean", "shifted"):
        chosen = [
            index for index, key in enumerate(results.test_sets) if (key == CLEAN if where == "clean" else key[1])
        ]
        known, drifted = _drifted(coverage, chosen, below=where == "shifted")
        if not drifted:
            continue
        lowest, kind, method, index = min(drifted)
        shift, severity = results.test_sets[index]
        at = f", {results.shift_names[shift]} at intensity {severity}" if severity else ""
        named = f"{results.names[method]}, {kind}{at}"
        what = "on clean test data the coverage leaves" if where == "clean" else "under shift the coverage is below"
        meaning = (
            "validation and test data differ, or it is chance: 5 % of intervals miss"
            if where == "clean"
            else "the guarantee of the sets does not hold there"
        )
        sentences.append(
            f"Conformal sets for a coverage of {coverage.wanted:g}: {what} its 95 % interval in "
            f"{len(drifted):,} of {known:,} cases (method, kind of set, test set), lowest {lowest:.3f} ({named}): "
            f"{meaning}."
        )
    return sentences


def _drifted(
    coverage: Coverage, chosen: Sequence[int], *, below: bool
) -> tuple[int, list[tuple[float, str, int, int]]]:
    """Return the number of cases with an interval; and (coverage, kind, method, set) of cases that most seeds leave.

    A coverage above the interval breaks no promise, so with `below` only cases below the interval are returned.
    """
    known, cases = 0, []
    for kind in METHODS:
        outside = coverage.outside(kind)
        if below:
            under = coverage.values[kind, "coverage"] < coverage.values[kind, "low"]
            outside = np.where(np.isfinite(outside), under, np.nan)
        left, covered = (finite_mean(each, 1) for each in (outside, coverage.values[kind, "coverage"]))
        for method, index in ((m, i) for m in range(len(left)) for i in chosen):
            known += bool(np.isfinite(left[method, index]))
            if left[method, index] > MANY:
                cases.append((float(covered[method, index]), kind, method, index))
    return known, cases


def _overview(results: Results, coverage: Coverage, kinds: Sequence[str]) -> Table:
    clean = [index for index, key in enumerate(results.test_sets) if key == CLEAN]
    levels = [("clean", 0), *((f"intensity {level}", level) for level in results.severities)]
    rows: list[list[Cell]] = []
    for method, name in enumerate(results.names):
        for kind in kinds:
            common = _common(results, coverage, kind)
            covered, size, low, high = (finite_mean(coverage.values[kind, each], 1)[method] for each in QUANTITIES)
            cells: list[Cell] = [Entry(float(low[clean[0]])), Entry(float(high[clean[0]]))] if clean else ["–", "–"]
            for _, level in levels:
                indices = [index for index in common if results.test_sets[index][1] == level] if level else clean
                cells += [Entry(float(finite_mean(each[indices], 0))) for each in (covered, size)]
            rows.append([name, kind, *cells])
    head = ["method", "sets", "interval: low", "interval: high"]
    head += [f"{title}: {what}" for title, _ in levels for what in ("coverage", "classes per set")]
    return Table(
        "coverage",
        "Conformal sets: coverage and size",
        f"Share of test {results.units} whose set contains the true class, and mean number of classes in a set, for "
        f"sets fitted on validation data for a coverage of {coverage.wanted:g}. Means over seeds and "
        f"{_sets_text(results, coverage, kinds[0], 'shifts')}. "
        + (
            "In 95 % of all cases the coverage on clean data lies in the interval, if they are like the validation "
            "data. Temperatures were learned on the same validation data, which the interval ignores."
            if any(_independent(coverage, kind) for kind in kinds)
            else f"There are no intervals, because the {results.units} of one example are not independent."
        ),
        head,
        rows,
    )


def _common(results: Results, coverage: Coverage, kind: str) -> list[int]:
    """Return the indices of the shifted test sets that means are taken over."""
    common = coverage.common(kind, results.test_sets)
    return [index for index, key in enumerate(results.test_sets) if key in common]


def _sets_text(results: Results, coverage: Coverage, kind: str, every: str) -> str:
    """Return over which shifted test sets means are taken: `every` if all methods have all of them."""
    common = _common(results, coverage, kind)
    few = len(common) < sum(bool(severity) for _, severity in results.test_sets)
    return f"the {len(common)} shifted test set{'s' * (len(common) != 1)} that all methods have" if few else every


def _independent(coverage: Coverage, kind: str) -> bool:
    """Return whether there are intervals; none are stored for pixels and tokens."""
    return bool(np.isfinite(coverage.values[kind, "low"]).any())


def _by_shift(results: Results, coverage: Coverage, kind: str) -> Table:
    covered, size = (finite_mean(coverage.values[kind, name], 1) for name in ("coverage", "size"))
    left = finite_mean(coverage.outside(kind), 1)
    rows: list[list[Cell]] = []
    for index, (shift, severity) in enumerate(results.test_sets):
        if not np.isfinite(covered[:, index]).any():
            continue
        cells: list[Cell] = []
        for method in range(len(results.methods)):
            alarm = bool(left[method, index] > MANY)
            cells += [Entry(float(covered[method, index]), best=alarm), Entry(float(size[method, index]))]
        rows.append([results.shift_names[shift] + (f" {severity}" if severity else ""), *cells])
    return Table(
        f"coverage-shifts-{kind}",
        f"Coverage and size of {kind} sets under each shift",
        f"Sets fitted on validation data for a coverage of {coverage.wanted:g}; means over seeds."
        + (
            " Bold: the coverage leaves its 95 % interval for most seeds, so these "
            f"{results.units} are not like the validation data."
            if _independent(coverage, kind)
            else ""
        ),
        ["test set", *(f"{name}: {what}" for name in results.names for what in ("coverage", "classes per set"))],
        rows,
    )


def _by_class(results: Results, coverage: Coverage, kind: str) -> Table:
    clean, shifted = coverage.clean[kind], coverage.shifted.get(kind)
    if shifted is not None:
        shifted = shifted[:, _common(results, coverage, kind)].sum(1)
    rows_of = clean[:, :, 0].max(0)
    known = np.flatnonzero(rows_of > 0)
    order = known[np.argsort(clean[:, known, 1].sum(0) / clean[:, known, 0].sum(0), kind="stable")]
    few = len(order) > MOST_CLASSES
    independent, every = _independent(coverage, kind), "all shifts and intensities"
    rows: list[list[Cell]] = []
    for label in order[:MOST_CLASSES] if few else known:
        cells: list[Cell] = [f"{round(rows_of[label]):,}"]
        for method in range(len(results.methods)):
            total, covered, size = (float(count) for count in clean[method, label])
            some = independent and total > 0
            low, high = clopper_pearson(round(covered), round(total)) if some else (math.nan, math.nan)
            cells += [Entry(_share(covered, total), low, high), Entry(_share(size, total))]
            if shifted is not None:
                cells += [Entry(_share(part, shifted[method, label, 0])) for part in shifted[method, label, 1:]]
        rows.append([coverage.names[label], *cells])
    parts = ("coverage", "classes per set") + (
        () if shifted is None else ("shifted coverage", "shifted classes per set")
    )
    return Table(
        f"coverage-classes-{kind}",
        f"Coverage and size of {kind} sets in each class",
        f"On clean test data, means over seeds{', with the exact 95 % interval for that many rows' * independent}"
        f"{'' if shifted is None else f'; and over {_sets_text(results, coverage, kind, every)}'}. The coverage of "
        f"{coverage.wanted:g} is for all classes together, not for each."
        + (f" The {MOST_CLASSES} classes with the lowest coverage of {len(order):,}." if few else ""),
        ["class", "rows", *(f"{name}: {part}" for name in results.names for part in parts)],
        rows,
    )


def _share(part: float, total: float) -> float:
    return float(part / total) if total else math.nan


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise ValueError("expected a whole number from 0 up")
    return value


def _list(values: Any) -> Array:
    counts = np.array([_whole(value) for value in values], np.float64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError("expected a list of whole numbers")
    return counts
