"""Paired comparisons over seeds, and the SVHN readings, for docs/reproduction/index.md."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction_tables import NOT_RUN, PERCENT, SCORES, Study, markdown, number, ours

from avuc.report.metric_text import metric_text
from avuc.report.study.paired import Difference, over_seeds, pairs_by_seed
from avuc.report.study.paper_comparison import Figure, Published, published_value

# an effect is claimed only with an interval over at least so many paired seeds
FEWEST_SEEDS = 5
WITH, WITHOUT = "SVI-AvUC", "SVI"
# metric, where, whether a lower value is better
COMPARED = (
    ("accuracy", "clean", False),
    ("ece", "clean", True),
    ("accuracy", "5", False),
    ("ece", "5", True),
    ("uce", "5", True),
    ("nll", "5", True),
    ("brier", "5", True),
    ("aurc", "5", True),
    ("avu_auc", "5", False),
    ("auroc", "svhn", False),
    ("auroc", "cifar100", False),
)


def reproduced(studies: Mapping[str, Study], printed: Sequence[Published]) -> str:
    """SVI and SVI-AvUC at intensity 5, ours beside the printed figures, and the effect of AvUC in both."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT} <= set(study.results.names):
        return NOT_RUN
    head = ["mean over 16 shifts, intensity 5"]
    head += [
        f"{metric_text(metric).title.removesuffix(' score')}: {who}" for metric in SCORES for who in ("printed", "ours")
    ]
    lines = []
    for row in (WITHOUT, WITH):
        line = [row]
        for metric in SCORES:
            line += [number(_printed(printed, row, metric), metric), ours(study.get(row, metric, "5"), metric)]
        lines.append(line)
    effect = ["effect of AvUC"]
    for metric in SCORES:
        was = _printed(printed, WITH, metric) - _printed(printed, WITHOUT, metric)
        effect += [_signed(was, metric), _interval(paired(study, metric, "5"), metric)]
    return markdown(head, [*lines, effect])


def paired_seeds(studies: Mapping[str, Study]) -> str:
    """What AvUC changes, over paired seeds, with 95 % intervals of Student's t."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT} <= set(study.results.names):
        return NOT_RUN
    head = ["", "SVI", "SVI-AvUC", "difference (95 % interval over seeds)", "seeds in which AvUC is better"]
    lines = []
    for metric, where, lower in COMPARED:
        first, second = (study.get(row, metric, where) for row in (WITH, WITHOUT))
        if min(first.seeds, second.seeds) < FEWEST_SEEDS or first.seed_numbers != second.seed_numbers:
            continue
        percent = metric in PERCENT
        better = sum((a < b) if lower else (a > b) for a, b in pairs_by_seed(first, second))
        name = metric_text(metric).title + (" in %" if percent else "")
        place = {"clean": "clean test images", "5": "intensity 5", "svhn": "SVHN", "cifar100": "CIFAR-100"}[where]
        found = over_seeds(first.by_seed, second.by_seed, same_seeds=True)
        shown = _interval(found, metric)
        clear = found.low > 0 or found.high < 0
        lines.append(
            [
                f"{name}, {place}",
                ours(second, metric, percent=percent),
                ours(first, metric, percent=percent),
                f"**{shown}**" if clear else shown,
                f"{better} of {first.seeds}",
            ]
        )
    return markdown(head, lines)


def paired(study: Study, metric: str, where: str) -> Difference:
    pairs = pairs_by_seed(*(study.get(row, metric, where) for row in (WITH, WITHOUT)))
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return over_seeds(first, second, same_seeds=True)


VARIANTS = ("SVI-AvUC, monotone", "SVI-AUAvUC")
VARIANTS_COMPARED = (
    ("ece", "5"),
    ("uce", "5"),
    ("nll", "5"),
    ("brier", "5"),
    ("accuracy", "5"),
    ("aurc", "5"),
    ("avu_auc", "5"),
    ("accuracy", "clean"),
    ("ece", "clean"),
    ("nll", "clean"),
    ("avu_auc", "clean"),
    ("auroc", "svhn"),
    ("auroc", "cifar100"),
)
SET_TITLES = {"clean": "clean", "5": "intensity 5", "svhn": "SVHN", "cifar100": "CIFAR-100"}
SWITCHES = ("new Adam each epoch", "trained start", "best epoch", "threshold 1")


def by_seed(study: Study, method: str, metric: str, where: str) -> dict[int, float]:
    """The figure of each seed; empty unless every seed of the method has it."""
    if method not in study.results.names:
        return {}
    seeds = study.results.methods[study.results.names.index(method)].seeds
    values = study.get(method, metric, where).by_seed
    return dict(zip(seeds, values, strict=True)) if len(seeds) == len(values) else {}


def difference_text(first: Mapping[int, float], second: Mapping[int, float], metric: str) -> str:
    """The mean difference of two methods over the seeds that both have, with its interval.

    Bold if the interval excludes zero and there are enough seeds for a claim.
    """
    seeds = sorted(set(first) & set(second))
    if len(seeds) < 2:
        return "–"
    difference = over_seeds(tuple(first[s] for s in seeds), tuple(second[s] for s in seeds), same_seeds=True)
    clear = len(seeds) >= FEWEST_SEEDS and (difference.low > 0 or difference.high < 0)
    text = _interval(difference, metric)
    return f"**{text}**" if clear else text


def variants(studies: Mapping[str, Study]) -> str:
    """The repaired loss and AUAvUC against SVI and against the printed loss, over the seeds that they share."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT, *VARIANTS} <= set(study.results.names):
        return NOT_RUN
    head = [""] + [f"{row.removeprefix('SVI-')} − {other}" for row in VARIANTS for other in (WITHOUT, WITH)]
    return markdown(
        head, _differences(VARIANTS_COMPARED, [(study, r, study, o) for r in VARIANTS for o in (WITHOUT, WITH)])
    )


