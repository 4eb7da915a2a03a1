"""The small experiment with wrong labels on digits: its data, its table, and one very short run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import wrong_labels as wrong

from avuc.data import load_dataset

PAGE = Path(__file__).parents[2] / "docs" / "reproduction" / "when-avuc-helps.md"


def test_a_fifth_of_the_training_labels_is_wrong_and_all_others_are_right():
    (images, labels), held_out, sets = wrong.digits()
    data = load_dataset("mnist5k")
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))
    assert len(images) == len(labels) == 3500
    assert int((labels != data.labels[order[500:]]).sum()) == 700
    assert torch.equal(held_out[1], data.labels[order[:500]])
    test = load_dataset("mnist5k", split="test").labels
    assert len(sets) == 1 + 19
    assert all(torch.equal(truth, test) for _, truth in sets.values())


def test_the_page_has_the_table_of_the_results():
    begin, end = "<!-- wrong labels on digits -->", "<!-- end of wrong labels on digits -->"
    assert f"{begin}\n\n{wrong.table()}\n{end}" in PAGE.read_text(encoding="utf-8")


def paired(optimizer: str, first: str, second: str, figure: str) -> tuple[float, float, float]:
    """The mean difference and its interval by SciPy."""
    from scipy.stats import ttest_rel

    values = wrong.read()
    pair = [values[optimizer, loss, figure] for loss in (first, second)]
    seeds = sorted(pair[0])
    assert len(seeds) == len(pair[1]) == 10
    one, two = ([each[seed] for seed in seeds] for each in pair)
    interval = ttest_rel(one, two).confidence_interval(0.95)
    return sum(a - b for a, b in zip(one, two, strict=True)) / 10, interval.low, interval.high


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
@pytest.mark.parametrize(("loss", "title"), [item for item in wrong.LOSSES.items() if item[0] != "none"])
def test_differences_are_those_of_student(optimizer, loss, title):
    line = next(line for line in wrong.table().splitlines() if line.startswith(f"| {optimizer} | {title} |"))
    mean, low, high = paired(optimizer, loss, "none", "aurc_5")
    cell = line.split("|")[5].strip()
    shown = [float(value) for value in re.findall(r"[+-]\d\.\d{3}", cell.replace("−", "-"))]
    assert shown == pytest.approx([mean, low, high], abs=0.0005 + 1e-9)
    assert cell.startswith("**") == (low > 0 or high < 0)


def test_what_the_page_says_of_digits():
    lower = ("nll_5", "ece_5", "aurc_5")
    for figure in ("nll_5", "ece_5", "aurc_5", "avu_auc_5", "accuracy_5"):
        sign = 1 if figure in lower else -1
        for other in ("none", "penalty"):
            assert max(sign * bound for bound in paired("SGD", "monotone", other, figure)[1:]) < 0, (figure, other)
    assert all(paired("SGD", "monotone", "smoothing", figure)[2] < 0 for figure in lower)
    assert paired("SGD", "monotone", "smoothing", "accuracy_clean")[2] < 0
    values = wrong.read()
    learned = {o: sum(values[o, "none", "learned"].values()) / 10 for o in ("SGD", "Adam")}
    assert {name: round(100 * value) for name, value in learned.items()} == {"SGD": 86, "Adam": 77}
    lost = [paired("Adam", "monotone", "none", "accuracy_clean")]
    lost += [paired(optimizer, "paper", "none", "accuracy_clean") for optimizer in ("Adam", "SGD")]
    assert [round(100 * mean) for mean, _, _ in lost] == [-6, -10, -15]
    assert all(high < 0 for _, _, high in lost)


def test_a_network_is_trained_again_with_the_same_figures():
    first, again = (wrong.train("SGD", "monotone", 0, epochs=7, rows=200) for _ in range(2))
    assert first == again
    assert set(first) == set(wrong.FIGURES)
    assert all(value > 0 for value in first.values())
    plain, penalty = (wrong.train("Adam", loss, 0, epochs=7, rows=200) for loss in ("none", "penalty"))
    assert penalty["confidence"] < plain["confidence"]
