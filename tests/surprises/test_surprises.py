"""Ordinary surprises: what real users' files and scripts contain.

Every case is a file, a pair of files or a call as people have them: labels that count from 1, per cent, columns in
another order, a fold beside the probabilities, axes swapped, a decimal comma. It must end in one of two ways:

- the right figures, compared with `own_figures.py`, which computes them from the data behind the file in plain float64
  loops and shares no code with avuc; or
- a refusal: one line on stderr with exit code 2 that names the file and the remedy. Where the remedy is a flag, the
  flag must exist, and the same command with it must give the right figures.

A wrong figure, a traceback, a second line or a message without a remedy fails. Where a file has only one reading,
a refusal fails too.

table.py      what a case is, the data, how files are written
running.py    runs a case and says in a word how it ended
cases_*.py    the cases, by topic
"""

from __future__ import annotations

from functools import partial

import pytest

from . import (
    cases_archives,
    cases_calibrate,
    cases_columns,
    cases_fits,
    cases_guesses,
    cases_labels,
    cases_metrics,
    cases_nets,
    cases_pairs,
    cases_parquet,
    cases_shapes,
    cases_text,
    cases_values,
)
from .own_figures import auroc, avuc, best_temperature, figures, softmax
from .running import GOOD, judge, judge_calibration, judge_call, run_outside
from .table import DRAWN_TRUTH, LABELS, LOGITS, TRUTH, TRUTH2, TRUTH12

EVALUATE = [
    *cases_labels.CASES,
    *cases_values.CASES,
    *cases_shapes.CASES,
    *cases_columns.CASES,
    *cases_guesses.CASES,
    *cases_text.CASES,
    *cases_parquet.CASES,
    *cases_archives.CASES,
    *cases_pairs.CASES,
]
ARRAYS = [*cases_labels.CASES, *cases_values.CASES, *cases_shapes.CASES, *cases_archives.CASES, *cases_pairs.CASES]
CALIBRATE = cases_calibrate.CASES
PYTHON = [*cases_metrics.CASES, *cases_fits.CASES, *cases_nets.CASES]
# one of each ending, through a process of its own
OUTSIDE = [
    "labels from 0, int64",
    "class names in other scripts",
    "labels of another length",
    "NaN in one cell",
    "--ood: logits beside logits",
]


def name(case):
    return case.name


@pytest.mark.parametrize("case", EVALUATE, ids=name)
def test_evaluate(case, tmp_path):
    state, detail = judge(case, tmp_path)
    assert state in GOOD, f"{state}: {detail}"


@pytest.mark.parametrize("case", CALIBRATE, ids=name)
def test_calibrate(case, tmp_path):
    state, detail = judge_calibration(case, tmp_path)
    assert state in GOOD, f"{state}: {detail}"


@pytest.mark.parametrize("case", PYTHON, ids=name)
def test_python(case):
    state, detail = judge_call(case)
    assert state in GOOD, f"{state}: {detail}"


@pytest.mark.parametrize("case", [case for case in EVALUATE if case.name in OUTSIDE], ids=name)
def test_evaluate_as_a_process(case, tmp_path, fresh_python):
    state, detail = judge(case, tmp_path, partial(run_outside, fresh_python))
    assert state in GOOD, f"{state}: {detail}"


def test_in_blocks_every_case_ends_alike(tmp_path, monkeypatch):
    """Large files are read in blocks of rows. With the limit at 0 rows every file is large; nothing else may change."""

    def ends(folder):
        folder.mkdir()
        found = {}
        for number, case in enumerate(ARRAYS):
            (folder / str(number)).mkdir()
            found[case.name] = judge(case, folder / str(number))[0]
        return found

    whole = ends(tmp_path / "whole")
    monkeypatch.setattr("avuc.metrics.blockwise.LARGE_ROWS", 0)
    # a few blocks of each file, the last one shorter
    monkeypatch.setattr("avuc.evaluation.files.score_file.BLOCK", 137 * 5)
    blocks = ends(tmp_path / "blocks")
    assert {name: (state, blocks[name]) for name, state in whole.items() if blocks[name] != state} == {}


def test_names_are_unique():
    for cases in (EVALUATE, CALIBRATE, PYTHON):
        names = [case.name for case in cases]
        assert sorted(set(names)) == sorted(names)
    assert {case.name for case in EVALUATE} >= set(OUTSIDE)


@pytest.mark.parametrize("truth", [TRUTH, TRUTH2, TRUTH12, DRAWN_TRUTH])
def test_data_tell_misreadings(truth):
    """The model is mostly right, so that a class or a row mixed up shows in the accuracy, and its confidence is neither
    flat nor saturated, so that another reading of the numbers shows in the likelihood."""
    assert 0.75 < truth.figures["accuracy"] < 0.97
    assert truth.figures["mean_entropy"] > 0.15
    assert truth.figures["mean_confidence"] < 0.95


def test_own_figures_by_hand():
    found = figures([[0.8, 0.2], [0.6, 0.4], [0.5, 0.5]], [0, 1, 0])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx((0.2231436 + 0.9162907 + 0.6931472) / 3)
    assert found["brier"] == pytest.approx((0.08 + 0.72 + 0.5) / 3)
    assert found["ece"] == pytest.approx((0.2 + 0.6 + 0.5) / 3)  # each row is alone in its bin
    assert found["mean_entropy"] == pytest.approx((0.5004024 + 0.6730117 + 0.6931472) / 3)
    assert auroc([0.1, 0.2], [0.2, 0.3]) == pytest.approx(3.5 / 4)
    # one row right and certain, one wrong and certain: log(1 + IC / AC)
    probs = softmax([[4.0, 0.0], [4.0, 0.0]])
    assert avuc(probs, [0, 1], 0.3) == pytest.approx(0.0181499, rel=1e-4)
    assert best_temperature(2 * LOGITS, LABELS) == pytest.approx(2 * best_temperature(LOGITS, LABELS), rel=1e-5)
