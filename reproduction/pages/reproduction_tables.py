"""The tables of docs/reproduction that show our numbers beside the paper's, and how numbers and tables are written.

`python reproduction/pages/make_reproduction.py` writes them into the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from avuc.report.metric_text import metric_text
from avuc.report.study.effort import Effort
from avuc.report.study.paper_comparison import Figure, Published, figure, outside_cell, published_value
from avuc.report.study.results import Results
from avuc.study.recipe.config import Recipe

SCORES = ("ece", "uce", "nll", "brier")
STATISTICS = ("lower quartile", "median", "mean", "upper quartile")
DETECTION = ("auroc", "detection_accuracy", "aupr_in", "aupr_out")
DIGITS = {"nll": 2, "validation_nll": 2, "temperature": 2}
PERCENT = ("accuracy", "validation_accuracy", *DETECTION)
NOT_RUN = "*Not run yet.*"
# a difference from the printed figure above this needs a sentence: relative (SHARE), or absolute (POINTS, RHO)
SHARE, POINTS, RHO = 0.10, 0.01, 0.12


@dataclass(frozen=True)
class Study:
    """A published study: its results, its recipe, and the time that it took."""

    name: str
    results: Results
    recipe: Recipe
    effort: Effort

    def get(self, method: str, metric: str, where: str, statistic: str = "mean") -> Figure:
        """Return a figure of a method for each seed; see `avuc.report.study.paper_comparison.figure`.

        A figure over shifts needs every shift of the recipe, and ρ every intensity of the study: a seed that lacks one
        has no figure. What other methods lack changes nothing.
        """
        over_all = statistic == "spearman" or where == "shifted"
        if method not in self.results.names or metric not in self.results.values:
            return Figure(())
        if not over_all and (where == "0" or not where.isdigit()):  # one set of images
            return figure(self.results, method, metric, where, statistic)
        levels = self.results.severities if over_all else [int(where)]
        return figure(self._complete_seeds(method, metric, levels), method, metric, where, statistic)

    def _complete_seeds(self, method: str, metric: str, levels: Sequence[int]) -> Results:
        """Return the results of one method, without the seeds that lack a shift of the recipe at one of the levels."""
        results, index = self.results, self.results.names.index(method)
        wanted = [(shift, level) for shift in self.recipe.study.shifts for level in levels]
        present = [results.at(metric, key)[index] for key in wanted]
        complete = np.isfinite(np.array(present)).all(0) if present else np.zeros(results.seeds, bool)
        seeds = tuple(seed for seed, kept in zip(results.seed_numbers, complete, strict=True) if kept)
        values = {metric: results.values[metric][[index]][:, complete]}
        return replace(results, methods=[replace(results.methods[index], seeds=seeds)], values=values)

    @property
    def not_run(self) -> list[str]:
        """Return the methods of the recipe that have no results."""
        return [method.name for method in self.recipe.methods if method.name not in self.results.names]

    def learned(self, method: str, key: str) -> Figure:
        """Return a number of the training for each seed.

        Args:
            method: name of the method.
            key: "temperature", or a key of the training history; its value in the last epoch that has it is taken.
        """
        if method not in self.results.names:
            return Figure(())
        facts = self.results.methods[self.results.names.index(method)]
        if key == "temperature":
            return Figure(facts.temperatures)
        logged = [[record[key] for record in epochs if record.get(key) is not None] for epochs in facts.history]
        return Figure(tuple(float(values[-1]) for values in logged if values))


@dataclass
class Remarks:
    """Sentences that explain why our figures differ from the paper's.

    Args:
        sentences: table → method → sentence; the table "all" applies to every table.
        missing: (table, method) that differ and have no sentence.
        used: (table, method) of the sentences that were shown.
    """

    sentences: dict[str, dict[str, str]]
    missing: list[tuple[str, str]] = field(default_factory=list)
    used: set[tuple[str, str]] = field(default_factory=set)

    def lines(self, table: str, differing: Iterable[str], present: Iterable[str]) -> str:
        """Return one line for each method that differs or has a sentence."""
        lines = []
        for method in present:
            key = next((candidate for candidate in (table, "all") if method in self.sentences.get(candidate, {})), None)
            if key is None and method in differing:
                self.missing.append((table, method))
                lines.append(f"- **{method}**: differs from the paper; not explained yet.")
            elif key is not None and (key == table or method in differing):
                self.used.add((key, method))
                lines.append(f"- **{method}**: {self.sentences[key][method]}")
        return "\n".join(lines)


def quartiles(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Return the paper's quartile table at intensity 5: one table for each metric."""
    parts, differing = [], set()
    for metric in SCORES:
        head = ["", "seeds", *(f"{statistic}: {source}" for statistic in STATISTICS for source in ("paper", "ours"))]
        rows = []
        for method in study.results.names:
            cells = [method, str(study.get(method, metric, "5").seeds)]
            for statistic in STATISTICS:
                paper = _printed(printed, "quartiles", method, metric, statistic=statistic, intensity="5")
                our = study.get(method, metric, "5", statistic)
                cells += [number(paper, metric), ours(our, metric)]
                if statistic == "mean" and differs(paper, our, SHARE):
                    differing.add(method)
            rows.append(cells)
        parts.append(f"**{metric_text(metric).title}, intensity 5**\n\n{markdown(head, rows)}")
    return "\n\n".join([*parts, remarks.lines("quartiles", differing, study.results.names)])


