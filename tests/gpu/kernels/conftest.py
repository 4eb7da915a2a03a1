"""`emulated(source, defines)`: a kernel source as a program for the CPU; see emulated.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("emulated", Path(__file__).with_name("emulated.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def emulated() -> Callable[..., Any]:
    module = _module()
    if module.COMPILER is None:
        pytest.skip("needs a C++ compiler (g++)")
    return module.emulated
