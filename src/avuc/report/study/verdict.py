"""The verdict of a study, which method to use and why, and the warnings a reader needs, as plain sentences."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avuc.report.metric_text import metric_text
from avuc.report.numbers import percent
from avuc.report.study.coverage import coverage_alarms
from avuc.report.study.intervals import Spread, spread
from avuc.report.study.result_arrays import CLEAN, Results
from avuc.report.study.untrained import guessing_alarm, never_active, no_choice

Verdict = list[str]
# with fewer validation errors, the mean entropy of the errors is mostly chance
FEWEST_ERRORS = 30
FEWEST_SEEDS = 3
MOST_NAMED = 4
MOST_DAMAGED = 20


def verdict(results: Results) -> Verdict:
    """Return which method has the best NLL, and how it compares with the first method of the recipe.

    NLL decides because it is a proper score: unlike ECE, it does not improve when the model knows less.
    """
    nll = _spread(results, "nll")
    best = nll.best(lower=True)
    if best is None and results.shifts:
        return ["No shifted test set has results of every method yet, so methods cannot be compared under shift."]
    if best is None:
        return ["This study has no results yet."]
    first = 0
    sentences = [no_choice(results, best) or _choice(results, nll, best, first)]
    if results.shifts:
        sentences.append(_gap(results, "ece", best, first))
        sentences.append(_gap(results, "uce", best, first))
    sentences.append(_accuracy(results, best, first))
    sentences += [_detection(results, name) for name in results.outside]
    sentences.append(_ties(results, nll, best))
    return [sentence for sentence in sentences if sentence]


def alarms(results: Results) -> Verdict:
    """Return the warnings that weaken the verdict."""
    sentences = [
        *guessing_alarm(results),
        *never_active(results),
        *_worse_scores(results),
        *_bounds(results),
        *_thresholds(results),
        *_seeds(results),
        *_common(results),
        *coverage_alarms(results),
        *results.notes,
    ]
    if results.damaged:
        named = "; ".join(results.damaged[:MOST_DAMAGED])
        more = f"; and {len(results.damaged) - MOST_DAMAGED} more" if len(results.damaged) > MOST_DAMAGED else ""
        sentences.append(
            f"The study's file is damaged. This page leaves out the lost results: {named}{more}. "
            "Run avuc study again to compute them."
        )
    if results.missing > 0:
        sentences.append(
            f"{results.missing:,} results of the recipe are still missing. Run avuc study again to compute them, "
            "without --only if it left out methods."
        )
    return sentences


def _spread(results: Results, metric: str, severity: int | None = None) -> Spread:
    """Return a metric under shift, or on clean images if the study has no shifts."""
    if results.shifts:
        return spread(results.shifted(metric, severity), metric=metric)
    return spread(results.at(metric, CLEAN)[:, :, None], metric=metric)


def _choice(results: Results, nll: Spread, best: int, first: int) -> str:
    where = _where(results)
    name = results.names[best]
    if len(results.methods) == 1:
        return f"{where}, {name} has an NLL of {_value(nll, best)}."
    other = first if best != first and math.isfinite(nll.value[first]) else int(np.nanargmax(nll.value))
    if other == best:
        return f"{where}, only {name} has results: its NLL is {_value(nll, best)}."
    return (
        f"Use {name}: {where[0].lower()}{where[1:]} it predicts best, with an NLL of {_value(nll, best)}, "
        f"compared with {_value(nll, other, plain=True)} for {results.names[other]}."
    )


def _where(results: Results) -> str:
    if not results.shifts:
        return f"On clean {results.units}"
    common = results.common("nll")
    kinds, levels = ({key[part] for key in common} for part in (0, 1))
    named = f"{len(kinds)} kind{'s' * (len(kinds) > 1)} of shift"
    if len(common) < len(kinds) * len(levels):  # an unfinished study: not every kind at every intensity
        return f"Over {len(common)} test sets of {named}"
    return f"Over {named} at {len(levels)} intensit{'ies' if len(levels) > 1 else 'y'}"


def _gap(results: Results, metric: str, best: int, first: int) -> str:
    """Return like: At the strongest intensity, SVI's confidence differs from its accuracy by 13 percentage points."""
    gaps = _spread(results, metric, results.severities[-1])
    if not math.isfinite(gaps.value[best]):
        return ""
    what = {"ece": "confidence differs from its accuracy", "uce": "uncertainty differs from its error rate"}[metric]
    sentence = f"At the strongest intensity, {results.names[best]}'s {what} by {_percent_points(gaps, best)} on average"
    if best != first and math.isfinite(gaps.value[first]):
        sentence += f", {results.names[first]}'s by {_percent_points(gaps, first, unit=False)}"
    smallest = gaps.best(lower=True)
    if smallest is not None and smallest != best and best not in gaps.ties(lower=True):
        sentence += f"; {results.names[smallest]} has the smallest gap: {_percent_points(gaps, smallest, unit=False)}"
    return sentence + "."


