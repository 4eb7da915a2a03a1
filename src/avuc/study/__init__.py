"""Studies: methods × seeds × (validation, clean, shifts × severities, other data), stored in one SQLite file.

From the bottom to the top; a line imports only from lines above it:

own/             what the user brings: functions by import path (code.py), their digests, files of sentences
recipe/          TOML files (load.py, parser.py) as frozen dataclasses (config.py, sections.py), and back to TOML
grid.py, net.py  what to train and evaluate, in which order; the network of a recipe
data/            every set of a study (sets.py): the user's own, shifted ones, photographs
store/           `Store` (store.py): study.sqlite, its records, its integrity, and a small copy to publish (export.py)
evaluation/      one model on one data set (judge.py): metrics, conformal sets, examples for the report
cost.py          how long a study takes
worker.py        the work of one process: train, fit calibrators, evaluate
trial/           tries the user's code on one batch before anything is trained
engines/         `run_study` (run.py) on the local engine or on Ray
from_python.py   `run`: a study from Python objects; demo.py: the study of `avuc demo`

Importing this package loads no torch, nor do grid and the modules that read a study's file: those of store/ except
checkpoints, and keys, names, other_data, portable, tables and toml of recipe/.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avuc.study.engines.run import ENGINES, run_study
    from avuc.study.from_python import run
    from avuc.study.recipe.config import Recipe
    from avuc.study.recipe.load import load_recipe
    from avuc.study.store.store import Store

__all__ = ["ENGINES", "Recipe", "Store", "load_recipe", "run", "run_study"]

_HOME = {
    "ENGINES": "engines.run",
    "Recipe": "recipe.config",
    "Store": "store.store",
    "load_recipe": "recipe.load",
    "run": "from_python",
    "run_study": "engines.run",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'avuc.study' has no attribute {name!r}")
    value: object = getattr(import_module(f"avuc.study.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
