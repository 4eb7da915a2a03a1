"""`avuc train`: a recipe in, checkpoints and a log out; a bad recipe is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from avuc.calibration import Calibrator
from avuc.cli import app
from avuc.cli.train import COMMAND
from avuc.core.errors import InputError
from avuc.methods import METHODS
from avuc.nets import mlp
from avuc.study.recipe.load import load_training
from avuc.train import Calibrated

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
variant = "paper"
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


def test_the_data_of_a_study_are_not_trained_as_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text('[data]\nsource = "cifar10"\n')
    assert app.main(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run")]) == 2
    assert "r.toml: data.source: this key is for a study" in capsys.readouterr().err


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
        (("epochs = 2", "epoch = 2"), "train.epoch: no such key; did you mean 'epochs'?"),
        (("epochs = 2", "epochs = 'two'"), "train.epochs: expected a whole number, found 'two'"),
        (("flip = false", "flip = 0"), "train.flip: expected true or false, found 0"),
        (('name = "svi"', 'name = "sbi"'), "method: 'sbi' is unknown; did you mean 'svi'?"),
        (('name = "mlp"', 'name = "resnet2"'), "net.name: no net 'resnet2'; did you mean"),
        (("hidden = [16]", "hiden = [16]"), "hiden"),
        (("[objective]", "[objectve]"), "objectve: no such key; did you mean 'objective'?"),
        (
            ('kind = "avuc"', 'kind = "avu"'),
            "objective.kind: found 'avu'; did you mean 'avuc'?",
        ),
        (("[data]", "[data"), "not valid TOML"),
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


# without [method] and [objective]

DEFAULT = """
[data]
name = "mnist5k"
validation = 200
[net]
name = "mlp"
hidden = [16]
[train]
epochs = 1
"""


def test_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(DEFAULT)
    out = tmp_path / "run"
    for _ in range(2):  # the second time it is only read back
        assert avuc(tmp_path / "r.toml", "--out", out, "--device", "cpu", "--seed", "1") == 0
        said = capsys.readouterr().out.splitlines()
        assert "default" in said[0]
        assert "docs/guide/training.md" in said[0]
        assert "network: 1 epochs" in said[1]
        assert "posterior: 2 epochs" in said[2]
        temperature = Calibrator.load(out / "calibrator.json").temperature_
        load = f"avuc.train.Calibrated.load('{out}/model.safetensors', net)"
        wrote = f"wrote {out}; in Python: {load}.predict(images)"
        assert said[3:] == [f"temperature {temperature:.4f}, from 200 held-out images", wrote]
    assert sorted(path.name for path in out.iterdir()) == ["calibrator.json", "first", "model.safetensors", "second"]
    model = Calibrated.load(out / "model.safetensors", mlp(10, (28, 28, 1), hidden=(16,)))
    assert model.calibrator.temperature_ == temperature
    assert model.predict(torch.zeros(2, 28, 28, 1, dtype=torch.uint8), samples=2).probs.shape == (2, 10)
    for name, epochs in (("first", 1), ("second", 2)):
        assert len((out / name / "log.jsonl").read_text().splitlines()) == epochs
        assert (out / name / f"checkpoint-{epochs:06d}.safetensors").exists()


def test_the_default_has_the_recipes_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, epochs: int | None, **__: object) -> None:
        assert epochs is None
        raise InputError("asked")

    monkeypatch.setattr("avuc.training.default.fit_calibrated", asked)
    (tmp_path / "r.toml").write_text(DEFAULT.replace("epochs = 1", ""))
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 2


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cpu,cpu"])
def test_a_bad_device_is_one_line(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(DEFAULT)
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", device) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"avuc: --device {device}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("table", ["[method]", "[objective]"])
def test_a_method_or_an_objective_is_not_the_default(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(f"{DEFAULT}pad = 0\nflip = false\n{table}\n")  # an empty one says so too
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 0
    assert capsys.readouterr().out.startswith("vanilla: 1 epochs")
    assert (tmp_path / "run" / "log.jsonl").exists()
    assert not (tmp_path / "run" / "calibrator.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("epochs = 1", "batch_size = 50"),
            "train: the default takes epochs and flip only; remove batch_size, or give [method]",
        ),
        (("epochs = 1", "epoch = 1"), "train.epoch: no such key; did you mean 'epochs'?"),
        (("epochs = 1", "epochs = 0"), "epochs must be at least 1"),
        (
            ("validation = 200", ""),
            "data: the default needs held-out images; give validation = 500, or give [method]",
        ),
    ],
)
def test_what_the_default_refuses(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(DEFAULT.replace(*change))
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not said.out
    assert not (tmp_path / "run").exists()


def test_the_default_is_for_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")  # as torchrun does
    (tmp_path / "r.toml").write_text(DEFAULT)
    assert avuc(tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu") == 2
    assert "the default trains in one process, found 4; start one, or give [method]" in capsys.readouterr().err


def test_help_shows_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        avuc("--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "avuc train digits.toml --out runs/digits" in said
    assert "docs/guide/training.md" in said


def test_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert avuc(tmp_path / "none.toml", "--out", tmp_path / "run") == 2
    assert "none.toml: cannot be read (No such file" in capsys.readouterr().err


# the recipe dialect: every form that version 0.1.0 took

FORMS = """
[data]
name = "mnist5k"
root = "here"
split = "test"
validation = 0.1
verify = false
[net]
name = "mlp"
hidden = [16]
mean = [0.5]
[method]
name = "ensemble"
members = 3
member = { name = "svi", prior_std = 1 }
[objective]
kind = "avuc"
threshold = 0.5
[train]
learning_rate = 1
at_once = 2
"""


def test_every_form_of_a_training_recipe_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(FORMS)
    recipe = load_training(tmp_path / "r.toml")
    assert (recipe.data, recipe.validation, recipe.net) == ("mnist5k", 0.1, "mlp")
    assert recipe.data_options == {"root": "here", "split": "test", "verify": False}
    assert recipe.net_options == {"hidden": [16], "mean": [0.5]}
    assert recipe.method == METHODS["ensemble"](members=3, member=METHODS["svi"](prior_std=1.0))
    assert (recipe.objective.kind, recipe.objective.threshold) == ("avuc", 0.5)
    assert recipe.settings.learning_rate == 1.0
    assert recipe.train_keys == ("learning_rate", "models_per_step")
    assert not recipe.is_default
    assert "r.toml: 'at_once' is now 'models_per_step'; the old key still works" in capsys.readouterr().err


def test_an_empty_training_recipe_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("")
    recipe = load_training(tmp_path / "r.toml")
    assert (recipe.data, recipe.net, recipe.validation, recipe.is_default) == ("mnist5k", "small_cnn", 0, True)
    assert recipe.method == METHODS["vanilla"]()
    (tmp_path / "r.toml").write_text("[method]\n")
    assert not load_training(tmp_path / "r.toml").is_default
    # the same tables as in a study's recipe: kind names a method too
    (tmp_path / "r.toml").write_text('[method]\nkind = "svi"\n')
    assert load_training(tmp_path / "r.toml").method == METHODS["svi"]()
