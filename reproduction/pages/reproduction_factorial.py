"""The analysis of the factorial experiment (reproduction/factorial.py has its plan): whatever of it is finished.

A comparison is shown as soon as both of its methods have every seed of the recipe. Methods are called "training,
posterior, loss", and " + TS" if they have a temperature. `analyse` prints all tables; `effects`, `errors_left` and the
figure `gain_drawing` are in docs/reproduction/when-avuc-helps.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from reproduction_seeds import SET_TITLES, by_seed, difference_text
from reproduction_tables import NOT_RUN, PERCENT, Study, markdown

from avuc.report.colours import colour_of
from avuc.report.metric_text import metric_text
from avuc.report.study.figures import saved
from avuc.report.study.paired import Difference, over_seeds

NAME = "factorial"
# one corner with other training data (reproduction/factorial_more.py): study, and what it has
OTHER_DATA = {"factorial-tenth": "a tenth of the images", "factorial-noisy-labels": "20 % wrong labels"}
GAIN_FIGURE = "when-to-use-gain.svg"
NOT_MEASURED = "not measured"
ERRORS_CORNER = "Adam, none"
TEMPERATURE = " + TS"
# the figures that the plan names, and the comparisons within a training and a posterior
PRIMARY = (("nll", "5"), ("ece", "5"), ("aurc", "5"), ("avu_auc", "5"), ("auroc", "svhn"), ("auroc", "cifar100"))
PAIRS = (("AvUC", "none"), ("monotone", "none"), ("penalty", "none"), ("AvUC", "penalty"), ("monotone", "penalty"))
TICKS = (0.5, 1, 2, 5, 10, 20, 50)  # of the training error in %
GAIN_TICKS = {"nll": (0.1, 0.5, 1.0, 2.0), "ece": (0.02, 0.05, 0.1, 0.2)}
WORDS = {"AvUC": "AvUC as printed", "monotone": "`monotone`", "penalty": "confidence penalty", "none": "none"}


@dataclass(frozen=True)
class Comparison:
    """Two losses with the same training and posterior; `corner` is "training, posterior"."""

    corner: str
    first: str
    second: str

    def names(self, *, temperature: bool = True) -> tuple[str, str]:
        end = TEMPERATURE if temperature else ""
        return f"{self.corner}, {self.first}{end}", f"{self.corner}, {self.second}{end}"


def corners(study: Study) -> list[str]:
    """Return every "training, posterior" of the recipe."""
    return list(dict.fromkeys(method.name.rpartition(", ")[0] for method in study.recipe.methods))


def complete(study: Study, method: str) -> bool:
    """Whether a method has every seed of the recipe."""
    if method not in study.results.names:
        return False
    return study.get(method, "nll", "5").seeds == len(study.recipe.seeds(study.recipe.method(method)))


def comparisons(study: Study, *, measured: bool = True) -> Iterator[Comparison]:
    """Yield the comparisons of `PAIRS` for every training and posterior; with `measured`, those that are complete."""
    for corner in corners(study):
        for first, second in PAIRS:
            found = Comparison(corner, first, second)
            if not measured or all(complete(study, name) for name in found.names()):
                yield found


def cell(study: Study, names: tuple[str, str], metric: str, where: str) -> str:
    """Return the paired difference with its interval over seeds; bold if it excludes zero."""
    if not all(complete(study, name) for name in names):
        return NOT_MEASURED
    return difference_text(*(by_seed(study, name, metric, where) for name in names), metric)


def analyse(study: Study) -> str:
    """Return a table for each primary figure: each loss against none, and AvUC against the penalty."""
    parts = []
    for metric, where in PRIMARY:
        lines = []
        for corner in corners(study):
            found = [Comparison(corner, *pair) for pair in PAIRS]
            lines.append([corner, *(cell(study, one.names(), metric, where) for one in found)])
        head = ["training, posterior", *(f"{first} − {second}" for first, second in PAIRS)]
        parts.append(f"### {metric}, {where}\n\n{markdown(head, lines)}")
    return "\n\n".join(parts) + "\n"


def title(metric: str, where: str) -> str:
    return f"{metric_text(metric).title}{' in points' * (metric in PERCENT)}, {SET_TITLES[where]}"


def effects(studies: Mapping[str, Study]) -> str:
    """Return one table: a line for each comparison that is complete, and one for what is not measured."""
    study = studies.get(NAME)
    if study is None:
        return NOT_RUN
    head = ["training, posterior", "compared", *(title(*figure) for figure in PRIMARY)]
    lines = []
    for one in comparisons(study):
        figures = [cell(study, one.names(), metric, where) for metric, where in PRIMARY]
        lines.append([one.corner, f"{WORDS[one.first]} − {WORDS[one.second]}", *figures])
    known = {(one.corner, one.first) for one in comparisons(study) if one.second == "none"}
    losses = [first for first, second in PAIRS if second == "none"]
    missing = {corner: [WORDS[loss] for loss in losses if (corner, loss) not in known] for corner in corners(study)}
    for corner, rest in missing.items():
        if rest:
            told = "every loss" if len(rest) == len(losses) else ", ".join(rest)
            lines.append([corner, told, *[NOT_MEASURED] * len(PRIMARY)])
    return markdown(head, lines)


def errors_left(studies: Mapping[str, Study]) -> str:
    """Return the effects of each loss in one corner, with all images, with few, and with wrong labels."""
    if NAME not in studies:
        return NOT_RUN
    shown = (*PRIMARY, ("accuracy", "clean"))
    head = ["training images", "training error left", "compared"]
    head += [
        f"{metric_text(metric).title}{' in points' * (metric in PERCENT)}, {SET_TITLES[where]}"
        for metric, where in shown
    ]
    lines = []
    for name, data in {NAME: "all", **OTHER_DATA}.items():
        study = studies.get(name)
        measured = [] if study is None else [one for one in comparisons(study) if one.corner == ERRORS_CORNER]
        if study is None or not measured:
            lines.append([data, NOT_MEASURED, "every loss", *[NOT_MEASURED] * len(shown)])
            continue
        left = f"{100 * _error_left(study, ERRORS_CORNER):.1f} %"
        for one in measured:
            figures = [cell(study, one.names(), metric, where) for metric, where in shown]
            lines.append([data, left, f"{WORDS[one.first]} − {WORDS[one.second]}", *figures])
    return markdown(head, lines).replace("|---|---:|---:|", "|---|---:|---|", 1)


def _error_left(study: Study, corner: str) -> float:
    return 1 - study.learned(f"{corner}, none", "accuracy").value


def progress(studies: Mapping[str, Study]) -> str:
    """Return one line: networks that are trained, and the combinations of training and posterior that are complete."""
    study = studies.get(NAME)
    if study is None:
        return NOT_RUN
    recipe = study.recipe
    networks = sum(len(recipe.seeds(method)) for method in recipe.trained)
    finished = dict.fromkeys(corners(study), True)
    for method in recipe.methods:
        finished[method.name.rpartition(", ")[0]] &= complete(study, method.name)
    whole = [corner for corner, all_there in finished.items() if all_there]
    text = f"**{study.effort.models} of {networks} networks are trained.**"
    if len(whole) == len(finished):
        return text
    if not whole:
        return f"{text} No combination of training and posterior is complete yet."
    return f"{text} Complete with all losses and seeds: {'; '.join(whole)}."


# the gain against the training error that is left


@dataclass(frozen=True)
class Gain:
    """How much better a loss is than none, and the training error that "none" leaves. `data`: empty for all images."""

    data: str
    corner: str
    loss: str
    error: float
    gains: dict[str, Difference]


def all_gains(studies: Mapping[str, Study]) -> list[Gain]:
    """Return the gains of the experiment, and of its corner with other training data."""
    named = {NAME: "", **OTHER_DATA}
    return [gain for name, data in named.items() if name in studies for gain in gains(studies[name], data)]


def gains(study: Study, data: str = "") -> list[Gain]:
    """Return the gain in NLL and ECE at intensity 5, after temperature scaling, of every complete comparison with none.

    A gain is positive if the loss is better. The training error is 1 − accuracy of "none" in its last epoch.
    """
    found = []
    for one in comparisons(study):
        if one.second != "none" or not study.learned(f"{one.corner}, none", "accuracy").seeds:
            continue
        differences = {}
        for metric in ("nll", "ece"):
            first, second = (by_seed(study, name, metric, "5") for name in one.names())
            seeds = sorted(set(first) & set(second))
            values = (tuple(values[seed] for seed in seeds) for values in (second, first))
            differences[metric] = over_seeds(*values, same_seeds=True)
        found.append(Gain(data, one.corner, one.first, _error_left(study, one.corner), differences))
    return found


def gain_drawing(studies: Mapping[str, Study]) -> dict[str, bytes]:
    """Return the figure of the gains by its file name; empty if nothing is measured."""
    points = all_gains(studies)
    if not points:
        return {}
    drawn = saved("gain", (9.0, 3.2), partial(_paint_gains, points=points))["svg"]
    return {GAIN_FIGURE: drawn + gain_values(studies).encode()}


def gain_values(studies: Mapping[str, Study]) -> str:
    """Return what the figure shows as a comment at its end: it tells whether a figure is of these rows."""
    lines = []
    for one in all_gains(studies):
        shown = ", ".join(f"{metric} {' '.join(f'{x:.5f}' for x in gain)}" for metric, gain in one.gains.items())
        data = f", {one.data}" if one.data else ""
        lines.append(f"{one.corner}, {one.loss}{data}: error {one.error:.5f}, {shown}")
    return "<!-- " + "\n".join(lines) + " -->\n" if lines else ""


def _group(one: Gain) -> str:
    """Return the posterior, or the data if they are not all images."""
    return one.data or one.corner.rpartition(", ")[2]


def _paint_gains(figure: Any, points: list[Gain]) -> None:
    grid = figure.subplots(1, 2)
    losses = list(dict.fromkeys(first for first, second in PAIRS if second == "none"))
    markers = {"none": "o", "noise": "s", "MOPED": "^"} | dict(zip(OTHER_DATA.values(), "Dv", strict=True))
    for axes, metric in zip(grid, ("nll", "ece"), strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        for one in points:
            place, gain = losses.index(one.loss), one.gains[metric]
            error = 100 * one.error * (1 + 0.08 * (place - 1))  # side by side, not on top of each other
            bars = [[gain.value - gain.low], [gain.high - gain.value]]
            style = {"color": colour_of(place)[0], "marker": markers[_group(one)], "markersize": 5}
            axes.errorbar([error], [gain.value], yerr=bars, capsize=2, linewidth=1.2, **style)
        axes.set(xlabel="training error left without the loss, %", title=f"gain in {metric_text(metric).title}")
        axes.set_xscale("log")
        # networks that fail are far away: beyond the first tick distances grow by factors
        axes.set_yscale("symlog", linthresh=GAIN_TICKS[metric][0])
        values = [-tick for tick in reversed(GAIN_TICKS[metric])] + [0.0, *GAIN_TICKS[metric]]
        axes.set_yticks(values, [f"{value:+g}".replace("-", "−") if value else "0" for value in values])
        ends = [limit for one in points for limit in one.gains[metric][1:]]
        axes.set_ylim(1.15 * min(ends), max(1.15 * max(ends), GAIN_TICKS[metric][0]))
        most = max(7.0, 150 * max(one.error for one in points))
        ticks = [tick for tick in TICKS if tick <= most]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlim(0.3, most)
        axes.minorticks_off()
    present = {one.loss for one in points}
    for place, loss in ((place, loss) for place, loss in enumerate(losses) if loss in present):
        grid[0].plot([], [], color=colour_of(place)[0], label=WORDS[loss].strip("`"))
    for group in (name for name in markers if name in {_group(one) for one in points}):
        told = {"none": "no posterior", "noise": "weight noise"}.get(group, group)
        grid[0].plot([], [], color="0.3", marker=markers[group], linestyle="", label=told)
    figure.legend(loc="outside lower center", ncols=7, frameon=False)
