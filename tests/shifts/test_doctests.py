"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from avuc import shifts

MODULES = ["avuc.shifts", *(f"avuc.shifts.{module.name}" for module in pkgutil.iter_modules(shifts.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
