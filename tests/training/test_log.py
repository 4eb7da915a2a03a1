"""What a run says while it runs: the live line, the file, TensorBoard."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from avuc.data import Dataset
from avuc.methods import SVI, Ensemble, Objective
from avuc.train import TrainSettings, fit

SETTINGS = TrainSettings(epochs=3, batch_size=100, pad=0, flip=False)
Factory = Callable[[torch.Generator], nn.Module]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_line(train: Dataset, plain_net: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    fit(SVI(), plain_net, train, objective=Objective("avuc", warmup_epochs=1), settings=SETTINGS)
    last = screen.getvalue().rstrip().split("\r")[-1]
    for part in ("epoch 3/3", "15/15", "left 0:00", "nll ", "kl ", "avuc ", "avu ", "acc ", "images/s"):
        assert part in last


def test_nothing_is_said_where_nobody_looks(
    train: Dataset, plain_net: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(SVI(), plain_net, train, settings=SETTINGS)
    assert capsys.readouterr() == ("", "")


def test_the_file_has_a_line_for_each_model_and_epoch(
    train: Dataset, held_out: Dataset, plain_net: Factory, tmp_path: Path
) -> None:
    fitted = fit(
        Ensemble(members=2),
        plain_net,
        train,
        validation=held_out,
        settings=SETTINGS,
        directory=tmp_path,
        progress=False,
    )
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == fitted.history
    assert [(line["epoch"], line["member"]) for line in lines] == [(e, m) for e in range(3) for m in range(2)]
    assert lines[0]["avu"] is None  # there is no threshold yet
    assert 0 < lines[2]["avu"] < 1
    # what the paper's monitoring curves show
    assert {"nll", "kl", "avuc", "total", "accuracy", "avu", "validation_accuracy", "validation_avu"} <= set(lines[0])


def test_tensorboard_gets_the_same_figures(
    train: Dataset, plain_net: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, directory: str, purge_step: int) -> None:
            assert directory == str(tmp_path / "tensorboard")
            assert purge_step == 0

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None: ...

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    settings = TrainSettings(**{**SETTINGS.__dict__, "tensorboard": True})
    fitted = fit(SVI(), plain_net, train, settings=settings, directory=tmp_path, progress=False)
    assert [(value, step) for name, value, step in written if name == "nll/0"] == [
        (record["nll"], record["epoch"]) for record in fitted.history
    ]
