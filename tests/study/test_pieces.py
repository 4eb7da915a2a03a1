"""A study in pieces: so many minutes, only some rows, lost models; and judging behind the predictions."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import threading
import time
from contextlib import ExitStack, closing

import pytest
import torch

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.methods import SVI, Objective
from avuc.nets import mlp
from avuc.study import Store, load_recipe, run_study
from avuc.study.engines.background import MOST_WAITING, Background
from avuc.study.engines.local import LocalRun
from avuc.study.engines.retrained import comparison
from avuc.study.grid import ModelKey, Plan
from avuc.study.worker import StudyWorker
from avuc.train import Job, TrainSettings, fit_many
from avuc.training.fit import OutOfTime


class Clock:
    """A clock that goes on by one second for each look at it."""

    def __init__(self) -> None:
        self.seconds = itertools.count()

    def __call__(self) -> float:
        return float(next(self.seconds))


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(time, "monotonic", Clock())


def test_training_stops_at_the_end_of_an_epoch_and_goes_on(recipe, undisturbed, tmp_path, clock):
    data = StudyWorker(recipe, undisturbed, "cpu").data.train(50, 0)

    def job(folder):
        settings = TrainSettings(epochs=6, batch_size=50, pad=0, flip=False, checkpoint_every=100)
        net = lambda generator: mlp(10, (8, 8, 1), hidden=(16,), generator=generator)  # noqa: E731
        return Job(SVI(), net, data, Objective(), settings, None, 0, folder)

    whole = fit_many([job(tmp_path / "whole")], progress=False)[0]
    with pytest.raises(OutOfTime):
        fit_many([job(tmp_path / "parts")], progress=False, until=time.monotonic() + 4)
    (saved,) = (tmp_path / "parts").glob("checkpoint-*")
    assert 0 < int(saved.stem.partition("-")[2]) < 6
    parts = fit_many([job(tmp_path / "parts")], progress=False)[0]
    for ours, theirs in zip(parts.models, whole.models, strict=True):
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name


def test_pieces_make_the_same_study(recipe, tmp_path, same_study, clock):
    """Each piece does something, nothing is done twice, and the end is that of a study in one piece."""
    seen = []
    for piece in itertools.count(1):
        try:
            run_study(recipe, tmp_path, device="cpu", progress=False, minutes=0.4).close()
            break
        except OutOfTime as error:
            said = str(error)
            store = Store(tmp_path, create=False)
            cells = {row[:4]: row[4:] for row in store.select("SELECT method, seed, shift, severity, run FROM cells")}
            trained = len(store.trained())
            assert store.runs()[-1]["seconds"] > 0
            store.close()
            assert (
                f"time is over: {trained} of 4 models are trained, {len(cells)} of 49 evaluations are finished" in said
            )
            seen.append(cells)
        assert piece < 60
    assert len(seen) > 2
    assert all(before.items() <= after.items() for before, after in itertools.pairwise(seen))
    assert any(0 < len(cells) < 49 for cells in seen)
    same_study(tmp_path)


def test_command_says_what_is_left(recipe_file, tmp_path, capsys, clock):
    arguments = ["study", str(recipe_file), "--out", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--minutes", "0.1"]) == 75
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("avuc: time is over: ")
    assert said[-1].endswith("are missing; run the same command to resume")
    assert main([*arguments, "--minutes", "0"]) == 2
    assert "--minutes: expected a number above 0" in capsys.readouterr().err


def test_several_processes_stop_too(recipe, tmp_path):
    with pytest.raises(OutOfTime, match="0 of 4 models"):
        run_study(recipe, tmp_path, device="cpu,cpu", progress=False, minutes=1e-6)


def test_ray_has_no_clock(recipe, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"--minutes: .* use --engine local"):
        run_study(recipe, tmp_path, engine="ray", device="cpu", progress=False, minutes=1)


def test_only_some_rows(recipe, tmp_path, same_study):
    """A row's model, and the one it starts from, are trained; no other. The rest comes later."""
    store = run_study(recipe, tmp_path, device="cpu", progress=False, only=["SVI-AvUC"])
    assert {row[0] for row in store.done()} == {"SVI-AvUC"}
    assert len(store.done()) == 7
    assert store.trained() == {ModelKey("Vanilla", 0), ModelKey("SVI-AvUC", 0)}
    store.close()
    store = run_study(recipe, tmp_path, device="cpu", progress=False, only=["SVI-AvUTS", "TS"])
    assert {row[0] for row in store.done()} == {"SVI-AvUC", "SVI-AvUTS", "TS"}
    store.close()
    run_study(recipe, tmp_path, device="cpu", progress=False).close()
    same_study(tmp_path)
    with pytest.raises(InputError, match=r"--only SVI-AvUCC: the recipe has no such method; did you mean 'SVI-AvUC'"):
        Plan(recipe, ("SVI-AvUCC",))


