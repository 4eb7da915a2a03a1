"""The small experiment on the trap of uncertain predictions: its table, and one very short run."""

from __future__ import annotations

import csv
from pathlib import Path

import uncertain_trap as trap

HOME = Path(__file__).parents[2]


def test_the_page_has_the_table_of_the_results():
    page = (HOME / "docs" / "reference" / "printed-loss.md").read_text(encoding="utf-8")
    assert f"<!-- trap -->\n\n{trap.table()}\n<!-- end of trap -->" in page


def test_differences_are_those_of_student():
    from scipy.stats import ttest_rel

    with trap.RESULTS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["optimizer"] == "SGD"]
    values = {loss: [float(row["nll"]) for row in rows if row["loss"] == loss] for loss in ("none", "paper")}
    assert [len(each) for each in values.values()] == [5, 5]
    low, high = ttest_rel(values["paper"], values["none"]).confidence_interval(0.95)
    line = next(line for line in trap.table().splitlines() if line.startswith("| SGD | AvUC `paper` |"))
    mean = sum(a - b for a, b in zip(values["paper"], values["none"], strict=True)) / 5
    assert f"**{mean:+.3f} ({low:+.3f} … {high:+.3f})** |" in line


def test_a_network_is_trained_again_with_the_same_figures():
    first, again = (trap.train("SGD", "paper", 0, epochs=3, rows=300) for _ in range(2))
    assert first == again
    assert set(first) == set(trap.METRICS)
    assert all(value > 0 for value in first.values())
