"""What the tests of the published study share: the paper's figures, and what a published file may hold."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avuc.report.study.paper_comparison import Published, read_published
from avuc.study.grid import CLEAN, ModelKey, Plan
from avuc.study.recipe.load import load_recipe
from avuc.study.store.integrity import check
from avuc.study.store.records import MetricsAndCurves
from avuc.study.store.store import Evaluation, Store, Trained

MADE_UP_METRICS = ("nll", "ece", "uce", "brier", "aurc", "avu_auc", "accuracy", "auroc")
PICTURES = (b"\x89PNG\r\n", b"iVBORw0KGgo", b"JFIF\0", b"/9j/4AAQ", b"WEBPVP8")


@pytest.fixture(scope="session")
def home() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def paper_file(home: Path) -> Path:
    return home / "reproduction" / "results" / "paper" / "tables.csv"


@pytest.fixture(scope="session")
def printed(paper_file: Path) -> list[Published]:
    return read_published(paper_file)


@pytest.fixture(scope="session")
def published_studies(home: Path) -> dict[str, Any]:
    """The committed studies of CIFAR-10 by name, read once: it takes seconds. Tests only read them."""
    from make_reproduction import read_studies

    return read_studies(home / "reproduction" / "results" / "cifar10")


@pytest.fixture(scope="session")
def make_up() -> Callable[..., None]:
    """Write a study of random numbers on two shifts; `keep` says which methods have results."""

    def write(folder: Path, recipe: str | Path, *changes: str, keep: Callable[[str], bool] = lambda name: True) -> None:
        rng = np.random.default_rng(sum(map(ord, folder.name)))
        two = ['study.shifts=["fog", "contrast"]', 'study.ood=["svhn", "cifar100"]']
        loaded = load_recipe(recipe, [*two, *changes])
        folder.mkdir(parents=True, exist_ok=True)
        store = Store(folder)
        store.adopt(loaded)
        about = {"versions": {"torch": "2.11.0"}, "revision": "a" * 40, "hardware": {"gpus": [], "processor": "one"}}
        store.begin(engine="local", device="cpu", recipe=loaded, about=about)
        done = store.done()
        for row in (row for row in loaded.methods if keep(row.name)):
            for seed in loaded.seeds(row):
                if row.method is not None and (row.name, seed) not in {key[:2] for key in done}:
                    history = [{"member": 0, "epoch": 0, "seconds": 1.0, "images_per_second": 9.0, "accuracy": 0.8}]
                    store.add_model(Trained(ModelKey(row.name, seed), history, 1, 1.0, 0.5))
                for one in Plan(loaded).sets:
                    if (row.name, seed, one.shift, one.severity) not in done:
                        values = {name: float(rng.random()) for name in MADE_UP_METRICS[:-1]} | {"threshold": 0.5}
                        values |= {"auroc": float(rng.random())} if one != CLEAN and one.shift != "validation" else {}
                        judged = MetricsAndCurves(values, {}, np.zeros(4, np.float32), 100, 8)
                        store.add_evaluations([Evaluation(row.name, seed, one, judged, 0.1, None, False, None, None)])
        store.finish(1.0)
        store.close()

    return write


@pytest.fixture(scope="session")
def remove() -> Callable[[Path, str], None]:
    """Remove results, as if the study had been cut off before them."""

    def delete(folder: Path, where: str) -> None:
        with closing(sqlite3.connect(folder / "study.sqlite")) as db:
            for table in ("rows", "cells"):
                db.execute(f"DELETE FROM {table} WHERE {where}")
            check(db)
            db.commit()

    return delete


@pytest.fixture(scope="session")
def has_pictures() -> Callable[[Path], bool]:
    """Whether a study's file, or what is still in its log, holds a picture."""

    def look(path: Path) -> bool:
        content = _everything(path)
        return any(sign in content for sign in PICTURES)

    return look


@pytest.fixture(scope="session")
def check_clean(has_pictures: Callable[[Path], bool]) -> Callable[[Path], None]:
    """Fails for a published folder with pictures, or with paths of the machine that it was made on."""

    def check(folder: Path) -> None:
        assert not has_pictures(folder / "study.sqlite"), folder
        content = _everything(folder / "study.sqlite")
        assert b"/somewhere/private" not in content
        assert not re.search(rb'(root|released|weights) = "[^"]+/', content)
        assert not list(folder.glob("study.sqlite-*"))
        recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
        assert not re.search(r'"(/|[A-Za-z]:\\|~)', recipe)

    return check


def _everything(path: Path) -> bytes:
    log = path.with_name(path.name + "-wal")
    return path.read_bytes() + (log.read_bytes() if log.exists() else b"")
