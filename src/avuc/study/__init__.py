"""Studies: methods × seeds × (validation, clean, shifts × severities, other data), stored in one SQLite file.

Recipes:   config.py (dataclasses), config_parser.py (the parser), recipe.py (recipe files), tables.py (type checks),
           keys.py (keys of older versions), toml.py (the writer), resumable.py (which changes a study may resume with)
Plan:      grid.py (what to train and evaluate), cost.py (how long it takes)
Work:      engine.py (`run_study`), from_python.py (`run`), local.py and ray.py (the engines), worker.py (train, fit,
           evaluate), judge.py (one model on one set of images), validation_fit.py, background.py (threads), claims.py
           (locks), net.py, sets.py, photographs.py, checkpoints.py
Own code:  own_code.py (import paths), own_data.py, own_shift.py, own_digest.py, trial.py (tries it on one batch),
           starter.py (files to start from)
Results:   store.py (`Store`), file.py, schema.py, integrity.py, records.py, stored_recipe.py, examples.py, export.py,
           portable.py

Importing this package loads no torch, nor do the modules that read a study's file: store, file, schema, integrity,
records, grid, stored_recipe, other_data, portable, export, keys, tables, names and toml.
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