def by_intensity(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Return Table 1 (Vanilla with AvUTS and AvUC, by intensity, in percent), with our other methods below."""
    parts, differing = [], set()
    levels = [str(level) for level in range(6)]
    paper_methods = list(dict.fromkeys(entry.method for entry in printed if entry.table == "by-intensity"))
    for metric in ("ece", "uce"):
        rows = []
        for method in (name for name in paper_methods if name in study.results.names):
            paper = [_printed(printed, "by-intensity", method, metric, intensity=level) for level in levels]
            our = [study.get(method, metric, level) for level in levels]
            rows.append([method, "paper", *(number(value, metric, percent=True) for value in paper)])
            rows.append([method, _whose(our[-1]), *(ours(figure, metric, percent=True) for figure in our)])
            if any(differs(a, b, SHARE) for a, b in zip(paper, our, strict=True)):
                differing.add(method)
        for method in (name for name in study.results.names if name not in paper_methods):
            our = [study.get(method, metric, level) for level in levels]
            rows.append([method, _whose(our[-1]), *(ours(figure, metric, percent=True) for figure in our)])
        parts.append(
            f"**{metric_text(metric).title} in %, by intensity**\n\n{markdown(['', '', 'clean', *levels[1:]], rows)}"
        )
    return "\n\n".join([*parts, remarks.lines("by-intensity", differing, paper_methods)])


def spearman(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Return the rank correlation ρ with the intensity of ECE, UCE and AvU-AUC (in the paper: ImageNet only)."""
    metrics, rows, differing = ("ece", "uce", "avu_auc"), [], set()
    head = ["", "seeds"]
    for metric in metrics:
        title = f"ρ {metric_text(metric).title}"
        head += [f"{title}: ours"] if metric == "avu_auc" else [f"{title}: paper", f"{title}: ours"]
    for method in study.results.names:
        cells = [method, str(study.get(method, "ece", "clean").seeds)]
        for metric in metrics:
            our = study.get(method, metric, "", "spearman")
            if metric != "avu_auc":
                paper = _printed(printed, "spearman", method, metric)
                cells.append(number(paper, digits=2))
                if differs(paper, our, None, RHO):
                    differing.add(method)
            cells.append(ours(our, digits=2))
        rows.append(cells)
    return f"{markdown(head, rows)}\n\n{remarks.lines('spearman', differing, study.results.names)}"


def detection(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Return the tables of Gaussian blur at intensity 5 and SVHN, as in the paper, then those of our other data."""
    parts, differing = [], set()
    sets = {"gaussian_blur 5": "Gaussian blur of intensity 5", "svhn": "SVHN"}
    known = {cell for name in sets if (cell := outside_cell(study.results, name))}
    for name in (name for name in study.results.outside if (name, 0) not in known):
        sets[name.removeprefix("ood:")] = f"{name.removeprefix('ood:')} (not in the paper)"
    for where, title in sets.items():
        shift, _, level = where.partition(" ")
        in_paper = where in ("gaussian_blur 5", "svhn")
        if not in_paper or _has(study, where):
            head = ["", "seeds"]
            for metric in DETECTION:
                head += [
                    f"{metric_text(metric).title}: {source}"
                    for source in (("paper", "ours") if in_paper else ("ours",))
                ]
            rows = []
            for method in study.results.names:
                cells = [method, str(study.get(method, "auroc", where).seeds)]
                for metric in DETECTION:
                    our = study.get(method, metric, where)
                    if in_paper:
                        paper = _printed(printed, "detection", method, metric, shift=shift, intensity=level)
                        cells.append(number(paper, metric, digits=2, percent=True))
                        if metric == "auroc" and differs(paper, our, None, POINTS):
                            differing.add(method)
                    cells.append(ours(our, metric, digits=2, percent=True))
                rows.append(cells)
            parts.append(f"**{title}, in %**\n\n{markdown(head, rows)}")
    return "\n\n".join([*parts, remarks.lines("detection", differing, study.results.names)])


def wasserstein(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Return the Wasserstein distance of the entropies of SVHN, and of our other data, from those of clean images."""
    other_data = [name.removeprefix("ood:") for name in study.results.outside]
    svhn = outside_cell(study.results, "svhn")
    other_data = [name for name in other_data if svhn is None or f"ood:{name}" != svhn[0]]
    rows, differing = [], set()
    for method in study.results.names:
        paper = _printed(printed, "wasserstein", method, "wasserstein", shift="svhn")
        our = study.get(method, "wasserstein", "svhn")
        other_cells = [ours(study.get(method, "wasserstein", name)) for name in other_data]
        rows.append([method, str(our.seeds), number(paper), ours(our), *other_cells])
        if differs(paper, our, SHARE):
            differing.add(method)
    head = ["", "seeds", "SVHN: paper", "SVHN: ours", *(f"{name}: ours" for name in other_data)]
    return f"{markdown(head, rows)}\n\n{remarks.lines('wasserstein', differing, study.results.names)}"


def means(study: Study, printed: Sequence[Published], methods: Sequence[str] | None = None) -> str:
    """Return accuracy, and the means over 16 shifts at intensity 5 beside the paper's: the table to read first."""
    head = ["", "seeds", "accuracy, clean", "accuracy, 5"]
    head += [f"{short_title(metric)}, 5: {source}" for metric in SCORES for source in ("paper", "ours")]
    rows = []
    for method in methods or [*study.results.names, *study.not_run]:
        cells = [method, str(study.get(method, "ece", "5").seeds or "not run yet")]
        cells += [
            ours(study.get(method, "accuracy", where), "accuracy", digits=1, percent=True) for where in ("clean", "5")
        ]
        for metric in SCORES:
            paper = _printed(printed, "quartiles", method, metric, statistic="mean", intensity="5")
            cells += [number(paper, metric), ours(study.get(method, metric, "5"), metric)]
        rows.append(cells)
    return markdown(head, rows)


# how numbers and tables are written


def short_title(metric: str) -> str:
    """Return the title of a metric without "score"."""
    return metric_text(metric).title.removesuffix(" score")


def number(value: float, metric: str = "", *, digits: int | None = None, percent: bool = False) -> str:
    """Return a value as it is written in a table; "–" if it is not finite."""
    if not math.isfinite(value):
        return "–"
    decimals = digits if digits is not None else 1 if percent else DIGITS.get(metric, 3)
    return f"{value * (100 if percent else 1):.{decimals}f}".replace("-", "−")


def ours(figure: Figure, metric: str = "", *, digits: int | None = None, percent: bool = False) -> str:
    """Return the mean over seeds, with ± the standard deviation if there are several seeds."""
    text = number(figure.value, metric, digits=digits, percent=percent)
    if figure.seeds < 2:
        return text
    return f"{text} ± {number(figure.deviation, metric, digits=digits, percent=percent)}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def differs(paper: float, our: Figure, share: float | None, margin: float = 0.0) -> bool:
    """Return whether a difference is larger than a margin and than two standard deviations over seeds.

    Args:
        paper: the printed figure.
        our: our figure.
        share: relative margin; None: no relative margin.
        margin: absolute margin.
    """
    if not our.seeds or not math.isfinite(paper):
        return False
    noise = 2 * our.deviation if our.seeds > 1 else 0.0
    return abs(our.value - paper) > max(margin, abs(paper) * (share or 0.0), noise)


def _printed(printed: Sequence[Published], table: str, method: str, metric: str, **properties: str) -> float:
    """Return a figure that the paper prints for CIFAR-10; NaN if it prints none."""
    return published_value(printed, table=table, dataset="cifar10", method=method, metric=metric, **properties)


def printed_mean(printed: Sequence[Published], method: str, metric: str) -> float:
    """Return the mean over the shifts at intensity 5 that the paper prints for CIFAR-10; NaN if it prints none."""
    return _printed(printed, "quartiles", method, metric, statistic="mean")


def _whose(figure: Figure) -> str:
    """Return the label of a line with our figures."""
    return f"ours, {figure.seeds} {'seed' if figure.seeds == 1 else 'seeds'}"


def _has(study: Study, where: str) -> bool:
    """Return whether a method has detection results on these data."""
    return any(study.get(method, "auroc", where).seeds for method in study.results.names)


Section = Callable[[Study, Sequence[Published], Remarks], str]
BESIDE: dict[str, Section] = {
    "quartiles": quartiles,
    "by-intensity": by_intensity,
    "spearman": spearman,
    "detection": detection,
    "wasserstein": wasserstein,
}
