"""Which method to use and why, in plain sentences; and what a reader must be warned of. Numbers in, sentences out."""

from __future__ import annotations

import math

import numpy as np

from avuc.report.metric_text import words_of
from avuc.report.study.intervals import Spread, spread
from avuc.report.study.results import CLEAN, Results

__all__ = ["Verdict", "alarms", "verdict"]

Verdict = list[str]
# fewer mistakes than this, and the mean entropy of the mistakes is mostly chance
FEWEST_ERRORS = 30
FEWEST_SEEDS = 3
MOST_NAMED = 4
MOST_DAMAGED = 20


def verdict(results: Results) -> Verdict:
    """The best method by a proper score, how far its confidence is off beside the first row's, and what else it does.

    NLL decides: unlike ECE it cannot be improved by knowing less.
    """
    nll = _spread(results, "nll")
    best = nll.best(lower=True)
    if best is None and results.shifts:
        return ["No shifted set has results of every method yet, so methods cannot be compared under shift."]
    if best is None:
        return ["This study has no results yet."]
    first = 0
    told = [_choice(results, nll, best, first)]
    if results.shifts:
        told.append(_points(results, "ece", best, first))
        told.append(_points(results, "uce", best, first))
    told += _accuracy(results, best, first)
    told += [_outside(results, name) for name in results.outside]
    told += _equals(results, nll, best)
    return [sentence for sentence in told if sentence]


def alarms(results: Results) -> Verdict:
    """What makes the verdict weaker than it reads."""
    told = [*_worse_scores(results), *_bounds(results), *_thresholds(results), *_seeds(results), *_common(results)]
    told += results.notes
    if results.damaged:
        named = "; ".join(results.damaged[:MOST_DAMAGED])
        more = f"; and {len(results.damaged) - MOST_DAMAGED} more" if len(results.damaged) > MOST_DAMAGED else ""
        told.append(
            f"The study's file is damaged. This page does without what is lost: {named}{more}. "
            "avuc study computes it again."
        )
    if results.missing > 0:
        told.append(
            f"{results.missing:,} results of the recipe are still missing; avuc study goes on where it stopped."
        )
    return told


def _spread(results: Results, metric: str, severity: int | None = None) -> Spread:
    """Under shift, or on clean images where no shift was made."""
    if results.shifts:
        return spread(results.shifted(metric, severity))
    return spread(results.at(metric, CLEAN)[:, :, None])


def _choice(results: Results, nll: Spread, best: int, first: int) -> str:
    where = _where(results)
    name = results.names[best]
    if len(results.methods) == 1:
        return f"{where}, {name} has an NLL of {_value(nll, best)}."
    against = first if best != first and math.isfinite(nll.value[first]) else int(np.nanargmax(nll.value))
    if against == best:
        return f"{where}, only {name} has results: its NLL is {_value(nll, best)}."
    return (
        f"Use {name}: {where[0].lower()}{where[1:]} it predicts best, with an NLL of {_value(nll, best)} "
        f"against {_value(nll, against, plain=True)} of {results.names[against]}."
    )


def _where(results: Results) -> str:
    if not results.shifts:
        return "On clean images"
    kinds = f"{len(results.shifts)} kind{'s' * (len(results.shifts) > 1)} of shift"
    return f"Over {kinds} at {len(results.severities)} intensit{'ies' if len(results.severities) > 1 else 'y'}"


def _points(results: Results, metric: str, best: int, first: int) -> str:
    """Under the strongest shift SVI-AvUC's confidence is off by 13 points on average, Vanilla's by 31."""
    top = results.severities[-1]
    found = _spread(results, metric, top)
    if not math.isfinite(found.value[best]):
        return ""
    what = {"ece": "confidence is off", "uce": "stated uncertainty is off"}[metric]
    sentence = f"Under the strongest shift {results.names[best]}'s {what} by {_percent_points(found, best)} on average"
    if best != first and math.isfinite(found.value[first]):
        sentence += f", {results.names[first]}'s by {_percent_points(found, first, unit=False)}"
    calm = found.best(lower=True)
    if calm is not None and calm != best and best not in found.ties(lower=True):
        sentence += f"; {results.names[calm]}'s least, by {_percent_points(found, calm, unit=False)}"
    return sentence + "."


def _accuracy(results: Results, best: int, first: int) -> list[str]:
    clean = results.mean("accuracy", CLEAN)
    if not math.isfinite(clean[best]):
        return []
    sentence = f"On clean images {results.names[best]} is right {clean[best]:.1%} of the time"
    if best != first and math.isfinite(clean[first]):
        sentence += f", {results.names[first]} {clean[first]:.1%}"
    if results.shifts:
        top = results.severities[-1]
        hard = _spread(results, "accuracy", top)
        if math.isfinite(hard.value[best]):
            sentence += f"; under the strongest shift {hard.value[best]:.1%}"
            if best != first and math.isfinite(hard.value[first]):
                sentence += f" and {hard.value[first]:.1%}"
    return [sentence + "."]


def _outside(results: Results, name: str) -> str:
    found = spread(results.at("auroc", (name, 0))[:, :, None])
    keen = found.best(lower=False)
    if keen is None:
        return ""
    shown = name.removeprefix("ood:")
    return (
        f"{results.names[keen]} tells {shown} from test images best: AUROC {_value(found, keen)}; its entropy is "
        f"higher for {shown} in {found.value[keen]:.0%} of all pairs."
    )


