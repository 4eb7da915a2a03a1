"""The paper's figures beside a study's: the printed numbers, and figures computed by hand."""

from __future__ import annotations

import numpy as np
from studies_paper import beside_the_paper

from avuc.report.study.result_arrays import MethodFacts, Results


def cells(text, source, name):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return next(row[2:] for row in rows if row[:2] == [source, name])


def test_printed_figures():
    text = beside_the_paper("imagenet", None)
    assert cells(text, "paper", "SVI-AvUC") == ["4.47", "18.53", "4.823", "0.935", "0.31", "0.94", "−0.25", "97.60"]
    assert cells(text, "paper", "SVI-TS")[:4] == ["–"] * 4
    assert "here" not in text


def test_figures_of_a_study():
    shifts = ("fog", "frost", "gaussian_blur")
    sets = [("clean", 0), *((shift, level) for shift in shifts for level in (1, 5))]
    ece = np.array([[[0.01, 0.02, 0.10, 0.03, 0.30, 0.04, 0.20], [0.01, 0.02, 0.12, 0.03, 0.40, 0.04, 0.10]]])
    auroc = np.full((1, 2, 7), np.nan)
    auroc[0, :, 6] = 0.8, 0.9
    methods = [MethodFacts("Mine", 0, seeds=(0, 1))]
    results = Results("t", "", shifts, methods, sets, {"ece": ece, "auroc": auroc}, {}, {}, {})
    found = cells(beside_the_paper("imagenet", results), "here", "Mine")
    # medians over the shifts at intensity 5: 0.20 and 0.12
    assert found == ["16.00", "–", "–", "–", "1.00", "–", "–", "85.00"]
