"""The tables of docs/studies/*.md, from the published rows of a study; used by make_studies.py."""

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

from avuc.core.errors import InputError
from avuc.report.metric_text import metric_text
from avuc.report.study.paired import Difference, over_seeds, pairs_by_seed
from avuc.report.study.paper_comparison import figure
from avuc.report.study.result_arrays import CLEAN, METRICS, MethodFacts, Results
from avuc.study.recipe import parse_recipe
from avuc.study.stored_recipe import StoredRecipe

VALIDATION = "validation"
# a difference is called an effect only if this many seeds can be paired
FEWEST = 5
DIGITS = 2
# printed as they are; all other metrics in percent
PLAIN = ("nll", "brier", "mean_entropy", "wasserstein")
QUARTILES = ("lower quartile", "median", "mean", "upper quartile")
SCORES = ("ece", "uce", "nll", "brier")
DETECTION = ("auroc", "aupr_in", "aupr_out", "fpr95")


@dataclass(frozen=True)
class Published:
    """The published files of a study.

    Args:
        results: on the test data.
        facts: study.json.
        validation: on the validation data.
        changes: settings that are not those of the study's recipe, "data.test_images = 5000".
    """

    results: Results
    facts: Mapping[str, Any]
    validation: Results
    changes: tuple[str, ...] = ()


