"""The figures of docs/concepts/family.md are those of its JSON file, and one network measured again gives them."""

from __future__ import annotations

import json
import math

import make_avuc_pathology
import make_family
import pytest
import torch

SMALL = "MLP-8, 1,000 digits"
ROWS = json.loads(make_family.ROWS.read_text(encoding="utf-8"))


def test_the_tables_are_up_to_date() -> None:
    page = make_family.PAGE.read_text(encoding="utf-8")
    assert make_family.with_tables(page, make_family.tables(ROWS)) == page, "run: python docs/make_family.py --tables"


def test_what_the_page_says_of_directions() -> None:
    for row in ROWS["directions"]:
        if "`paper`" in row["loss"] and "SB-ECE" not in row["loss"]:
            assert row["wrong_certain"] > 0.995, row
        elif "SB-ECE" not in row["loss"]:
            assert row["wrong_certain"] == row["wrong"] == row["right"] == 0, row
        elif "`stopgrad`" in row["loss"]:
            assert row["against_bin"] == 0, row


def test_one_network_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {SMALL: make_avuc_pathology.NETWORKS[SMALL]}
    monkeypatch.setattr(make_avuc_pathology, "NETWORKS", settings)
    monkeypatch.setattr(make_family, "NETWORKS", settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = make_family.directions(make_avuc_pathology.networks()) + make_family.evidential_directions()
    finally:
        torch.set_num_threads(threads)
    expected = {row["loss"]: row for row in ROWS["directions"] if row["network"] == SMALL}
    assert {row["loss"] for row in found} == set(expected)
    for row in found:
        for name in ("wrong_certain", "wrong", "right"):
            # another processor rounds the training differently
            assert row[name] == pytest.approx(expected[str(row["loss"])][name], abs=0.05), row


def test_intervals() -> None:
    differences = [0.1, 0.2, 0.3, 0.4, 0.5]
    half = 2.776 * math.sqrt(0.025 / 5)
    assert make_family.interval(differences) == f"**+0.300 ± {half:.3f}**"
    assert make_family.interval([-d for d in differences]) == f"**−0.300 ± {half:.3f}**"
    assert make_family.interval([-1.0, 1.0, 0.0, 0.5, -0.5]).startswith("+0.000 ±")


@pytest.mark.slow
def test_runs_measured_again() -> None:
    found = make_family.trained(range(1))
    expected = {row["loss"]: row for row in ROWS["training"] if row["seed"] == 0}
    for row in found:
        assert row["nll"] == pytest.approx(expected[str(row["loss"])]["nll"], abs=0.05), row
