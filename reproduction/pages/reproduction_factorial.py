"""The analysis of the factorial experiment (planned in reproduction/factorial.py), as far as it is finished.

    python reproduction/factorial.py --analyse STUDY        # prints all tables (`analyse`)
    python reproduction/pages/make_reproduction.py          # writes the tables and figures into the pages

A comparison is shown as soon as both of its methods have every seed of the recipe. The name of a method is "training,
posterior, loss", with " + TS" at the end if it has temperature scaling. `effects`, `errors_left` and the figure
`gain_drawing` are in docs/reproduction/when-avuc-helps.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from reproduction_seeds import SET_TITLES, by_seed, difference_text, shared_difference
from reproduction_tables import NOT_RUN, PERCENT, Study, markdown

from avuc.report.colours import colour_of
from avuc.report.metric_text import metric_text
from avuc.report.study.figures import saved
from avuc.report.study.paired import Difference

NAME = "factorial"
# studies of one corner with other training data (reproduction/factorial_more.py) → description of the data
OTHER_DATA = {"factorial-tenth": "a tenth of the images", "factorial-noisy-labels": "20 % wrong labels"}
GAIN_FIGURE = "when-to-use-gain.svg"
NOT_MEASURED = "not measured"
ERRORS_CORNER = "Adam, none"
TEMPERATURE = " + TS"
# the figures that the plan names; the losses that are compared for each training and posterior
PRIMARY = (("nll", "5"), ("ece", "5"), ("aurc", "5"), ("avu_auc", "5"), ("auroc", "svhn"), ("auroc", "cifar100"))
PAIRS = (("AvUC", "none"), ("monotone", "none"), ("penalty", "none"), ("AvUC", "penalty"), ("monotone", "penalty"))
TICKS = (0.5, 1, 2, 5, 10, 20, 50)  # ticks of the training error, in %
GAIN_TICKS = {"nll": (0.1, 0.5, 1.0, 2.0), "ece": (0.02, 0.05, 0.1, 0.2)}
LOSS_TITLES = {"AvUC": "AvUC as printed", "monotone": "`monotone`", "penalty": "confidence penalty", "none": "none"}


@dataclass(frozen=True)
class Comparison:
    """Two losses with the same training and posterior; `corner` is "training, posterior"."""

    corner: str
    first: str
    second: str

    @property
    def title(self) -> str:
        """Return the two losses as they are written in a table."""
        return f"{LOSS_TITLES[self.first]} − {LOSS_TITLES[self.second]}"

    def names(self, *, temperature: bool = True) -> tuple[str, str]:
        """Return the names of the two methods."""
        suffix = TEMPERATURE if temperature else ""
        return f"{self.corner}, {self.first}{suffix}", f"{self.corner}, {self.second}{suffix}"


def corners(study: Study) -> list[str]:
    """Return every "training, posterior" of the recipe."""
    return list(dict.fromkeys(method.name.rpartition(", ")[0] for method in study.recipe.methods))


def complete(study: Study, method: str) -> bool:
    """Return whether a method has results for every seed of the recipe."""
    if method not in study.results.names:
        return False
    return study.get(method, "nll", "5").seeds == len(study.recipe.seeds(study.recipe.method(method)))


def comparisons(study: Study, *, measured: bool = True) -> Iterator[Comparison]:
    """Yield the comparisons of `PAIRS` for every training and posterior; with `measured`, only complete ones."""
    for corner in corners(study):
        for first, second in PAIRS:
            comparison = Comparison(corner, first, second)
            if not measured or all(complete(study, name) for name in comparison.names()):
                yield comparison


def cell(study: Study, names: tuple[str, str], metric: str, where: str) -> str:
    """Return the paired difference with its interval over seeds; bold if it excludes zero."""
    if not all(complete(study, name) for name in names):
        return NOT_MEASURED
    return difference_text(*(by_seed(study, name, metric, where) for name in names), metric)


def analyse(study: Study) -> str:
    """Return a table for each primary figure: each loss compared with none, and AvUC with the penalty."""
    parts = []
    for metric, where in PRIMARY:
        lines = []
        for corner in corners(study):
            compared = [Comparison(corner, *pair) for pair in PAIRS]
            lines.append([corner, *(cell(study, comparison.names(), metric, where) for comparison in compared)])
        head = ["training, posterior", *(f"{first} − {second}" for first, second in PAIRS)]
        parts.append(f"### {metric}, {where}\n\n{markdown(head, lines)}")
    return "\n\n".join(parts) + "\n"


def title(metric: str, where: str) -> str:
    """Return the heading of a column of differences."""
    return f"{metric_text(metric).title}{' in points' * (metric in PERCENT)}, {SET_TITLES[where]}"


def effects(studies: Mapping[str, Study]) -> str:
    """Return one table: a line for each complete comparison, then a line for each corner with missing ones."""
    study = studies.get(NAME)
    if study is None:
        return NOT_RUN
    head = ["training, posterior", "compared", *(title(*figure) for figure in PRIMARY)]
    lines = []
    for comparison in comparisons(study):
        figures = [cell(study, comparison.names(), metric, where) for metric, where in PRIMARY]
        lines.append([comparison.corner, comparison.title, *figures])
    known = {(pair.corner, pair.first) for pair in comparisons(study) if pair.second == "none"}
    losses = [first for first, second in PAIRS if second == "none"]
    missing = {
        corner: [LOSS_TITLES[loss] for loss in losses if (corner, loss) not in known] for corner in corners(study)
    }
    for corner, missing_losses in missing.items():
        if missing_losses:
            losses_text = "every loss" if len(missing_losses) == len(losses) else ", ".join(missing_losses)
            lines.append([corner, losses_text, *[NOT_MEASURED] * len(PRIMARY)])
    return markdown(head, lines)


def errors_left(studies: Mapping[str, Study]) -> str:
    """Return the effects of each loss in one corner: with all images, with a tenth of them, and with wrong labels."""
    if NAME not in studies:
        return NOT_RUN
    all_figures = (*PRIMARY, ("accuracy", "clean"))
    head = ["training images", "training error left", "compared", *(title(*figure) for figure in all_figures)]
    lines = []
    for name, data in {NAME: "all", **OTHER_DATA}.items():
        study = studies.get(name)
        measured = [] if study is None else [pair for pair in comparisons(study) if pair.corner == ERRORS_CORNER]
        if study is None or not measured:
            lines.append([data, NOT_MEASURED, "every loss", *[NOT_MEASURED] * len(all_figures)])
            continue
        error = f"{100 * _error_left(study, ERRORS_CORNER):.1f} %"
        for comparison in measured:
            figures = [cell(study, comparison.names(), metric, where) for metric, where in all_figures]
            lines.append([data, error, comparison.title, *figures])
    return markdown(head, lines).replace("|---|---:|---:|", "|---|---:|---|", 1)


def _error_left(study: Study, corner: str) -> float:
    """Return the training error of "none" in its last epoch."""
    return 1 - study.learned(f"{corner}, none", "accuracy").value


def progress(studies: Mapping[str, Study]) -> str:
    """Return a line with the number of trained networks and the complete combinations of training and posterior."""
    study = studies.get(NAME)
    if study is None:
        return NOT_RUN
    recipe = study.recipe
    networks = sum(len(recipe.seeds(method)) for method in recipe.trained)
    finished = dict.fromkeys(corners(study), True)
    for method in recipe.methods:
        finished[method.name.rpartition(", ")[0]] &= complete(study, method.name)
    complete_corners = [corner for corner, is_complete in finished.items() if is_complete]
    text = f"**{study.effort.models} of {networks} networks are trained.**"
    if len(complete_corners) == len(finished):
        return text
    if not complete_corners:
        return f"{text} No combination of training and posterior is complete yet."
    return f"{text} Complete with all losses and seeds: {'; '.join(complete_corners)}."


# the gain against the remaining training error


@dataclass(frozen=True)
class Gain:
    """How much better a loss is than none, and the training error of "none".

    Args:
        data: description of the training data; empty for all images.
        corner: "training, posterior".
        loss: the loss that is compared with none.
        error: training error of "none".
        gains: metric → gain; positive if the loss is better.
    """

    data: str
    corner: str
    loss: str
    error: float
    gains: dict[str, Difference]


def all_gains(studies: Mapping[str, Study]) -> list[Gain]:
    """Return the gains of the experiment, and of its corner with other training data."""
    data_of_study = {NAME: "", **OTHER_DATA}
    return [gain for name, data in data_of_study.items() if name in studies for gain in gains(studies[name], data)]


def gains(study: Study, data: str = "") -> list[Gain]:
    """Return the gain in NLL and ECE at intensity 5 of every complete comparison with none, after temperature scaling.

    A gain is positive if the loss is better. The training error is 1 − accuracy of "none" in its last epoch.
    """
    results = []
    for comparison in comparisons(study):
        if comparison.second != "none" or not study.learned(f"{comparison.corner}, none", "accuracy").seeds:
            continue
        differences = {}
        for metric in ("nll", "ece"):
            with_loss, without = (by_seed(study, name, metric, "5") for name in comparison.names())
            differences[metric], _ = shared_difference(without, with_loss)
        results.append(
            Gain(data, comparison.corner, comparison.first, _error_left(study, comparison.corner), differences)
        )
    return results


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
    for gain in all_gains(studies):
        values = ", ".join(f"{metric} {' '.join(f'{x:.5f}' for x in value)}" for metric, value in gain.gains.items())
        data = f", {gain.data}" if gain.data else ""
        lines.append(f"{gain.corner}, {gain.loss}{data}: error {gain.error:.5f}, {values}")
    return "<!-- " + "\n".join(lines) + " -->\n" if lines else ""


def _group(gain: Gain) -> str:
    """Return the group that shares a marker: the posterior, or the data if they are not all images."""
    return gain.data or gain.corner.rpartition(", ")[2]


def _paint_gains(figure: Any, points: list[Gain]) -> None:
    """Draw the gains in NLL and ECE against the training error, with their intervals."""
    grid = figure.subplots(1, 2)
    losses = list(dict.fromkeys(first for first, second in PAIRS if second == "none"))
    markers = {"none": "o", "noise": "s", "MOPED": "^"} | dict(zip(OTHER_DATA.values(), "Dv", strict=True))
    for axes, metric in zip(grid, ("nll", "ece"), strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        for gain in points:
            index, difference = losses.index(gain.loss), gain.gains[metric]
            error = 100 * gain.error * (1 + 0.08 * (index - 1))  # shifted, so that marks do not overlap
            bars = [[difference.value - difference.low], [difference.high - difference.value]]
            style = {"color": colour_of(index)[0], "marker": markers[_group(gain)], "markersize": 5}
            axes.errorbar([error], [difference.value], yerr=bars, capsize=2, linewidth=1.2, **style)
        axes.set(xlabel="training error left without the loss, %", title=f"gain in {metric_text(metric).title}")
        axes.set_xscale("log")
        # failed networks are far away, so the scale is logarithmic beyond the first tick
        axes.set_yscale("symlog", linthresh=GAIN_TICKS[metric][0])
        values = [-tick for tick in reversed(GAIN_TICKS[metric])] + [0.0, *GAIN_TICKS[metric]]
        axes.set_yticks(values, [f"{value:+g}".replace("-", "−") if value else "0" for value in values])
        ends = [limit for gain in points for limit in gain.gains[metric][1:]]
        axes.set_ylim(1.15 * min(ends), max(1.15 * max(ends), GAIN_TICKS[metric][0]))
        largest_error = max(7.0, 150 * max(gain.error for gain in points))
        ticks = [tick for tick in TICKS if tick <= largest_error]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlim(0.3, largest_error)
        axes.minorticks_off()
    present = {gain.loss for gain in points}
    for index, loss in ((index, loss) for index, loss in enumerate(losses) if loss in present):
        grid[0].plot([], [], color=colour_of(index)[0], label=LOSS_TITLES[loss].strip("`"))
    for group in (name for name in markers if name in {_group(gain) for gain in points}):
        label = {"none": "no posterior", "noise": "weight noise"}.get(group, group)
        grid[0].plot([], [], color="0.3", marker=markers[group], linestyle="", label=label)
    figure.legend(loc="outside lower center", ncols=7, frameon=False)
