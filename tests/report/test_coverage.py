"""The report's coverage of conformal sets: the stored counts, warnings, older files, two studies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html import escape

import numpy as np
import pytest

from avuc.report.study.coverage import METHODS, NOT_STORED, coverage_alarms, coverage_tables, read_coverage
from avuc.report.study.page import study_page
from avuc.report.study.results import side_by_side
from avuc.report.table import Entry

SETS = {("clean", 0): 0, ("fog", 1): 1, ("fog", 5): 2}


def stored(method, seed, shift, severity, covered, size, rows=(60, 40), low=80, high=96):
    """One evaluation of 100 rows, as a study stores it; covered rows and sizes by class."""
    one = {"covered": sum(covered), "size": sum(size), "low": low, "high": high}
    one |= {"class_covered": list(covered), "class_size": list(size)}
    content = {"wanted": 0.9, "rows": sum(rows), "class_rows": list(rows), "methods": dict.fromkeys(METHODS, one)}
    return method, seed, shift, severity, json.dumps(content)


CELLS = [
    ("A", 0, "validation", 0, json.dumps({"fits": {}, "classes": ["cat", "dog"]})),
    stored("A", 0, "clean", 0, (55, 35), (60, 60)),
    stored("A", 1, "clean", 0, (57, 37), (70, 60)),
    stored("A", 0, "fog", 1, (50, 30), (90, 60)),  # 80 of 100: the end of the interval belongs to it
    stored("A", 1, "fog", 1, (50, 29), (90, 60)),
    stored("A", 0, "fog", 5, (30, 20), (90, 60)),
    stored("A", 1, "fog", 5, (30, 10), (100, 60)),
    stored("B", 0, "clean", 0, (59, 40), (60, 60)),  # above the interval
]


@pytest.fixture
def coverage():
    return read_coverage(CELLS, {"A": 0, "B": 1}, {0: 0, 1: 1}, SETS)


def test_values_are_the_stored_counts(coverage):
    assert coverage.values["aps", "coverage"][0].tolist() == [[0.9, 0.8, 0.5], [0.94, 0.79, 0.4]]
    assert coverage.values["aps", "size"][0].tolist() == [[1.2, 1.5, 1.5], [1.3, 1.5, 1.6]]
    assert np.isnan(coverage.values["aps", "coverage"][1]).tolist() == [[False, True, True], [True, True, True]]
    assert coverage.names == ("cat", "dog")
    outside = coverage.outside("raps")
    assert outside[0].tolist() == [[0, 0, 1], [0, 1, 1]]
    assert outside[1, 0, 0] == 1
    assert coverage.clean["threshold"][0].tolist() == [[60, 56, 65], [40, 36, 60]]  # means over two seeds
    assert coverage.shifted["threshold"][0].sum(0).tolist() == [[240, 160, 370], [160, 89, 240]]
    assert coverage.shifted["threshold"][0, 2].tolist() == [[120, 60, 190], [80, 30, 120]]  # fog 5


def test_tables_and_warnings(coverage, results):
    two = replace(results.methods[0], name="A"), replace(results.methods[1], name="B")
    small = replace(results, methods=list(two), test_sets=list(SETS), coverage=coverage)
    overview, *others = coverage_tables(small)
    assert [table.name for table in others] == [f"coverage-{w}-{k}" for w in ("shifts", "classes") for k in METHODS]
    first = dict(zip(overview.head, overview.rows[0], strict=True))
    assert (first["method"], first["sets"]) == ("A", "threshold")
    assert [first[f"interval: {end}"].value for end in ("low", "high")] == [0.8, 0.96]
    assert first["clean: coverage"].value == pytest.approx(0.92)
    assert first["intensity 5: coverage"].value == pytest.approx(0.45)
    assert first["intensity 5: classes per set"].value == pytest.approx(1.55)
    shifts = {row[0]: row for row in others[0].rows}
    assert [shifts[name][1].best for name in ("clean", "fog 1", "fog 5")] == [
        False,
        False,
        True,
    ]  # one of two seeds: no
    assert shifts["clean"][3].best
    dog = {row[0]: row for row in others[3].rows}["dog"]
    assert dog[1] == "40"
    assert isinstance(dog[2], Entry)
    assert dog[2].value == pytest.approx(0.9)
    assert (dog[2].low, dog[2].high) == pytest.approx((0.7634, 0.9721), abs=1e-4)  # SciPy's exact interval of 36 of 40
    assert "exact 95 % interval" in others[3].caption
    assert dog[4].value == pytest.approx(89 / 160)
    clean, shifted = coverage_alarms(small)
    assert "on clean test data the coverage leaves its 95 % interval in 3 of 6 cases" in clean
    assert "lowest 0.990 (B, aps)" in clean
    assert "in 3 of 6 cases" in shifted
    assert "lowest 0.450 (A, aps, fog at intensity 5)" in shifted


def test_classes_of_many_are_those_with_the_lowest_coverage(results):
    rows = tuple([10] * 30)
    cell = stored("A", 0, "clean", 0, [label % 10 for label in range(30)], [10] * 30, rows, None, None)
    found = read_coverage([cell], {"A": 0}, {0: 0}, {("clean", 0): 0})
    assert math.isnan(found.outside("aps")[0, 0, 0])  # no interval, no alarm
    small = replace(results, methods=results.methods[:1], test_sets=[("clean", 0)], coverage=found)
    assert coverage_alarms(small) == []
    table = coverage_tables(small)[-1]
    assert [row[0] for row in table.rows[:6]] == ["0", "10", "20", "1", "11", "21"]
    assert len(table.rows) == 20
    # pixels and tokens are not independent, so no interval either
    assert math.isnan(table.rows[3][2].low)
    assert "exact 95 % interval" not in table.caption
    assert "The 20 classes with the lowest coverage of 30" in table.caption


def test_page_has_the_coverage_of_real_predictions(results):
    page = study_page(results)
    assert 'id="coverage"' in page
    assert 'id="table-coverage-classes-raps"' in page
    assert NOT_STORED not in page
    assert "&lt;b&gt;dog&lt;/b&gt;" in page  # a hostile name of a class
    clean = results.coverage.values["threshold", "coverage"][:, :, results.set_index["clean", 0]]
    worst = results.coverage.values["threshold", "coverage"][:, :, results.set_index["fog", 5]]
    assert (worst < clean).all()
    assert any("under shift the coverage is below" in sentence for sentence in coverage_alarms(results))


def test_two_studies_side_by_side(results):
    both = side_by_side(results, results, ("before", "after"))
    count = len(results.methods)
    for half in (slice(0, count), slice(count, None)):
        for which, values in results.coverage.values.items():
            np.testing.assert_array_equal(both.coverage.values[which][half], values)
        np.testing.assert_array_equal(both.coverage.clean["aps"][half], results.coverage.clean["aps"])
    assert side_by_side(results, _without(results), ("before", "after")).coverage is None


def test_means_under_shift_are_over_sets_that_all_methods_have(results):
    """B has only the mild fog so far, where it covers less than A; its plain mean would be higher than A's."""
    cells = [
        *CELLS[:-1],
        stored("B", 0, "clean", 0, (59, 40), (60, 60)),
        stored("B", 0, "fog", 1, (40, 30), (80, 50)),
    ]
    found = read_coverage(cells, {"A": 0, "B": 1}, {0: 0, 1: 1}, SETS | {("blur", 5): 3})
    two = replace(results.methods[0], name="A"), replace(results.methods[1], name="B")
    small = replace(results, methods=list(two), test_sets=[*SETS, ("blur", 5)], coverage=found)
    tables = {table.name: table for table in coverage_tables(small)}
    overview = {
        (row[0], row[1]): dict(zip(tables["coverage"].head, row, strict=True)) for row in tables["coverage"].rows
    }
    for name, mild in (("A", 0.795), ("B", 0.7)):
        assert overview[name, "aps"]["intensity 1: coverage"].value == pytest.approx(mild)
        assert math.isnan(overview[name, "aps"]["intensity 5: coverage"].value)
    classes = tables["coverage-classes-aps"]
    cat = dict(zip(classes.head, classes.rows[0], strict=True))
    assert cat["A: shifted coverage"].value == pytest.approx(100 / 120)
    assert cat["B: shifted coverage"].value == pytest.approx(40 / 60)
    for table in (tables["coverage"], classes):
        assert "over the 1 shifted test set that all methods have" in table.caption.replace("seeds and", "over")
    # what is there is still shown for each shift
    assert {row[0] for row in tables["coverage-shifts-aps"].rows} == {"clean", "fog 1", "fog 5"}


def test_classes_of_two_studies_are_compared_on_common_sets(results):
    """The second study has no intensity 5: the first must not count it either."""
    mild = [key for key in results.test_sets if key[1] != 5]
    chosen = [results.set_index[key] for key in mild]
    coverage = replace(
        results.coverage,
        values={which: values[:, :, chosen] for which, values in results.coverage.values.items()},
        shifted={kind: sums[:, chosen] for kind, sums in results.coverage.shifted.items()},
    )
    metrics = {name: values[:, :, chosen] for name, values in results.values.items()}
    second = replace(results, test_sets=mild, values=metrics, curves={}, examples={}, coverage=coverage)
    both = side_by_side(results, second, ("before", "after"))
    table = next(table for table in coverage_tables(both) if table.name == "coverage-classes-aps")
    for row in table.rows:
        cells = dict(zip(table.head, row, strict=True))
        for name in results.names:
            before, after = (cells[f"{study}: {name}: shifted coverage"].value for study in ("before", "after"))
            assert before == after


def _without(results):
    return replace(results, coverage=None)


def test_file_of_an_older_version_says_so(results):
    old = _without(results)
    assert coverage_tables(old) == coverage_alarms(old) == []
    assert study_page(old).count(escape(NOT_STORED)) == 1
