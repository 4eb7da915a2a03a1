"""Fill the generated parts of two pages from reproduction/results/language-models.

    python reproduction/pages/make_language_models.py            # takes seconds
    python reproduction/pages/make_language_models.py --check    # writes nothing; exits with 1 if a page is out of date

docs/guide/language-models.md has numbers in its sentences, docs/studies/language-models.md has the tables. Text outside
the marks (see avuc.report.markers) is written by hand and is kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction_seeds import shared_difference
from reproduction_tables import NOT_RUN, markdown

from avuc.core.atomic import write_text
from avuc.core.errors import InputError
from avuc.report.markers import fill
from avuc.report.study.paired import Difference

HOME = Path(__file__).parents[2]
PAGES = [HOME / "docs" / folder / "language-models.md" for folder in ("guide", "studies")]
RESULTS = HOME / "reproduction" / "results" / "language-models"
PLAIN = "cross-entropy"
# metric → heading, decimals; shares are printed as percentages
METRICS = {
    "accuracy": ("accuracy, %", 2),
    "nll": ("NLL", 3),
    "ece": ("ECE, %", 2),
    "uce": ("UCE, %", 2),
    "auroc": ("AUROC, %", 2),
    "aurc": ("AURC, %", 2),
    "accuracy_50": ("accuracy at 50 %", 2),
    "accuracy_80": ("accuracy at 80 %", 2),
}
TEXTS = {"test": "Shakespeare", "novels": "novels", "news": "news", "reviews": "film reviews"}
SCALINGS = {"none": "as trained", "validation": "with a temperature fitted on validation text"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The published results.

    Args:
        test: figures of the tests.
        choice: figures on validation text, by which the rate and the strengths were chosen.
        runs: time and settings of every run.
        chosen: the chosen rate and strengths.
    """

    test: Sequence[Row]
    choice: Sequence[Row]
    runs: Sequence[Row]
    chosen: Mapping[str, Any]

    @property
    def losses(self) -> list[str]:
        """Return the losses that were tested; cross-entropy first."""
        tested = {row["loss"] for row in self.test}
        order = [PLAIN, "UA-CLM", "UA-CLM repaired", "AvUC", "AvUC monotone", "UA-CLM alone"]
        return [loss for loss in order if loss in tested]

    def by_seed(
        self, loss: str, text: str, metric: str, scaling: str, strength: float | None = None
    ) -> dict[int, float]:
        """Return seed → value; with the chosen strength by default."""
        strength = self.chosen["strengths"][loss] if strength is None else strength
        properties = {"loss": loss, "strength": strength, "text": text, "scaling": scaling}
        return {
            int(row["seed"]): row[metric]
            for row in self.test
            if all(row[key] == value for key, value in properties.items())
        }

    def effect(self, loss: str, text: str, metric: str, scaling: str, strength: float | None = None) -> Difference:
        """Return the difference from cross-entropy over the seeds that both have, with its paired interval."""
        values = self.by_seed(loss, text, metric, scaling, strength)
        return shared_difference(values, self.by_seed(PLAIN, text, metric, scaling))[0]


def read_results(folder: Path) -> Results | None:
    """Return the published results; None if there are none."""
    if not (folder / "rows.csv").is_file():
        return None
    tables = [_table(folder / name) for name in ("rows.csv", "choice.csv", "runs.csv")]
    return Results(*tables, chosen=json.loads((folder / "choice.json").read_text(encoding="utf-8")))


