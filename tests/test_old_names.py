"""Every public name of version 0.1.0 still imports from where it was."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import avuc
from avuc._old_names import MODULES, NAMES

# the `__all__` of every module of version 0.1.0
RELEASED: dict[str, list[str]] = json.loads(Path(__file__).with_name("names_0_1_0.json").read_text(encoding="utf-8"))

# helpers inside the readers of saved predictions, rewritten since, and of a kernel that was not worth its code; nothing
# documented them
REMOVED = {
    "avuc.kernels.norm.reason_against",
    "avuc.metrics.checks.check_rows",
    "avuc.scores.checks.check_labels",
    "avuc.scores.checks.check_scores",
    "avuc.scores.checks.settle_kind",
    "avuc.scores.columns.LABEL_COLUMNS",
    "avuc.scores.csv.labels_csv",
    "avuc.scores.parquet.labels_parquet",
    "avuc.study.parts.slug",
}


@pytest.mark.parametrize("module", sorted(RELEASED))
def test_names_of_0_1_0_still_import(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        home = importlib.import_module(module)
        for name in RELEASED[module]:
            if f"{module}.{name}" not in REMOVED:
                assert getattr(home, name) is not None


def test_a_moved_name_says_where_it_is() -> None:
    with pytest.warns(DeprecationWarning, match=r"avuc\.draws\.Posterior is now avuc\.posterior\.Posterior"):
        from avuc.draws import Posterior
    from avuc.posterior import Posterior as today

    assert Posterior is today


def test_an_unknown_name_of_a_moved_module_is_an_attribute_error() -> None:
    home = importlib.import_module("avuc.draws")
    with pytest.raises(AttributeError, match=r"module 'avuc\.draws' has no attribute 'nonsense'"):
        _ = home.nonsense
    with pytest.raises(ImportError):
        importlib.import_module("avuc.nonsense")


def test_a_leftover_folder_hides_nothing(tmp_path: Path, fresh_python: Any) -> None:
    """An updated checkout keeps folders of moved packages with compiled files; Python takes them for packages."""
    shutil.copytree(Path(avuc.__file__).parent, tmp_path / "avuc", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "avuc" / "scores" / "__pycache__").mkdir(parents=True)
    code = (
        "import sys, warnings; sys.path.insert(0, sys.argv[1]); warnings.simplefilter('ignore')\n"
        "import avuc.scores, avuc.evaluation.files as files; assert avuc.scores.read_scores is files.read_scores\n"
        "assert avuc.__file__.startswith(sys.argv[1])"
    )
    fresh_python(code, tmp_path).check_returncode()


def test_no_moved_module_exists() -> None:
    source = Path(avuc.__file__).parents[1]
    for module in MODULES:
        path = source.joinpath(*module.split("."))
        assert not path.with_suffix(".py").exists(), module
        assert not (path / "__init__.py").exists(), module


def test_the_table_has_no_dead_line() -> None:
    for module in MODULES:
        assert module in RELEASED or any(name.startswith(f"{module}.") for name in RELEASED), module
    for old in NAMES:
        module, _, name = old.rpartition(".")
        assert name in RELEASED.get(module, ()), old
