"""The tables of docs/studies/*.md, from the published results of a study.

`python reproduction/pages/make_studies.py` writes them into the pages.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from reproduction_tables import markdown
from studies_figures import figure

from avuc.core.errors import InputError
from avuc.report.metric_text import metric_text
from avuc.report.study.result_arrays import CLEAN, METRICS, MethodFacts, Results
from avuc.study.recipe.load import parse_recipe
from avuc.study.store.recipe import StoredRecipe

VALIDATION = "validation"
DIGITS = 2
# metrics that are printed as they are; all others are printed in percent
PLAIN = ("nll", "brier", "mean_entropy", "wasserstein")
QUARTILES = ("lower quartile", "median", "mean", "upper quartile")
SCORES = ("ece", "uce", "nll", "brier")
DETECTION = ("auroc", "aupr_in", "aupr_out", "fpr95")
# settings that do not change results: where the data are, and how many rows the network gets at a time
NO_RESULTS = {"data.root", "study.batch_size"}


@dataclass(frozen=True)
class Published:
    """The published files of a study.

    Args:
        results: results on the test data.
        facts: content of study.json.
        validation: results on the validation data.
        changes: settings that differ from the study's recipe, like "data.test_images = 5000".
    """

    results: Results
    facts: Mapping[str, Any]
    validation: Results
    changes: tuple[str, ...] = ()


def read_published(folder: Path, recipe_file: Path | None = None) -> Published | None:
    """Return the files that reproduction/run_study.py published; None if there are none.

    Args:
        folder: folder of the published files.
        recipe_file: the study's recipe, which the published recipe is compared with; None: no comparison.
    """
    if not (folder / "rows.csv").is_file():
        return None
    recipe = StoredRecipe.parse((folder / "recipe.toml").read_text(encoding="utf-8"), str(folder / "recipe.toml"))
    with open(folder / "rows.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise InputError(f"{folder / 'rows.csv'}: has no rows; publish the study again")
    facts = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    held_out_lines = [{**line, "shift": CLEAN[0]} for line in lines if line["shift"] == VALIDATION]
    test_lines = [line for line in lines if line["shift"] != VALIDATION]
    changes = () if recipe_file is None else changed_settings(folder / "recipe.toml", recipe_file)
    return Published(_results(recipe, test_lines), facts, _results(recipe, held_out_lines), changes)


def changed_settings(published: Path, recipe: Path) -> tuple[str, ...]:
    """Return the settings of a published recipe that differ from those of the study's recipe and can change results.

    Args:
        published: the recipe that was run.
        recipe: the recipe in the study's folder.
    """
    run, original = (_settings(path) for path in (published, recipe))
    keys = sorted((run.keys() | original.keys()) - NO_RESULTS)
    for key in keys:
        method, _, setting = key.rpartition(".train.")
        if method:  # a method lists only training settings that differ from the common ones
            for settings in (run, original):
                settings.setdefault(key, settings.get(f"train.{setting}"))
    # a key that is missing in one of the recipes has its default value there
    changed = {key: run.get(key, "left out") for key in keys if run.get(key) != original.get(key)}
    return tuple(f"{key} = {list(value) if isinstance(value, tuple) else value}" for key, value in changed.items())


def _settings(path: Path) -> dict[str, Any]:
    """Return all settings of a recipe, with keys like "methods.SVI.train.epochs"."""
    tables = parse_recipe(
        path.read_text(encoding="utf-8"), str(path)
    ).tables()  # parsing adds the settings that the published file leaves out
    methods = {method["name"]: method for method in tables.pop("methods")}
    return _flat({**tables, "methods": methods})


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with keys joined by dots.

    >>> _flat({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'd': [2]}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _results(recipe: StoredRecipe, lines: Sequence[Mapping[str, str]]) -> Results:
    """Return the published rows as the arrays that reports are made from."""
    present_methods = {line["method"] for line in lines}
    seeds = sorted({int(line["seed"]) for line in lines})
    all_sets = [CLEAN, *((shift, level) for shift in recipe.study.shifts for level in recipe.study.severities)]
    all_sets += [(f"ood:{other.name}", 0) for other in recipe.study.others]
    present_sets = {(line["shift"], int(line["severity"])) for line in lines}
    test_sets = [key for key in all_sets if key in present_sets]
    methods = []
    for index, method in enumerate(entry for entry in recipe.methods if entry.name in present_methods):
        method_lines = [line for line in lines if line["method"] == method.name]
        method_seeds = tuple(sorted({int(line["seed"]) for line in method_lines}))
        samples = max(int(line["samples"]) for line in method_lines)
        methods.append(MethodFacts(method.name, index, method.reuse_model, seeds=method_seeds, samples=samples))
    names = [method.name for method in methods]
    values = {
        metric: np.full((len(methods), len(seeds), len(test_sets)), np.nan)
        for metric in METRICS
        if lines and metric in lines[0]
    }
    for line in lines:
        method_and_seed = names.index(line["method"]), seeds.index(int(line["seed"]))
        set_index = test_sets.index((line["shift"], int(line["severity"])))
        for metric, array in values.items():
            array[(*method_and_seed, set_index)] = float(line[metric] or "nan")
    return Results(recipe.study.name, "", (), methods, test_sets, values, {}, {}, {}, studies=(recipe.study.name,))


def number(value: float, metric: str, *, signed: bool = False) -> str:
    """Return a value as it is printed: shares in percent.

    >>> number(0.12345, "ece"), number(1.5, "nll"), number(-0.01, "ece", signed=True), number(math.nan, "ece")
    ('12.35', '1.500', '−1.00', '–')
    """
    if not math.isfinite(value):
        return "–"
    sign = "+" if signed else ""
    text = f"{value:{sign}.{DIGITS + 1}f}" if metric in PLAIN else f"{100 * value:{sign}.{DIGITS}f}"
    return text.replace("-", "−")


def title(metric: str) -> str:
    """Return the heading of a metric's column."""
    text = metric_text(metric)
    arrow = {"higher": " ↑", "lower": " ↓"}.get(text.better, "")
    return f"{text.title}{'' if metric in PLAIN else ', %'}{arrow}"


