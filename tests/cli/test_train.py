"""`avuc train`: a recipe in, checkpoints and a log out; a bad recipe is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avuc.cli import app
from avuc.cli.train import COMMAND

RECIPE = """
[data]
name = "mnist5k"
validation = 200
[net]
name = "mlp"
hidden = [16]
[method]
name = "svi"
prior_std = 1
[objective]
kind = "avuc"
warmup_epochs = 1
kl_weight = 0.01
[train]
epochs = 2
batch_size = 200
pad = 0
flip = false
milestones = [1]
factors = [0.1]
"""


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.COMMANDS, "train", COMMAND)


def avuc(*arguments: str | Path) -> int:
    return app.main(["train", *map(str, arguments)])


def test_train_writes_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    for _ in range(2):  # the second time it is only read back
        assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 0
        out = capsys.readouterr().out
        assert "svi: 2 epochs" in out
        assert "validation accuracy" in out
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1]
    assert {"nll", "kl", "avuc", "avu", "accuracy", "threshold", "images_per_second", "validation_avu"} <= set(lines[1])
    assert lines[1]["learning_rate"] == pytest.approx(0.1 * lines[0]["learning_rate"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epochs = 2", "epoch = 2"), "[train]: no key 'epoch'; did you mean 'epochs'?"),
        (("epochs = 2", "epochs = 'two'"), "[train]: epochs is int, like 200; found 'two'"),
        (("flip = false", "flip = 0"), "[train]: flip is bool"),
        (('name = "svi"', 'name = "sbi"'), "no method 'sbi'; did you mean 'svi'?"),
        (('name = "mlp"', 'name = "resnet2"'), "no net 'resnet2'; did you mean"),
        (("hidden = [16]", "hiden = [16]"), "hiden"),
        (("[objective]", "[objectve]"), "no table [objectve]; did you mean 'objective'?"),
        (('kind = "avuc"', 'kind = "avu"'), "kind must be one of plain, avuc, auavuc"),
        (("[data]", "[data"), "not a TOML file"),
        (('name = "mnist5k"', 'name = "mnist6k"'), "no data set 'mnist6k'"),
    ],
)
def test_a_bad_recipe_is_one_line(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace(*change))
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("avuc: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert avuc(tmp_path / "none.toml", "--out", tmp_path / "run") == 2
    assert "none.toml: cannot be read (No such file" in capsys.readouterr().err
