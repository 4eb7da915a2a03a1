"""The figures of docs/concepts/family.md and of the pages on the printed loss, and what measuring again gives."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import make_avuc_pathology
import make_family
import matplotlib
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


def test_the_printed_loss_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of docs/concepts/avuc-pathology.md and docs/reference/printed-loss.md."""
    monkeypatch.setattr(make_avuc_pathology, "FIGURES", tmp_path)
    threads = torch.get_num_threads()
    try:
        with matplotlib.rc_context():
            make_avuc_pathology.main()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    folder = make_family.PAGE.parents[1]
    short = " ".join((folder / "concepts" / "avuc-pathology.md").read_text(encoding="utf-8").split())
    detail = (folder / "reference" / "printed-loss.md").read_text(encoding="utf-8")
    peaks = [line.rpartition("= ")[2] for line in lines if "peaks at" in line]
    assert "only up to p = {} (10 classes; {} for 1,000 classes".format(*peaks) in short
    counts = [int(line.split(": ")[1].split()[0]) for line in lines if "wrong and certain;" in line]
    said = [int(count) for count in re.findall(r"\| MLP[^|]+ \| (\d+) \| \*\*100 %", detail)]
    assert counts == pytest.approx(said, rel=0.1)  # another processor rounds the training differently
    assert f"the {sum(said)} predictions that were wrong and certain" in short
    assert all("'paper': 1.0" in line for line in lines if "wrong and certain;" in line)
    minima: dict[str, list[float]] = {}  # by network: T, ECE and UCE of paper, monotone, soft and NLL
    for line in lines:
        cells = line.split(" | ")
        if len(cells) == 5 and cells[2] in ("paper", "monotone", "soft", "nll"):
            after = cells[4].rpartition("-> ")[2].split(", ")
            minima.setdefault(cells[0], []).extend(float(number) for number in (cells[3], *after))
    rows = re.findall(r"^\| MLP[^|]+ \(\d+ %\) \| [^|]+ \| (.+) \|$", detail, re.MULTILINE)
    assert len(rows) == len(minima) == 4
    for row, found in zip(rows, minima.values(), strict=True):
        assert [float(number) for number in re.findall(r"\d*\.\d+", row)] == pytest.approx(found, abs=0.03, rel=0.1)
