"""Our recipe compared with its targets and with the paper's method, for docs/reproduction/index.md.

`python reproduction/pages/make_reproduction.py` writes the tables into the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from reproduction_tables import NOT_RUN, SCORES, Study, markdown, number, ours, short_title

from avuc.report.metric_text import metric_text
from avuc.report.study.paired import Difference, compare_over_seeds, compare_over_shifts, over_images, trend
from avuc.report.study.paper_comparison import Figure, outside_cell
from avuc.report.study.results import CLEAN
from avuc.study.recipe.config import MethodConfig

OTHER_DATA = {"svhn": "SVHN", "cifar100": "CIFAR-100"}
# studies whose single networks ours is compared with
OTHERS = ("paper", "code", "code-pretrained", "best")


@dataclass(frozen=True)
class Target:
    """A bound that a figure should reach.

    Args:
        title: name of the figure in the table.
        metric: name of the metric.
        where: the images, as in `avuc.report.study.paper_comparison.figure`.
        bound: the bound.
        statistic: statistic over the shifts.
        about: where the bound comes from.
        strict: whether the figure must be above the bound, not equal to it.
    """

    title: str
    metric: str
    where: str
    bound: float
    statistic: str = "mean"
    about: str = ""
    strict: bool = False

    @property
    def better(self) -> str:
        """Return whether "lower" or "higher" is better."""
        return "lower" if self.statistic == "spearman" else metric_text(self.metric).better

    @property
    def sign(self) -> str:
        """Return the sign that is written before the bound."""
        return "≤" if self.better == "lower" else ">" if self.strict else "≥"

    def met(self, value: float) -> bool:
        """Return whether the value meets the target."""
        if self.strict and value == self.bound:
            return False
        return value <= self.bound if self.better == "lower" else value >= self.bound


def targets(studies: Mapping[str, Study], best: str) -> list[Target]:
    """Return the targets that were set before the first run; three bounds follow from our other methods."""
    paper = studies["paper"]
    result = [
        Target("ECE, intensity 5", "ece", "5", 0.100),
        Target("UCE, intensity 5", "uce", "5", 0.080),
        Target("NLL, intensity 5", "nll", "5", 1.55),
        Target("Brier score, intensity 5", "brier", "5", 0.62),
    ]
    ensemble = paper.get("Ensemble", "accuracy", "5")
    about = "our Ensemble less one point"
    result.append(Target("accuracy, intensity 5", "accuracy", "5", ensemble.value - 0.01, about=about))
    result.append(Target("ECE, clean", "ece", "clean", 0.015))
    result.append(Target("ρ of ECE", "ece", "", 0.6, "spearman"))
    for name, title in OTHER_DATA.items():
        bound, about = best_single(studies, OTHERS, name, lambda study, method: _same_model(method, best, study))
        result.append(Target(f"AUROC, {title}", "auroc", name, bound, about=about, strict=True))
    return result


def best_single(
    studies: Mapping[str, Study], names: Sequence[str], data: str, is_ours: Callable[[Study, str], bool]
) -> tuple[float, str]:
    """Return the highest AUROC of another single network, and the name of its method.

    Args:
        studies: the published studies.
        names: names of the studies to search.
        data: out-of-distribution data, "svhn" or "cifar100".
        is_ours: (study, method) → whether it is our network.
    """
    auroc = {
        (study.name, method.name): study.get(method.name, "auroc", data).value
        for study in (studies[name] for name in names if name in studies)
        for method in study.recipe.methods
        if method.name in study.results.names and _single(method, study) and not is_ours(study, method.name)
    }
    known = {key: value for key, value in auroc.items() if math.isfinite(value)}
    highest = max(known, key=lambda key: known[key], default=None)
    return (math.nan, "no other row") if highest is None else (known[highest], f"{highest[1]} of {highest[0]}")


def _single(method: MethodConfig, study: Study) -> bool:
    """Return whether a method uses one network, not an ensemble."""
    trained = method if method.method is not None else study.recipe.method(method.reuse_model)
    return trained.method is not None and trained.method.members == 1


def _same_model(name: str, best: str, study: Study) -> bool:
    """Return whether a method uses the same trained network as our method `best`."""
    return study.name == "best" and same_network(study, name, best)


def same_network(study: Study, first: str, second: str) -> bool:
    """Return whether two methods of a study use the same trained network."""
    return (study.recipe.method(first).reuse_model or first) == (study.recipe.method(second).reuse_model or second)


def rows_of_best(studies: Mapping[str, Study]) -> str:
    """Return a table of every method of our recipe: what each of its steps is worth."""
    if "best" not in studies:
        return NOT_RUN
    study = studies["best"]
    columns = [("accuracy", "clean"), ("ece", "clean"), ("nll", "clean"), ("accuracy", "5")]
    columns += [(metric, "5") for metric in SCORES] + [("auroc", name) for name in study.results.outside]
    head = ["", "seeds"]
    for metric, where in columns:
        head.append(f"{short_title(metric)}, {where.removeprefix('ood:')}")
    lines = []
    for method in study.results.names:
        cells = [method, str(study.get(method, "ece", "clean").seeds)]
        for metric, where in columns:
            percent = metric in ("accuracy", "auroc")
            cells.append(ours(study.get(method, metric, where), metric, percent=percent, digits=1 if percent else None))
        lines.append(cells)
    return markdown(head, lines)


def best_row(studies: Mapping[str, Study], named: str) -> str | None:
    """Return our method: the one named beforehand, or the first of the recipe. Test figures never decide."""
    if "best" not in studies or "paper" not in studies:
        return None
    names = studies["best"].results.names
    return named if named in names else names[0]


def against_targets(studies: Mapping[str, Study], named: str, also: Sequence[str] = ()) -> str:
    """Return a table of the method that was named beforehand, then one table for each method of `also`."""
    best = best_row(studies, named)
    if best is None:
        return NOT_RUN
    tables = [_against_targets(studies, best)]
    for method in (name for name in also if name in studies["best"].results.names):
        tables.append(f"*Afterwards, `{method}` by the same targets:*\n\n{_against_targets(studies, method)}")
    return "\n\n".join(tables)


def _against_targets(studies: Mapping[str, Study], best: str) -> str:
    """Return the table of one method: its targets, and the difference from the paper's method."""
    other = "SVI-AvUC"
    head = ["", "target", f"ours: {best}", "met", f"{other}, as in the text", "difference (95 % interval)", "which is"]
    lines = []
    for target in targets(studies, best):
        our, paper = (_figure(studies[name], method, target) for name, method in (("best", best), ("paper", other)))
        percent = target.metric in ("accuracy", "auroc")
        show = partial(number, metric=target.metric, percent=percent, digits=2 if percent else None)
        bound = f"{target.sign} {show(target.bound)}" + (f" ({target.about})" if target.about else "")
        change = (
            difference(studies["best"], best, studies["paper"], other, target) if our.seeds and paper.seeds else None
        )
        lines.append(
            [
                target.title,
                bound,
                ours(our, target.metric, percent=percent, digits=2 if percent else None),
                "–" if not our.seeds or math.isnan(target.bound) else "yes" if target.met(our.value) else "no",
                ours(paper, target.metric, percent=percent, digits=2 if percent else None),
                "–" if change is None else _interval(change, percent) + _mark(target, our, paper),
                "–" if change is None else change.says(target.better),
            ]
        )
    return markdown(head, lines)


