"""The tables of docs/reproduction/index.md that put our numbers beside the paper's; used by make_reproduction.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from avuc.report.metric_text import metric_text
from avuc.report.study.effort import Effort
from avuc.report.study.paper_comparison import Figure, Published, figure, outside_cell, published_value
from avuc.report.study.results import Results
from avuc.study.config import Recipe

SCORES = ("ece", "uce", "nll", "brier")
STATISTICS = ("lower quartile", "median", "mean", "upper quartile")
DETECTION = ("auroc", "detection_accuracy", "aupr_in", "aupr_out")
DIGITS = {"nll": 2, "validation_nll": 2, "temperature": 2}
PERCENT = ("accuracy", "validation_accuracy", *DETECTION)
NOT_RUN = "*Not run yet.*"
# how far ours may be from the printed figure before the difference needs a sentence: share of it, or absolute
SHARE, POINTS, RHO = 0.10, 0.01, 0.12


@dataclass(frozen=True)
class Study:
    name: str
    results: Results
    recipe: Recipe
    effort: Effort

    def get(self, method: str, metric: str, where: str, statistic: str = "mean") -> Figure:
        return figure(self.results, method, metric, where, statistic)

    @property
    def not_run(self) -> list[str]:
        """Rows of the recipe without a single result."""
        return [row.name for row in self.recipe.methods if row.name not in self.results.names]

    def learned(self, method: str, what: str) -> Figure:
        """By seed: the temperature, or what training noted in the last epoch that has it."""
        if method not in self.results.names:
            return Figure(())
        row = self.results.methods[self.results.names.index(method)]
        if what == "temperature":
            return Figure(row.temperatures)
        noted = [[record[what] for record in epochs if record.get(what) is not None] for epochs in row.history]
        return Figure(tuple(float(values[-1]) for values in noted if values))


@dataclass
class Remarks:
    """Sentences for rows that differ, by table and row ("all" holds for every table); notes what has none."""

    sentences: dict[str, dict[str, str]]
    missing: list[tuple[str, str]] = field(default_factory=list)
    used: set[tuple[str, str]] = field(default_factory=set)

    def lines(self, table: str, differing: Iterable[str], present: Iterable[str]) -> str:
        """One line for each row that differs or has a sentence."""
        out = []
        for method in present:
            where = next((key for key in (table, "all") if method in self.sentences.get(key, {})), None)
            if where is None and method in differing:
                self.missing.append((table, method))
                out.append(f"- **{method}**: differs from the paper; not explained yet.")
            elif where is not None and (where == table or method in differing):
                self.used.add((where, method))
                out.append(f"- **{method}**: {self.sentences[where][method]}")
        return "\n".join(out)


def quartiles(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """The paper's quartile table at intensity 5, a table for each metric."""
    parts, differing = [], set()
    for metric in SCORES:
        head = ["", "seeds", *(f"{name}: {who}" for name in STATISTICS for who in ("paper", "ours"))]
        rows = []
        for method in study.results.names:
            line = [method, str(study.get(method, metric, "5").seeds)]
            for name in STATISTICS:
                was = _printed(printed, "quartiles", method, metric, statistic=name, intensity="5")
                now = study.get(method, metric, "5", name)
                line += [number(was, metric), ours(now, metric)]
                if name == "mean" and apart(was, now, SHARE):
                    differing.add(method)
            rows.append(line)
        parts.append(f"**{metric_text(metric).title}, intensity 5**\n\n{markdown(head, rows)}")
    return "\n\n".join([*parts, remarks.lines("quartiles", differing, study.results.names)])


