"""The package loads its names when they are used, and its NumPy-only modules do not load torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from avuc import metrics

NUMPY_ONLY = (
    "arrays",
    "binning",
    "detection",
    "log_histogram",
    "rank_correlation",
    "resampling.percentile",
    "sorted_samples",
    "ties",
)


def test_numpy_only_modules_do_not_load_torch() -> None:
    imports = "; ".join(f"import avuc.metrics.{name}" for name in NUMPY_ONLY)
    use = "from avuc.metrics import spearman, detection; spearman([1, 2], [2, 1]); detection([0.1], [0.2])"
    code = f"import sys; {imports}; {use}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_lazy_names_are_the_typed_ones() -> None:
    """The table that loads names and the imports that type checkers read are the same."""
    assert metrics.__file__ is not None
    typed, unlisted = {}, set()
    for node in ast.walk(ast.parse(Path(metrics.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("avuc.metrics."):
            typed.update({alias.name: node.module.removeprefix("avuc.metrics.") for alias in node.names})
            unlisted |= {alias.name for alias in node.names if alias.asname}  # importable, but not public
    assert typed == metrics._HOME
    assert set(typed) - unlisted == set(metrics.__all__)


@pytest.mark.parametrize("name", ["avu", "detection", "intervals"])
def test_a_function_wins_over_the_module_of_its_name(name: str, fresh_python: Any) -> None:
    """Loading the module first must not replace the function."""
    code = f"import avuc.metrics.{name}; from avuc import metrics; import sys; sys.exit(not callable(metrics.{name}))"
    fresh_python(code).check_returncode()
    assert not isinstance(getattr(metrics, name), ModuleType)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'avuc\.metrics' has no attribute 'nonsense'"):
        _ = metrics.nonsense