def test_command_takes_rows_with_commas(recipe_file, tmp_path, capsys):
    arguments = ["study", str(recipe_file), "--out", str(tmp_path), "--device", "cpu", "--dry-run"]
    assert main([*arguments, "--only", "SVI, 2 draws", "--only", "SVI,TS"]) == 0
    said = capsys.readouterr().out
    assert "2 models to train (2 networks), 7 test sets, 21 evaluations" in " ".join(said.split())
    assert "SVI-AvUC" not in said
    assert main([*arguments, "--only", "SVI,Nothing"]) == 2
    assert "--only Nothing" in capsys.readouterr().err


def test_lost_models_are_missed_only_where_cells_are(recipe_file, recipe, tmp_path, same_study, monkeypatch):
    part = load_recipe(recipe_file, ["study.severities=[1]"])
    run_study(part, tmp_path, device="cpu", progress=False).close()
    shutil.rmtree(tmp_path / "models")
    with monkeypatch.context() as patched:
        patched.setattr(StudyWorker, "train", lambda *_: pytest.fail("trained again"))
        run_study(part, tmp_path, device="cpu", progress=False).close()
    again = []
    real = StudyWorker.train
    monkeypatch.setattr(StudyWorker, "train", lambda self, keys: again.extend(keys) or real(self, keys))
    run_study(recipe, tmp_path, device="cpu", progress=False, only=["SVI", "SVI-AvUTS", "SVI, 2 draws"]).close()
    assert set(again) == {ModelKey("SVI", 0)}
    run_study(recipe, tmp_path, device="cpu", progress=False).close()
    same_study(tmp_path)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_start_without_weights_is_trained_again_and_its_results_stay(
    recipe, tmp_path, monkeypatch, request, capsys, gpu
):
    """As when a published copy, which has no weights, is continued by a method that begins with one of its networks."""
    from avuc.study.store.export import export_study

    def content(folder, method):
        with closing(sqlite3.connect(folder / "study.sqlite")) as db:
            tables = ("models", "history", "cells", "rows")
            return [db.execute(f"SELECT * FROM {table} WHERE method=?", (method,)).fetchall() for table in tables]

    run_study(recipe, tmp_path / "first", device="cpu", progress=False, only=["Vanilla"]).close()
    export_study(tmp_path / "first", tmp_path / "copy")
    before = content(tmp_path / "copy", "Vanilla")
    if gpu:
        request.getfixturevalue("as_on_gpu")
    again = []
    real = StudyWorker.train
    monkeypatch.setattr(StudyWorker, "train", lambda self, keys: again.append(list(keys)) or real(self, keys))
    capsys.readouterr()
    run_study(recipe, tmp_path / "copy", device="cpu", progress=False, only=["SVI-AvUC"]).close()
    seen = {key.method for keys in again for key in keys}
    assert seen == {"Vanilla", "SVI-AvUC"}
    assert "trained Vanilla (seed 0) again: its epochs have the stored figures" in capsys.readouterr().err
    assert content(tmp_path / "copy", "Vanilla") == before
    run_study(recipe, tmp_path / "whole", device="cpu", progress=False, only=["Vanilla", "SVI-AvUC"]).close()
    assert content(tmp_path / "copy", "SVI-AvUC")[3] == content(tmp_path / "whole", "SVI-AvUC")[3]


def test_another_network_than_the_stored_one_is_said():
    key, record = (
        ModelKey("Vanilla", 3),
        {"member": 0, "epoch": 0, "accuracy": 0.5, "nll": float("nan"), "seconds": 1.0},
    )
    assert comparison(key, [record], [record | {"seconds": 2.0, "accuracy": 0.500001}]).endswith("stored figures")
    said = comparison(key, [record, record | {"epoch": 1}], [record, record | {"epoch": 1, "nll": 1.0}])
    assert said.endswith("again, not exactly as before: epoch 2 has nll 1, stored is nan")
    assert comparison(key, [{"member": 0, "epoch": 0}], [record]).endswith("stored figures")  # thinned out
    assert "cannot be compared" in comparison(key, [], [record])
    assert "threshold 0.5, stored is None" in comparison(
        key, [record | {"threshold": None}], [record | {"threshold": 0.5}]
    )


def test_a_trained_model_is_kept_once_without_its_optimiser(undisturbed):
    from avuc.core.tensor_file import read_tensors

    for folder in (undisturbed / "models").iterdir():
        (path,) = folder.glob("checkpoint-*")
        names = set(read_tensors(path)[0])
        assert any(name.startswith("model.0.") for name in names)
        assert not any(name.startswith("optimizer.") for name in names)