def by_intensity(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Table 1: Vanilla with AvUTS and AvUC, by intensity, in percent; the other rows of ours below."""
    parts, differing = [], set()
    levels = [str(level) for level in range(6)]
    told = list(dict.fromkeys(one.method for one in printed if one.table == "by-intensity"))
    for metric in ("ece", "uce"):
        rows = []
        for method in (name for name in told if name in study.results.names):
            was = [_printed(printed, "by-intensity", method, metric, intensity=level) for level in levels]
            now = [study.get(method, metric, level) for level in levels]
            rows.append([method, "paper", *(number(value, metric, percent=True) for value in was)])
            rows.append([method, _whose(now[-1]), *(ours(one, metric, percent=True) for one in now)])
            if any(apart(a, b, SHARE) for a, b in zip(was, now, strict=True)):
                differing.add(method)
        for method in (name for name in study.results.names if name not in told):
            now = [study.get(method, metric, level) for level in levels]
            rows.append([method, _whose(now[-1]), *(ours(one, metric, percent=True) for one in now)])
        parts.append(
            f"**{metric_text(metric).title} in %, by intensity**\n\n{markdown(['', '', 'clean', *levels[1:]], rows)}"
        )
    return "\n\n".join([*parts, remarks.lines("by-intensity", differing, told)])


def spearman(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """ρ of ECE, UCE and AvU-AUC with the intensity. The paper prints the last for ImageNet only."""
    metrics, rows, differing = ("ece", "uce", "avu_auc"), [], set()
    head = ["", "seeds"]
    for metric in metrics:
        title = f"ρ {metric_text(metric).title}"
        head += [f"{title}: ours"] if metric == "avu_auc" else [f"{title}: paper", f"{title}: ours"]
    for method in study.results.names:
        line = [method, str(study.get(method, "ece", "clean").seeds)]
        for metric in metrics:
            now = study.get(method, metric, "", "spearman")
            if metric != "avu_auc":
                was = _printed(printed, "spearman", method, metric)
                line.append(number(was, digits=2))
                if apart(was, now, None, RHO):
                    differing.add(method)
            line.append(ours(now, digits=2))
        rows.append(line)
    return f"{markdown(head, rows)}\n\n{remarks.lines('spearman', differing, study.results.names)}"


def detection(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    """Gaussian blur of intensity 5 and SVHN as the paper has them, then the other data of ours."""
    parts, differing = [], set()
    sets = {"gaussian_blur 5": "Gaussian blur of intensity 5", "svhn": "SVHN"}
    known = {cell for name in sets if (cell := outside_cell(study.results, name))}
    for name in (name for name in study.results.outside if (name, 0) not in known):
        sets[name.removeprefix("ood:")] = f"{name.removeprefix('ood:')} (not in the paper)"
    for where, title in sets.items():
        shift, _, level = where.partition(" ")
        told = where in ("gaussian_blur 5", "svhn")
        if not told or _has(study, where):
            head = ["", "seeds"]
            for metric in DETECTION:
                head += [f"{metric_text(metric).title}: {who}" for who in (("paper", "ours") if told else ("ours",))]
            rows = []
            for method in study.results.names:
                line = [method, str(study.get(method, "auroc", where).seeds)]
                for metric in DETECTION:
                    now = study.get(method, metric, where)
                    if told:
                        was = _printed(printed, "detection", method, metric, shift=shift, intensity=level)
                        line.append(number(was, metric, digits=2, percent=True))
                        if metric == "auroc" and apart(was, now, None, POINTS):
                            differing.add(method)
                    line.append(ours(now, metric, digits=2, percent=True))
                rows.append(line)
            parts.append(f"**{title}, in %**\n\n{markdown(head, rows)}")
    return "\n\n".join([*parts, remarks.lines("detection", differing, study.results.names)])


def wasserstein(study: Study, printed: Sequence[Published], remarks: Remarks) -> str:
    others = [name.removeprefix("ood:") for name in study.results.outside]
    svhn = outside_cell(study.results, "svhn")
    others = [name for name in others if svhn is None or f"ood:{name}" != svhn[0]]
    rows, differing = [], set()
    for method in study.results.names:
        was = _printed(printed, "wasserstein", method, "wasserstein", shift="svhn")
        now = study.get(method, "wasserstein", "svhn")
        rest = [ours(study.get(method, "wasserstein", name)) for name in others]
        rows.append([method, str(now.seeds), number(was), ours(now), *rest])
        if apart(was, now, SHARE):
            differing.add(method)
    head = ["", "seeds", "SVHN: paper", "SVHN: ours", *(f"{name}: ours" for name in others)]
    return f"{markdown(head, rows)}\n\n{remarks.lines('wasserstein', differing, study.results.names)}"


def means(study: Study, printed: Sequence[Published], methods: Sequence[str] | None = None) -> str:
    """Accuracy, and the means over 16 shifts at intensity 5 beside the paper's: the table to read first."""
    head = ["", "seeds", "accuracy, clean", "accuracy, 5"]
    head += [
        f"{metric_text(metric).title.removesuffix(' score')}, 5: {who}"
        for metric in SCORES
        for who in ("paper", "ours")
    ]
    rows = []
    for method in methods or [*study.results.names, *study.not_run]:
        line = [method, str(study.get(method, "ece", "5").seeds or "not run yet")]
        line += [
            ours(study.get(method, "accuracy", where), "accuracy", digits=1, percent=True) for where in ("clean", "5")
        ]
        for metric in SCORES:
            was = _printed(printed, "quartiles", method, metric, statistic="mean", intensity="5")
            line += [number(was, metric), ours(study.get(method, metric, "5"), metric)]
        rows.append(line)
    return markdown(head, rows)


# how numbers and tables are written


def number(value: float, metric: str = "", *, digits: int | None = None, percent: bool = False) -> str:
    if not math.isfinite(value):
        return "–"
    places = digits if digits is not None else 1 if percent else DIGITS.get(metric, 3)
    return f"{value * (100 if percent else 1):.{places}f}".replace("-", "−")


def ours(found: Figure, metric: str = "", *, digits: int | None = None, percent: bool = False) -> str:
    """The mean over seeds, ± the standard deviation where there are several."""
    text = number(found.value, metric, digits=digits, percent=percent)
    if found.seeds < 2:
        return text
    return f"{text} ± {number(found.deviation, metric, digits=digits, percent=percent)}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def apart(was: float, now: Figure, share: float | None, least: float = 0.0) -> bool:
    """Whether a difference is larger than rounding, small changes of set-up and two deviations over seeds."""
    if not now.seeds or not math.isfinite(was):
        return False
    noise = 2 * now.deviation if now.seeds > 1 else 0.0
    return abs(now.value - was) > max(least, abs(was) * (share or 0.0), noise)


def _printed(printed: Sequence[Published], table: str, method: str, metric: str, **more: str) -> float:
    return published_value(printed, table=table, dataset="cifar10", method=method, metric=metric, **more)


def _whose(found: Figure) -> str:
    return f"ours, {found.seeds} {'seed' if found.seeds == 1 else 'seeds'}"


def _has(study: Study, where: str) -> bool:
    return any(study.get(method, "auroc", where).seeds for method in study.results.names)


Section = Callable[[Study, Sequence[Published], Remarks], str]
BESIDE: dict[str, Section] = {
    "quartiles": quartiles,
    "by-intensity": by_intensity,
    "spearman": spearman,
    "detection": detection,
    "wasserstein": wasserstein,
}
