"""A tiny study on real digits, seconds long, and the means to run it in a process of its own and to kill that."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
import torch

from avuc.core.errors import InputError
from avuc.study import Store, load_recipe, run_study

RECIPE = """
[study]
name = "tiny"
samples = 4
shifts = ["gaussian_noise", "contrast"]
severities = [1, 5]
ood = ["photographs"]

[data]
source = "npz"
root = "{root}"
validation = 150
test_images = 120
split_seed = 3

[net]
name = "mlp"
hidden = [16]

[train]
epochs = 4
batch_size = 50
learning_rate = 2e-3
milestones = []
factors = []
pad = 0
flip = false
checkpoint_seconds = 0.0

[[methods]]
name = "Vanilla"
method = "vanilla"

[[methods]]
name = "TS"
reuse_model = "Vanilla"
calibrator = "temperature"

[[methods]]
name = "Ensemble"
method = {{ kind = "ensemble", members = 2 }}

[[methods]]
name = "SVI"
method = {{ kind = "svi", initial_std = 0.02 }}
objective = {{ kl_weight = 0.1 }}

[[methods]]
name = "SVI-AvUTS"
reuse_model = "SVI"
calibrator = {{ kind = "avuts", weight = 1.0 }}

[[methods]]
name = "SVI, 2 draws"
reuse_model = "SVI"
samples = 2

[[methods]]
name = "SVI-AvUC"
method = {{ kind = "svi", initial_std = 0.02 }}
objective = {{ kind = "avuc", warmup_epochs = 1, kl_weight = 0.1 }}
init_from = "Vanilla"
"""


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory):
    """1,797 real digits, 8×8, as a user's own file."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    parts = {"x_train": pixels[:500], "y_train": labels[:500], "x_test": pixels[500:800], "y_test": labels[500:800]}
    np.savez(path, **parts)
    return path


@pytest.fixture(scope="session")
def recipe_file(digits_file):
    path = digits_file.with_name("tiny.toml")
    path.write_text(RECIPE.format(root=digits_file))
    return path


@pytest.fixture(scope="session")
def recipe(recipe_file):
    return load_recipe(recipe_file)


@pytest.fixture(scope="session")
def undisturbed(recipe, tmp_path_factory):
    """The folder of a study that nobody interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_study(recipe, folder, device="cpu", progress=False).close()
    return folder


def _study(recipe, folder: str, engine: str, fatal: tuple[str, int] | None, device: str) -> None:
    """In a process of its own. `fatal`: ("commit" or "rename", n): die in the n-th write of that kind."""
    torch.set_num_threads(1)
    if fatal is not None:
        _die_in(*fatal)
    try:
        run_study(recipe, folder, engine=engine, device=device, progress=False).close()
    except InputError as error:
        print(f"avuc: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def _die_in(write: str, number: int) -> None:
    counted = itertools.count(1)

    def dying(real):
        def wrapped(*arguments, **options):
            if next(counted) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return wrapped

    if write == "rename":  # everything is on the disk but the name
        Path.replace = dying(Path.replace)  # type: ignore[method-assign]
    else:  # everything is written but not committed
        real = Store._writing

        @contextlib.contextmanager
        def writing(self):
            with real(self):
                yield
                if next(counted) == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        Store._writing = writing  # type: ignore[method-assign]


class StudyProcess:
    """The tiny study in a process that can be killed. A server that has imported everything forks them off."""

    def __init__(self, recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.context = multiprocessing.get_context("forkserver")

    def start(self, engine: str = "local", fatal: tuple[str, int] | None = None, device: str = "cpu"):
        process = self.context.Process(target=_study, args=(self.recipe, str(self.folder), engine, fatal, device))
        process.start()
        return process

    def finish(self, engine: str = "local", fatal: tuple[str, int] | None = None) -> int:
        process = self.start(engine, fatal)
        process.join(120)
        assert process.exitcode is not None, "the study got stuck"
        return process.exitcode

    def cells(self) -> dict[tuple[str, int, str, int], tuple[int, float]]:
        """What is finished: in which run, in how many seconds. A cell that is done again has other numbers."""
        return self._read("SELECT method, seed, shift, severity, run, seconds FROM cells", 4)

    def models(self) -> dict[tuple[str, int], tuple[int, float]]:
        return self._read("SELECT method, seed, run, seconds FROM models", 2)

    def _read(self, query: str, keys: int) -> dict:
        if not (self.folder / "study.sqlite").exists():
            return {}
        with contextlib.closing(sqlite3.connect(self.folder / "study.sqlite", timeout=60)) as db:
            try:
                return {row[:keys]: row[keys:] for row in db.execute(query)}
            except sqlite3.OperationalError:  # killed before the tables were there
                return {}


@pytest.fixture
def process(recipe, tmp_path):
    return StudyProcess(recipe, tmp_path / "study")


def everything(folder: Path) -> dict[str, list]:
    """All that a study found out, without the times it took."""
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as db:
        queries = {
            "rows": "SELECT * FROM rows ORDER BY 1, 2, 3, 4, 5",
            "curves": "SELECT * FROM curves ORDER BY 1, 2, 3, 4, 5",
            "calibrators": "SELECT * FROM calibrators ORDER BY 1, 2",
            "entropies": "SELECT * FROM entropies ORDER BY 1, 2",
            "cells": "SELECT method, seed, shift, severity, rows, samples FROM cells ORDER BY 1, 2, 3, 4",
            "models": "SELECT method, seed, epochs, threshold FROM models ORDER BY 1, 2",
        }
        found = {name: db.execute(query).fetchall() for name, query in queries.items()}
        history = db.execute("SELECT * FROM history ORDER BY 1, 2, 3, 4").fetchall()
    timeless = [
        (*row[:4], {k: v for k, v in json.loads(row[4]).items() if k not in ("seconds", "images_per_second")})
        for row in history
    ]
    return {**found, "history": timeless}


@pytest.fixture
def everything_in():
    return everything


@pytest.fixture
def same_study(undisturbed):
    """Whether a study has found exactly what the undisturbed one found."""

    def check(folder: Path) -> None:
        expected, found = everything(undisturbed), everything(folder)
        for name in expected:
            assert found[name] == expected[name], name

    return check
