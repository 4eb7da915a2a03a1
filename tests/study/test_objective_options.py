"""Options of an objective in recipes, in studies and in training: read, written, compared and used."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.losses import DirichletHead
from avuc.methods import Ensemble, Objective, Vanilla
from avuc.study import load_recipe, run, run_study
from avuc.study.recipe.parser import parse_recipe, parse_training
from avuc.study.store.recipe import StoredRecipe
from avuc.train import TrainSettings, fit

TRAIN = TrainSettings(
    epochs=2, batch_size=30, milestones=(), factors=(), learning_rate=0.05, pad=0, flip=False, checkpoint_seconds=0
)
RECIPE = """
[study]
severities = [1]
[data]
validation = 10
[[methods]]
name = "SB"
method = "vanilla"
objective = { kind = "sb_ece", options = { form = "label_binned", bins = 20 } }
[[methods]]
name = "plain"
method = "vanilla"
objective = "sb_ece"
[[methods]]
name = "S"
method = { kind = "ensemble", members = 2 }
[methods.objective]
kind = "segmentation_avu"
[methods.objective.options]
background = "none"
thresholds = [0.1, 1]
dilation = [1, 5, 5]
"""


def images(split, size=60):
    """Rows 2·label and 2·label + 1 of six are bright."""
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    labels = torch.arange(size) % 3
    pixels = torch.randint(0, 150, (size, 6, 6, 1), generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[2 * label : 2 * label + 2] += 60
    return pixels.to(torch.uint8), labels


def make_net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes))


def scenes(split):
    pixels, labels = images(split, 20)
    return pixels, torch.where(pixels[..., 0] > 110, labels.view(-1, 1, 1), 0)


def pixel_net(num_classes):
    return nn.Conv2d(1, num_classes, 3, padding=1)


def small(out, methods, data=images, net=make_net):
    return run(methods=methods, data=data, net=net, out=out, train=TRAIN, device="cpu", progress=False, shifts=[])


def test_recipes():
    recipe = parse_recipe(RECIPE)
    wanted = Objective("sb_ece", options={"form": "label_binned", "bins": 20})
    assert recipe.method("SB").objective == wanted
    none = {"background": None, "thresholds": (0.1, 1.0), "dilation": (1, 5, 5)}
    assert recipe.method("S").objective == Objective("segmentation_avu", options=none)
    for text in (recipe.to_toml(), recipe.stored_text()):
        assert parse_recipe(text) == recipe
        assert parse_recipe(text).to_toml() == recipe.to_toml()
    stored = StoredRecipe.parse(recipe.stored_text())
    assert stored.method("SB").objective == "sb_ece"
    assert parse_recipe(stored.to_toml()) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe  # a worker gets it so
    table = recipe.tables()["methods"][1]
    assert "options" not in table["objective"]  # version 0.1.0 does not know the key


def test_changes():
    changes = ["methods.SB.objective.options.bins=30", "methods.plain.objective.options.temperature=1"]
    recipe = parse_recipe(RECIPE, changes=changes)
    assert dict(recipe.method("SB").objective.options) == {"form": "label_binned", "bins": 30}
    assert recipe.method("plain").objective == Objective("sb_ece", options={"temperature": 1.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("methods.SB.objective.options.bin=30", "methods.SB.objective: objective: sb_ece has no option 'bin'; its op"),
        ("methods.SB.objective.options.bins=many", "bins must be a whole number; found 'many'"),
        ("methods.SB.objective.options.beta=1", "give Objective(beta=…), objective.beta in a recipe"),
        ("methods.SB.objective.options=3", "methods.SB.objective.options: expected a table, found 3"),
        ("methods.SB.objective.kind=plain", "plain has no option 'form'; it has no options"),
        ("methods.S.objective.threshold=0.3", "threshold or the option thresholds, not both"),
    ],
)
def test_mistakes_in_recipes(change, message):
    with pytest.raises(InputError) as caught:
        parse_recipe(RECIPE, "r.toml", changes=[change])
    assert message in str(caught.value)
    assert str(caught.value).startswith("r.toml: ")
    assert "\n" not in str(caught.value)


def test_the_recipe_of_one_training():
    text = '[objective]\nkind = "euc"\noptions = { evidence = "relu" }'
    assert parse_training(text).objective == Objective("euc", options={"evidence": "relu"})


def test_a_dry_run_checks_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE + '\n[net]\nname = "mlp"\n')
    words = ["study", "recipe.toml", "--dry-run", "--device", "cpu"]
    assert main([*words, "--set", "methods.SB.objective.options.bins=30"]) == 0
    assert "sb_ece" in capsys.readouterr().out
    assert main([*words, "--set", "methods.SB.objective.options.bin=30"]) == 2
    assert "sb_ece has no option 'bin'" in capsys.readouterr().err


def test_a_study_with_options(tmp_path):
    """From Python and from the recipe that it writes; other options are another study."""
    options = {"form": "label_binned", "bins": 3}
    methods = {
        "default": {"method": Vanilla(), "objective": Objective("sb_ece", warmup_epochs=0)},
        "options": {"method": Vanilla(), "objective": Objective("sb_ece", warmup_epochs=0, options=options)},
        "ensemble": {
            "method": Ensemble(2),
            "objective": {"kind": "euc", "warmup_epochs": 1, "options": {"evidence": "softplus"}},
        },
    }
    store = small(tmp_path / "python", methods)
    (tmp_path / "recipe.toml").write_text(store.recipe().to_toml())
    recipe = load_recipe(tmp_path / "recipe.toml")
    assert dict(recipe.method("options").objective.options) == options
    other = run_study(recipe, tmp_path / "recipe", device="cpu", progress=False)
    rows = [tuple(row) for row in store.rows()]
    assert repr(rows) == repr([tuple(row) for row in other.rows()])
    history = {name: store.select("SELECT * FROM history WHERE method = ?", (name,)) for name in ("default", "options")}
    assert [row[1:] for row in history["default"]] != [row[1:] for row in history["options"]]
    store.close()
    assert repr([tuple(row) for row in small(tmp_path / "python", methods).rows()]) == repr(rows)
    changed = replace(methods["options"]["objective"], options={"bins": 4})
    with pytest.raises(InputError, match=r"holds another study: methods\.options\.objective\.options"):
        small(tmp_path / "python", {**methods, "options": {"method": Vanilla(), "objective": changed}})


def test_a_study_of_pixels(tmp_path):
    kind = {"kind": "segmentation_avu", "warmup_epochs": 1}
    methods = {
        "S": {"method": Vanilla(), "objective": {**kind, "options": {"background": "none", "dilation": [3, 5]}}},
        "default": {"method": Vanilla(), "objective": kind},
    }
    store = small(tmp_path / "a", methods, scenes, pixel_net)
    assert {key[0] for key in store.done()} == {"S", "default"}
    wrong = {"S": {"method": Vanilla(), "objective": {**kind, "options": {"dilation": [1, 3, 5]}}}}
    with pytest.raises(InputError, match="dilation needs 2 widths"):  # before anything is trained
        small(tmp_path / "b", wrong, scenes, pixel_net)
    assert not (tmp_path / "b" / "models").exists()


def test_checkpoints(tmp_path):
    """A run without options resumes as before; with other options it is another run."""

    def train(folder, options):
        objective = Objective("sb_ece", warmup_epochs=0, options=options)
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
        return fit(
            Vanilla(),
            net,
            images("train"),
            objective=objective,
            settings=TRAIN,
            directory=tmp_path / folder,
            progress=False,
        )

    train("a", {})
    train("a", {"bins": 15})  # the default
    with pytest.raises(InputError, match=r"another run \(objective.options is \{'bins': 3\}, was not set"):
        train("a", {"bins": 3})
    train("b", {"bins": 3})
    with pytest.raises(InputError, match=r"objective.options is \{'bins': 4\}, was \{'bins': 3\}"):
        train("b", {"bins": 4})


def test_the_head_has_the_evidence_of_the_objective():
    def train(net):
        objective = Objective("euc", warmup_epochs=1, options={"evidence": "relu"})
        return fit(Vanilla(), net, images("train"), objective=objective, settings=TRAIN, progress=False)

    assert train(make_net(3)).models[0][1].evidence == "relu"
    with pytest.raises(InputError, match=r"ends in DirichletHead\('exp'\)"):
        train(nn.Sequential(make_net(3), DirichletHead()))
