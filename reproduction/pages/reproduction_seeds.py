"""Paired comparisons over seeds, and the SVHN readings, for docs/reproduction.

`python reproduction/pages/make_reproduction.py` writes them into the pages.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction_tables import NOT_RUN, PERCENT, SCORES, Study, markdown, number, ours, printed_mean, short_title

from avuc.core.errors import InputError
from avuc.report.metric_text import metric_text
from avuc.report.study.paired import NOT_COMPARABLE, Difference, over_seeds, pairs_by_seed
from avuc.report.study.paper_comparison import Figure, Published

# an effect is claimed only if its interval is over at least this many paired seeds
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
    """Return SVI and SVI-AvUC at intensity 5, our figures beside the printed ones, and the effect of AvUC in both."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT} <= set(study.results.names):
        return NOT_RUN
    head = ["mean over 16 shifts, intensity 5"]
    head += [f"{name}: {source}" for name in (WITHOUT, WITH, "effect of AvUC") for source in ("printed", "ours")]
    lines = []
    for metric in SCORES:
        cells = [short_title(metric)]
        for method in (WITHOUT, WITH):
            cells += [
                number(printed_mean(printed, method, metric), metric),
                ours(study.get(method, metric, "5"), metric),
            ]
        printed_effect = printed_mean(printed, WITH, metric) - printed_mean(printed, WITHOUT, metric)
        lines.append([*cells, signed(printed_effect, metric), _interval(paired(study, metric, "5"), metric)])
    return markdown(head, lines)


def paired_seeds(studies: Mapping[str, Study]) -> str:
    """Return the effect of AvUC over paired seeds, with 95 % intervals of Student's t."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT} <= set(study.results.names):
        return NOT_RUN
    head = ["", "SVI", "SVI-AvUC", "difference (95 % interval over seeds)", "seeds in which AvUC is better"]
    lines = []
    for metric, where, lower_is_better in COMPARED:
        first, second = (study.get(method, metric, where) for method in (WITH, WITHOUT))
        if min(first.seeds, second.seeds) < FEWEST_SEEDS or first.seed_numbers != second.seed_numbers:
            continue
        percent = metric in PERCENT
        better = sum((a < b) if lower_is_better else (a > b) for a, b in pairs_by_seed(first, second))
        name = metric_text(metric).title + (" in %" if percent else "")
        set_title = {"clean": "clean test images", "5": "intensity 5", "svhn": "SVHN", "cifar100": "CIFAR-100"}[where]
        difference = over_seeds(first.by_seed, second.by_seed, same_seeds=True)
        text = _interval(difference, metric)
        clear = difference.low > 0 or difference.high < 0
        lines.append(
            [
                f"{name}, {set_title}",
                ours(second, metric, percent=percent),
                ours(first, metric, percent=percent),
                f"**{text}**" if clear else text,
                f"{better} of {first.seeds}",
            ]
        )
    return markdown(head, lines)


def paired(study: Study, metric: str, where: str) -> Difference:
    """Return SVI-AvUC − SVI over the seeds that both have."""
    pairs = pairs_by_seed(*(study.get(method, metric, where) for method in (WITH, WITHOUT)))
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
MORE_IMAGES, IMAGES_TITLE = "code-49500", "49,500 images"


def by_seed(study: Study, method: str, metric: str, where: str) -> dict[int, float]:
    """Return the figure of each seed; empty unless every seed of the method has it."""
    if method not in study.results.names:
        return {}
    seeds = study.results.methods[study.results.names.index(method)].seeds
    values = study.get(method, metric, where).by_seed
    return dict(zip(seeds, values, strict=True)) if len(seeds) == len(values) else {}


def shared_difference(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[Difference, int]:
    """Return first − second over the seeds that both have, with its paired interval, and the number of these seeds.

    Args:
        first: seed → value.
        second: seed → value.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return NOT_COMPARABLE, 0
    values = (tuple(method[seed] for seed in seeds) for method in (first, second))
    return over_seeds(*values, same_seeds=True), len(seeds)


def check_same_shifts(study: Study, other: Study) -> None:
    """Raise `InputError` if the recipes of two studies that are compared name other shifts."""
    shifts = [set(each.recipe.study.shifts) for each in (study, other)]
    if shifts[0] != shifts[1]:
        different = ", ".join(sorted(shifts[0] ^ shifts[1]))
        raise InputError(
            f"{study.name}: other shifts than {other.name} ({different}); publish one with the same shifts"
        )


def difference_text(first: Mapping[int, float], second: Mapping[int, float], metric: str) -> str:
    """Return the mean difference of two methods over the seeds that both have, with its interval.

    It is bold if the interval excludes zero and there are enough seeds for a claim.
    """
    difference, seeds = shared_difference(first, second)
    if seeds < 2:
        return "–"
    clear = seeds >= FEWEST_SEEDS and (difference.low > 0 or difference.high < 0)
    text = _interval(difference, metric)
    return f"**{text}**" if clear else text


