"""Every method of the recipe `imagenet-paper` with a real ResNet-50 at 224×224, on a few hundred generated JPEGs.

`test_imagenet.py` runs the same path in small on a CPU.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from avuc.nets import resnet50
from avuc.study import load_recipe, run_study
from avuc.study.grid import Plan
from avuc.study.worker import StudyWorker

SYNSETS = ("n01440764", "n02123045", "n03000684", "n04552348")
SHIFTS = ("gaussian_noise", "fog")
SIZES = {"train": 64, "val": 16, "size": 224, "batch": 32, "workers": 4, "samples": 4}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")  # random weights have no good temperature
def test_whole_recipe(tmp_path):
    run_whole_recipe(tmp_path, "cuda", **SIZES)


def make_pictures(root, train, val):
    """JPEGs of different sizes: clouds of colour, another colour for each class."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for label, synset in enumerate(SYNSETS):
            (root / part / synset).mkdir(parents=True)
            for number in range(count):
                clouds = rng.integers(0, 120, (6, 6, 3))
                clouds[..., label % 3] += 40 + 45 * (label // 3)
                size = tuple(int(side) for side in rng.integers(180, 320, 2))
                picture = Image.fromarray(clouds.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
                picture.save(root / part / synset / f"{number}.JPEG", quality=90)


def run_whole_recipe(tmp_path, device, *, train, val, size, batch, workers, samples):
    """Run the recipe on generated pictures, and check its results against the network itself."""
    root, out = tmp_path / "imagenet", tmp_path / "out"
    make_pictures(root, train, val)
    net = resnet50(len(SYNSETS), (size, size, 3), generator=torch.Generator().manual_seed(0)).eval()
    torch.save({"state_dict": net.state_dict()}, tmp_path / "resnet50.pth")
    changes = [f"data.root={root}", f"net.weights={tmp_path / 'resnet50.pth'}", "data.verify=false"]
    changes += [f"data.validation={train}", f"data.size={size}", f"data.workers={workers}", f"train.batch_size={batch}"]
    changes += ["train.epochs=2", "train.milestones=[]", "train.factors=[]", f"study.samples={samples}"]
    changes += [f"study.shifts={list(SHIFTS)}", "study.severities=[1, 5]", "methods.SVI-AvUC.objective.warmup_epochs=1"]
    recipe = load_recipe("imagenet-paper", changes)
    store = run_study(recipe, out, device=device, progress=False)
    assert len(store.done()) == Plan(recipe).evaluations == len(recipe.methods) * 6
    values = {row[:5]: row[5] for row in store.rows()}
    for method in recipe.methods:
        figures = [values[method.name, 0, "fog", 5, metric] for metric in ("nll", "ece", "avu_auc", "auroc")]
        assert np.isfinite(figures).all(), method.name
    # the AvUC term began after the warm-up, with a threshold that was learned there
    [(threshold,)] = store.select("SELECT threshold FROM models WHERE method = 'SVI-AvUC'")
    assert 0 <= threshold < np.log(len(SYNSETS))
    # "Vanilla" is the network of the file: the same NLL as that network itself on the same images
    data = StudyWorker(recipe, out, "cpu", progress=False).data
    images, labels = data.test.batch(torch.arange(len(data.test)))
    with torch.no_grad():
        chosen = net(images).double().softmax(-1).gather(1, labels[:, None]).clamp(min=1e-12)
    assert values["Vanilla", 0, "clean", 0, "nll"] == pytest.approx(-chosen.log().mean().item(), rel=2e-2)
    # a finished study is not computed again
    before = store.select("SELECT shift, severity, method, run FROM cells ORDER BY 1, 2, 3")
    store.close()
    again = run_study(recipe, out, device=device, progress=False)
    assert again.select("SELECT shift, severity, method, run FROM cells ORDER BY 1, 2, 3") == before
    again.close()
    shutil.rmtree(out / "models")
