"""The decision table of docs/when-to-use-avuc.md: what to use, with the measured effect of each line.

A line recommends something only if it helps (`verdict`) in every case of the line. The rule is fixed here, so that new
results change the page without a new opinion. reproduction_lines.py lists the comparisons, reproduction_chart.py draws
the flow chart. `python reproduction/pages/make_reproduction.py` writes the tables into the page.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction_factorial import title
from reproduction_lines import (
    CORNERS,
    DETECTED,
    JUDGED,
    LINES,
    POSTERIORS,
    SHORT_TABLE,
    TABLE,
    TRAININGS,
    VARIANTS,
    Decision,
    Line,
)
from reproduction_seeds import FEWEST_SEEDS, by_seed, difference_text, shared_difference
from reproduction_tables import NOT_RUN, Study, markdown

from avuc.report.metric_text import metric_text
from avuc.report.study.paired import NOT_COMPARABLE, Difference

NOT_MEASURED, FEW = "not measured", "too few seeds to claim an effect"
SHOWN = (("ece", "5"), ("nll", "5"), ("auroc", "svhn"), ("accuracy", "clean"))
VARIED = (("ece", "5"), ("nll", "5"), ("avu_auc", "5"), ("accuracy", "clean"))
FAILED = -0.05  # a network has failed if the change of its accuracy on clean images is below this


def difference(study: Study | None, line: Line, metric: str, where: str) -> tuple[Difference, int]:
    """Return first − second over the seeds that both have, and the number of these seeds."""
    if study is None:
        return NOT_COMPARABLE, 0
    return shared_difference(*(by_seed(study, name, metric, where) for name in (line.first, line.second)))


def verdict(studies: Mapping[str, Study], line: Line, aims: Sequence[tuple[str, str]] = JUDGED) -> str:
    """Return "helps", "harms", "mixed", "no clear effect", `FEW` or `NOT_MEASURED`.

    A comparison helps if at least one of the `aims` is clearly better, and none of the aims, ECE under shift and NLL
    under shift is clearly worse. Clearly: the 95 % interval over at least five paired seeds excludes zero.
    """
    differences = {
        (metric, where): difference(studies.get(line.study), line, metric, where)
        for metric, where in dict.fromkeys([*aims, *JUDGED])
    }
    if min(seeds for _, seeds in differences.values()) == 0:
        return NOT_MEASURED
    if min(seeds for _, seeds in differences.values()) < FEWEST_SEEDS:
        return FEW
    verdicts = {key: value.says(metric_text(key[0]).better) for key, (value, _) in differences.items()}
    better, worse = "better" in [verdicts[key] for key in aims], "worse" in verdicts.values()
    if better and worse:
        return "mixed"
    return "helps" if better else "harms" if worse else "no clear effect"


def agreed(studies: Mapping[str, Study], decision: Decision) -> str:
    """Return the verdict on all cases of a line: what is missing, the common verdict, or in how many cases it helps."""
    verdicts = [verdict(studies, line, decision.aims) for line in decision.cases]
    for missing in (NOT_MEASURED, FEW):
        if missing in verdicts:
            return missing
    return verdicts[0] if len(set(verdicts)) == 1 else f"helps in {verdicts.count('helps')} of {len(verdicts)}"


def fails(studies: Mapping[str, Study], line: Line) -> bool:
    """Return whether the interval of the change of accuracy on clean images is below `FAILED`, over enough seeds."""
    change, seeds = difference(studies.get(line.study), line, "accuracy", "clean")
    return seeds >= FEWEST_SEEDS and change.high < FAILED


def use(studies: Mapping[str, Study], decision: Decision) -> str:
    """Return the recommendation: what is compared if it helps, otherwise the alternative, and if it was measured."""
    common_verdict = agreed(studies, decision)
    if common_verdict in (NOT_MEASURED, FEW):
        return f"{decision.otherwise} ({common_verdict})"
    if decision.if_fails and any(fails(studies, line) for line in decision.cases):
        return decision.if_fails
    return decision.if_helps if common_verdict == "helps" else decision.otherwise


def decision(studies: Mapping[str, Study], rows: Sequence[Decision] = SHORT_TABLE) -> str:
    """Return the table of what you have, what to use and the measured effect."""
    if not any(line.study in studies for row in rows for line in row.cases):
        return NOT_RUN
    lines = []
    for row in rows:
        texts = [differences(studies, line, SHOWN) for line in row.cases]
        cells = [" / ".join(shortened(text) for text in column) for column in zip(*texts, strict=True)]
        compared = f"{row.compared} ({counts(studies, row)})"
        lines.append([row.have, use(studies, row), compared, *(texts[0] if len(texts) == 1 else cells)])
    head = ["you have", "use", "measured effect of", *(title(metric, where) for metric, where in SHOWN)]
    return markdown(head, lines).replace("|---|---:|---:|", "|---|---|---|", 1)


def all_decisions(studies: Mapping[str, Study]) -> str:
    """Return the table with every line; then what is not measured."""
    table = decision(studies, TABLE)
    if table == NOT_RUN:
        return NOT_RUN
    missing: dict[str, list[str]] = {}
    for (training, posterior), line in CORNERS.items():
        if verdict(studies, line) == NOT_MEASURED:
            missing.setdefault(POSTERIORS[posterior], []).append(TRAININGS[training])
    combinations = "; ".join(f"{posterior} ({' / '.join(names)})" for posterior, names in missing.items())
    return table + (f"\n\n**Not measured**: AvUC with a temperature on {combinations}." if missing else "")


def intervals(studies: Mapping[str, Study]) -> str:
    """Return the cases of the lines that have several, each with its intervals."""
    lines = [
        [row.have, f"{row.compared}: {line.have}", *differences(studies, line, SHOWN)]
        for row in TABLE
        for line in row.cases
        if len(row.cases) > 1 and line.study in studies
    ]
    if not lines:
        return NOT_RUN
    head = ["you have", "measured effect of", *(title(metric, where) for metric, where in SHOWN)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def differences(studies: Mapping[str, Study], line: Line, figures: Sequence[tuple[str, str]]) -> list[str]:
    """Return the difference of each figure with its interval; bold if the interval excludes zero."""
    study = studies.get(line.study)
    if study is None:
        return [NOT_MEASURED] * len(figures)
    values = [[by_seed(study, name, *figure) for name in (line.first, line.second)] for figure in figures]
    texts = [difference_text(*pair, metric) for pair, (metric, _) in zip(values, figures, strict=True)]
    return [text.replace("–", NOT_MEASURED) for text in texts]


def shortened(text: str) -> str:
    """Return a difference without its interval; bold stays."""
    value = text.strip("*").partition(" (")[0]
    return f"**{value}**" if text.startswith("**") else value


def counts(studies: Mapping[str, Study], decision: Decision) -> str:
    """Return the names of the cases of a line and their numbers of seeds."""
    seeds = [difference(studies.get(line.study), line, *JUDGED[0])[1] for line in decision.cases]
    if len(seeds) == 1:
        return f"{seeds[0]} seeds"
    text = f"{seeds[0]} seeds each" if len(set(seeds)) == 1 else f"{', '.join(map(str, seeds))} seeds"
    return f"{' / '.join(line.have for line in decision.cases)}; {text}"


def detection(studies: Mapping[str, Study]) -> str:
    """Return the table of AUROC, with and without AvUC, and with and without a temperature."""
    return _effects(studies, LINES, DETECTED, "you have")


def variants(studies: Mapping[str, Study]) -> str:
    """Return the table of `monotone` against the printed loss, in every training that has both."""
    table = _effects(studies, VARIANTS, VARIED, "training")
    missing = sum(verdict(studies, line) == NOT_MEASURED for line in VARIANTS)
    if table == NOT_RUN or not missing:
        return table
    cells = [
        f"{missing} other combination{'s' * (missing > 1)} of the experiment",
        VARIANTS[-1].compared,
        *[NOT_MEASURED] * len(VARIED),
    ]
    return f"{table}\n| {' | '.join(cells)} |"


def _effects(
    studies: Mapping[str, Study], comparisons: Sequence[Line], figures: Sequence[tuple[str, str]], heading: str
) -> str:
    """Return a table of the measured comparisons: the situation, what is compared, and its figures."""
    if not any(line.study in studies for line in comparisons):
        return NOT_RUN
    lines = []
    for line in (line for line in comparisons if verdict(studies, line) != NOT_MEASURED):
        seeds = difference(studies[line.study], line, *JUDGED[0])[1]
        lines.append([line.have, f"{line.compared} ({seeds} seeds)", *differences(studies, line, figures)])
    head = [heading, "effect of", *(title(metric, where) for metric, where in figures)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def pilot(path: Path) -> str:
    """Return what the pilot showed of AvUC as printed without a posterior; it has one seed, so nothing is claimed."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    lines = []
    for training in ("Adam", "SGD", "AugMix"):
        for loss in ("none", "AvUC"):
            row = rows[f"{training}, none, {loss}"]
            accuracy, confidence = (f"{100 * float(row[key]):.1f}" for key in ("accuracy", "mean_confidence"))
            lines.append([training, {"none": "none", "AvUC": "AvUC as printed"}[loss], accuracy, confidence])
    return markdown(["training, no posterior", "loss", "accuracy in %", "mean confidence in %"], lines)
