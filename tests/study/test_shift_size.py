"""Shifts at another size than that of the images, models that come trained, and training before evaluation."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.data.tensors import TensorData
from avuc.prediction import Predictor
from avuc.study import load_recipe, run_study
from avuc.study.data.sets import StudyData
from avuc.study.data.shifted import scaled, shifted_data
from avuc.study.grid import CLEAN, ModelKey, Plan, TestSet
from avuc.study.trial.run import try_own_code
from avuc.study.worker import StudyWorker

RECIPE = """
[study]
shifts = ["fog", "own_size:darker"]
severities = [2]
shift_size = 20
profile = "imagenet"
samples = 2
[data]
source = "own_size:load"
validation = 10
[net]
name = "own_size:make_net"
[train]
epochs = 1
batch_size = 16
[[methods]]
name = "As it is"
method = "vanilla"
skip_training = true
[[methods]]
name = "TS"
reuse_model = "As it is"
calibrator = "temperature"
[[methods]]
name = "SVI"
method = { kind = "svi", moped = true, delta = 0.1 }
"""
MODULE = """
import torch
from torch import nn
from torch.nn import functional as F

SEEN = []

def load(split):
    count = 40 if split == "train" else 12
    images = torch.randint(256, (count, 10, 10, 3), generator=torch.Generator().manual_seed(count))
    return images.to(torch.uint8), torch.arange(count) % 3

def darker(images, severity):
    SEEN.append(tuple(images.shape[1:]))
    return images // (1 + severity)

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, num_classes)
        nn.init.constant_(self.last.bias, 0.25)

    def forward(self, images):
        if images.shape[-1] != 20:
            images = F.interpolate(images, size=(20, 20), mode="bilinear")
        return self.last(self.conv(images).relu().mean((2, 3)))

def make_net(num_classes):
    return Net(num_classes)

class Flat(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.last = nn.Linear(300, num_classes)

    def forward(self, images):
        return self.last(images.flatten(1))

def rigid(num_classes):
    return Flat(num_classes)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_size.py").write_text(MODULE)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_size", raising=False)
    return tmp_path


@pytest.mark.parametrize("size", [7, 16, 23, 64])
def test_scaling_is_that_of_pillow(size):
    rng = np.random.default_rng(size)
    images = rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    found = scaled(Dataset(torch.from_numpy(images), torch.zeros(3, dtype=torch.int64), 2), size)
    for image, ours in zip(images, found.images.numpy(), strict=True):
        expected = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(expected.astype(int) - ours).max() <= 1  # Pillow works in fixed point


def test_scaling_keeps_everything_else_and_extremes():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 5, 3, 1)
    data = Dataset(images, torch.tensor([1, 0]), 2, "mine", ("a", "b"))
    found = scaled(data, 9)
    assert found.images.shape == (2, 9, 9, 1)
    assert found.images.unique().tolist() == [0, 255]
    assert (found.labels.tolist(), found.class_names, found.name) == ([1, 0], ("a", "b"), "mine")
    assert len(scaled(data.subset([]), 9)) == 0


def test_scaling_in_blocks_is_the_same(monkeypatch):
    images = torch.randint(256, (7, 6, 6, 3)).to(torch.uint8)
    data = Dataset(images, torch.zeros(7, dtype=torch.int64), 2)
    whole = scaled(data, 11).images
    monkeypatch.setattr("avuc.study.data.shifted.CHUNK", 3)
    assert torch.equal(scaled(data, 11).images, whole)


def test_other_data_are_refused():
    data = TensorData(torch.rand(4, 3), torch.zeros(4, dtype=torch.int64), 2, "table")
    with pytest.raises(InputError, match=r"study\.shift_size: table are no images with one label each"):
        shifted_data(data, "fog", 1, 0, "imagenet", 8)