def read_published(folder: Path, recipe_file: Path | None = None) -> Published | None:
    """Read what reproduction/run_study.py wrote; None if there is nothing.

    Args:
        folder: of the published files.
        recipe_file: the study's recipe, with which the published one is compared; None: not at all.
    """
    if not (folder / "rows.csv").is_file():
        return None
    recipe = StoredRecipe.parse((folder / "recipe.toml").read_text(encoding="utf-8"), str(folder / "recipe.toml"))
    with open(folder / "rows.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise InputError(f"{folder / 'rows.csv'}: has no rows; publish the study again")
    facts = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    held = [{**line, "shift": CLEAN[0]} for line in lines if line["shift"] == VALIDATION]
    tested = [line for line in lines if line["shift"] != VALIDATION]
    changes = () if recipe_file is None else changed_settings(folder / "recipe.toml", recipe_file)
    return Published(_results(recipe, tested), facts, _results(recipe, held), changes)


def changed_settings(published: Path, recipe: Path) -> tuple[str, ...]:
    """Return the settings of a published recipe that are not those of the study's own, without data.root.

    Args:
        published: what was run.
        recipe: the file in the study's folder.
    """
    ran, own = (_settings(path) for path in (published, recipe))
    keys = sorted((ran.keys() | own.keys()) - {"data.root"})
    for key in keys:
        method, _, setting = key.rpartition(".train.")
        if method:  # a method's own training settings are written where they are not those of all methods
            for settings in (ran, own):
                settings.setdefault(key, settings.get(f"train.{setting}"))
    # a key that one of the two does not write is at its default there
    changed = {key: ran.get(key, "left out") for key in keys if ran.get(key) != own.get(key)}
    return tuple(f"{key} = {list(value) if isinstance(value, tuple) else value}" for key, value in changed.items())


def _settings(path: Path) -> dict[str, Any]:
    tables = parse_recipe(path.read_text(encoding="utf-8"), str(path)).tables()  # published: leaves defaults out
    methods = {method["name"]: method for method in tables.pop("methods")}
    return _flat({**tables, "methods": methods})


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    >>> _flat({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'd': [2]}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _results(recipe: StoredRecipe, lines: Sequence[Mapping[str, str]]) -> Results:
    """The rows as the arrays that reports are made from."""
    present = {line["method"] for line in lines}
    seeds = sorted({int(line["seed"]) for line in lines})
    sets = [CLEAN, *((shift, level) for shift in recipe.study.shifts for level in recipe.study.severities)]
    sets += [(f"ood:{other.name}", 0) for other in recipe.study.others]
    found = {(line["shift"], int(line["severity"])) for line in lines}
    test_sets = [key for key in sets if key in found]
    methods = []
    for index, method in enumerate(one for one in recipe.methods if one.name in present):
        own = [line for line in lines if line["method"] == method.name]
        numbers = tuple(sorted({int(line["seed"]) for line in own}))
        samples = max(int(line["samples"]) for line in own)
        methods.append(MethodFacts(method.name, index, method.reuse_model, seeds=numbers, samples=samples))
    names = [method.name for method in methods]
    values = {
        metric: np.full((len(methods), len(seeds), len(test_sets)), np.nan)
        for metric in METRICS
        if lines and metric in lines[0]
    }
    for line in lines:
        place = names.index(line["method"]), seeds.index(int(line["seed"]))
        where = test_sets.index((line["shift"], int(line["severity"])))
        for metric, array in values.items():
            array[(*place, where)] = float(line[metric] or "nan")
    return Results(recipe.study.name, "", (), methods, test_sets, values, {}, {}, {}, studies=(recipe.study.name,))


def number(value: float, metric: str, *, signed: bool = False) -> str:
    """A value as it is printed: shares in percent.

    >>> number(0.12345, "ece"), number(1.5, "nll"), number(-0.01, "ece", signed=True), number(math.nan, "ece")
    ('12.35', '1.500', '−1.00', '–')
    """
    if not math.isfinite(value):
        return "–"
    sign = "+" if signed else ""
    text = f"{value:{sign}.{DIGITS + 1}f}" if metric in PLAIN else f"{100 * value:{sign}.{DIGITS}f}"
    return text.replace("-", "−")


def title(metric: str) -> str:
    """The heading of a metric's column."""
    text = metric_text(metric)
    arrow = {"higher": " ↑", "lower": " ↓"}.get(text.better, "")
    return f"{text.title}{'' if metric in PLAIN else ', %'}{arrow}"


def _table(results: Results, metrics: Sequence[str], where: str) -> str:
    """Mean over seeds ± the deviation over seeds."""
    known = [metric for metric in metrics if metric in results.values]
    rows = []
    for name in results.names:
        cells = []
        for metric in known:
            found = figure(results, name, metric, where)
            deviation = f" ± {number(found.deviation, metric)}" if found.seeds > 1 else ""
            cells.append(number(found.value, metric) + deviation)
        rows.append([name, *cells])
    return markdown(["method", *map(title, known)], rows)


def clean(results: Results, metrics: Sequence[str]) -> str:
    seeds = "one seed" if results.seeds == 1 else f"mean ± standard deviation over {results.seeds} seeds"
    return f"Clean test data, {seeds}.\n\n{_table(results, metrics, 'clean')}"


def held_out(validation: Results, metrics: Sequence[str]) -> str:
    """The same table for the validation data, where temperatures and thresholds are learned."""
    return f"Validation data, for comparison; temperatures are learned there.\n\n{_table(validation, metrics, 'clean')}"


def shifted(results: Results, metrics: Sequence[str]) -> str:
    top = results.severities[-1]
    return (
        f"Mean over {len(results.shifts)} kinds of shift at intensity {top}, and its deviation over seeds.\n\n"
        f"{_table(results, metrics, str(top))}"
    )


def by_intensity(results: Results, metrics: Sequence[str]) -> str:
    """Mean over shifts at every intensity, for the first metric and the calibration errors."""
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
    """The paper's table: quartiles over the shifts at the strongest intensity, and the trend with the intensity."""
    top, parts = str(results.severities[-1]), []
    for metric in SCORES:
        if metric not in results.values:
            continue
        rows = []
        for name in results.names:
            cells = [number(figure(results, name, metric, top, each).value, metric) for each in QUARTILES]
            rho = figure(results, name, metric, "", "spearman").value
            rows.append([name, *cells, f"{rho:.2f}".replace("-", "−") if math.isfinite(rho) else "–"])
        head = ["method", *QUARTILES, "ρ with the intensity"]
        parts.append(f"{title(metric)} over the shifts at intensity {top}.\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def detection(results: Results) -> str:
    """How well entropy separates other data from clean test data."""
    parts = []
    for name in results.outside:
        known = [metric for metric in DETECTION if metric in results.values]
        if known:
            table = _table(results, known, name.removeprefix("ood:"))
            parts.append(f"Detecting {name.removeprefix('ood:')} by entropy.\n\n{table}")
    return "\n\n".join(parts)


def difference(results: Results, pair: tuple[str, str], metric: str, where: str) -> tuple[Difference, int]:
    """First − second over the seeds that both have, with the interval of paired seeds; and how many seeds."""
    first, second = (figure(results, name, metric, where) for name in pair)
    paired = pairs_by_seed(first, second)
    if not paired:
        return Difference(math.nan, math.nan, math.nan), 0
    ones, others = zip(*paired, strict=True)
    return over_seeds(ones, others, same_seeds=True), len(paired)


def differences(results: Results, metrics: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """Differences of pairs of methods, on clean data and under shift."""
    known = [metric for metric in metrics if metric in results.values]
    parts = [
        "First method minus second, with half of its 95 % interval over paired seeds. Bold: the interval does not "
        f"contain 0, and there are at least {FEWEST} seeds. With fewer seeds nothing is claimed."
    ]
    for where, words in (("clean", "clean test data"), ("shifted", "mean over all shifts and intensities")):
        if where == "clean" or results.shifts:
            rows = [
                [f"{first} − {second}", *(interval(results, (first, second), m, where) for m in known)]
                for first, second in pairs
            ]
            parts.append(f"On {words}:\n\n{markdown(['difference', *map(title, known)], rows)}")
            few = [
                [f"{first} − {second}", *(spread(results, (first, second), m, where) for m in known)]
                for first, second in pairs
                if any(1 < difference(results, (first, second), m, where)[1] < FEWEST for m in known)
            ]
            if few:
                head = ["lowest and highest of the seeds", *map(title, known)]
                parts.append(f"The same for each seed, from the lowest to the highest:\n\n{markdown(head, few)}")
    return "\n\n".join(parts)


def by_seed(results: Results, pair: tuple[str, str], metric: str, where: str) -> list[float]:
    """First − second for each seed that both have."""
    first, second = (figure(results, name, metric, where) for name in pair)
    return [one - other for one, other in pairs_by_seed(first, second)]


def spread(results: Results, pair: tuple[str, str], metric: str, where: str) -> str:
    """The lowest and the highest difference of the seeds."""
    values = by_seed(results, pair, metric, where) or [math.nan]
    return " … ".join(number(each(values), metric, signed=True) for each in (min, max))


def interval(results: Results, pair: tuple[str, str], metric: str, where: str) -> str:
    """First − second with half of its interval; bold if it is an effect."""
    found, seeds = difference(results, pair, metric, where)
    if not math.isfinite(found.low):
        return number(found.value, metric, signed=True)
    half = number((found.high - found.low) / 2, metric)
    text = f"{number(found.value, metric, signed=True)} ± {half}"
    return f"**{text}**" if seeds >= FEWEST and not found.low <= 0 <= found.high else text


def says(results: Results, pair: tuple[str, str], where: str) -> str:
    """One cell of the index: the differences of ECE and NLL, and whether they are effects."""
    if where == "shifted" and not results.shifts:
        return "no shifts"
    return ", ".join(f"{metric.upper()} {interval(results, pair, metric, where)}" for metric in ("ece", "nll"))


def holds(results: Results, pair: tuple[str, str], where: str) -> str:
    """Whether the first method helps: what is an effect on ECE and NLL over at least `FEWEST` paired seeds.

    Args:
        results: of a study.
        pair: the method and the one that it is compared with.
        where: "clean" or "shifted".
    """
    words = {}
    for metric in ("ece", "nll"):
        found, seeds = difference(results, pair, metric, where)
        if seeds < FEWEST:
            return f"open: {seeds} seed{'s' * (seeds != 1)}"
        words[metric] = "better" if found.high < 0 else "worse" if found.low > 0 else "the same"
    if set(words.values()) == {"the same"}:
        return "no effect"
    if "worse" not in words.values():
        return "yes" if words["ece"] == "better" else "NLL only"
    if words["ece"] == "better":
        return "ECE only; NLL is worse"
    return "no: worse" if words["nll"] != "better" else "NLL only; ECE is worse"