def switches(studies: Mapping[str, Study]) -> str:
    """What one detail of the authors' code changes: each switch against the same seeds without it."""
    study, base = studies.get("code-switches"), studies.get("code")
    if study is None or base is None:
        return NOT_RUN
    pairs = [(f"{row}, {name}", row) for name in SWITCHES for row in (WITHOUT, WITH)]
    pairs = [(row, other) for row, other in pairs if len(by_seed(study, row, "ece", "5")) >= 2]
    head = ["", *(row for row, _ in pairs)]
    return markdown(head, _differences(VARIANTS_COMPARED, [(study, row, base, other) for row, other in pairs]))


def _differences(
    compared: Sequence[tuple[str, str]], pairs: Sequence[tuple[Study, str, Study, str]]
) -> list[list[str]]:
    """A line for each figure, a cell for each pair of methods."""
    lines = []
    for metric, where in compared:
        line = [f"{metric_text(metric).title}{' in %' if metric in PERCENT else ''}, {SET_TITLES[where]}"]
        for study, row, base, other in pairs:
            line.append(
                difference_text(by_seed(study, row, metric, where), by_seed(base, other, metric, where), metric)
            )
        lines.append(line)
    return lines


def svhn_readings(path: Path) -> str:
    """AUROC for SVHN by other readings of the same models, from svhn.csv."""
    if not path.is_file():
        return NOT_RUN
    found: dict[str, dict[str, list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["reading"], {}).setdefault(line["method"], []).append(float(line["auroc"]))
    methods = list(dict.fromkeys(method for values in found.values() for method in values))
    head = ["reading"] + [
        f"{method}, {max(len(v.get(method, ())) for v in found.values())} seeds" for method in methods
    ]
    lines = []
    for reading, values in found.items():
        cells = [Figure(tuple(values.get(method, ()))) for method in methods]
        lines.append([reading, *(ours(cell, "auroc", percent=True) for cell in cells)])
    return markdown([cell.replace(", 1 seeds", ", 1 seed") for cell in head], lines)


def _printed(printed: Sequence[Published], row: str, metric: str) -> float:
    wanted = {"table": "quartiles", "dataset": "cifar10", "method": row, "metric": metric, "statistic": "mean"}
    return published_value(printed, **wanted)


def _signed(value: float, metric: str) -> str:
    percent = metric in PERCENT
    text = number(abs(value), metric, percent=percent)
    return ("+" if value > 0 else "−" if value < 0 else "") + text


def _interval(found: Difference, metric: str) -> str:
    if math.isnan(found.low):
        return _signed(found.value, metric)
    return f"{_signed(found.value, metric)} ({_signed(found.low, metric)} … {_signed(found.high, metric)})"