def _equals(results: Results, nll: Spread, best: int) -> list[str]:
    others = sorted(nll.ties(lower=True) - {best}, key=lambda method: nll.value[method])
    if not others:
        return []
    named = [results.names[method] for method in others[:MOST_NAMED]]
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    sentence = f"This study cannot tell {_listed(named)}{more} from it: the interval of the difference includes zero"
    cheap = min(others, key=lambda method: results.methods[method].draws)
    if results.methods[cheap].draws < results.methods[best].draws:
        few, many = results.methods[cheap].draws, results.methods[best].draws
        sentence += f"; {results.names[cheap]} needs {few} forward pass{'es' * (few > 1)} instead of {many}"
    return [sentence + "."]


def _worse_scores(results: Results) -> Verdict:
    """Calibration that improved while a proper score worsened: the model says less, instead of knowing more."""
    told = []
    for place, method in enumerate(results.methods):
        base = results.names.index(method.of) if method.of in results.names else _first_of(results, method.study)
        if base == place:
            continue
        for where, cell in (("under shift", None), ("on clean images", CLEAN)):
            if cell is None and not results.shifts:
                continue
            found = {
                metric: spread(results.shifted(metric) if cell is None else results.at(metric, cell)[:, :, None])
                for metric in ("ece", "nll", "brier")
            }
            if not _changed(found["ece"], place, base, better=True):
                continue
            worse = [metric for metric in ("nll", "brier") if _changed(found[metric], place, base, better=False)]
            if worse:
                changes = _listed([_change(found[metric], metric, place, base) for metric in ("ece", *worse)])
                told.append(
                    f"{method.name} is better calibrated than {results.names[base]} {where}, "
                    f"but predicts worse: {changes}."
                )
    return told


def _changed(found: Spread, place: int, base: int, *, better: bool) -> bool:
    """A change for the better or the worse (lower is better) that the interval tells from zero, where there is one."""
    change = found.value[place] - found.value[base]
    low, high = found.difference(place, base)
    if math.isnan(low):  # one shift and one seed: only a large change counts
        return bool(change < -0.02 * abs(found.value[base]) if better else change > 0.02 * abs(found.value[base]))
    return high < 0 if better else low > 0


def _change(found: Spread, metric: str, place: int, base: int) -> str:
    return f"{words_of(metric).title} {_number(found.value[base])} → {_number(found.value[place])}"


def _first_of(results: Results, study: int) -> int:
    return next(place for place, method in enumerate(results.methods) if method.study == study)


def _bounds(results: Results) -> Verdict:
    return [
        f"The objective of {method.name} has no minimum in the range of its search: "
        f"T = {_listed([f'{value:.3g}' for value in method.temperatures])} is where it stopped, so do not trust it."
        for method in results.methods
        if method.at_bound
    ]


def _thresholds(results: Results) -> Verdict:
    few = [method for method in results.methods if method.errors is not None and method.errors < FEWEST_ERRORS]
    if not few:
        return []
    count = min(method.errors or 0 for method in few)
    who = "every method" if len(few) == len(results.methods) > 1 else _listed([method.name for method in few])
    return [
        f"The uncertainty threshold of {who} was learned from few mistakes on validation data (as few as {count}; "
        f"{FEWEST_ERRORS} would do): AvU, p(right | certain) and p(uncertain | wrong) may owe much to chance."
    ]


def _seeds(results: Results) -> Verdict:
    counts = [len(method.seeds) for method in results.methods]
    told = []
    if min(counts) < FEWEST_SEEDS:
        few = sum(count < FEWEST_SEEDS for count in counts)
        whose = f"{few} of {len(counts)} methods" if few < len(counts) else f"{few} methods"
        seeds = "One seed" if min(counts) == 1 else f"{min(counts)} seeds"
        told.append(
            f"{seeds} for {whose}: fewer than claims. Intervals say how results vary with the kind of "
            "shift, hardly how they vary with training; small differences may be chance."
        )
    if min(counts) != max(counts):
        told.append(f"Methods have between {min(counts)} and {max(counts)} seeds.")
    return told


def _common(results: Results) -> Verdict:
    """Where methods were judged on different images, what the means are taken over."""
    there = {cell for cell in results.cells if cell[1]}
    common = results.common("nll")
    told = []
    if len(common) < len(there):
        told.append(
            f"Means under shift are over {len(common)} of {len(there)} shifted sets: only these have results of every "
            "method for all its seeds."
        )
    for where, cells in (("under shift", sorted(there)), ("on clean images", [CLEAN])):
        absent = [
            name
            for place, name in enumerate(results.names)
            if not any(np.isfinite(results.at("nll", cell)[place]).any() for cell in cells)
        ]
        if cells and absent:
            told.append(f"No results {where} yet: {_listed(absent)}.")
    return told


def _value(found: Spread, method: int, *, plain: bool = False) -> str:
    low, high = found.interval(method)
    text = _number(found.value[method])
    if math.isnan(low):
        return text
    return f"{text} ({_number(low)} … {_number(high)})" if plain else f"{text} (95 % {_number(low)} … {_number(high)})"


def _percent_points(found: Spread, method: int, *, unit: bool = True) -> str:
    low, high = found.interval(method)
    text = _points_of(found.value[method]) + (" points" if unit else "")
    return text if math.isnan(low) else f"{text} ({_points_of(low)} … {_points_of(high)})"


def _points_of(share: float) -> str:
    points = 100 * share
    return f"{points:.2g}" if 0 < abs(points) < 0.095 else f"{points:.1f}"


def _number(value: float) -> str:
    if 0 < abs(value) < 0.0095:  # 0.000 would say nothing
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def _listed(words: list[str]) -> str:
    """
    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
