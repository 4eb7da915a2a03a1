"""Deleting the folder avuc/gpu leaves everything working, with the same results on the CPU."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

# makes `avuc.gpu` and everything below it unimportable, as if the folder were deleted
HIDE = """
import sys
from importlib.abc import MetaPathFinder


class Hide(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "avuc.gpu" or fullname.startswith("avuc.gpu."):
            raise ImportError(f"{fullname} is hidden", name=fullname)
        return None


sys.meta_path.insert(0, Hide())
"""

CHECK_HIDDEN = """
assert not any(name.split(".")[:2] == ["avuc", "gpu"] for name in sys.modules)
try:
    import avuc.gpu
except ImportError:
    pass
else:
    raise AssertionError("avuc.gpu is not hidden")
"""

PREDICT = """
import sys, warnings
import torch

warnings.simplefilter("error")
torch.set_num_threads(1)
import avuc
from avuc.methods import SVI, Dropout
from avuc.nets import resnet20

images = torch.randint(256, (6, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
results = {}
for method in (SVI(), Dropout(rate=0.2)):
    net = resnet20(generator=torch.Generator().manual_seed(0))
    posterior = method.posterior([method.build(net, generator=torch.Generator().manual_seed(2))])
    for dtype in (None, torch.bfloat16):
        found = avuc.predict(posterior, images, samples=3, dtype=dtype, progress=False)
        results[f"{method.name} {dtype}"] = (found.probs, found.expected_entropy)
torch.save(results, sys.argv[1])
"""

STUDY = """
import sys, warnings
import torch

warnings.simplefilter("error")
torch.set_num_threads(1)
from avuc.cli import main

code = main(["study", sys.argv[1], "--out", sys.argv[2], "--device", "cpu", "--no-report"])
assert code in (0, None), code
"""

RECIPE = """
[study]
name = "tiny"
samples = 3
shifts = ["contrast"]
severities = [5]

[data]
source = "npz"
root = "{root}"
validation = 40
test_images = 40

[net]
name = "resnet20"

[train]
epochs = 1
batch_size = 40
learning_rate = 2e-3
milestones = []
factors = []
pad = 1
flip = false
augmentation = "augmix"

[[methods]]
name = "Vanilla"
method = "vanilla"

[[methods]]
name = "SVI"
method = {{ kind = "svi", initial_std = 0.02 }}
objective = {{ kl_weight = 0.1 }}
"""


LINEAR = """
import sys, warnings
import torch

warnings.simplefilter("error")
import avuc

hidden, weight = torch.randn(3, 8), torch.randn(20, 8)
result = avuc.linear_avuc(hidden, weight, torch.tensor([1, 2, 3]), threshold=1.0)
assert result.loss > 0
try:
    avuc.linear_avuc(hidden, weight, torch.tensor([1, 2, 3]), threshold=1.0, backend="triton")
except avuc.InputError as error:
    assert "the folder avuc/gpu is missing" in str(error), error
else:
    raise AssertionError("backend='triton' without the folder")
"""


@pytest.fixture
def run(fresh_python: Any) -> Callable[..., None]:
    def run(code: str, *arguments: Path, hidden: bool) -> None:
        if hidden:
            code = HIDE + code + CHECK_HIDDEN
        done = fresh_python(code, *arguments)
        assert done.returncode == 0, done.stderr

    return run


def test_predictions_are_the_same(tmp_path: Path, run: Callable[..., None]) -> None:
    results: list[dict[str, tuple[Tensor, Tensor]]] = []
    for hidden in (False, True):
        path = tmp_path / f"{hidden}.pt"
        run(PREDICT, path, hidden=hidden)
        results.append(torch.load(path))
    assert len(results[0]) == 4
    assert results[0].keys() == results[1].keys()
    for name, (probs, entropy) in results[0].items():
        assert torch.equal(probs, results[1][name][0]), name
        assert torch.equal(entropy, results[1][name][1]), name


def test_linear_avuc_works(run: Callable[..., None]) -> None:
    run(LINEAR, hidden=True)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    np.savez(
        tmp_path / "digits.npz",
        x_train=pixels[:160], y_train=labels[:160], x_test=pixels[500:560], y_test=labels[500:560],
    )  # fmt: skip
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE.format(root=tmp_path / "digits.npz"))
    return path


def test_a_study_is_the_same(recipe_file: Path, tmp_path: Path, run: Callable[..., None]) -> None:
    results = []
    for hidden in (False, True):
        folder = tmp_path / f"study-{hidden}"
        run(STUDY, recipe_file, folder, hidden=hidden)
        with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as db:
            results.append(db.execute("SELECT * FROM rows ORDER BY 1, 2, 3, 4, 5").fetchall())
    assert {row[0] for row in results[0]} == {"Vanilla", "SVI"}
    assert len(results[0]) > 20
    assert results[0] == results[1]
