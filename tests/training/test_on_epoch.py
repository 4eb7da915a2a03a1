"""`on_epoch` is called with the figures of `history`, once per epoch, and its errors reach the caller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from avuc.data import Dataset
from avuc.methods import Ensemble, Objective, Vanilla
from avuc.train import Job, TrainSettings, fit, fit_calibrated, fit_many
from avuc.training.distributed import Ranks
from avuc.training.epochs import figures

Factory = Callable[[torch.Generator], nn.Module]
SETTINGS = TrainSettings(epochs=3, batch_size=100, pad=0, flip=False)


class Calls(list[tuple[int, dict[str, float]]]):
    def __call__(self, epoch: int, values: dict[str, float]) -> None:
        self.append((epoch, values))


def test_the_figures_are_those_of_the_history(train: Dataset, held_out: Dataset, plain_net: Factory) -> None:
    calls = Calls()
    fitted = fit(
        Vanilla(),
        plain_net,
        train,
        objective=Objective("avuc", warmup_epochs=1),
        settings=SETTINGS,
        validation=held_out,
        progress=False,
        on_epoch=calls,
    )
    assert [epoch for epoch, _ in calls] == [0, 1, 2]
    for (epoch, values), record in zip(calls, fitted.history, strict=True):
        expected = {name: value for name, value in record.items() if value is not None}
        assert {**values, "epoch": epoch, "member": 0} == expected
        assert all(type(value) is float for value in values.values())
    assert {"nll", "accuracy", "threshold", "learning_rate", "validation_nll"} <= set(calls[-1][1])


def test_an_ensemble_is_averaged_and_a_resumed_run_goes_on(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    calls = Calls()
    options: dict[str, Any] = {"directory": tmp_path, "progress": False, "on_epoch": calls}
    short = TrainSettings(epochs=2, batch_size=100, pad=0, flip=False)
    fitted = fit(Ensemble(members=2), plain_net, train, settings=short, **options)
    for epoch, values in calls:
        own = [record["nll"] for record in fitted.history if record["epoch"] == epoch]
        assert len(own) == 2
        assert values["nll"] == pytest.approx(sum(own) / 2)
    assert [epoch for epoch, _ in calls] == [0, 1]
    calls.clear()
    fit(Ensemble(members=2), plain_net, train, settings=short, **options)
    assert calls == []  # finished: it is only read back


def test_every_job_has_its_own(train: Dataset, plain_net: Factory) -> None:
    calls = [Calls(), Calls()]
    jobs = [Job(Vanilla(), plain_net, train, Objective(), SETTINGS, seed=s, on_epoch=calls[s]) for s in (0, 1)]
    done = fit_many(jobs, progress=False)
    for own, fitted in zip(calls, done, strict=True):
        assert [values["nll"] for _, values in own] == [record["nll"] for record in fitted.history]
    assert calls[0] != calls[1]


def test_fit_calibrated_names_its_parts(train: Dataset, held_out: Dataset, plain_net: Factory) -> None:
    calls = Calls()
    result = fit_calibrated(plain_net, train, held_out, epochs=2, flip=False, progress=False, on_epoch=calls)
    assert [epoch for epoch, _ in calls] == [0, 1, 2, 3]
    parts = [{name.split("/")[0] for name in values} for _, values in calls]
    assert parts == [{"network"}, {"network"}, {"posterior"}, {"posterior"}]
    assert calls[-1][1]["posterior/nll"] == result.posterior_fit.history[-1]["nll"]


@pytest.mark.parametrize("error", [RuntimeError, KeyError, KeyboardInterrupt])
def test_errors_reach_the_caller_and_the_epoch_is_saved(
    train: Dataset, plain_net: Factory, tmp_path: Path, error: type[BaseException]
) -> None:
    def stop(epoch: int, values: dict[str, float]) -> None:
        if epoch == 1:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        fit(Vanilla(), plain_net, train, settings=SETTINGS, progress=False, directory=tmp_path, on_epoch=stop)
    calls = Calls()
    fit(Vanilla(), plain_net, train, settings=SETTINGS, progress=False, directory=tmp_path, on_epoch=calls)
    assert calls[-1][0] == 2


def test_figures_leave_out_what_is_unknown() -> None:
    assert figures([]) == {}
    assert figures([{"epoch": 0, "member": 0, "avu": None, "nll": 1}]) == {"nll": 1.0}


def test_only_rank_0_calls(train: Dataset, plain_net: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "first", property(lambda ranks: False))
    calls = Calls()
    fitted = fit(Vanilla(), plain_net, train, settings=SETTINGS, progress=False, on_epoch=calls)
    assert len(fitted.history) == 3
    assert calls == []