def _table(path: Path) -> list[Row]:
    """Return the rows of a CSV file, with numbers as floats."""
    with open(path, newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    """Return a float if the text is a number; otherwise the text."""
    try:
        return float(text)
    except ValueError:
        return text


def number(value: float, metric: str, *, signed: bool = False) -> str:
    """Return a value as it is printed: shares as percentages."""
    _, digits = METRICS[metric]
    if math.isnan(value):
        return "–"
    return f"{value if metric == 'nll' else 100 * value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def mean(values: Iterable[float]) -> float:
    """Return the mean; NaN without values."""
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def means(results: Results, text: str, scaling: str) -> str:
    """Return a table of means over the seeds, with a row for each loss."""
    head = ["loss", "strength", *(title for title, _ in METRICS.values())]
    lines = []
    for loss in results.losses:
        strength = results.chosen["strengths"][loss]
        cells = [loss, "" if loss == PLAIN else f"{strength:g}"]
        lines.append(
            [
                *cells,
                *(number(mean(results.by_seed(loss, text, metric, scaling).values()), metric) for metric in METRICS),
            ]
        )
    return markdown(head, lines)


def effects(results: Results, text: str, scaling: str) -> str:
    """Return a table of differences from cross-entropy with 95 % intervals; bold if the interval does not contain 0."""
    head = ["difference from cross-entropy", *(title for title, _ in METRICS.values())]
    lines = []
    for loss in results.losses:
        if loss != PLAIN:
            lines.append(
                [loss, *(_interval(results.effect(loss, text, metric, scaling), metric) for metric in METRICS)]
            )
    return markdown(head, lines)


def _interval(difference: Difference, metric: str) -> str:
    """Return a difference ± half of its interval; bold if the interval does not contain 0."""
    if math.isnan(difference.low):
        return number(difference.value, metric, signed=True)
    half = number((difference.high - difference.low) / 2, metric)
    text = f"{number(difference.value, metric, signed=True)} ± {half}"
    return text if difference.low <= 0 <= difference.high else f"**{text}**"


def in_domain(results: Results) -> str:
    """Return the tables of the text that the networks were fine-tuned on."""
    parts = []
    for scaling, scaling_title in SCALINGS.items():
        parts.append(f"{scaling_title[0].upper()}{scaling_title[1:]}:\n\n{means(results, 'test', scaling)}")
        parts.append(effects(results, "test", scaling))
    return "\n\n".join(parts)


def other_text(results: Results) -> str:
    """Return the differences on the other texts, as trained and with the temperature of the validation text."""
    parts = []
    for text, title in list(TEXTS.items())[1:]:
        for scaling, scaling_title in SCALINGS.items():
            plain = ", ".join(
                f"{heading} {number(mean(results.by_seed(PLAIN, text, metric, scaling).values()), metric)}"
                for metric, (heading, _) in METRICS.items()
            )
            parts.append(f"**{title[0].upper()}{title[1:]}**, {scaling_title}. Cross-entropy: {plain}.")
            parts.append(effects(results, text, scaling))
    return "\n\n".join(parts)


def choice(results: Results) -> str:
    """Return the figures by which the learning rate and the strengths were chosen."""
    head = ["loss", "learning rate", "strength", *(title for title, _ in METRICS.values()), "chosen"]
    lines = []
    order = {loss: index for index, loss in enumerate(results.losses)}
    candidates = [row for row in results.choice if row.get("scaling") in ("none", "")]
    for row in sorted(candidates, key=lambda row: (order.get(row["loss"], 9), row["rate"], row["strength"])):
        is_chosen = (
            row["rate"] == results.chosen["rate"] and row["strength"] == results.chosen["strengths"][row["loss"]]
        )
        values = ["diverged"] if row["text"] == "diverged" else [number(row[metric], metric) for metric in METRICS]
        values += [""] * (len(METRICS) - len(values))
        lines.append([row["loss"], f"{row['rate']:g}", f"{row['strength']:g}", *values, "yes" if is_chosen else ""])
    return markdown(head, lines)


def strengths(results: Results) -> str:
    """Return the effect of every strength on the text that the networks were fine-tuned on."""
    parts = []
    for scaling, scaling_title in SCALINGS.items():
        head = ["loss", "strength", "seeds", *(title for title, _ in METRICS.values())]
        lines = []
        for loss in results.losses:
            for strength in sorted({row["strength"] for row in results.test if row["loss"] == loss and loss != PLAIN}):
                seeds = len(results.by_seed(loss, "test", "nll", scaling, strength))
                cells = [
                    _interval(results.effect(loss, "test", metric, scaling, strength), metric) for metric in METRICS
                ]
                lines.append([loss, f"{strength:g}", str(seeds), *cells])
        parts.append(
            f"{scaling_title[0].upper()}{scaling_title[1:]}, difference from cross-entropy:\n\n{markdown(head, lines)}"
        )
    return "\n\n".join(parts)


def cost(results: Results) -> str:
    """Return the time and the speed of the runs."""
    head = ["part", "loss", "runs", "seconds each", "tokens a second"]
    lines = []
    for part in ("pretrain", "choice", "test"):
        for loss in ("", *results.losses):
            runs = [row for row in results.runs if row["part"] == part and row["loss"] == loss]
            if runs:
                seconds, speed = mean(run["seconds"] for run in runs), mean(run["tokens_per_second"] for run in runs)
                lines.append([part, loss, str(len(runs)), f"{seconds:.0f}", f"{speed:,.0f}"])
    first_run = results.runs[0]
    machine = f"Revision {first_run['revision']}, {first_run['device']}, torch {first_run['torch']}. "
    machine += "Five runs at a time shared the GPU with other work, and some were paused: this does not measure speed."
    return markdown(head, lines) + f"\n\n{machine}"


BLOCKS = {"in-domain": in_domain, "other": other_text, "choice": choice, "strengths": strengths, "cost": cost}


def figure(results: Results | None, parts: Sequence[str]) -> str:
    """Return one number of a sentence.

    Args:
        results: the published results.
        parts: loss, text, metric and scaling; if "effect" is before them, the number is the difference from
            cross-entropy.
    """
    if results is None:
        return "–"
    is_effect = parts[0] == "effect"
    loss, text, metric, scaling = parts[1:] if is_effect else parts
    if is_effect:
        return _interval(results.effect(loss, text, metric, scaling), metric).replace("*", "")
    return number(mean(results.by_seed(loss, text, metric, scaling).values()), metric)


def filled(page: str, results: Results | None) -> str:
    """Return a page with its generated parts filled."""
    blocks = {name: NOT_RUN if results is None else make(results) for name, make in BLOCKS.items()}
    return fill(page, blocks, lambda parts: figure(results, parts), PAGES[0].name)


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a page is out of date")
    options = parser.parse_args(arguments)
    try:
        results = read_results(RESULTS)
        before = {path: path.read_text(encoding="utf-8") for path in PAGES}
        after = {path: filled(text, results) for path, text in before.items()}
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return int(before != after)
    for path, text in after.items():
        write_text(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
