"""The recipe `imagenet-paper` from end to end on a small folder of real JPEGs: files, MOPED, streams, shifts."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from avuc.bayes import BayesianModule
from avuc.core.tensor_file import write_tensors
from avuc.nets import resnet50
from avuc.shifts import corrupt
from avuc.study import load_recipe, run_study
from avuc.study.grid import ModelKey, Plan
from avuc.study.worker import StudyWorker

SYNSETS = ("n01440764", "n02123045")
SHIFTS = ("gaussian_noise", "fog")


@pytest.fixture(scope="module")
def pictures():
    """Two kinds of real pictures: cats and people; buildings and flowers."""
    astronaut, chelsea, coffee = skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee()
    china, flower = load_sample_images().images
    return {SYNSETS[0]: [astronaut, chelsea], SYNSETS[1]: [china, flower, coffee]}


@pytest.fixture(scope="module")
def root(pictures, tmp_path_factory):
    """train/, val/ and, as ImageNet-C has them, SHIFT/SEVERITY/: parts of the pictures, 80×80."""
    base = tmp_path_factory.mktemp("imagenet")
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 3)):
        for synset, photos in pictures.items():
            folder = base / part / synset
            folder.mkdir(parents=True)
            for number in range(count):
                photo = photos[number % len(photos)]
                top, left = (int(rng.integers(side - 160)) for side in photo.shape[:2])
                Image.fromarray(photo[top : top + 160 : 2, left : left + 160 : 2]).save(folder / f"{number}.JPEG")
    for shift in SHIFTS:
        for path in sorted((base / "val").glob("*/*.JPEG")):
            changed = corrupt(np.asarray(Image.open(path))[None], shift, 3, profile="imagenet")[0]
            folder = base / "c" / shift / "3" / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(changed).resize((224, 224)).save(folder / path.name)
    return base


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    net = resnet50(2, (32, 32, 3), generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("weights") / "resnet50.safetensors"
    write_tensors(path, net.state_dict())
    return path


def changes(root, weights, *more):
    small = ["data.verify=false", "data.validation=6", "data.size=32", "data.workers=0", "train.batch_size=5"]
    small += ["train.epochs=1", "train.milestones=[]", "train.factors=[]", "study.samples=1", "study.severities=[3]"]
    small += [f"study.shifts={list(SHIFTS)}", f"data.root={root}", f"net.weights={weights}"]
    return [*small, "methods.SVI-AvUC.objective.warmup_epochs=0", "methods.SVI-AvUC.objective.threshold=0.5", *more]


def test_from_end_to_end(root, weights, tmp_path):
    recipe = load_recipe("imagenet-paper", changes(root, weights))
    # one training is enough: a checkpoint of a variational ResNet-50 is half a gigabyte
    rows = tuple(row for row in recipe.methods if row.name in ("Vanilla", "Vanilla-AvUTS", "SVI-AvUC"))
    recipe = dataclasses.replace(recipe, methods=rows)
    store = run_study(recipe, tmp_path, device="cpu", progress=False)
    assert len(store.done()) == Plan(recipe).evaluations == 3 * 4
    values = {row[:5]: row[5] for row in store.rows()}
    assert all(np.isfinite(values[("SVI-AvUC", 0, "fog", 3, name)]) for name in ("nll", "ece", "auroc"))
    work = StudyWorker(recipe, tmp_path, "cpu", progress=False)
    # the file's weights as they are
    given = work.train([ModelKey("Vanilla", 0)])[0]
    assert given.epochs == 0
    # MOPED: the prior sits at the weights of the file, the posterior starts there with σ = δ|w|
    job = work._job(ModelKey("SVI-AvUC", 0))
    model = job.method.build(job.net(torch.Generator()))
    assert isinstance(model, BayesianModule)
    first = model.layout.by_name(model.mu.detach())["conv1.weight"]
    expected = resnet50(2, (32, 32, 3), generator=torch.Generator().manual_seed(0)).conv1.weight
    assert torch.equal(first, expected)
    assert torch.equal(model.prior_mean, model.mu.detach())
    sigma = torch.nn.functional.softplus(model.layout.by_name(model.rho.detach())["conv1.weight"])
    torch.testing.assert_close(sigma, 0.5 * expected.detach().abs().clamp_min(2e-6), rtol=1e-4, atol=1e-6)
    store.close()
    shutil.rmtree(tmp_path / "models")


def test_released_pictures_are_read(root, weights, tmp_path):
    recipe = load_recipe("imagenet-paper", changes(root, weights, "data.size=224", f"data.released={root / 'c'}"))
    plan = Plan(recipe)
    data = StudyWorker(recipe, tmp_path, "cpu", progress=False).data
    fog = next(one for one in plan.sets if one.shift == "fog")
    found = data.images(fog)
    assert found.images.shape == (6, 224, 224, 3)
    assert found.labels.tolist() == data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.safetensors", None, r"no\.safetensors: cannot be read"),
        ("no.pth", None, r"no\.pth: net\.weights cannot be read"),
        ("bad.pth", b"nonsense", r"bad\.pth: net\.weights is no file of weights"),
    ],
)
def test_bad_weights(root, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    recipe = load_recipe("imagenet-paper", changes(root, tmp_path / name))
    with pytest.raises(ValueError, match=message):
        StudyWorker(recipe, tmp_path, "cpu", progress=False).train([ModelKey("Vanilla", 0)])


def test_weights_saved_by_torch(root, weights, tmp_path):
    net = resnet50(2, (32, 32, 3), generator=torch.Generator().manual_seed(1))
    torch.save({"state_dict": net.state_dict()}, tmp_path / "net.pth")
    work = StudyWorker(
        load_recipe("imagenet-paper", changes(root, tmp_path / "net.pth")), tmp_path, "cpu", progress=False
    )
    work.train([ModelKey("Vanilla", 0)])
    found = work._fitted[ModelKey("Vanilla", 0)].models[0].state_dict()
    assert torch.equal(found["fc.weight"], net.state_dict()["fc.weight"])
    torch.save({"fc.weight": torch.zeros(1)}, tmp_path / "other.pth")
    other = load_recipe("imagenet-paper", changes(root, tmp_path / "other.pth"))
    with pytest.raises(ValueError, match=r"other\.pth: these weights do not fit resnet50"):
        StudyWorker(other, tmp_path, "cpu", progress=False).train([ModelKey("Vanilla", 0)])
