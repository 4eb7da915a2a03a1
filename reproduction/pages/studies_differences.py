"""Differences between the methods of a study over paired seeds, as they stand in docs/studies/*.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reproduction_seeds import FEWEST_SEEDS
from reproduction_tables import markdown
from studies_figures import figure
from studies_tables import number, title

from avuc.report.study.paired import NOT_COMPARABLE, Difference, over_seeds, pairs_by_seed
from avuc.report.study.result_arrays import Results


def difference(results: Results, pair: tuple[str, str], metric: str, where: str) -> tuple[Difference, int]:
    """Return first − second over the seeds that both have, with its paired interval, and the number of these seeds."""
    first, second = (figure(results, name, metric, where) for name in pair)
    paired = pairs_by_seed(first, second)
    if not paired:
        return NOT_COMPARABLE, 0
    first_values, second_values = zip(*paired, strict=True)
    return over_seeds(first_values, second_values, same_seeds=True), len(paired)


def differences(results: Results, metrics: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the differences of pairs of methods, on clean data and under shift."""
    measured = [metric for metric in metrics if metric in results.values]
    parts = [
        "First method minus second, with half of its 95 % interval over paired seeds. Bold: the interval does not "
        f"contain 0, and there are at least {FEWEST_SEEDS} seeds. With fewer seeds nothing is claimed."
    ]
    heads = {"clean": "clean test data"}
    if results.shifts:
        heads["shifted"] = "mean over all shifts and intensities"
    if results.shifts and any(not _measured(results, pair, measured, "shifted") for pair in pairs):
        strongest = str(max(results.severities))
        heads[strongest] = f"mean over all shifts at intensity {strongest}"
    for where, images in heads.items():
        known = [pair for pair in pairs if _measured(results, pair, measured, where)]
        rows = [[" − ".join(pair), *(interval(results, pair, m, where) for m in measured)] for pair in known]
        parts.append(f"On {images}:\n\n{markdown(['difference', *map(title, measured)], rows)}")
        few_seeds = [
            [" − ".join(pair), *(spread(results, pair, m, where) for m in measured)]
            for pair in known
            if any(1 < difference(results, pair, m, where)[1] < FEWEST_SEEDS for m in measured)
        ]
        if few_seeds:
            head = ["lowest and highest of the seeds", *map(title, measured)]
            parts.append(f"The same for each seed, from the lowest to the highest:\n\n{markdown(head, few_seeds)}")
    return "\n\n".join(parts)


def _measured(results: Results, pair: tuple[str, str], metrics: Sequence[str], where: str) -> bool:
    """Return whether a difference is known: not where one of the methods lacks some of the shifts."""
    return any(math.isfinite(difference(results, pair, metric, where)[0].value) for metric in metrics)


def by_seed(results: Results, pair: tuple[str, str], metric: str, where: str) -> list[float]:
    """Return first − second for each seed that both have."""
    first, second = (figure(results, name, metric, where) for name in pair)
    return [value - base for value, base in pairs_by_seed(first, second)]


def spread(results: Results, pair: tuple[str, str], metric: str, where: str) -> str:
    """Return the lowest and the highest difference of the seeds."""
    values = by_seed(results, pair, metric, where) or [math.nan]
    return " … ".join(number(extreme(values), metric, signed=True) for extreme in (min, max))


def interval(results: Results, pair: tuple[str, str], metric: str, where: str) -> str:
    """Return first − second with half of its interval; bold if it is an effect."""
    change, seeds = difference(results, pair, metric, where)
    if not math.isfinite(change.low):
        return number(change.value, metric, signed=True)
    half = number((change.high - change.low) / 2, metric)
    text = f"{number(change.value, metric, signed=True)} ± {half}"
    return f"**{text}**" if seeds >= FEWEST_SEEDS and not change.low <= 0 <= change.high else text


def says(results: Results, pair: tuple[str, str], where: str) -> str:
    """Return one cell of the index: the differences of ECE and NLL; bold if they are effects."""
    if where == "shifted" and not results.shifts:
        return "no shifts"
    return ", ".join(f"{metric.upper()} {interval(results, pair, metric, where)}" for metric in ("ece", "nll"))


def holds(results: Results, pair: tuple[str, str], where: str) -> str:
    """Return whether the first method helps: its effects on ECE and NLL over at least `FEWEST_SEEDS` paired seeds."""
    effects = {}
    for metric in ("ece", "nll"):
        change, seeds = difference(results, pair, metric, where)
        if seeds < FEWEST_SEEDS:
            return f"open: {seeds} seed{'s' * (seeds != 1)}"
        effects[metric] = "better" if change.high < 0 else "worse" if change.low > 0 else "the same"
    if set(effects.values()) == {"the same"}:
        return "no effect"
    if "worse" not in effects.values():
        return "yes" if effects["ece"] == "better" else "NLL only"
    if effects["ece"] == "better":
        return "ECE only; NLL is worse"
    return "no: worse" if effects["nll"] != "better" else "NLL only; ECE is worse"