def variants(studies: Mapping[str, Study]) -> str:
    """Return the repaired loss and AUAvUC against SVI and against the printed loss, over the seeds that they share."""
    study = studies.get("code")
    if study is None or not {WITH, WITHOUT, *VARIANTS} <= set(study.results.names):
        return NOT_RUN
    pairs = [(method, base) for method in VARIANTS for base in (WITHOUT, WITH)]
    head = ["", *(f"{method.removeprefix('SVI-')} − {base}" for method, base in pairs)]
    return markdown(head, _differences(VARIANTS_COMPARED, [(study, method, study, base) for method, base in pairs]))


def switches(studies: Mapping[str, Study]) -> str:
    """Return the effect of each detail of the authors' code: the method with it − the method without it.

    The details are those of `code-switches`, and the number of training images (`code-49500`). Every line is about one
    intensity or one set of images, so methods with fewer intensities stand beside the others.
    """
    base_study = studies.get("code")
    if base_study is None:
        return NOT_RUN
    columns = []  # heading, study, method, base
    if (study := studies.get("code-switches")) is not None:
        named = [(f"{base}, {switch}", base) for switch in SWITCHES for base in (WITHOUT, WITH)]
        columns += [(method, study, method, base) for method, base in named]
    if (study := studies.get(MORE_IMAGES)) is not None:
        columns += [(f"{base}, {IMAGES_TITLE}", study, base, base) for base in (WITHOUT, WITH)]
    columns = [column for column in columns if len(by_seed(column[1], column[2], "ece", "5")) >= 2]
    if not columns:
        return NOT_RUN
    for _, study, _, _ in columns:
        check_same_shifts(study, base_study)
    pairs = [(study, method, base_study, base) for _, study, method, base in columns]
    return markdown(["", *(heading for heading, _, _, _ in columns)], _differences(VARIANTS_COMPARED, pairs))


def _differences(
    compared: Sequence[tuple[str, str]], pairs: Sequence[tuple[Study, str, Study, str]]
) -> list[list[str]]:
    """Return a line for each figure, with a cell for each pair of methods.

    Args:
        compared: (metric, where) of each figure.
        pairs: (study, method, study of the base, base) of each pair; the cell is method − base.
    """
    lines = []
    for metric, where in compared:
        cells = [f"{metric_text(metric).title}{' in %' if metric in PERCENT else ''}, {SET_TITLES[where]}"]
        for study, method, base_study, base in pairs:
            values = by_seed(study, method, metric, where), by_seed(base_study, base, metric, where)
            cells.append(difference_text(*values, metric))
        lines.append(cells)
    return lines


def svhn_readings(paths: Sequence[Path]) -> str:
    """Return the AUROC of SVHN by other readings of the same models.

    Args:
        paths: svhn.csv of `code`, then those of other studies, if they exist; svhn_readings.py writes them.
    """
    if not paths[0].is_file():
        return NOT_RUN
    auroc: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        for line in read_svhn(path):
            auroc.setdefault(line["reading"], {}).setdefault(line["models"], []).append(float(line["auroc"]))
    models = list(dict.fromkeys(name for values in auroc.values() for name in values))
    head = ["reading"] + [
        f"{name}, {max(len(values.get(name, ())) for values in auroc.values())} seeds" for name in models
    ]
    lines = []
    for reading, values in auroc.items():
        cells = [Figure(tuple(values.get(name, ()))) for name in models]
        lines.append([reading, *(ours(cell, "auroc", percent=True) for cell in cells)])
    return markdown([cell.replace(", 1 seeds", ", 1 seed") for cell in head], lines)


def read_svhn(path: Path) -> list[dict[str, str]]:
    """Return the lines of svhn.csv, each with the name of its models as `models`; none if the file does not exist.

    The models of `code-49500` are other networks than those of `code`, so their name says it.
    """
    if not path.is_file():
        return []
    suffix = f", {IMAGES_TITLE}" if path.parent.name == MORE_IMAGES else ""
    with path.open(encoding="utf-8", newline="") as file:
        return [{**line, "models": f"{line['method']}{suffix}"} for line in csv.DictReader(file)]


def signed(value: float, metric: str) -> str:
    """Return a difference with its sign; shares in percentage points."""
    percent = metric in PERCENT
    text = number(abs(value), metric, percent=percent)
    return ("+" if value > 0 else "−" if value < 0 else "") + text


def _interval(difference: Difference, metric: str) -> str:
    """Return a difference with its interval in brackets, if it has one."""
    if math.isnan(difference.low):
        return signed(difference.value, metric)
    return f"{signed(difference.value, metric)} ({signed(difference.low, metric)} … {signed(difference.high, metric)})"
