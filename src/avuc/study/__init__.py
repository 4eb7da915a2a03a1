"""The study: methods × seeds × (validation, clean, shifts × severities, other data) → rows in one SQLite file.

parts.py     what a recipe consists of;  recipe.py  reads one;  tables.py  checks its tables;  toml.py  writes one
grid.py      what there is to train and to judge
sets.py      the images of a cell;  photographs.py  patches of pictures that come with scikit-learn
judge.py     one model on one set: every variant of it from one pass over the draws
work.py      what a process does: train, fit calibrators, judge
store.py     the SQLite file;  claims.py  who works on what
engine.py    run_study;  local.py, ray.py  the engines
cost.py      what a study will cost, before it runs
"""

from avuc.study.engine import ENGINES, run_study
from avuc.study.recipe import Recipe, load_recipe
from avuc.study.store import Store

__all__ = ["ENGINES", "Recipe", "Store", "load_recipe", "run_study"]