def difference(study: Study, method: str, other_study: Study, other_method: str, target: Target) -> Difference:
    """Return the difference of two methods with its interval.

    The interval is over shifts if the figure is over several shifts, otherwise over seeds; with one seed, over test
    images.
    """
    same_networks = study.name == other_study.name and _start(study, method) == _start(other_study, other_method) != ""
    if target.where != "5" and target.statistic != "spearman":
        figures = [_figure(owner, name, target) for owner, name in ((study, method), (other_study, other_method))]
        result = compare_over_seeds(figures[0], figures[1], same_networks=same_networks)
        return over_test_images(study, method, other_study, other_method, target) if math.isnan(result.low) else result
    statistic = trend if target.statistic == "spearman" else lambda values: float(values[:, -1].mean())
    return compare_over_shifts(
        study.results, method, other_study.results, other_method, target.metric, statistic, same_networks=same_networks
    )


def _start(study: Study, method: str) -> str:
    """Return the method whose trained networks a method starts from or uses."""
    config = study.recipe.method(method)
    config = study.recipe.method(config.reuse_model) if config.reuse_model else config
    return config.init_from or config.name


def over_test_images(study: Study, method: str, other_study: Study, other_method: str, target: Target) -> Difference:
    """Return the difference of two methods with its interval over test images; NaN if it cannot be computed."""
    sets = [
        CLEAN if target.where == "clean" else outside_cell(owner.results, target.where)
        for owner in (study, other_study)
    ]
    if sets[0] is None or sets[0] != sets[1] or target.metric != ("ece" if sets[0] == CLEAN else "auroc"):
        return Difference(*(math.nan,) * 3)
    return over_images(study.results, method, other_study.results, other_method, sets[0])


def _figure(study: Study, method: str, target: Target) -> Figure:
    """Return the figure of a method that a target is about."""
    return study.get(method, target.metric, target.where, target.statistic)


def _mark(target: Target, first: Figure, second: Figure) -> str:
    """Return the mark of an interval over test images."""
    single = target.where != "5" and target.statistic != "spearman"
    return " †" if single and min(first.seeds, second.seeds) < 2 else ""


def _interval(difference: Difference, percent: bool) -> str:
    """Return a difference with its interval in brackets, if it has one."""
    scale, digits = (100, 2) if percent else (1, 3)
    value, low, high = (scale * part for part in difference)
    value_text = f"{value:+.{digits}f}" if math.isfinite(value) else "–"
    text = value_text if math.isnan(low) else f"{value_text} ({low:+.{digits}f} … {high:+.{digits}f})"
    return text.replace("-", "−")
