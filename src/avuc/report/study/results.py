"""Read the results of a study, and join those of two studies."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.report.study.conditions import different_conditions
from avuc.report.study.coverage import METHODS, QUANTITIES, joined
from avuc.report.study.reading import read_results as read_results
from avuc.report.study.result_arrays import CLEAN as CLEAN
from avuc.report.study.result_arrays import METRICS, MethodFacts, Results


def side_by_side(first: Results, second: Results, names: tuple[str, str]) -> Results:
    """Return two studies as one: the methods of both, on the test sets that both were evaluated on.

    A method has the same colour in both studies.

    Args:
        first: results of one study.
        second: results of the other study.
        names: names of the studies; they become prefixes of the method names, as in "before: SVI".
    """
    keys = [key for key in first.test_sets if key in second.set_index]
    if not keys:
        raise InputError(f"{names[0]} and {names[1]} have no test sets in common; nothing can be compared")
    methods = _renamed_methods(first, second, names)
    seeds = sorted({*first.seed_numbers, *second.seed_numbers})
    set_index = {key: index for index, key in enumerate(keys)}
    curves: dict[tuple[int, int], dict[str, Any]] = {}
    examples: dict[tuple[int, int], dict[str, Any]] = {}
    shared = [name for name in METRICS if name in first.values and name in second.values]
    values = {metric: np.full((len(methods), len(seeds), len(keys)), np.nan) for metric in shared}
    covered = {
        (kind, name): np.full((len(methods), len(seeds), len(keys)), np.nan) for kind in METHODS for name in QUANTITIES
    }
    for start, results in ((0, first), (len(first.methods), second)):
        seed_index = [seeds.index(seed) for seed in results.seed_numbers]
        stored = {} if results.coverage is None else results.coverage.values
        for source, merged in (
            *((results.values[metric], merged) for metric, merged in values.items()),
            *((stored[which], merged) for which, merged in covered.items() if which in stored),
        ):
            part = source[:, :, [results.set_index[key] for key in keys]]
            merged[start : start + len(results.methods), seed_index] = part
        for content, target in ((results.curves, curves), (results.examples, examples)):
            for (method, index), data in content.items():
                if results.test_sets[index] in set_index:
                    target[start + method, set_index[results.test_sets[index]]] = data
    return Results(
        f"{names[0]} compared with {names[1]}",
        f"{names[0]}: {first.source}. {names[1]}: {second.source}. "
        f"Compared on the {len(keys)} test sets that both studies have",
        first.recipes + second.recipes,
        methods,
        keys,
        values,
        curves,
        examples,
        second.gallery | first.gallery,
        missing=first.missing + second.missing,
        studies=names,
        rows=first.rows,
        notes=(
            *different_conditions(first.conditions, second.conditions, keys),
            *dict.fromkeys(first.notes + second.notes),
        ),
        damaged=first.damaged + second.damaged,
        unit=first.unit if first.unit == second.unit else "example",
        coverage=joined(
            first.coverage,
            second.coverage,
            covered,
            ([first.set_index[key] for key in keys], [second.set_index[key] for key in keys]),
        ),
    )


def _renamed_methods(first: Results, second: Results, names: tuple[str, str]) -> list[MethodFacts]:
    colours: dict[str, int] = {}
    methods = []
    for study, (results, label) in enumerate(zip((first, second), names, strict=True)):
        for method in results.methods:
            changed = {
                "name": f"{label}: {method.name}",
                "reuse_model": f"{label}: {method.reuse_model}" if method.reuse_model else "",
                "colour_index": colours.setdefault(method.name, len(colours)),
                "study": study,
            }
            methods.append(MethodFacts(**{**vars(method), **changed}))
    return methods
