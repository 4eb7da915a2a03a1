"""`avuc demo`: the story in small, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch

from avuc import demo
from avuc.cli import main
from avuc.errors import MissingExtra
from avuc.scores import read_scores


@pytest.fixture
def small(monkeypatch):
    """Fewer digits, epochs and replicates; everything else as it is."""
    real = demo.tell
    monkeypatch.setattr(demo, "TEST", 300)
    monkeypatch.setattr(demo, "VALIDATION", 4400)
    monkeypatch.setattr(demo, "tell", lambda out, seed: real(out, seed=seed, epochs=6, replicates=10))


def test_story(tmp_path, small, capsys):
    assert main(["demo", "--out", str(tmp_path / "new" / "folder")]) == 0
    out = tmp_path / "new" / "folder"
    said = capsys.readouterr().out
    assert said.splitlines()[-1].endswith(str((out / "report.html").resolve()))
    assert "300 × 10 logits from key 'logits', labels from 'labels'" in said
    assert sorted(p.name for p in out.iterdir()) == [
        "avuts.json",
        "photos.npz",
        "report.html",
        "temperature.json",
        "test-avuts.npz",
        "test-temperature.npz",
        "test.npz",
        "validation.npz",
    ]
    # the files are what a user's own would be: the other commands read them
    assert main(["evaluate", str(out / "test.npz"), "--ood", str(out / "photos.npz"), "--replicates", "0"]) == 0
    assert read_scores(out / "test.npz").predictions().correct.float().mean() > 0.5


def test_without_photographs(tmp_path, small, monkeypatch, capsys):
    def missing(*_):
        raise MissingExtra("photographs need 'sklearn.datasets': pip install 'avuc[dev]'")

    monkeypatch.setattr(demo, "photo_patches", missing)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert "pip install 'avuc[dev]'" in capsys.readouterr().out.replace("\n", " ")
    assert not (tmp_path / "photos.npz").exists()


def test_out_that_is_a_file(tmp_path, capsys):
    (tmp_path / "a").touch()
    assert main(["demo", "--out", str(tmp_path / "a")]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_patches_are_real_and_repeat():
    patches = demo.photo_patches(11, 0)
    assert patches.shape == (11, 28, 28, 1)
    assert patches.dtype == torch.uint8
    assert torch.equal(patches, demo.photo_patches(11, 0))
    assert patches.float().std() > 10
