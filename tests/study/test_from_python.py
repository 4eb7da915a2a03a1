"""`avuc.study.run`: objects in place of names give the study that a recipe gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from avuc.calibration import TemperatureScaling
from avuc.core.errors import InputError
from avuc.methods import SVI, Ensemble, Objective, Vanilla
from avuc.study import Store, load_recipe, run, run_study
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=2, batch_size=30, milestones=(), factors=(), pad=0, flip=False)


def images(seed: int, count: int = 120):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    pixels = torch.randint(90, (count, 6, 6, 1), generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[2 * label : 2 * label + 2] += 60
    return pixels.to(torch.uint8), labels


def load(split):
    return images(0 if split == "train" else 1)


def make_net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes))


def invert(batch):
    return 255 - batch


METHODS = {
    "Vanilla": Vanilla(),
    "TS": {"reuse_model": "Vanilla", "calibrator": TemperatureScaling(bounds=(0.1, 10.0))},
    "SVI": {"method": SVI(initial_std=0.02), "objective": Objective("avuc", warmup_epochs=1), "init_from": "Vanilla"},
}


def small(out, **changes):
    given = {"methods": METHODS, "data": load, "net": make_net, "shifts": [invert, "contrast"], "train": TRAIN}
    settings = {"samples": 2, "severities": [2], "device": "cpu", "progress": False}
    return run(out=out, **{**given, **settings, **changes})


def test_same_as_the_recipe(tmp_path):
    """The same study by names, through a recipe file."""
    here = __name__
    store = small(tmp_path / "objects")
    (tmp_path / "recipe.toml").write_text(store.recipe().to_toml())
    recipe = load_recipe(tmp_path / "recipe.toml")
    assert recipe.net.name == f"{here}:make_net"
    assert recipe.study.shifts == (f"{here}:invert", "contrast")
    assert recipe.data.validation == 12  # a tenth
    other = run_study(recipe, tmp_path / "names", device="cpu", progress=False)
    assert repr(store.rows()) == repr(other.rows())
    assert len(store.done()) == 3 * 4


@pytest.mark.parametrize("kind", ["pairs", "loaders"])
def test_data_in_other_forms(tmp_path, kind):
    train, test = images(0), images(1)
    if kind == "loaders":  # read in the order of the dataset, whatever the loader's own order
        train = DataLoader(TensorDataset(*train), batch_size=7, shuffle=True)
        test = DataLoader(TensorDataset(*test), batch_size=50)
    store = small(tmp_path / "a", data={"train": train, "test": test}, shifts=[], methods={"V": "vanilla"})
    same = small(tmp_path / "b", shifts=[], methods={"V": "vanilla"})
    assert repr(store.rows()) == repr(same.rows())


def test_objects_without_a_path_resume_in_the_same_code(tmp_path):
    weights = make_net(3)
    both = [lambda batch: batch // 2, lambda batch: batch // 3]
    data = {"train": images(0), "test": images(1)}
    given = {"data": data, "net": weights, "shifts": both, "methods": {"V": Vanilla()}}
    first = small(tmp_path, **given)
    assert {key[2] for key in first.done()} == {"validation", "clean", "object:shift", "object:shift_2"}
    rows = repr(first.rows())
    first.close()
    assert repr(small(tmp_path, **given).rows()) == rows  # nothing is computed again
    changed = copy.deepcopy(weights)
    with torch.no_grad():
        changed[1].bias += 1
    with pytest.raises(InputError, match="the code of object:net has changed"):
        small(tmp_path, **{**given, "net": changed})
    with pytest.raises(InputError, match="the data 'clean' have changed"):
        small(tmp_path, **{**given, "data": {"train": images(0), "test": images(2)}})
    assert len(Store(tmp_path, create=False).runs()) == 2


def test_objects_unknown_in_another_process(tmp_path, monkeypatch):
    store = small(tmp_path, net=lambda num_classes: make_net(num_classes), shifts=[], methods={"V": Vanilla()})
    monkeypatch.setattr("avuc.study.own.code._OBJECTS", {})
    with pytest.raises(InputError, match=r"object:net was given to avuc.study.run as an object and is not here"):
        run_study(store.recipe(), tmp_path, device="cpu", progress=False)


def test_processes_cannot_share_a_lambda(tmp_path):
    with pytest.raises(InputError, match="several processes cannot share object:net"):
        small(tmp_path, net=lambda num_classes: make_net(num_classes), device="cpu,cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": [Vanilla()]}, "methods: expected names and methods, found a list"),
        ({"methods": {"V": 3}}, "methods.V: expected a method, its name or a dict, found a int"),
        ({"methods": {"V": "vanila"}}, "'vanila' is unknown; did you mean 'vanilla'"),
        ({"methods": {"V": {"method": Vanilla(), "seed": 1}}}, "methods.V.seed: no such key; did you mean 'seeds'"),
        ({"methods": {"E": Ensemble(2)}, "net": make_net(3)}, "an ensemble needs different starts"),
        ({"data": images(0)[0]}, "data: expected {'train': …, 'test': …}"),
        ({"data": {"train": images(0)}}, "no 'test' among 'train'"),
        ({"data": "mnist5k"}, "validation: say how many"),
        ({"seed": 3}, "seed: no such key; did you mean 'seeds'"),
        ({"samples": "many"}, "samples: expected a whole number, found 'many'"),
    ],
)
def test_mistakes(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        small(tmp_path / "out", **changes)
    assert message in str(caught.value)
    assert not (tmp_path / "out" / "models").exists()
