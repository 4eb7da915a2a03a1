"""A study in the folder of another one is refused if only a value differs that a network or a shift carries."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.methods import Vanilla
from avuc.study import run
from avuc.study.own.digest import begin, code_digest
from avuc.study.own.values import carried_by
from avuc.train import TrainSettings, fit

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)
STRENGTH, CALLS, DEVICE = 0.5, 0, "cpu"


@dataclasses.dataclass
class Config:
    strength: Any


class Scaled(nn.Module):
    def __init__(self, factor: float, rate: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(rate), nn.Linear(16, 2))
        self.factor = factor
        self.functions = [torch.relu]

    def forward(self, x):
        return self.layers(x) * self.factor


class Darker:
    def __init__(self, strength: Any) -> None:
        self.strength = strength

    def __call__(self, batch, severity, generator):
        return (batch * float(self.strength)).to(torch.uint8)


def darker(batch, severity, generator, strength=1.0):
    return (batch * float(strength)).to(torch.uint8)


def nested(config: Any):
    def shift(batch, severity, generator):
        return darker(batch, severity, generator, config.strength)

    return shift


def reads_numbers(batch, severity, generator):
    global CALLS
    CALLS += 1
    return (batch.to(DEVICE) * STRENGTH).to(torch.uint8)


def small(out, **changes):
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randint(256, (60, 4, 4, 1), dtype=torch.uint8, generator=generator), torch.arange(60) % 2
    data = {"train": (images[:40], labels[:40]), "test": (images[40:], labels[40:])}
    given = {"methods": {"plain": Vanilla()}, "data": data, "net": Scaled(1.0), "train": TRAIN, "severities": [1]}
    run(out=out, **{**given, "device": "cpu", "progress": False, **changes}).close()


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("net", Scaled(1.0), Scaled(2.0)),
        ("net", Scaled(1.0, rate=0.1), Scaled(1.0, rate=0.2)),
        ("shifts", Darker(torch.tensor(0.2)), Darker(torch.tensor(0.4))),
        ("shifts", nested(Config(0.2)), nested(Config(0.4))),
    ],
)
def test_an_old_result_is_not_given_for_another_value(tmp_path, key, one, other):
    small(tmp_path, **{key: [one] if key == "shifts" else one})
    small(tmp_path, **{key: [one] if key == "shifts" else one})
    with pytest.raises(InputError, match=f"the code of object:{key.removesuffix('s')} has changed"):
        small(tmp_path, **{key: [other] if key == "shifts" else other})


@pytest.mark.parametrize(
    "kind", [float, np.float32, np.float64, np.array, torch.tensor, Config, lambda x: SimpleNamespace(strength=x)]
)
def test_every_kind_of_value_counts(kind):
    for make in (lambda value: functools.partial(darker, strength=value), nested, Darker):
        digests = []
        for value in (0.1, 0.2, 0.1):
            begin()
            digests.append(code_digest(make(kind(value))))
        assert digests[0] == digests[2] != digests[1]


def test_numbers_of_the_module_count_if_they_are_only_read(monkeypatch):
    before = carried_by(reads_numbers)
    monkeypatch.setattr(f"{__name__}.CALLS", 7)
    monkeypatch.setattr(f"{__name__}.DEVICE", "cuda")
    assert carried_by(reads_numbers) == before == "{'STRENGTH': 0.5}"
    monkeypatch.setattr(f"{__name__}.STRENGTH", 0.6)
    assert carried_by(reads_numbers) != before


def test_addresses_of_functions_and_objects_do_not_count():
    assert "0x" not in carried_by(Scaled(1.0))
    assert carried_by(nested(argparse.ArgumentParser())) == "{'config': ArgumentParser}"


def test_the_network_of_a_function_is_not_changed():
    net = Scaled(1.0)
    rows = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    settings = dataclasses.replace(TRAIN, freeze_trunk=True)
    fit(Vanilla(), lambda generator: net, rows, settings=settings, progress=False)
    assert all(weight.requires_grad for weight in net.parameters())