def test_shifts_act_on_the_scaled_images(folder):
    recipe = load_recipe("recipe.toml")
    data = StudyData(recipe, torch.device("cpu"))
    assert data.images(CLEAN).inputs.shape == (12, 10, 10, 3)
    found = data.images(TestSet("own_size:darker", 2))
    import own_size

    assert set(own_size.SEEN) == {(20, 20, 3)}
    assert torch.equal(found.inputs, scaled(data.test, 20).images // 3)
    assert data.images(TestSet("fog", 2)).inputs.shape == (12, 20, 20, 3)


def test_study_of_a_net_that_comes_trained(folder):
    recipe = load_recipe("recipe.toml")
    store = run_study(recipe, folder / "out", device="cpu", progress=False)
    assert len(store.done()) == Plan(recipe).evaluations == 3 * 4
    work = StudyWorker(recipe, folder / "out", "cpu", progress=False)
    assert work.train([ModelKey("As it is", 0)])[0].epochs == 0
    model = work._fitted[ModelKey("As it is", 0)].models[0]
    assert model.last.bias.tolist() == [0.25] * 3
    # the posterior starts at the weights that the network comes with
    job = work._job(ModelKey("SVI", 0))
    posterior = job.method.build(job.net(torch.Generator()))
    assert posterior.layout.by_name(posterior.mu.detach())["last.bias"].tolist() == [0.25] * 3
    store.close()


def test_a_net_without_weights_cannot_skip_training():
    with pytest.raises(InputError, match=r"skip_training: needs net\.weights or a network of your own"):
        load_recipe("demo", ["methods.Vanilla.skip_training=true"])


def test_a_net_of_one_size_is_refused_before_training(folder):
    recipe = load_recipe("recipe.toml", ["net.name=own_size:rigid"])
    with pytest.raises(InputError, match=r"study\.shift_size: own_size:rigid failed on a batch \(8, 3, 20, 20\)"):
        try_own_code(recipe)
    with pytest.raises(InputError, match=r"shift_size must not be negative, found -1"):
        load_recipe("recipe.toml", ["study.shift_size=-1"])


def test_a_net_of_avuc_with_another_size(folder):
    small = ["study.shift_size=40", "study.shifts=[]", "study.ood=[]", "data.train_images=64", "data.test_images=16"]
    with pytest.raises(InputError, match=r"study\.shift_size: mlp failed on a batch \(8, 1, 40, 40\)"):
        try_own_code(load_recipe("demo", [*small, "net.name=mlp"]))


def test_keys_are_stored_only_if_they_are_used(folder):
    text = load_recipe("demo").stored_text()  # version 0.1.0 reads it
    assert "shift_size" not in text
    assert "train_first" not in text
    assert "shift_size = 20" in load_recipe("recipe.toml").stored_text()


@pytest.mark.parametrize("first", [False, True])
def test_all_models_are_trained_first(folder, monkeypatch, first):
    changes = ["study.shifts=[]", "study.seeds=[0,1]", f"study.train_first={str(first).lower()}"]
    recipe = load_recipe("recipe.toml", changes)
    order = []
    train, predict = StudyWorker.train, StudyWorker.evaluate
    monkeypatch.setattr(StudyWorker, "train", lambda self, keys: (order.append("train"), train(self, keys))[1])
    monkeypatch.setattr(StudyWorker, "evaluate", lambda *given: (order.append("evaluate"), predict(*given))[1])
    # as on a GPU: one group at a time
    monkeypatch.setattr(Plan, "groups", lambda self, keys, limit=None: [[key] for key in keys][:1])
    run_study(recipe, folder / "out", device="cpu", progress=False).close()
    last = max(place for place, what in enumerate(order) if what == "train")
    assert (order.index("evaluate") > last) == first


def test_batches_of_the_evaluation(folder, monkeypatch):
    """Other batches give the same figures, may be chosen when a study is resumed, and are stored only if set."""
    sizes, batches = set(), Predictor._batches

    def record(self, *given):
        sizes.add(self.batch_size)
        return batches(self, *given)

    monkeypatch.setattr(Predictor, "_batches", record)
    changes = ["study.shifts=[]", "study.seeds=[0]"]
    store = run_study(load_recipe("recipe.toml", changes), folder / "out", device="cpu", progress=False)
    expected = {row[:5]: row[5] for row in store.rows()}
    store.close()
    assert sizes == {None}
    recipe = load_recipe("recipe.toml", [*changes, "study.batch_size=3"])
    store = run_study(recipe, folder / "other", device="cpu", progress=False)
    assert 3 in sizes
    assert {row[:5]: row[5] for row in store.rows()} == pytest.approx(expected, abs=1e-5)
    store.close()
    more = load_recipe("recipe.toml", [changes[0], "study.seeds=[0,1]", "study.batch_size=5"])
    run_study(more, folder / "out", device="cpu", progress=False).close()
    assert "batch_size = 3" in recipe.stored_text()
    assert "batch_size" not in load_recipe("recipe.toml", changes).stored_text().split("[train]")[0]
    with pytest.raises(InputError, match=r"batch_size must not be negative, found -1"):
        load_recipe("recipe.toml", ["study.batch_size=-1"])