def _table(results: Results, metrics: Sequence[str], where: str) -> str:
    """Return a table of means over seeds ± standard deviations over seeds."""
    measured = [metric for metric in metrics if metric in results.values]
    rows = []
    for name in results.names:
        cells = []
        for metric in measured:
            value = figure(results, name, metric, where)
            deviation = f" ± {number(value.deviation, metric)}" if value.seeds > 1 else ""
            cells.append(number(value.value, metric) + deviation)
        rows.append([name, *cells])
    return markdown(["method", *map(title, measured)], rows)


def clean(results: Results, metrics: Sequence[str]) -> str:
    """Return the table of the clean test data."""
    counts = sorted({len(method.seeds) for method in results.methods} - {1})
    seeds = f"mean ± standard deviation over {' or '.join(map(str, counts))} seeds" if counts else "one seed"
    return f"Clean test data, {seeds}.\n\n{_table(results, metrics, 'clean')}"


def held_out(validation: Results, metrics: Sequence[str]) -> str:
    """Return the same table for the validation data, on which temperatures and thresholds are learned."""
    return f"Validation data, for comparison; temperatures are learned there.\n\n{_table(validation, metrics, 'clean')}"


def shifted(results: Results, metrics: Sequence[str]) -> str:
    """Return the table of the shifted test data at the strongest intensity."""
    top = results.severities[-1]
    return (
        f"Mean over {len(results.shifts)} kinds of shift at intensity {top}, and its deviation over seeds.\n\n"
        f"{_table(results, metrics, str(top))}"
    )


def by_intensity(results: Results, metrics: Sequence[str]) -> str:
    """Return the means over shifts at every intensity, for the first metric and the calibration errors."""
    parts = []
    for metric in dict.fromkeys([metrics[0], "nll", "ece", "uce"]):
        if metric in results.values:
            levels = ["0", *map(str, results.severities)]
            rows = [
                [name, *(number(figure(results, name, metric, level).value, metric) for level in levels)]
                for name in results.names
            ]
            parts.append(f"{title(metric)} by intensity; 0: clean.\n\n{markdown(['method', *levels], rows)}")
    return "\n\n".join(parts)


def quartiles(results: Results) -> str:
    """Return the paper's table: quartiles over the shifts at the strongest intensity, and ρ with the intensity."""
    top, parts = str(results.severities[-1]), []
    for metric in SCORES:
        if metric not in results.values:
            continue
        rows = []
        for name in results.names:
            cells = [number(figure(results, name, metric, top, quartile).value, metric) for quartile in QUARTILES]
            rho = figure(results, name, metric, "", "spearman").value
            rows.append([name, *cells, f"{rho:.2f}".replace("-", "−") if math.isfinite(rho) else "–"])
        head = ["method", *QUARTILES, "ρ with the intensity"]
        parts.append(f"{title(metric)} over the shifts at intensity {top}.\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def detection(results: Results) -> str:
    """Return how well entropy separates other data from clean test data."""
    parts = []
    for name in results.outside:
        measured = [metric for metric in DETECTION if metric in results.values]
        if measured:
            table = _table(results, measured, name.removeprefix("ood:"))
            parts.append(f"Detecting {name.removeprefix('ood:')} by entropy.\n\n{table}")
    return "\n\n".join(parts)
