"""The examples in the docstrings and in docs/guide/shifts.md and docs/guide/data.md run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

from avuc import shifts

MODULES = ["avuc.shifts", *(f"avuc.shifts.{module.name}" for module in pkgutil.iter_modules(shifts.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", ["data.md", "shifts.md"])
def test_pages(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifts, "SHIFTS", dict(shifts.SHIFTS))  # shifts.md adds a shift
    path = Path(__file__).parents[2] / "docs" / "guide" / page
    results = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert results.attempted > 5
    assert results.failed == 0
