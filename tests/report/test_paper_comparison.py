"""Numbers of a study by name, the published ones beside them, and how sure a difference is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from avuc.core.errors import InputError
from avuc.report.markers import block_names, fill
from avuc.report.study.paired import (
    compare_over_seeds,
    compare_over_shifts,
    complete_seeds,
    over_images,
    over_seeds,
    over_shifts,
    pairs_by_seed,
    shift_values,
    trend,
)
from avuc.report.study.paper_comparison import Figure, Published, figure, outside_cell, published_value
from avuc.report.study.results import MethodFacts, Results

SHIFTS = ("fog", "frost", "contrast")
CELLS = [("clean", 0), *((shift, level) for shift in SHIFTS for level in (1, 5)), ("ood:svhn-test", 0), ("ood:dtd", 0)]


@pytest.fixture
def study():
    """Two rows; the second one has one seed less."""
    rng = np.random.default_rng(1)
    values = rng.random((2, 3, len(CELLS)))
    values[1, 2] = np.nan
    methods = [MethodFacts("A", 0, seeds=(0, 1, 2)), MethodFacts("B", 1, seeds=(0, 1))]
    return Results("t", "s", ("",), methods, list(CELLS), {"ece": values, "auroc": values + 1}, {}, {}, {})


def place(cell):
    return CELLS.index(cell)


def test_clean_and_single_sets(study):
    values = study.values["ece"]
    assert figure(study, "A", "ece", "clean").by_seed == tuple(values[0, :, 0])
    assert figure(study, "A", "ece", "0") == figure(study, "A", "ece", "clean")
    assert figure(study, "B", "ece", "fog 5").by_seed == tuple(values[1, :2, place(("fog", 5))])
    assert figure(study, "A", "auroc", "svhn").by_seed == tuple(values[0, :, place(("ood:svhn-test", 0))] + 1)
    assert outside_cell(study, "SVHN") == ("ood:svhn-test", 0)
    assert outside_cell(study, "cifar100") is None


@pytest.mark.parametrize(("statistic", "share"), [("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)])
def test_quartiles_over_shifts_are_taken_for_each_seed(study, statistic, share):
    five = study.values["ece"][0][:, [place((shift, 5)) for shift in SHIFTS]]
    found = figure(study, "A", "ece", "5", statistic)
    assert found.by_seed == pytest.approx(tuple(np.quantile(five, share, axis=1)))
    assert found.value == pytest.approx(np.quantile(five, share, axis=1).mean())
    assert found.deviation == pytest.approx(np.quantile(five, share, axis=1).std(ddof=1))
    assert figure(study, "A", "ece", "5").value == pytest.approx(five.mean())


def test_mean_over_all_intensities(study):
    both = study.values["ece"][0][:, [place((shift, level)) for shift in SHIFTS for level in (1, 5)]]
    assert figure(study, "A", "ece", "shifted").value == pytest.approx(both.mean())


def test_spearman_is_scipys(study):
    values = study.values["ece"][0]
    means = [values[:, 0], *(values[:, [place((s, level)) for s in SHIFTS]].mean(1) for level in (1, 5))]
    expected = [stats.spearmanr([0, 1, 5], [m[seed] for m in means]).statistic for seed in range(3)]
    assert figure(study, "A", "ece", "", "spearman").by_seed == pytest.approx(tuple(expected))


def test_what_is_not_there_has_no_seeds(study):
    for method, metric, where in (("C", "ece", "5"), ("A", "nll", "5"), ("A", "ece", "rain 5"), ("A", "ece", "mnist")):
        found = figure(study, method, metric, where)
        assert found == Figure(())
        assert math.isnan(found.value)
    assert figure(study, "B", "ece", "clean").seeds == 2
    assert math.isnan(Figure((1.0,)).deviation)


def test_published_figures_by_their_properties():
    one = Published("detection", "cifar10", "SVI", "svhn", "", "auroc", "value", "93.94", "%")
    two = Published("quartiles", "cifar10", "SVI", "", "5", "ece", "mean", "0.2389")
    assert published_value([one, two], method="SVI", metric="auroc") == pytest.approx(0.9394)
    assert published_value([one, two], metric="ece") == 0.2389
    assert math.isnan(published_value([one, two], metric="nll"))
    with pytest.raises(InputError, match="2 published figures"):
        published_value([one, two], method="SVI")


# differences


def test_shift_values_have_clean_images_first_and_whole_seeds_only(study):
    found = shift_values(study, "B", "ece")
    assert found.shape == (2, 3, 3)
    assert (found[:, :, 0] == study.values["ece"][1, :2, :1]).all()
    assert found[1, 2, 2] == study.values["ece"][1, 1, place(("contrast", 5))]


@pytest.fixture
def seeds_apart():
    """Two methods with two complete seeds each, of which they share only seed 1."""
    values = np.random.default_rng(2).random((2, 3, len(CELLS)))
    values[0, 0, place(("fog", 5))] = np.nan  # seed 0 of A is not complete
    values[1, 2] = np.nan  # B was not trained with seed 2
    methods = [MethodFacts("A", 0, seeds=(0, 1, 2)), MethodFacts("B", 1, seeds=(0, 1))]
    return Results("t", "s", ("",), methods, list(CELLS), {"ece": values}, {}, {}, {})


def strongest(values):
    return float(values[:, -1].mean())


def test_shift_values_are_paired_by_seed_and_not_by_position(seeds_apart):
    first, second = (shift_values(seeds_apart, name, "ece") for name in "AB")
    assert len(first) == len(second) == 2
    assert complete_seeds(seeds_apart, "A", "ece") == (1, 2)
    assert complete_seeds(seeds_apart, "B", "ece") == (0, 1)
    by_position = over_shifts(first, second, strongest, same_seeds=True)
    found = compare_over_shifts(seeds_apart, "A", seeds_apart, "B", "ece", strongest, same_networks=True)
    assert found == over_shifts(first, second, strongest) != by_position
    # the same seeds are compared in pairs
    whole = replace(seeds_apart, values={"ece": np.random.default_rng(2).random((2, 3, len(CELLS)))})
    first, second = (shift_values(whole, name, "ece") for name in "AB")
    found = compare_over_shifts(whole, "A", whole, "B", "ece", strongest, same_networks=True)
    assert found == over_shifts(first, second, strongest, same_seeds=True)


def test_shifts_are_matched_by_name():
    """Two studies with the same shifts in another order: each shift is compared with itself."""
    cells = [CELLS[0], *((shift, level) for shift in reversed(SHIFTS) for level in (1, 5))]
    values = np.random.default_rng(3).random((1, 2, len(CELLS)))
    methods = [MethodFacts("A", 0, seeds=(0, 1))]
    one = Results("t", "s", ("",), methods, list(CELLS), {"ece": values}, {}, {}, {})
    moved = values[:, :, [place(cell) for cell in cells]]
    other = Results("t", "s", ("",), methods, cells, {"ece": moved}, {}, {}, {})
    assert other.shifts != one.shifts
    found = compare_over_shifts(one, "A", other, "A", "ece", strongest, same_networks=True)
    assert found == (0, 0, 0)
    fewer = replace(other, test_sets=cells[:3], values={"ece": moved[:, :, :3]})
    assert math.isnan(compare_over_shifts(one, "A", fewer, "A", "ece", strongest).value)


def test_figures_are_paired_by_seed_and_not_by_position(seeds_apart):
    first, second = (figure(seeds_apart, name, "ece", "fog 5") for name in "AB")
    assert (first.seed_numbers, second.seed_numbers) == ((1, 2), (0, 1))
    found = compare_over_seeds(first, second, same_networks=True)
    by_position = over_seeds(first.by_seed, second.by_seed, same_seeds=True)
    assert found == over_seeds(first.by_seed, second.by_seed) != by_position
    clean = [figure(seeds_apart, name, "ece", "frost 1") for name in "AA"]
    assert compare_over_seeds(*clean, same_networks=True) == (0, 0, 0)
    assert pairs_by_seed(first, second) == [(first.by_seed[0], second.by_seed[1])]


def test_a_difference_common_to_all_shifts_is_found_and_the_spread_of_shifts_is_no_noise():
    rng = np.random.default_rng(0)
    base = rng.normal(0.3, 0.2, (1, 16, 1))  # shifts differ widely; both rows meet the same ones
    first, second = base - 0.05 + rng.normal(0, 0.005, (3, 16, 1)), base + rng.normal(0, 0.005, (3, 16, 1))
    found = over_shifts(first, second, lambda values: float(values.mean()))
    assert found.low < -0.05 < found.high < 0
    assert found.high - found.low < 0.02
    assert found.says("lower") == "better"
    assert found.says("higher") == "worse"
    assert over_shifts(second, second, lambda values: float(values.mean())).says("lower") == "not significant"
    assert over_shifts(first, second, lambda values: float(values.mean())) == found  # no chance between two calls


def test_one_shift_has_no_interval():
    found = over_shifts(np.ones((2, 1, 1)), np.zeros((2, 1, 1)), lambda values: float(values.mean()))
    assert found.value == 1
    assert math.isnan(found.low)
    assert found.says("lower") == "no interval"


def test_over_seeds_is_welchs_interval():
    first, second = (1.0, 1.2, 0.9, 1.05), (2.0, 2.4, 1.9)
    found = over_seeds(first, second)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert over_seeds((1.0, 1.0), (2.0, 2.0)) == (-1.0, -1.0, -1.0)


def test_rows_from_the_same_networks_are_compared_seed_by_seed():
    from scipy import stats

    first, second = (0.95, 0.55, 0.71), (0.9, 0.51, 0.65)
    found = over_seeds(first, second, same_seeds=True)
    reference = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert found.says("higher") == "better"
    assert over_seeds(first, second).says("higher") == "not significant"
    # a step between seeds that is larger than anything else is common to both, so it moves nothing
    steps = np.array([0.0, 5.0, 9.0])[:, None, None]
    noise = np.random.default_rng(0).normal(size=(2, 3, 16, 1)) / 100
    rows = noise + steps
    mean = lambda values: float(values.mean())  # noqa: E731
    paired, apart = (over_shifts(rows[0] + 0.1, rows[1], mean, same_seeds=same) for same in (True, False))
    assert paired.says("higher") == "better"
    assert paired.high - paired.low < 0.05 < apart.high - apart.low


def with_counts(study, seed: int, images: int = 4000):
    """The study's first row with the counts of made-up images, and the spread of its metrics over many such sets."""
    rng = np.random.default_rng(seed)
    stated = np.linspace(0.3, 0.98, 10)
    right = rng.binomial(images // 10, stated - 0.05)
    reliability = {"rows": np.full(10, images / 10), "stated": stated * images / 10, "observed": right.astype(float)}
    shares = np.linspace(2, 1, 20) / 30
    inside, outside = rng.multinomial(images, shares), rng.multinomial(images, shares[::-1])
    study.curves[0, 0] = {"reliability": reliability, "entropy": {"right": inside, "wrong": np.zeros(20)}}
    study.curves[0, place(("ood:dtd", 0))] = {"entropy": {"outside": outside}}
    study.values["ece"][0, :, 0] = np.abs(right - stated * images / 10).sum() / images
    below = inside.cumsum() - inside / 2
    study.values["auroc"][0, :, place(("ood:dtd", 0))] = (outside * below).sum() / images**2
    return study


@pytest.mark.parametrize(("cell", "metric"), [(("clean", 0), "ece"), (("ood:dtd", 0), "auroc")])
def test_over_images_covers_what_other_images_give(study, cell, metric):
    values = [float(with_counts(study, seed).mean(metric, cell)[0]) for seed in range(200)]
    spread = np.std(values) * math.sqrt(2) * 1.96  # of a difference of two such studies
    found = over_images(with_counts(study, 0), "A", study, "A", cell)
    assert found.value == 0
    assert found.high == pytest.approx(spread, rel=0.25)
    assert found.low == pytest.approx(-spread, rel=0.25)


def test_over_images_needs_the_counts(study):
    found = over_images(study, "A", study, "B", ("clean", 0))
    assert found.value == pytest.approx(study.mean("ece", ("clean", 0))[0] - study.mean("ece", ("clean", 0))[1])
    assert math.isnan(found.low)


def test_trend_of_means():
    values = np.array([[0.0, 1.0, 2.0], [0.0, 3.0, 1.0]])  # means 0, 2, 1.5
    assert trend(values) == pytest.approx(0.5)


# generated parts


def test_blocks_and_figures_are_filled_and_the_rest_stays():
    text = "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb <!-- figure: s | r -->1<!-- end --> c\n"
    filled = fill(text, {"x": "new |\\1"}, lambda words: str(len(words)))
    assert filled == (
        "a\n<!-- generated: x -->\n\nnew |\\1\n\n<!-- end: x -->\nb <!-- figure: s | r -->2<!-- end --> c\n"
    )
    assert fill(filled, {"x": "new |\\1"}, lambda words: str(len(words))) == filled
    row = "| x | <!-- figure: s \\| r -->{}<!-- end --> |"
    assert fill(row.format(1), {}, "+".join) == row.format("s+r")
    assert block_names(text) == ["x"]
    assert fill("plain\n", {}, lambda words: "") == "plain\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: y -->\n<!-- end: y -->", "no block 'y' is generated; there are x"),
        ("<!-- generated: x -->\n", "needs one begin mark and one end mark"),
        ("<!-- generated: x -->\n<!-- end: x -->\n<!-- generated: x -->\n<!-- end: x -->", "needs one begin mark"),
        ("<!-- figure: a -->1\n<!-- end -->", "has no <!-- end --> in its line"),
        ("| x | <!-- figure: a | b -->1<!-- end --> |", "in a table needs"),
    ],
)
def test_broken_marks_are_named(text, message):
    with pytest.raises(InputError, match=f"page.md: .*{message}"):
        fill(text, {"x": ""}, lambda words: "", "page.md")
