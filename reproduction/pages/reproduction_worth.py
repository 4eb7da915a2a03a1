"""Whether AvUC helps: every pair of rows that differ in it alone, in one table; for docs/reproduction/index.md."""

from __future__ import annotations

import math
from collections.abc import Mapping

from reproduction_best import Target, difference
from reproduction_seeds import FEWEST_SEEDS
from reproduction_tables import NOTHING, SCORES, Study, markdown

from avuc.report.metric_text import words_of

# AURC and the area under AvU are what the AvUC loss aims at
FIGURES = (*SCORES, "aurc", "avu_auc")
# study, row with AvUC, the same without, in words
PAIRS = (
    ("paper", "Vanilla-AvUC", "Vanilla", "plain network, loss as printed, β = 3"),
    ("paper", "SVI-AvUC", "SVI", "as in the text: full KL, loss as printed, β = 3"),
    ("code", "SVI-AvUC", "SVI", "as in the code: no KL gradient, from scratch, loss as printed, β = 3"),
    ("code", "SVI-AvUC, monotone", "SVI", "as in the code: no KL gradient, from scratch, repaired loss, β = 3"),
    ("code", "SVI-AUAvUC", "SVI", "as in the code: no KL gradient, from scratch, AUAvUC, β = 3"),
    ("code-pretrained", "SVI-AvUC", "SVI", "no KL gradient, trained start, loss as printed, β = 3"),
    ("ablation", "base", "beta 0", "light KL, repaired loss, β = 1 (held-out images)"),
    ("ablation", "beta 3", "beta 0", "light KL, repaired loss, β = 3 (held-out images)"),
    ("ablation", "paper cells", "beta 0", "light KL, loss as printed, β = 1 (held-out images)"),
    ("best", "MOPED-AvUC", "MOPED-SVI", "ours without a temperature, repaired loss, β = 3"),
    ("best", "MOPED-AvUC + TS", "MOPED-SVI + TS", "ours with a temperature, repaired loss, β = 3"),
)


def worth(studies: Mapping[str, Study]) -> str:
    """Differences at intensity 5, with AvUC less without, and their intervals over shifts (and seeds)."""
    head = ["with less without AvUC, intensity 5", "seeds", "accuracy, points"]
    head += [words_of(metric).title.removesuffix(" score") for metric in FIGURES]
    lines = []
    for name, row, other, told in PAIRS:
        study = studies.get(name)
        if study is None or not {row, other} <= set(study.results.names):
            continue
        seeds = min(study.get(each, "ece", "5").seeds for each in (row, other))
        line = [told, str(seeds)]
        for metric in ("accuracy", *FIGURES):
            line.append(_cell(study, row, other, Target(metric, metric, "5", math.nan), seeds))
        lines.append(line)
    return markdown(head, lines) if lines else NOTHING


def _cell(study: Study, row: str, other: str, target: Target, seeds: int) -> str:
    found = difference(study, row, study, other, target)
    share = target.metric == "accuracy"
    scale, digits = (100, 1) if share else (1, 3)
    value, low, high = (f"{scale * each:+.{digits}f}".replace("-", "−") for each in found)
    text = f"{value} ({low} … {high})" if math.isfinite(found.low) else value
    return f"**{text}**" if seeds >= FEWEST_SEEDS and found.says(target.better) == "better" else text
