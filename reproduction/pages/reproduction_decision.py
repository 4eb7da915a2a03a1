"""The decision page, docs/when-to-use-avuc.md: what to use, with the measured effect of each line; and its flow chart.

A line recommends AvUC only if `helps` is true. The rule is fixed here, so that new rows change the page without a new
opinion.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from reproduction_factorial import title
from reproduction_seeds import FEWEST_SEEDS, by_seed, difference_text
from reproduction_tables import NOTHING, Study, markdown

from avuc.report.metric_text import words_of
from avuc.report.study.paired import NOT_COMPARABLE, Difference, over_seeds

NOT_MEASURED, FEW = "not measured", "too few seeds to claim an effect"
SHOWN = (("ece", "5"), ("nll", "5"), ("accuracy", "clean"))
VARIED = (("ece", "5"), ("nll", "5"), ("avu_auc", "5"), ("accuracy", "clean"))
DETECTED = (("auroc", "svhn"), ("auroc", "cifar100"))
JUDGED = (("ece", "5"), ("nll", "5"))


@dataclass(frozen=True)
class Line:
    """A situation, two methods of a study that differ in one thing, and what to use if that thing helps or not."""

    have: str
    study: str
    first: str
    second: str
    compared: str
    if_helps: str
    otherwise: str


TS = "temperature scaling"
AVUC = "AvUC as printed, β = 3"
REPAIRED = "AvUC `monotone`, β = 3"
REPLACED, BOTH = "`monotone` instead of the printed loss", "both with a temperature"
TRAININGS = {"Adam": "Adam", "SGD": "SGD with weight decay", "AugMix": "SGD with weight decay and AugMix"}
POSTERIORS = {
    "none": "plain network",
    "noise": "noise on all weights, no KL",
    "MOPED": "posterior around a trained network",
}


def corner(training: str, posterior: str) -> Line:
    """Return the line of a training and posterior of the factorial experiment, after temperature scaling."""
    base = f"{training}, {posterior}"
    without = f"{TS}; **not** AvUC as printed" if training != "Adam" else f"{TS}; no AvUC"
    otherwise = {"none": without, "noise": "no AvUC", "MOPED": f"{TS}; no AvUC"}[posterior]
    have = f"{POSTERIORS[posterior]}; {TRAININGS[training]}"
    if (training, posterior) == ("Adam", "noise"):  # as NOISE, but for the pixels and the temperature
        have, otherwise = f"{have}, with a temperature", f"{AVUC}, without a temperature, as above"
    return Line(
        have,
        "factorial",
        f"{base}, AvUC + TS",
        f"{base}, none + TS",
        f"AvUC as printed, {BOTH}",
        f"{AVUC}, and {TS}",
        otherwise,
    )


CORNERS = {(training, posterior): corner(training, posterior) for posterior in POSTERIORS for training in TRAININGS}
NO_TRAINING = Line(
    "a trained plain network that you cannot train again",
    "factorial",
    "Adam, none, none + TS",
    "Adam, none, none",
    "a temperature (plain network, Adam)",
    f"{TS}, or [`auto`](guide/choose-a-calibrator.md)",
    "nothing",
)
NOISE = Line(
    "noise on all weights, no KL; Adam; as the paper's code (`cifar10-code`)",
    "code",
    "SVI-AvUC",
    "SVI",
    "AvUC as printed, both without a temperature",
    AVUC,
    "no AvUC",
)
# NOISE again, with one thing changed
NOISE_REPAIRED = Line("the same", "code", "SVI-AvUC, monotone", "SVI-AvUC", REPLACED, REPAIRED, AVUC)
NOISE_TEMPERATURE = Line("the same", "code", "SVI-TS", "SVI", "a temperature, no AvUC", TS, "no temperature")
BEST = Line(
    "posterior around a trained network; AugMix (`cifar10-best`)",
    "best",
    "MOPED-AvUC + TS",
    "MOPED-SVI + TS",
    f"`monotone`, {BOTH}",
    f"{REPAIRED}, and {TS}",
    f"{TS}; no AvUC",
)
# the repaired loss against the printed one, in every training that has both
VARIANTS = (
    replace(NOISE_REPAIRED, have=NOISE.have),
    *(
        replace(line, first=line.first.replace("AvUC", "monotone"), second=line.first, compared=f"{REPLACED}, {BOTH}")
        for line in CORNERS.values()
    ),
)
LINES = (NO_TRAINING, NOISE, NOISE_REPAIRED, NOISE_TEMPERATURE, *CORNERS.values(), BEST)


def difference(study: Study | None, line: Line, metric: str, where: str) -> tuple[Difference, int]:
    """Return first − second over the seeds that both have, and how many there are; not comparable without results."""
    if study is None:
        return NOT_COMPARABLE, 0
    first, second = (by_seed(study, name, metric, where) for name in (line.first, line.second))
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return NOT_COMPARABLE, 0
    return over_seeds(*(tuple(each[s] for s in seeds) for each in (first, second)), same_seeds=True), len(seeds)


def verdict(studies: Mapping[str, Study], line: Line) -> str:
    """Return "helps", "harms", "mixed", "no clear effect", `FEW` or `NOT_MEASURED`, by ECE and NLL under shift.

    It helps if at least one of the two 95 % intervals over at least five paired seeds excludes zero on the better side
    and none on the worse side.
    """
    found = [difference(studies.get(line.study), line, metric, where) for metric, where in JUDGED]
    if min(seeds for _, seeds in found) == 0:
        return NOT_MEASURED
    if min(seeds for _, seeds in found) < FEWEST_SEEDS:
        return FEW
    said = {one.says("lower") for one, _ in found}
    if {"better", "worse"} <= said:
        return "mixed"
    return "helps" if "better" in said else "harms" if "worse" in said else "no clear effect"


def use(studies: Mapping[str, Study], line: Line) -> str:
    """Return what to use: what is compared if it helps; otherwise to leave it out, and how well that is supported."""
    found = verdict(studies, line)
    if found in (NOT_MEASURED, FEW):
        return f"{line.otherwise} ({found})"
    return line.if_helps if found == "helps" else line.otherwise


def decision(studies: Mapping[str, Study]) -> str:
    """Return the table: what you have, what to use, and the effect that was measured; what is not measured is last."""
    if not any(line.study in studies for line in LINES):
        return NOTHING
    lines = _measured(studies, SHOWN)
    unmeasured: dict[tuple[str, str], list[str]] = {}
    for line in LINES:
        if verdict(studies, line) == NOT_MEASURED:
            unmeasured.setdefault((use(studies, line), line.compared), []).append(line.have)
    for (told, compared), have in unmeasured.items():
        all_of_them = "; or ".join([have[0], *(one.rpartition("; ")[2] for one in have[1:])])
        lines.append([all_of_them, told, compared, *[NOT_MEASURED] * len(SHOWN)])
    head = ["you have", "use", "effect of", *(title(metric, where) for metric, where in SHOWN)]
    return markdown(head, lines).replace("|---|---:|---:|", "|---|---|---|", 1)


def detection(studies: Mapping[str, Study]) -> str:
    """Return the table of the same comparisons with AUROC."""
    if not any(line.study in studies for line in LINES):
        return NOTHING
    lines = [[have, *rest] for have, _, *rest in _measured(studies, DETECTED)]
    head = ["you have", "effect of", *(title(metric, where) for metric, where in DETECTED)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def variants(studies: Mapping[str, Study]) -> str:
    """Return the table of `monotone` against the printed loss, in every training that has both."""
    if not any(line.study in studies for line in VARIANTS):
        return NOTHING
    lines = [[have, compared, *cells] for have, _, compared, *cells in _measured(studies, VARIED, VARIANTS)]
    if rest := len(VARIANTS) - len(lines):
        others = f"{rest} other combinations of the experiment"
        lines.append([others, VARIANTS[-1].compared, *[NOT_MEASURED] * len(VARIED)])
    head = ["training", "effect of", *(title(metric, where) for metric, where in VARIED)]
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def _measured(
    studies: Mapping[str, Study], figures: Sequence[tuple[str, str]], wanted: Sequence[Line] = LINES
) -> list[list[str]]:
    """Return what you have, what to use, the comparison and its figures, of every line that is measured."""
    lines = []
    for line in wanted:
        if verdict(studies, line) == NOT_MEASURED:
            continue
        study, seeds = studies[line.study], difference(studies[line.study], line, *JUDGED[0])[1]
        cells = []
        for metric, where in figures:
            values = [by_seed(study, name, metric, where) for name in (line.first, line.second)]
            cells.append(difference_text(*values, metric).replace("–", NOT_MEASURED))
        lines.append([line.have, use(studies, line), f"{line.compared} ({seeds} seeds)", *cells])
    return lines


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


# the flow chart

AND_TS = "AvUC as printed, and a temperature"
QUESTIONS: tuple[tuple[str, Line | None, str], ...] = (
    ("Can you not train the network again?", NO_TRAINING, "Temperature scaling"),
    ("Do you train by SGD with weight decay, or with AugMix?", None, ""),
    ("Is there noise on all weights, trained from scratch?", NOISE, "AvUC as printed, no temperature"),
    ("Is there a posterior around a trained network (MOPED)?", CORNERS["Adam", "MOPED"], AND_TS),
)
LAST = (CORNERS["Adam", "none"], AND_TS)
WIDTH, LEFT, RIGHT, TALL, STEP = 800, 300, 420, 64, 96


def flow_chart(studies: Mapping[str, Study]) -> str:
    """Return the chart as SVG: questions on the left, what to use and its measured effect on the right."""
    boxes = []
    for number, (question, line, use_if) in enumerate(QUESTIONS):
        top = 12 + number * STEP
        answer = _answer(studies, line, use_if)
        boxes.append(_box(10, top, LEFT, TALL, _wrapped(question, 36), "#eef2ff", "#3949ab"))
        boxes.append(_arrow(10 + LEFT, top + TALL / 2, WIDTH - RIGHT - 10, top + TALL / 2, "yes"))
        boxes.append(_box(WIDTH - RIGHT - 10, top, RIGHT, TALL, answer, "#f1f8f1", "#2e7d32"))
        boxes.append(_arrow(10 + LEFT / 2, top + TALL, 10 + LEFT / 2, top + STEP, "no"))
    top = 12 + len(QUESTIONS) * STEP
    boxes.append(_box(10, top, LEFT, TALL, ["Plain network, Adam"], "#eef2ff", "#3949ab"))
    boxes.append(_arrow(10 + LEFT, top + TALL / 2, WIDTH - RIGHT - 10, top + TALL / 2, ""))
    boxes.append(_box(WIDTH - RIGHT - 10, top, RIGHT, TALL, _answer(studies, *LAST), "#f1f8f1", "#2e7d32"))
    height = top + TALL + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            'font-size="14" role="img" aria-label="Flow chart: when to use AvUC">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *boxes,
            "</svg>\n",
        ]
    )


def _answer(studies: Mapping[str, Study], line: Line | None, use_if: str) -> list[str]:
    """Return the lines of a box: what to use, then the figures that say so."""
    without = "Temperature scaling, no AvUC"
    if line is None:
        found = [verdict(studies, one) for (training, _), one in CORNERS.items() if training != "Adam"]
        measured = [one for one in found if one != NOT_MEASURED]
        if "helps" in measured:
            return ["See the table", f"AvUC helps in {measured.count('helps')} of {len(measured)} measured cases"]
        told = f"helps in none of the measured cases ({len(measured)})" if measured else "not measured over seeds"
        return [without, f"AvUC as printed: {told};", _failure(studies)]
    found_here = verdict(studies, line)
    if found_here == NOT_MEASURED:
        return [without, f"AvUC: {NOT_MEASURED}", ""]
    texts = []
    for metric, where in JUDGED:
        one, seeds = difference(studies.get(line.study), line, metric, where)
        shown = [f"{value:+.{2 if metric == 'nll' else 3}f}".replace("-", "−") for value in one]
        texts.append(f"{words_of(metric).title} {shown[0]} ({shown[1]} … {shown[2]})")
    head = use_if if found_here == "helps" else without
    tail = "" if found_here == "helps" else f"; AvUC: {found_here}"
    return [head, f"{texts[0]}, {seeds} seeds", f"{texts[1]}{tail}"]


def _failure(studies: Mapping[str, Study]) -> str:
    """Return what printed AvUC does to plain networks that SGD trains: over seeds, or what the pilot showed."""
    line = CORNERS["SGD", "none"]
    found, seeds = difference(studies.get(line.study), line, "accuracy", "clean")
    if seeds < FEWEST_SEEDS:
        return "in a pilot it failed on plain networks (1 seed)"
    return f"plain network, SGD: accuracy {100 * found[0]:+.1f} points, {seeds} seeds".replace("-", "−")


def _wrapped(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(left: float, top: float, wide: float, tall: float, lines: Sequence[str], fill: str, edge: str) -> str:
    first = top + tall / 2 - 9 * (len(lines) - 1) + 5
    text = ""
    for row, line in enumerate(lines):
        weight = ' font-weight="bold"' if row == 0 and len(lines) > 2 else ""
        place = f'x="{left + wide / 2:g}" y="{first + 18 * row:g}" text-anchor="middle" fill="#111"'
        text += f"<text {place}{weight}>{escape(line)}</text>"
    shape = f'<rect x="{left}" y="{top}" width="{wide}" height="{tall}" rx="6" fill="{fill}" stroke="{edge}"/>'
    return shape + text


def _arrow(x1: float, y1: float, x2: float, y2: float, text: str) -> str:
    line = f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#555" fill="none" marker-end="url(#tip)"/>'
    if not text:
        return line
    x, y = ((x1 + x2) / 2 - 12, y1 - 6) if y1 == y2 else (x1 + 8, (y1 + y2) / 2 + 5)
    return f'{line}<text x="{x:g}" y="{y:g}" fill="#333">{text}</text>'
