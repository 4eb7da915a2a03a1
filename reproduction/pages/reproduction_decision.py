"""The decision page, docs/when-to-use-avuc.md: what to use, with the measured effect of each line.

A line recommends something only if it helps (`verdict`) in every case that the line has. The rule is fixed here, so
that new rows change the page without a new opinion. The flow chart is in reproduction_findings.py.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction_factorial import title
from reproduction_lines import CORNERS, DETECTED, JUDGED, LINES, POSTERIORS, TABLE, TRAININGS, VARIANTS, Decision, Line
from reproduction_seeds import FEWEST_SEEDS, by_seed, difference_text
from reproduction_tables import NOT_RUN, Study, markdown

from avuc.report.metric_text import metric_text
from avuc.report.study.paired import NOT_COMPARABLE, Difference, over_seeds

NOT_MEASURED, FEW = "not measured", "too few seeds to claim an effect"
SHOWN = (("ece", "5"), ("nll", "5"), ("auroc", "svhn"), ("accuracy", "clean"))
VARIED = (("ece", "5"), ("nll", "5"), ("avu_auc", "5"), ("accuracy", "clean"))
FAILED = -0.05  # a change of accuracy on clean images: worse than this, and a network has failed


def difference(study: Study | None, line: Line, metric: str, where: str) -> tuple[Difference, int]:
    """Return first − second over the seeds that both have, and how many there are; not comparable without results."""
    if study is None:
        return NOT_COMPARABLE, 0
    first, second = (by_seed(study, name, metric, where) for name in (line.first, line.second))
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return NOT_COMPARABLE, 0
    return over_seeds(*(tuple(each[s] for s in seeds) for each in (first, second)), same_seeds=True), len(seeds)


def verdict(studies: Mapping[str, Study], line: Line, aims: Sequence[tuple[str, str]] = JUDGED) -> str:
    """Return "helps", "harms", "mixed", "no clear effect", `FEW` or `NOT_MEASURED`.

    It helps if at least one 95 % interval of the `aims`, over at least five paired seeds, excludes zero on the better
    side, and none of the aims, of ECE and of NLL under shift on the worse side.
    """
    found = {
        (metric, where): difference(studies.get(line.study), line, metric, where)
        for metric, where in dict.fromkeys([*aims, *JUDGED])
    }
    if min(seeds for _, seeds in found.values()) == 0:
        return NOT_MEASURED
    if min(seeds for _, seeds in found.values()) < FEWEST_SEEDS:
        return FEW
    said = {key: one.says(metric_text(key[0]).better) for key, (one, _) in found.items()}
    better, worse = "better" in [said[key] for key in aims], "worse" in said.values()
    if better and worse:
        return "mixed"
    return "helps" if better else "harms" if worse else "no clear effect"


def agreed(studies: Mapping[str, Study], one: Decision) -> str:
    """Return the verdict on all cases of a line: what is missing in one of them, the same in all, or how many help."""
    found = [verdict(studies, line, one.aims) for line in one.cases]
    for missing in (NOT_MEASURED, FEW):
        if missing in found:
            return missing
    return found[0] if len(set(found)) == 1 else f"helps in {found.count('helps')} of {len(found)}"


def fails(studies: Mapping[str, Study], line: Line) -> bool:
    """Whether accuracy on clean images is lower by more than `FAILED`, with its whole interval over enough seeds."""
    found, seeds = difference(studies.get(line.study), line, "accuracy", "clean")
    return seeds >= FEWEST_SEEDS and found.high < FAILED


def use(studies: Mapping[str, Study], one: Decision) -> str:
    """Return what to use: what is compared if it helps; otherwise to leave it out, and how well that is supported."""
    found = agreed(studies, one)
    if found in (NOT_MEASURED, FEW):
        return f"{one.otherwise} ({found})"
    if one.if_fails and any(fails(studies, line) for line in one.cases):
        return one.if_fails
    return one.if_helps if found == "helps" else one.otherwise


def decision(studies: Mapping[str, Study]) -> str:
    """Return the table: what you have, what to use, and the effect that was measured; then what is not measured."""
    if not any(line.study in studies for one in TABLE for line in one.cases):
        return NOT_RUN
    lines = []
    for one in TABLE:
        texts = [differences(studies, line, SHOWN) for line in one.cases]
        cells = [" / ".join(shortened(text) for text in each) for each in zip(*texts, strict=True)]
        told = f"{one.compared} ({counts(studies, one)})"
        lines.append([one.have, use(studies, one), told, *(texts[0] if len(texts) == 1 else cells)])
    head = ["you have", "use", "measured effect of", *(title(metric, where) for metric, where in SHOWN)]
    table = markdown(head, lines).replace("|---|---:|---:|", "|---|---|---|", 1)
    missing: dict[str, list[str]] = {}
    for (training, posterior), line in CORNERS.items():
        if verdict(studies, line) == NOT_MEASURED:
            missing.setdefault(POSTERIORS[posterior], []).append(TRAININGS[training])
    told = "; ".join(f"{posterior} ({' / '.join(names)})" for posterior, names in missing.items())
    return table + (f"\n\n**Not measured**: AvUC with a temperature on {told}." if missing else "")


def intervals(studies: Mapping[str, Study]) -> str:
    """Return the lines of the table that have several cases, each case with its intervals."""
    lines = [
        [one.have, f"{one.compared}: {line.have}", *differences(studies, line, SHOWN)]
        for one in TABLE
        for line in one.cases
        if len(one.cases) > 1 and line.study in studies
    ]
    if not lines:
        return NOT_RUN
    head = ["you have", "measured effect of", *(title(metric, where) for metric, where in SHOWN)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def differences(studies: Mapping[str, Study], line: Line, figures: Sequence[tuple[str, str]]) -> list[str]:
    """Return the differences with their intervals; bold if clear."""
    study = studies.get(line.study)
    if study is None:
        return [NOT_MEASURED] * len(figures)
    values = [[by_seed(study, name, *figure) for name in (line.first, line.second)] for figure in figures]
    texts = [difference_text(*each, metric) for each, (metric, _) in zip(values, figures, strict=True)]
    return [text.replace("–", NOT_MEASURED) for text in texts]


def shortened(text: str) -> str:
    """Return a difference without its interval; bold stays."""
    value = text.strip("*").partition(" (")[0]
    return f"**{value}**" if text.startswith("**") else value


def counts(studies: Mapping[str, Study], one: Decision) -> str:
    """Return the cases of a line and their seeds."""
    seeds = [difference(studies.get(line.study), line, *JUDGED[0])[1] for line in one.cases]
    if len(seeds) == 1:
        return f"{seeds[0]} seeds"
    many = f"{seeds[0]} seeds each" if len(set(seeds)) == 1 else f"{', '.join(map(str, seeds))} seeds"
    return f"{' / '.join(line.have for line in one.cases)}; {many}"


def detection(studies: Mapping[str, Study]) -> str:
    """Return the table of AUROC, with and without AvUC, and with and without a temperature."""
    return _effects(studies, LINES, DETECTED, "you have")


def variants(studies: Mapping[str, Study]) -> str:
    """Return the table of `monotone` against the printed loss, in every training that has both."""
    table = _effects(studies, VARIANTS, VARIED, "training")
    rest = sum(verdict(studies, line) == NOT_MEASURED for line in VARIANTS)
    if table == NOT_RUN or not rest:
        return table
    cells = [f"{rest} other combinations of the experiment", VARIANTS[-1].compared, *[NOT_MEASURED] * len(VARIED)]
    return f"{table}\n| {' | '.join(cells)} |"


def _effects(
    studies: Mapping[str, Study], wanted: Sequence[Line], figures: Sequence[tuple[str, str]], first: str
) -> str:
    """Return a table of every line that is measured: the situation, the comparison and its figures."""
    if not any(line.study in studies for line in wanted):
        return NOT_RUN
    lines = []
    for line in (one for one in wanted if verdict(studies, one) != NOT_MEASURED):
        seeds = difference(studies[line.study], line, *JUDGED[0])[1]
        lines.append([line.have, f"{line.compared} ({seeds} seeds)", *differences(studies, line, figures)])
    head = [first, "effect of", *(title(metric, where) for metric, where in figures)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def pilot(path: Path) -> str:
    """Return what the pilot showed of AvUC as printed without a posterior: one seed, so no claim."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    lines = []
    for training in ("Adam", "SGD", "AugMix"):
        for loss in ("none", "AvUC"):
            row = rows[f"{training}, none, {loss}"]
            right, sure = (f"{100 * float(row[key]):.1f}" for key in ("accuracy", "mean_confidence"))
            lines.append([training, {"none": "none", "AvUC": "AvUC as printed"}[loss], right, sure])
    return markdown(["training, no posterior", "loss", "accuracy in %", "mean confidence in %"], lines)
