"""Read a study's file into `Results`. Every value is checked; a file of another program raises one `InputError`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.natural_order import natural_order
from avuc.report.study.conditions import conditions_of
from avuc.report.study.coverage import read_coverage
from avuc.report.study.effort import effort_of
from avuc.report.study.result_arrays import CLEAN, METRICS, Array, MethodFacts, Results, SetKey
from avuc.report.study.stored_curves import CHANGED, LARGEST, as_written, can_be_shown, examples_of, pooled_curves
from avuc.report.study.unit import dimensions, unit_of
from avuc.study.recipe.portable import without_folder

if TYPE_CHECKING:
    from avuc.study.store.recipe import StoredMethod, StoredRecipe
    from avuc.study.store.store import Store

OF_PIXELS = ("mean_iou", "pavpu")  # stored for words and tokens, too, where they mean little


def read_results(store: Store) -> Results:
    """Return the results of the study in `store`; raise `InputError` if it has none, or values no metric can have."""
    recipe = store.stored_recipe()
    rows = [_checked(store, row) for row in store.rows()]
    if store.lost and not rows:
        raise InputError(f"{store.damage()}; run avuc study again to compute them")
    if not any(row[2] != "validation" for row in rows):
        raise InputError(f"{store.path}: no results yet; run avuc study again to continue it")
    present = {row[0] for row in rows if row[2] != "validation"}
    order = [row for row in recipe.methods if row.name in present]
    if not order:
        raise InputError(f"{store.path}: has no results of a method that its recipe names; run avuc study again")
    # sets that only methods outside the recipe were evaluated on would stand on the page without a value
    named = {method.name for method in order}
    shown = {(row[2], row[3]) for row in rows if row[2] != "validation" and row[0] in named}
    test_sets = _in_order(shown, recipe.study.shifts)
    methods = [_method_facts(store, row, index, rows) for index, row in enumerate(order)]
    method_index = {method.name: index for index, method in enumerate(methods)}
    set_index = {key: index for index, key in enumerate(test_sets)}
    seeds = sorted({seed for method in methods for seed in method.seeds})
    seed_index = {seed: index for index, seed in enumerate(seeds)}
    values = _values(rows, method_index, seed_index, set_index)
    if "nll" not in values:
        raise InputError(f"{store.path}: has no results on labelled data yet; run avuc study again")
    source = _source(store, recipe)
    sizes = store.select("SELECT rows FROM cells WHERE shift='clean' LIMIT 1")
    examples = examples_of(store, methods, set_index)
    gallery = {key: data for key, data in store.gallery().items() if isinstance(data, bytes) and can_be_shown(data)}
    curves = pooled_curves(store, method_index, set_index)
    with as_written(store, "the coverage of conformal sets"):
        kept = store.select("SELECT method, seed, shift, severity, data FROM curves WHERE name='conformal'")
        coverage = read_coverage(kept, method_index, seed_index, set_index)
    unit = unit_of(examples, gallery)
    if unit == "word" or (unit == "token" and dimensions(examples)):
        for metric in OF_PIXELS:
            values.pop(metric, None)
    results = Results(
        recipe.study.name,
        source,
        (recipe.to_toml(),),
        methods,
        test_sets,
        values,
        curves,
        examples,
        gallery,
        missing=recipe.missing(store.done()),
        studies=(recipe.study.name,),
        rows=sizes[0][0] if sizes and isinstance(sizes[0][0], int) else 0,
        notes=tuple(_notes(store, recipe, {row[0] for row in rows})),
        damaged=tuple(str(unit) for unit in store.lost),
        unit=unit,
        coverage=coverage,
        conditions=conditions_of(store, recipe),
    )
    store.still_there()
    return results


def _values(
    rows: Sequence[tuple[Any, ...]], methods: dict[str, int], seeds: dict[int, int], test_sets: dict[SetKey, int]
) -> dict[str, Array]:
    """Return each metric as (method, seed, test set); NaN where there is no result."""
    values: dict[str, Array] = {}
    for name, seed, shift, severity, metric, value in rows:
        if metric in METRICS and shift != "validation" and name in methods:
            if metric not in values:
                values[metric] = np.full((len(methods), len(seeds), len(test_sets)), np.nan)
            values[metric][methods[name], seeds[seed], test_sets[shift, severity]] = value
    return values


def _source(store: Store, recipe: StoredRecipe) -> str:
    """Return what was computed, and in which time."""
    with as_written(store, "the list of runs"):
        times = [_seconds(store, run) for run in store.runs()]
        # of a run that was killed, only the time of its results is known
        seconds = effort_of(store).seconds if None in times else sum(filter(None, times))
    data = without_folder(recipe.data.source)
    if recipe.data.evaluate_on_validation:
        data += " (evaluated on held-out training data, not on test data)"
    return (
        f"{data}, {recipe.net.name}, up to {recipe.study.samples} samples per prediction; "
        f"{len(store.done()):,} evaluations (one method with one seed on one test set), computed in "
        f"{'at least ' * (None in times)}{_time(seconds)}"
    )


def _checked(store: Store, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of results if avuc can have written it; else raise `InputError`."""
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