# behind the predictions, as on a GPU


@pytest.fixture
def as_on_gpu(monkeypatch):
    """One group at a time, and judging in the background."""
    real = LocalRun.__init__

    def begin(self, plan, store, work, progress):
        real(self, plan, store, work, progress)
        self.on_gpu, self.background = True, Background(work, store.path.parent, store.run)

    monkeypatch.setattr(LocalRun, "__init__", begin)


def test_background_in_pieces(recipe, tmp_path, same_study, as_on_gpu, clock):
    pieces = 0
    while True:
        try:
            run_study(recipe, tmp_path, device="cpu", progress=False, minutes=1.1).close()
            break
        except OutOfTime:
            pieces += 1
            assert pieces < 60
    assert pieces
    same_study(tmp_path)


def test_background_gives_the_same_study_in_the_same_order(recipe, tmp_path, monkeypatch, same_study, as_on_gpu):
    """Whatever is ready first; and only few wait at a time."""
    asked, written, most, expected = [], [], [0], {}
    predict, cells, add = StudyWorker.predict, StudyWorker.evaluations, Store.add_evaluations

    def asking(self, key, test_set, *rest):
        found = predict(self, key, test_set, *rest)
        asked.append((key, test_set))
        expected.setdefault((key, test_set.severity > 0), []).append(self.predictor(key)._runner.expected)
        most[0] = max(most[0], len(asked) - len(written))
        return found

    def slow_at_first(self, predicted):
        threading.Event().wait(0.03 if len(asked) % 3 == 1 else 0)
        return cells(self, predicted)

    def writing(self, found):
        add(self, found)
        written.extend({(ModelKey(recipe.row(cell.method).of or cell.method, 0), cell.test_set) for cell in found})

    monkeypatch.setattr(StudyWorker, "predict", asking)
    monkeypatch.setattr(StudyWorker, "evaluations", slow_at_first)
    monkeypatch.setattr(Store, "add_evaluations", writing)
    run_study(recipe, tmp_path, device="cpu", progress=False).close()
    assert written == asked
    # each predictor is told how many sets of shifted images it will get
    for (_, shifted), counts in expected.items():
        assert counts == (list(range(len(counts), 0, -1)) if shifted else [1] * len(counts))
    assert max(map(len, expected.values())) > 2
    assert 1 < most[0] <= MOST_WAITING + 1
    same_study(tmp_path)


def test_background_error_ends_the_study_and_keeps_what_is_written(
    recipe, tmp_path, monkeypatch, same_study, as_on_gpu
):
    real, count = StudyWorker.evaluations, itertools.count()

    def failing(self, predicted):
        if next(count) == 6:
            raise InputError("no such luck")
        return real(self, predicted)

    with monkeypatch.context() as patched:
        patched.setattr(StudyWorker, "evaluations", failing)
        with pytest.raises(InputError, match="no such luck"):
            run_study(recipe, tmp_path, device="cpu", progress=False)
    store = Store(tmp_path, create=False)
    written = store.done()
    store.close()
    assert written
    run_study(recipe, tmp_path, device="cpu", progress=False).close()
    same_study(tmp_path)


def test_groups_are_judged_before_more_is_trained(recipe_file, tmp_path, monkeypatch, as_on_gpu):
    recipe = load_recipe(recipe_file, ["train.models_per_step=2", "train.epochs=1"])
    told = []
    train, predict = StudyWorker.train, StudyWorker.predict
    monkeypatch.setattr(StudyWorker, "train", lambda self, keys: told.append("train") or train(self, keys))
    monkeypatch.setattr(StudyWorker, "predict", lambda self, *args: told.append("judge") or predict(self, *args))
    run_study(recipe, tmp_path, device="cpu", progress=False).close()
    changes = [name for name, _ in itertools.groupby(told)]
    assert changes[0] == "train"
    assert changes.count("train") > 2


def test_background_gives_up_every_claim_whatever_happens(tmp_path):
    """The claim of the cell that meets another's error too: it has not been handed on yet."""

    class Failing:
        def evaluations(self, predicted):
            raise RuntimeError("no metrics")

    background = Background(Failing(), tmp_path, None)
    given_up = []
    claims = [ExitStack() for _ in range(MOST_WAITING + 1)]
    for number, claim in enumerate(claims):
        claim.callback(given_up.append, number)
    for claim in claims[:-1]:
        background.add(None, claim)
    with pytest.raises(RuntimeError, match="no metrics"):
        background.add(None, claims[-1])
    background.close()
    assert sorted(given_up) == list(range(len(claims)))
