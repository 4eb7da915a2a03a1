"""Small real data and a quick way to train on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from avuc.data import Dataset
from avuc.nets import mlp, small_cnn


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """1,797 real digits, 8×8."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images * 255 / 16).round().to(torch.uint8).view(-1, 8, 8, 1)
    return Dataset(pixels, torch.from_numpy(labels).long(), 10, "digits")


@pytest.fixture(scope="session")
def train(digits: Dataset) -> Dataset:
    return digits.subset(range(500))


@pytest.fixture(scope="session")
def held_out(digits: Dataset) -> Dataset:
    return digits.subset(range(1000, 1300))


def plain(generator: torch.Generator) -> nn.Module:
    """Without batch normalisation."""
    return mlp(10, (8, 8, 1), hidden=(32,), generator=generator)


def normalised(generator: torch.Generator) -> nn.Module:
    """With batch normalisation."""
    return small_cnn(10, (8, 8, 1), width=4, generator=generator)


@pytest.fixture(params=[plain, normalised], ids=["plain", "normalised"])
def net(request: pytest.FixtureRequest) -> Callable[[torch.Generator], nn.Module]:
    factory: Callable[[torch.Generator], nn.Module] = request.param
    return factory


@pytest.fixture
def plain_net() -> Callable[[torch.Generator], nn.Module]:
    return plain


@pytest.fixture
def normalised_net() -> Callable[[torch.Generator], nn.Module]:
    return normalised