def _accuracy(results: Results, best: int, first: int) -> str:
    clean = results.mean("accuracy", CLEAN)
    if not math.isfinite(clean[best]):
        return ""
    sentence = (
        f"The accuracy of {results.names[best]} is {_with_first(results, clean, best, first)} on clean {results.units}"
    )
    if results.shifts:
        shifted = _spread(results, "accuracy", results.severities[-1]).value
        if math.isfinite(shifted[best]):
            sentence += f" and {_with_first(results, shifted, best, first)} at the strongest intensity"
    return sentence + "."


def _with_first(results: Results, accuracy: NDArray[np.float64], best: int, first: int) -> str:
    text = f"{100 * accuracy[best]:.1f} %"
    compared = best != first and math.isfinite(accuracy[first])
    return f"{text} ({results.names[first]}: {100 * accuracy[first]:.1f} %)" if compared else text


def _detection(results: Results, name: str) -> str:
    auroc = spread(results.at("auroc", (name, 0))[:, :, None], metric="auroc")
    best = auroc.best(lower=False)
    if best is None:
        return ""
    data = name.removeprefix("ood:")
    low = auroc.interval(best)[0]
    if auroc.value[best] <= 0.5 or low <= 0.5:
        return (
            f"No method clearly detects {data}: the highest AUROC is {_value(auroc, best)} ({results.names[best]}), "
            "and 0.5 is chance."
        )
    how = " best," if len(results.methods) > 1 else ""
    return (
        f"{results.names[best]} detects {data}{how} with an AUROC of {_value(auroc, best)}: in "
        f"{percent(auroc.value[best])} of all pairs of a test {results.unit} and one from {data}, the latter has "
        "the higher entropy."
    )


def _ties(results: Results, nll: Spread, best: int) -> str:
    others = sorted(nll.ties(lower=True) - {best}, key=lambda method: nll.value[method])
    if not others:
        return ""
    verb = "is" if len(others) == 1 else "are"
    named = _named([results.names[method] for method in others])
    sentence = f"{named} {verb} not significantly different from {results.names[best]} in NLL"
    cheapest = min(others, key=lambda method: results.methods[method].samples)
    few, many = results.methods[cheapest].samples, results.methods[best].samples
    if few < many:
        sentence += f"; {results.names[cheapest]} needs {few} forward pass{'es' * (few > 1)} instead of {many}"
    return sentence + "."


def _worse_scores(results: Results) -> Verdict:
    """Warn of methods that are better calibrated and predict worse: the model says less instead of knowing more."""
    metrics = ("ece", "nll", "brier")
    places = {
        f"on clean {results.units}": {metric: spread(results.at(metric, CLEAN)[:, :, None]) for metric in metrics}
    }
    if results.shifts:
        places = {"under shift": {metric: spread(results.shifted(metric)) for metric in metrics}} | places
    sentences = []
    for index, method in enumerate(results.methods):
        reused = method.reuse_model
        base = results.names.index(reused) if reused in results.names else _first_of(results, method.study)
        if base == index:
            continue
        for where, scores in places.items():
            if not _changed(scores["ece"], index, base, better=True):
                continue
            worse = [metric for metric in ("nll", "brier") if _changed(scores[metric], index, base, better=False)]
            if worse:
                changes = _listed([_change(scores[metric], metric, index, base) for metric in ("ece", *worse)])
                sentences.append(
                    f"{method.name} is better calibrated than {results.names[base]} {where}, "
                    f"but predicts worse: {changes}."
                )
    return sentences


