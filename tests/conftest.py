"""Shared by all tests: one thread, so that runs repeat exactly; the reason a GPU test skips."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("avuc", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("avuc")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" not in config.getoption("markexpr"):
        skip = pytest.mark.skip(reason="a long campaign; run it with -m slow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device and this machine has none")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
