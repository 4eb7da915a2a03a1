"""The fast ways of counting equal the plain ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import arrays, calibration, few_classes, selective
from avuc.metrics.avu import _first_not_below
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import from_statistics
from avuc.metrics.threshold import thresholds_between
from avuc.metrics.ties import TieGroups, cumulative, group_ties

World = Callable[..., tuple[np.ndarray, np.ndarray]]
COLUMNS = ("confidence", "predicted", "correct", "entropy", "nll", "brier", "labels", "classwise")


@pytest.mark.parametrize("classes", [1, 2, 3, 10, few_classes.MOST_CLASSES])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_few_classes_equal_many(
    classes: int, dtype: torch.dtype, awkward: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    probs, labels = awkward(300, classes)
    given_probs = torch.from_numpy(probs).to(dtype)
    few = prediction_statistics(given_probs, labels, bins=7)
    monkeypatch.setattr(few_classes, "MOST_CLASSES", 0)
    many = prediction_statistics(given_probs, labels, bins=7)
    assert few.dtype == many.dtype == dtype
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(few, name), getattr(many, name), rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1, 0.9])
def test_few_classes_refuse_what_many_refuse(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    probs = np.full((50, 4), 0.25)
    probs[31, 2] = bad
    messages = []
    for most in (few_classes.MOST_CLASSES, 0):
        monkeypatch.setattr(few_classes, "MOST_CLASSES", most)
        with pytest.raises(InputError) as error:
            prediction_statistics(probs, np.zeros(50, int))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "31" in messages[0]


def test_the_first_of_equal_classes_is_predicted() -> None:
    columns = np.array([[0.4, 0.2, 0.25], [0.4, 0.4, 0.25], [0.2, 0.4, 0.25], [0.0, 0.0, 0.25]])
    assert few_classes.predicted_classes(columns, columns.max(0)).tolist() == [0, 1, 0]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40), st.integers(2, 30))
def test_thresholds_are_found_without_a_search(values: list[float], points: int) -> None:
    array = np.array(values)
    thresholds = thresholds_between(array.min(), array.max(), points)
    # the thresholds themselves too: there the division is most easily wrong
    array = np.concatenate([array, thresholds, np.nextafter(thresholds, np.inf)])
    array = array[array <= thresholds[-1]]
    np.testing.assert_array_equal(_first_not_below(array, thresholds), np.searchsorted(thresholds, array))


@given(st.lists(st.tuples(st.floats(-1, 2), st.booleans()), min_size=1, max_size=50), st.booleans())
def test_ties_are_counted_by_value(rows: list[tuple[float, bool]], narrow: bool) -> None:
    values = np.array([value for value, _ in rows], np.float32 if narrow else np.float64).astype(np.float64)
    correct = np.array([flag for _, flag in rows])
    for scores in (values, np.abs(values)):
        groups = group_ties(scores, correct)
        right, wrong = (Counter(scores[flags].tolist()) for flags in (correct, ~correct))
        distinct = sorted({*right, *wrong})
        assert groups.values.tolist() == distinct
        assert groups.right.tolist() == [right[value] for value in distinct]
        assert groups.wrong.tolist() == [wrong[value] for value in distinct]


def test_values_beyond_float32_and_minus_zero_are_grouped() -> None:
    groups = group_ties(np.array([1e300, 0.0, -0.0, 1e300]), np.array([True, False, True, False]))
    assert groups.values.tolist() == [0, 1e300]
    assert groups.right.tolist() == groups.wrong.tolist() == [1, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_areas_are_exact(counts: list[tuple[int, int]]) -> None:
    counts = [pair for pair in counts if sum(pair)] or [(1, 0)]
    right, wrong = np.array(counts, np.float64).T
    groups = TieGroups(np.arange(len(right), dtype=np.float64), right, wrong)
    want, rows, errors = Fraction(0), 0, Fraction(0)
    for good, bad in reversed(counts):  # the surest first; of tied ones the mean over their orders
        for _ in range(good + bad):
            rows, errors = rows + 1, errors + Fraction(bad, good + bad)
            want += errors / rows
    assert float(selective.risk_area(groups)) == pytest.approx(float(want / rows), abs=1e-14)
    slow = selective.risk_area_below(cumulative(right), cumulative(wrong))
    assert float(selective.risk_area(groups)) == pytest.approx(float(slow), abs=1e-14)
    stated = right * 0.5 + wrong * 0.25
    for bins in (1, 2, 15):
        terms = calibration.equal_mass_terms(cumulative(right + wrong)[None], cumulative(stated - right)[None], bins)
        got = float(calibration.equal_mass_gap(right, wrong, stated, bins))
        assert got == pytest.approx(float(np.abs(terms).sum()), abs=1e-14)


def test_parts_do_not_change_anything(awkward: World, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = awkward(500, 6)
    statistics = prediction_statistics(probs, labels, bins=15)
    whole = from_statistics(statistics)
    monkeypatch.setattr(arrays, "CACHED_ROWS", 7)
    assert from_statistics(statistics) == pytest.approx(whole, abs=1e-13)