def _changed(scores: Spread, method: int, base: int, *, better: bool) -> bool:
    """Return whether a score, of which lower is better, is significantly better (or worse) than that of `base`."""
    change = scores.value[method] - scores.value[base]
    low, high = scores.difference(method, base)
    if math.isnan(low):  # one shift and one seed, so no interval: only a change of more than 2 % counts
        bound = 0.02 * abs(scores.value[base])
        return bool(change < -bound if better else change > bound)
    return high < 0 if better else low > 0


def _change(scores: Spread, metric: str, method: int, base: int) -> str:
    return f"{metric_text(metric).title} {_number(scores.value[base])} → {_number(scores.value[method])}"


def _first_of(results: Results, study: int) -> int:
    return next(index for index, method in enumerate(results.methods) if method.study == study)


def _bounds(results: Results) -> Verdict:
    sentences = []
    for method in (method for method in results.methods if method.at_bound):
        temperatures = _listed([f"{value:.3g}" for value in method.temperatures])
        sentences.append(
            f"Do not rely on the temperature of {method.name} (T = {temperatures}): for at least one seed its "
            "objective has no minimum in the range of the search."
        )
    return sentences


def _thresholds(results: Results) -> Verdict:
    few = [method for method in results.methods if method.errors is not None and method.errors < FEWEST_ERRORS]
    if not few:
        return []
    count = min(method.errors or 0 for method in few)
    names = "every method" if len(few) == len(results.methods) > 1 else _named([method.name for method in few])
    return [
        f"The uncertainty threshold of {names} was learned from few validation errors (as few as {count}; at least "
        f"{FEWEST_ERRORS} are needed). AvU, p(right | certain) and p(uncertain | wrong) may depend on chance."
    ]


def _seeds(results: Results) -> Verdict:
    counts = [len(method.seeds) for method in results.methods]
    sentences = []
    if min(counts) < FEWEST_SEEDS:
        few = sum(count < FEWEST_SEEDS for count in counts)
        who = f"for {few} of {len(counts)} methods" if few < len(counts) else "per method"
        seeds = "one seed" if min(counts) == 1 else f"{min(counts)} seeds"
        sentence = f"Only {seeds} {who}: differences between methods may be due to training randomness."
        if min(counts) == 1 and len(results.shifts) > 1:  # from two seeds on, intervals vary with training, too
            sentence += (
                " The intervals show how results vary with the kind of shift, but hardly how they vary with training."
            )
        sentences.append(sentence)
    if min(counts) != max(counts):
        sentences.append(f"Methods have different numbers of seeds: from {min(counts)} to {max(counts)}.")
    return sentences


def _common(results: Results) -> Verdict:
    """Warn if methods were evaluated on different test sets."""
    shifted = {key for key in results.test_sets if key[1]}
    common = results.common("nll")
    sentences = []
    if len(common) < len(shifted):
        sentences.append(
            f"Means under shift are over {len(common)} of {len(shifted)} shifted test sets, the ones that have results "
            f"of every method for all of its seeds. The others lack results of {_named(results.incomplete('nll'))}."
        )
    for where, test_sets in (("under shift", sorted(shifted)), (f"on clean {results.units}", [CLEAN])):
        absent = [
            name
            for index, name in enumerate(results.names)
            if not any(np.isfinite(results.at("nll", key)[index]).any() for key in test_sets)
        ]
        if test_sets and absent:
            sentences.append(f"No results {where} yet: {_named(absent)}.")
    return sentences


def _value(scores: Spread, method: int, *, plain: bool = False) -> str:
    low, high = scores.interval(method)
    text = _number(scores.value[method])
    if math.isnan(low):
        return text
    return f"{text} ({'' if plain else '95 % interval '}{_number(low)} … {_number(high)})"


def _percent_points(gaps: Spread, method: int, *, unit: bool = True) -> str:
    low, high = gaps.interval(method)
    text = _points_of(gaps.value[method]) + (" percentage points" if unit else "")
    return text if math.isnan(low) else f"{text} ({_points_of(low)} … {_points_of(high)})"


def _points_of(share: float) -> str:
    points = 100 * share
    return f"{points:.2g}" if 0 < abs(points) < 0.095 else f"{points:.1f}"


def _number(value: float) -> str:
    if 0 < abs(value) < 0.0095:  # three decimals would lose most digits
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def _named(names: list[str]) -> str:
    few = len(names) <= MOST_NAMED
    return _listed(names if few else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"])


def _listed(names: list[str]) -> str:
    """
    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
