"""The tables of calibrators in docs/reference/auto-calibrator.md are those of the recorded rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import posthoc_rows

RECORDED = [half for half in posthoc_rows.MARKS if posthoc_rows.path(half).exists()]


@pytest.mark.parametrize("half", RECORDED)
def test_the_page_agrees_with_the_rows(half: str) -> None:
    mark = posthoc_rows.MARKS[half]
    page = posthoc_rows.PAGE.read_text(encoding="utf-8")
    shown = page.split(f"<!-- {mark}: begin -->\n")[1].split(f"<!-- {mark}: end -->")[0]
    assert shown == posthoc_rows.page_table(half), "run: python benchmarks/bench_posthoc.py --write"


def test_all_halves_for_reporting_are_recorded() -> None:
    assert set(RECORDED) == set(posthoc_rows.MARKS)


def test_auto_is_at_least_as_good_as_the_best_single_method_of_probmetrics_on_the_reporting_half() -> None:
    rows, _ = posthoc_rows.load("report")
    assert posthoc_rows.best_peer(rows) == "probmetrics sms"
    assert posthoc_rows.paired(rows, "auto", "probmetrics sms").mean() <= 0
    per_set = {row.set for row in rows}
    assert len(per_set) == 38
    for method in ("auto", "none", "probmetrics sms"):
        assert {row.set for row in rows if row.method == method} == per_set