def _notes(store: Store, recipe: StoredRecipe, names: set[str]) -> Iterator[str]:
    others = sorted(names - {row.name for row in recipe.methods})
    if others:
        listed = ", ".join(others[:8]) + (" and more" if len(others) > 8 else "")
        yield f"The file also has results of {listed}, which are not in the recipe; this page leaves them out."
    with as_written(store, "the list of runs"):
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
                    f"Results were computed with different {what} ({', '.join(different)}). This alone can "
                    "change the last digits of a result."
                )


def _seconds(store: Store, run: dict[str, Any]) -> float | None:
    seconds = run["seconds"]
    if seconds is None:
        return None
    if not isinstance(seconds, float | int) or not 0 <= seconds <= LARGEST:
        raise InputError(f"{store.path}: run {run['id']} took {seconds!r:.60} seconds; {CHANGED}")
    return float(seconds)


def _in_order(test_sets: set[SetKey], shifts: Sequence[str]) -> list[SetKey]:
    """Sort test sets: clean images, then shifts in the recipe's order, then out-of-distribution data."""
    order = list(dict.fromkeys([*shifts, *natural_order({shift for shift, _ in test_sets})]))

    def sort_key(test_set: SetKey) -> tuple[int, int, int]:
        shift, severity = test_set
        return 0 if test_set == CLEAN else 1 if severity else 2, order.index(shift), severity

    return sorted(test_sets, key=sort_key)


def _method_facts(store: Store, row: StoredMethod, index: int, rows: Sequence[tuple[Any, ...]]) -> MethodFacts:
    own_rows = [line for line in rows if line[0] == row.name]
    seeds = tuple(sorted({line[1] for line in own_rows if line[2] != "validation"}))
    validated = store.select(
        "SELECT c.rows, r.value FROM cells c JOIN rows r USING(method, seed, shift, severity) "
        "WHERE method=? AND shift='validation' AND metric='accuracy'",
        (row.name,),
    )
    with as_written(store, f"what is stored of {row.name!r}"):
        errors = [round(int(count) * (1 - accuracy)) for count, accuracy in validated if count and accuracy is not None]
        samples = store.select("SELECT max(samples) FROM cells WHERE method=?", (row.name,))[0][0]
        fitted = [json.loads(text) for text in (store.calibrator(row.name, seed) for seed in seeds) if text]
        return MethodFacts(
            row.name,
            index,
            row.reuse_model,
            seeds=seeds,
            samples=int(samples or 1),
            beta=row.beta if row.objective == "avuc" else None,
            errors=min(errors, default=None),
            temperatures=tuple(line[5] for line in own_rows if line[2] == "validation" and line[4] == "temperature"),
            at_bound=any(content.get("learned", {}).get("at_bound") is True for content in fitted),
            history=tuple(_averaged(store.history(row.name, seed)) for seed in seeds),
        )


def _averaged(history: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return one record for each epoch: the mean over the networks of an ensemble."""
    epochs: dict[int, list[dict[str, Any]]] = {}
    for record in history:
        epochs.setdefault(int(record["epoch"]), []).append(record)
    averaged = []
    for epoch, records in sorted(epochs.items()):
        means = {}
        for name in (name for name, value in records[0].items() if isinstance(value, float)):
            known = [record[name] for record in records if isinstance(record.get(name), float)]
            means[name] = sum(known) / len(known)
        averaged.append({"epoch": epoch, **means})
    return tuple(averaged)


def _time(seconds: float) -> str:
    """
    >>> _time(75), _time(7300)
    ('75 s', '2 h 2 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
