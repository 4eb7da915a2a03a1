"""The flow chart of docs/when-to-use-avuc.md as SVG: questions, what to use, and the measured effect.

`python reproduction/pages/make_reproduction.py` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import reproduction_decision as decide
import reproduction_lines as pairs
from reproduction_seeds import FEWEST_SEEDS, SET_TITLES
from reproduction_tables import Study

from avuc.report.metric_text import metric_text

NO_AVUC = "Temperature scaling, no AvUC"
AND_POSTERIOR = "A posterior around the network, and a temperature"
# question; what is compared; figures to show; what to use if it helps
QUESTIONS = (
    ("Is the network trained, and must it stay as it is?", pairs.TEMPERATURE, pairs.JUDGED, "Temperature scaling"),
    (
        "Is there noise on all weights, trained from scratch by Adam?",
        pairs.NOISE_MONOTONE,
        pairs.JUDGED,
        "AvUC monotone, no temperature",
    ),
    ("Do you have few training images?", pairs.FEW_IMAGES, pairs.RANKED, "AvUC monotone, and a temperature"),
    (
        "Are many of your training labels wrong?",
        pairs.WRONG_LABELS,
        (("nll", "5"), ("auroc", "svhn")),
        "Try AvUC monotone, and a temperature",
    ),
    ("Do you train by SGD without strong augmentation?", pairs.AUGMENTED, pairs.JUDGED, "AugMix, and a temperature"),
    (
        "Do you need to detect other data?",
        replace(pairs.POSTERIOR, aims=pairs.DETECTED),
        pairs.DETECTED,
        AND_POSTERIOR,
    ),
    ("Can you tune a posterior around the network (MOPED)?", pairs.POSTERIOR, pairs.JUDGED[:1], AND_POSTERIOR),
)
WIDTH, LEFT, RIGHT, TALL, STEP = 800, 270, 460, 64, 96


def flow_chart(studies: Mapping[str, Study]) -> str:
    """Return the chart as SVG: questions on the left, what to use and its measured effect on the right."""
    boxes = []
    answers = [_answer(studies, *rest) for _, *rest in QUESTIONS]
    answers[-1].append(_helped(studies, "AvUC on it", pairs.AROUND_PRINTED, pairs.AROUND_MONOTONE))
    answers.append([NO_AVUC, _helped(studies, "AvUC", pairs.PRINTED, pairs.MONOTONE), _failure(studies)])
    for number, answer in enumerate(answers):
        top, last = 12 + number * STEP, number == len(QUESTIONS)
        question = ["Any other plain network"] if last else _wrapped(QUESTIONS[number][0], 34)
        boxes.append(_box(10, top, LEFT, TALL, question, "#eef2ff", "#3949ab"))
        boxes.append(_arrow(10 + LEFT, top + TALL / 2, WIDTH - RIGHT - 10, top + TALL / 2, "" if last else "yes"))
        boxes.append(_box(WIDTH - RIGHT - 10, top, RIGHT, TALL, answer, "#f1f8f1", "#2e7d32"))
        if not last:
            boxes.append(_arrow(10 + LEFT / 2, top + TALL, 10 + LEFT / 2, top + STEP, "no"))
    height = 12 + len(QUESTIONS) * STEP + TALL + 12
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


def _answer(
    studies: Mapping[str, Study], decision: pairs.Decision, figures: Sequence[tuple[str, str]], use_if: str
) -> list[str]:
    """Return the lines of a box: what to use, then the measured effects."""
    verdict = decide.agreed(studies, decision)
    if verdict == decide.NOT_MEASURED:
        return [NO_AVUC, f"the alternative: {decide.NOT_MEASURED}"]
    lines = [use_if if verdict == "helps" else NO_AVUC]
    for metric, where in figures:
        name = metric_text(metric).title + (f", {SET_TITLES[where]}" if metric == "auroc" else "")
        texts = [decide.differences(studies, line, [(metric, where)])[0] for line in decision.cases]
        if len(texts) == 1:
            lines.append(f"{name} {texts[0].strip('*')}")
        else:
            effects = [decide.shortened(text).strip("*") if text.startswith("**") else "unclear" for text in texts]
            cases = [f"{case.have} {text}" for case, text in zip(decision.cases, effects, strict=True)]
            lines.append(f"{name}: {', '.join(cases)}")
    lines[1] += f"; {decide.counts(studies, decision).rpartition('; ')[2].removesuffix(' each')}"
    return lines


def _helped(studies: Mapping[str, Study], name: str, *decisions: pairs.Decision) -> str:
    """Return in how many of the measured cases it helps."""
    verdicts = [decide.verdict(studies, case) for decision in decisions for case in decision.cases]
    measured = [verdict for verdict in verdicts if verdict not in (decide.NOT_MEASURED, decide.FEW)]
    if not measured:
        return f"{name}: {decide.NOT_MEASURED}"
    return f"{name} helps in {measured.count('helps')} of {len(measured)} measured cases"


def _failure(studies: Mapping[str, Study]) -> str:
    """Return the effect of printed AvUC on the accuracy of plain networks that SGD trains; else that of the pilot."""
    line = pairs.CORNERS["SGD", "none"]
    change, seeds = decide.difference(studies.get(line.study), line, "accuracy", "clean")
    if seeds < FEWEST_SEEDS:
        return "in a pilot the printed loss failed (1 seed)"
    return f"as printed, SGD: accuracy {100 * change[0]:+.1f} points; {seeds} seeds".replace("-", "−")


def _wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(left: float, top: float, width: float, height: float, lines: Sequence[str], fill: str, stroke: str) -> str:
    """Return a box with centred lines of text; the first of more than two is bold."""
    first_y = top + height / 2 - 9 * (len(lines) - 1) + 5
    text = ""
    for index, line in enumerate(lines):
        weight = ' font-weight="bold"' if index == 0 and len(lines) > 2 else ""
        attributes = f'x="{left + width / 2:g}" y="{first_y + 18 * index:g}" text-anchor="middle" fill="#111"'
        text += f"<text {attributes}{weight}>{escape(line)}</text>"
    shape = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{stroke}"/>'
    return shape + text


def _arrow(x1: float, y1: float, x2: float, y2: float, text: str) -> str:
    """Return an arrow with a text beside it."""
    line = f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#555" fill="none" marker-end="url(#tip)"/>'
    if not text:
        return line
    x, y = ((x1 + x2) / 2 - 12, y1 - 6) if y1 == y2 else (x1 + 8, (y1 + y2) / 2 + 5)
    return f'{line}<text x="{x:g}" y="{y:g}" fill="#333">{text}</text>'
