"""When a `Predictor` compiles by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from avuc.bayes import to_bayesian
from avuc.prediction import Predictor
from avuc.prediction.inputs import Batches
from avuc.prediction.sample_runner import FEWEST_PASSES, WORTH_COMPILING, SampleRunner


def runner_on(device: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[SampleRunner, list[int]]:
    """A runner on a device whose passes take so long, and the list of its measurements."""
    runner, measured = Predictor(to_bayesian(nn.Linear(4, 3)))._runner, list[int]()
    runner.options = replace(runner.options, device=torch.device(device))
    monkeypatch.setattr(runner, "_seconds", lambda batches: (measured.append(batches.size), seconds)[1])
    return runner, measured


def batches(rows: int, size: int, count: int = 1) -> Batches:
    return Batches(torch.zeros(rows, 4), None, size, torch.device("cpu"), rows, count)


def test_the_measured_work_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = WORTH_COMPILING / 1000  # 1000 passes are worth it
    runner, measured = runner_on("cuda", seconds, monkeypatch)
    assert not runner._worth_compiling(batches(10, 10), FEWEST_PASSES - 1)
    assert not measured  # too few to measure
    assert not runner._worth_compiling(batches(40, 10), 100)
    assert not runner._worth_compiling(batches(31, 10), 100)
    assert runner._worth_compiling(batches(10, 10), 101)  # with the passes of the calls before
    assert len(measured) == 1
    assert runner._worth_compiling(batches(1, 1), 1)  # compiled once, always compiled


def test_batches_of_a_loader_count_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = runner_on("cuda", WORTH_COMPILING / 1000, monkeypatch)
    assert not runner._worth_compiling(batches(10, 10, count=99), 10)
    assert runner._worth_compiling(batches(10, 10, count=100), 10)


def test_batches_of_a_loader_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, measured = runner_on("cuda", WORTH_COMPILING / 1000, monkeypatch)
    assert not any(runner._worth_compiling(batches(10, 10, count=90), 10) for _ in range(90))
    assert measured


def test_batches_of_other_sizes_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, measured = runner_on("cuda", 0.0, monkeypatch)
    time = WORTH_COMPILING / 1e5  # of one row
    monkeypatch.setattr(runner, "_seconds", lambda batches: (measured.append(batches.size), time * batches.size)[1])
    assert not runner._worth_compiling(batches(1, 1), 200)
    assert not runner._worth_compiling(batches(500, 500), 199)  # 200 × 1 + 199 × 500 rows
    assert not any(runner._worth_compiling(batches(1, 1), 1) for _ in range(290))
    assert any(runner._worth_compiling(batches(1, 1), 1) for _ in range(20))
    assert measured == [1, 500]


def test_datasets_that_are_expected_count_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shape is decided on its own, measured only if more are expected than before, and stays compiled."""
    runner, measured = runner_on("cuda", WORTH_COMPILING / 1000, monkeypatch)
    wide = Batches(torch.zeros(30, 8), None, 10, torch.device("cpu"))

    def worth(some: Batches, datasets: int | None) -> bool:
        runner.expected = datasets
        return runner._worth_compiling(some, 10)

    assert not worth(batches(30, 10), 1)  # 30 passes are too few to measure
    assert not measured
    assert not worth(batches(30, 10), 33)  # 990 passes
    assert not worth(batches(30, 10), 32)
    assert len(measured) == 1
    assert worth(wide, 34)
    assert not worth(batches(30, 10), 1)
    assert worth(wide, 1)
    assert worth(batches(30, 10), 34)
    assert len(measured) == 3


def test_a_predictor_is_told_what_to_expect() -> None:
    predictor = Predictor(to_bayesian(nn.Linear(4, 3)))
    predictor.expect(80)
    assert predictor._runner.expected == 80


def test_never_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, measured = runner_on("cpu", 1e9, monkeypatch)
    assert not runner._worth_compiling(batches(1000, 1), 1000)
    assert not measured


@pytest.mark.parametrize(("rows", "filled"), [(1, 1), (5, 8), (64, 64), (65, 128)])
def test_rows_of_one_compiled_batch(rows: int, filled: int) -> None:
    images = torch.zeros(rows, 3, 8, 8)
    assert Batches(images, None, None, torch.device("cpu")).filled == filled
    assert Batches(images, None, 50, torch.device("cpu")).filled == 50
