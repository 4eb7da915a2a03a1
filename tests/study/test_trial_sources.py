"""Files of shifts and of out-of-distribution data are opened before anything is trained, in a dry run, too."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

from avuc.cli import main

RECIPE = """
[study]
name = "digits"
shifts = ["contrast"]
severities = [1, 5]

[data]
source = "mnist5k"
validation = 40
train_images = 100
test_images = 40

[net]
name = "mlp"
hidden = [8]

[train]
epochs = 1
batch_size = 50
milestones = []
factors = []
pad = 0
flip = false

[[methods]]
name = "Plain"
method = "vanilla"
"""

PARTS = """
import torch

def swapped(severity, batch, extra):
    return batch

def one_channel(batch, severity):
    return batch.float().mean(3)

def refuses(batch, severity):
    raise ValueError("no wind today")

def other(split):
    return torch.zeros(20, 28, 30, 1, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "digits.toml").write_text(RECIPE)
    (tmp_path / "trial_parts.py").write_text(textwrap.dedent(PARTS))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("trial_parts", "trial_nets"):
        sys.modules.pop(name, None)


def images(folder, name, shape):
    np.save(folder / name, np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ('study.shifts=["trial_parts:swapped"]', "study.shifts: trial_parts:swapped"),
        ('study.shifts=["trial_parts:one_channel"]', "study.shifts: trial_parts:one_channel returned torch.float32"),
        ('study.shifts=["trial_parts:refuses"]', "study.shifts: trial_parts:refuses failed: ValueError: no wind"),
        ('study.shifts=["trial_parts:absent"]', "study.shifts: trial_parts:absent: trial_parts has no 'absent'"),
        ("data.corruptions_dir=nowhere", "data.corruptions_dir: nowhere: not a folder"),
        ("data.corruptions_dir=half", "data.corruptions_dir: half: no contrast.npy here; found fog"),
        ('study.ood=["nowhere.npy"]', "study.ood: no data set 'nowhere.npy'"),
        ('study.ood=["large.npy"]', "study.ood: large.npy: images (30, 28, 1) (height, width, channels), but the net"),
        ('study.ood=["pictures/"]', "study.ood"),
        ('study.ood=["trial_parts:other"]', "study.ood: trial_parts:other: "),
    ],
)
def test_one_line_before_anything_is_trained(folder, capsys, change, line):
    (folder / "half").mkdir()
    (folder / "pictures").mkdir()
    images(folder / "half", "fog.npy", (10, 28, 28, 1))
    np.save(folder / "half" / "labels.npy", np.tile([3, 8], 5))
    images(folder, "large.npy", (20, 30, 28, 1))
    for more in (["--dry-run"], ["--out", "out"]):
        assert main(["study", "digits.toml", "--device", "cpu", "--set", change, *more]) == 2
        said = capsys.readouterr()
        assert not said.out
        (error,) = [text for text in said.err.splitlines() if text.startswith("avuc: ")]
        assert line in error
        assert "training" not in said.err
    assert not (folder / "out").joinpath("models").exists()


def test_files_that_fit_are_accepted(folder, capsys):
    (folder / "whole").mkdir()
    images(folder / "whole", "contrast.npy", (10, 28, 28, 1))
    np.save(folder / "whole" / "labels.npy", np.tile([3, 8], 5))
    images(folder, "same.npy", (20, 28, 28, 1))
    words = ["--set", "data.corruptions_dir=whole", "--set", 'study.ood=["same.npy", "photographs"]']
    assert main(["study", "digits.toml", "--device", "cpu", "--dry-run", *words]) == 0
    assert "1 models to train" in capsys.readouterr().out
    assert not (folder / "out").exists()


def test_files_of_finished_sets_are_not_needed_to_resume(folder, capsys):
    (folder / "whole").mkdir()
    images(folder / "whole", "contrast.npy", (50, 28, 28, 1))  # ten images of each severity
    np.save(folder / "whole" / "labels.npy", np.tile([3, 8], 25))
    images(folder, "same.npy", (20, 28, 28, 1))
    words = ["study", "digits.toml", "--device", "cpu", "--out", "out", "--no-report"]
    words += ["--set", "data.corruptions_dir=whole", "--set", "data.test_images=0", "--set", "study.severities=[1]"]
    words += ["--set", 'study.ood=["same.npy"]']
    assert main(words) == 0
    for gone in ("same.npy", "whole/contrast.npy", "whole/labels.npy"):
        (folder / gone).unlink()
    assert main(words) == 0
    capsys.readouterr()
    recipe = (folder / "digits.toml").read_text()
    (folder / "digits.toml").write_text(
        recipe + '[[methods]]\nname = "Other"\nmethod = "vanilla"\ntrain = { epochs = 2 }\n'
    )
    assert main(words) == 2  # another method needs them
    assert "data.corruptions_dir: whole" in capsys.readouterr().err


def test_a_dry_run_takes_a_step_of_every_method(folder, capsys):
    (folder / "trial_nets.py").write_text(
        "from torch import nn\n\ndef net(num_classes):\n    return nn.Linear(3, 10)\n"
    )
    words = ["study", "digits.toml", "--device", "cpu", "--dry-run", "--set", "net.name=trial_nets:net"]
    changed = (folder / "digits.toml").read_text().replace("hidden = [8]\n", "")
    (folder / "digits.toml").write_text(changed)
    assert main(words) == 2
    assert "net.name: trial_nets:net failed on a batch (8, 1, 28, 28)" in capsys.readouterr().err
