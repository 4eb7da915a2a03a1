"""ordinary surprises"""

from __future__ import annotations

import pytest

from . import cases_binary, cases_columns, cases_labels, cases_shapes, cases_text, cases_values
from .running import GOOD, judge
from .table import TRUTH

CASES = [*cases_labels.CASES, *cases_values.CASES, *cases_shapes.CASES, *cases_columns.CASES, *cases_text.CASES, *cases_binary.CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_figure_or_one_line(case, tmp_path):
    state, detail = judge(case, tmp_path)
    assert state in GOOD, f"{state}: {detail}"
