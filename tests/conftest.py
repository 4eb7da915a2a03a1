"""Shared by all tests: one thread, so that runs repeat exactly; the reason a GPU test or a slow one skips."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("avuc", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("avuc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        later = pytest.mark.skip(reason="takes minutes; give --slow to run it")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(later)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device and this machine has none")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
