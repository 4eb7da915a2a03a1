"""`avuc demo`: the story in small, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch

from avuc.cli import main
from avuc.core.errors import MissingExtra
from avuc.study import Store, demo
from avuc.study.data.photographs import photo_patches

SMALL = [
    "train.epochs=6",
    "train.milestones=[]",
    "train.factors=[]",
    "data.train_images=600",
    "data.validation=200",
    "data.test_images=100",
    "study.samples=3",
    "study.severities=[1, 5]",
    "methods.Ensemble.method.members=2",
]


@pytest.fixture
def small(monkeypatch):
    """Fewer digits, epochs, draws and intensities, in one process; everything else as it is."""
    real = demo.run_demo
    monkeypatch.setattr(demo, "PROCESSES", 1)
    monkeypatch.setattr(demo, "run_demo", lambda out, seed: real(out, seed=seed, changes=SMALL))


def test_story(tmp_path, small, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["demo", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].endswith(str((out / "report.html").resolve()))
    store = Store(out, create=False)
    names = {"Vanilla", "TS", "AvUTS", "Ensemble", "Dropout", "SVI", "SVI-TS", "SVI-AvUTS", "SVI-AvUC"}
    assert {row[0] for row in store.rows()} == names
    assert all(name in said for name in names)
    # the whole grid: 16 shifts, at the two intensities of this small version
    assert len(store.done()) == 9 * (2 + 16 * 2 + 1)
    found = {row[:5]: row[5] for row in store.rows()}
    assert found[("Vanilla", 0, "clean", 0, "accuracy")] > 0.7
    assert found[("Vanilla", 0, "contrast", 5, "accuracy")] < found[("Vanilla", 0, "clean", 0, "accuracy")]
    # a temperature moves no argmax of one network
    assert found[("TS", 0, "fog", 5, "accuracy")] == found[("Vanilla", 0, "fog", 5, "accuracy")]
    store.close()
    page = (out / "report.html").read_text()
    assert "over 16 kinds of shift at 2 intensities it predicts best" in page
    assert "over 16 kinds of shift at 2 intensities it predicts best" in " ".join(said.split())
    assert len(page.encode()) < 3_000_000
    # the same command again has nothing left to do, and tells the same story
    assert main(["demo", "--out", str(out)]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[:-1] == said.splitlines()[:-1]


def test_without_photographs(monkeypatch):
    def missing(*_):
        raise MissingExtra("photographs need 'sklearn.datasets': pip install 'avuc[dev]'")

    monkeypatch.setattr(demo, "photo_patches", missing)
    recipe, notes = demo.recipe_here(3)
    assert recipe.study.ood == ()
    assert recipe.study.seeds == (3,)
    assert "pip install 'avuc[dev]'" in notes[0]


def test_recipe_is_the_whole_grid():
    recipe, notes = demo.recipe_here(0)
    assert notes == []
    assert len(recipe.study.shifts) * len(recipe.study.severities) == 80
    assert recipe.study.ood == ("photographs",)


def test_bad_options(tmp_path, capsys):
    (tmp_path / "a").touch()
    assert main(["demo", "--out", str(tmp_path / "a")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert main(["demo", "--out", str(tmp_path), "--seed", "-1"]) == 2
    assert "--seed must not be negative" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_patches_are_real_and_repeat(shape):
    patches = photo_patches(11, shape)
    assert patches.shape == (11, *shape)
    assert patches.dtype == torch.uint8
    assert torch.equal(patches, photo_patches(11, shape))
    assert not torch.equal(patches, photo_patches(11, shape, seed=1))
    assert patches.float().std() > 10
