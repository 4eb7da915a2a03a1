"""Our recipe against the targets set for it, and against the paper's method; for docs/reproduction/index.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from reproduction_tables import NOT_RUN, SCORES, Study, markdown, number, ours

from avuc.report.metric_text import metric_text
from avuc.report.study.paired import Difference, compare_over_seeds, compare_over_shifts, over_images, trend
from avuc.report.study.paper_comparison import Figure, outside_cell
from avuc.report.study.results import CLEAN
from avuc.study.config import MethodConfig

OTHER_DATA = {"svhn": "SVHN", "cifar100": "CIFAR-100"}
# studies with other single networks that ours is compared with
OTHERS = ("paper", "code", "code-pretrained", "best")


@dataclass(frozen=True)
class Target:
    title: str
    metric: str
    where: str
    bound: float
    statistic: str = "mean"
    about: str = ""
    strict: bool = False  # above the bound, not at it

    @property
    def better(self) -> str:
        return "lower" if self.statistic == "spearman" else metric_text(self.metric).better

    @property
    def sign(self) -> str:
        return "≤" if self.better == "lower" else ">" if self.strict else "≥"

    def met(self, value: float) -> bool:
        if self.strict and value == self.bound:
            return False
        return value <= self.bound if self.better == "lower" else value >= self.bound


def targets(studies: Mapping[str, Study], best: str) -> list[Target]:
    """The bounds that were set before the first run; two of them follow from our own other rows."""
    paper = studies["paper"]
    found = [
        Target("ECE, intensity 5", "ece", "5", 0.100),
        Target("UCE, intensity 5", "uce", "5", 0.080),
        Target("NLL, intensity 5", "nll", "5", 1.55),
        Target("Brier score, intensity 5", "brier", "5", 0.62),
    ]
    ensemble = paper.get("Ensemble", "accuracy", "5")
    about = "our Ensemble less one point"
    found.append(Target("accuracy, intensity 5", "accuracy", "5", ensemble.value - 0.01, about=about))
    found.append(Target("ECE, clean", "ece", "clean", 0.015))
    found.append(Target("ρ of ECE", "ece", "", 0.6, "spearman"))
    for name, title in OTHER_DATA.items():
        bound, about = best_single(studies, OTHERS, name, lambda study, row: _same_model(row, best, study))
        found.append(Target(f"AUROC, {title}", "auroc", name, bound, about=about, strict=True))
    return found


def best_single(
    studies: Mapping[str, Study], names: Sequence[str], data: str, is_ours: Callable[[Study, str], bool]
) -> tuple[float, str]:
    """The highest AUROC of another single network, and whose it is.

    Args:
        studies: the published studies.
        names: those to look at.
        data: out-of-distribution data, "svhn" or "cifar100".
        is_ours: (study, method) → whether it is the network that is compared.
    """
    others = {
        (study.name, row.name): study.get(row.name, "auroc", data).value
        for study in (studies[name] for name in names if name in studies)
        for row in study.recipe.methods
        if row.name in study.results.names and _single(row, study) and not is_ours(study, row.name)
    }
    known = {key: value for key, value in others.items() if math.isfinite(value)}
    top = max(known, key=lambda key: known[key], default=None)
    return (math.nan, "no other row") if top is None else (known[top], f"{top[1]} of {top[0]}")


def _single(row: MethodConfig, study: Study) -> bool:
    trained = row if row.method is not None else study.recipe.method(row.reuse_model)
    return trained.method is not None and trained.method.members == 1


def _same_model(name: str, best: str, study: Study) -> bool:
    return study.name == "best" and same_network(study, name, best)


def same_network(study: Study, first: str, second: str) -> bool:
    """Whether two methods of a study use the same trained network."""
    return (study.recipe.method(first).reuse_model or first) == (study.recipe.method(second).reuse_model or second)


def rows_of_best(studies: Mapping[str, Study]) -> str:
    """Every row of our recipe: what each of its steps is worth."""
    if "best" not in studies:
        return NOT_RUN
    study = studies["best"]
    columns = [("accuracy", "clean"), ("ece", "clean"), ("nll", "clean"), ("accuracy", "5")]
    columns += [(metric, "5") for metric in SCORES] + [("auroc", name) for name in study.results.outside]
    head = ["", "seeds"]
    for metric, where in columns:
        head.append(f"{metric_text(metric).title.removesuffix(' score')}, {where.removeprefix('ood:')}")
    lines = []
    for row in study.results.names:
        line = [row, str(study.get(row, "ece", "clean").seeds)]
        for metric, where in columns:
            percent = metric in ("accuracy", "auroc")
            line.append(ours(study.get(row, metric, where), metric, percent=percent, digits=1 if percent else None))
        lines.append(line)
    return markdown(head, lines)


def best_row(studies: Mapping[str, Study], named: str) -> str | None:
    """The row that is ours: named beforehand, else the first of the recipe; never picked by its test figures."""
    if "best" not in studies or "paper" not in studies:
        return None
    names = studies["best"].results.names
    return named if named in names else names[0]


def against_targets(studies: Mapping[str, Study], named: str, also: Sequence[str] = ()) -> str:
    """The row that was named beforehand, and then others, each in a table of its own."""
    best = best_row(studies, named)
    if best is None:
        return NOT_RUN
    tables = [_against_targets(studies, best)]
    for row in (row for row in also if row in studies["best"].results.names):
        tables.append(f"*Afterwards, `{row}` by the same targets:*\n\n{_against_targets(studies, row)}")
    return "\n\n".join(tables)


def _against_targets(studies: Mapping[str, Study], best: str) -> str:
    other = "SVI-AvUC"
    head = ["", "target", f"ours: {best}", "met", f"{other}, as in the text", "difference (95 % interval)", "which is"]
    lines = []
    for target in targets(studies, best):
        one, two = (_figure(studies[name], row, target) for name, row in (("best", best), ("paper", other)))
        percent = target.metric in ("accuracy", "auroc")
        show = partial(number, metric=target.metric, percent=percent, digits=2 if percent else None)
        bound = f"{target.sign} {show(target.bound)}" + (f" ({target.about})" if target.about else "")
        found = difference(studies["best"], best, studies["paper"], other, target) if one.seeds and two.seeds else None
        lines.append(
            [
                target.title,
                bound,
                ours(one, target.metric, percent=percent, digits=2 if percent else None),
                "–" if not one.seeds or math.isnan(target.bound) else "yes" if target.met(one.value) else "no",
                ours(two, target.metric, percent=percent, digits=2 if percent else None),
                "–" if found is None else _interval(found, percent) + _mark(target, one, two),
                "–" if found is None else found.says(target.better),
            ]
        )
    return markdown(head, lines)


def difference(study: Study, row: str, other: Study, other_row: str, target: Target) -> Difference:
    """Over the same shifts, where there are several; else from seed to seed; of one seed, over test images."""
    same = study.name == other.name and _start(study, row) == _start(other, other_row) != ""
    if target.where != "5" and target.statistic != "spearman":
        figures = [_figure(each, name, target) for each, name in ((study, row), (other, other_row))]
        found = compare_over_seeds(figures[0], figures[1], same_networks=same)
        return over_test_images(study, row, other, other_row, target) if math.isnan(found.low) else found
    statistic = trend if target.statistic == "spearman" else lambda values: float(values[:, -1].mean())
    return compare_over_shifts(
        study.results, row, other.results, other_row, target.metric, statistic, same_networks=same
    )


def _start(study: Study, row: str) -> str:
    """The row whose trained networks a row goes on from, or reads."""
    found = study.recipe.method(row)
    found = study.recipe.method(found.reuse_model) if found.reuse_model else found
    return found.init_from or found.name


def over_test_images(study: Study, row: str, other: Study, other_row: str, target: Target) -> Difference:
    cells = [CLEAN if target.where == "clean" else outside_cell(each.results, target.where) for each in (study, other)]
    if cells[0] is None or cells[0] != cells[1] or target.metric != ("ece" if cells[0] == CLEAN else "auroc"):
        return Difference(*(math.nan,) * 3)
    return over_images(study.results, row, other.results, other_row, cells[0])


def _figure(study: Study, row: str, target: Target) -> Figure:
    return study.get(row, target.metric, target.where, target.statistic)


def _mark(target: Target, one: Figure, two: Figure) -> str:
    single = target.where != "5" and target.statistic != "spearman"
    return " †" if single and min(one.seeds, two.seeds) < 2 else ""


def _interval(found: Difference, percent: bool) -> str:
    scale, digits = (100, 2) if percent else (1, 3)
    value, low, high = (scale * each for each in found)
    shown = f"{value:+.{digits}f}" if math.isfinite(value) else "–"
    text = shown if math.isnan(low) else f"{shown} ({low:+.{digits}f} … {high:+.{digits}f})"
    return text.replace("-", "−")
