"""Before training, every method takes one step on the study's device; the network alone has run on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.methods import SVI, Dropout, Vanilla
from avuc.study import run
from avuc.study.engines import run as engine
from avuc.study.trial import net as trial_net
from avuc.train import TrainSettings

INPUTS, LABELS = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)


class Watched(nn.Linear):
    """A network that writes down where it ran, and whether for training."""

    seen: list[tuple[str, bool]]

    def forward(self, inputs):
        self.seen.append((inputs.device.type, torch.is_grad_enabled()))
        return super().forward(inputs)


def study(out, net, device):
    data = {"train": (INPUTS, LABELS), "test": (INPUTS[:30] + 0.5, LABELS[:30])}
    methods = {"V": Vanilla(), "S": SVI(), "D": Dropout()}
    return run(
        out=out,
        methods=methods,
        data=data,
        net=net,
        train=TRAIN,
        validation=20,
        samples=1,
        device=device,
        progress=False,
    )


class Stopped(Exception):
    """Ends a study after its trial."""


def test_steps_are_taken_where_the_study_trains(tmp_path, monkeypatch):
    """A step of a large network takes minutes on a CPU, before a GPU has anything to do."""
    Watched.seen, devices = [], []

    def take_step(recipe, config, net, batch, labels, rows, device):
        devices.append(str(device))
        if config.name == "D":
            raise Stopped

    monkeypatch.setattr(engine, "devices_for", lambda device: ["cuda:1", "cuda:0"])
    monkeypatch.setattr(trial_net, "take_step", take_step)
    with pytest.raises(Stopped):
        study(tmp_path, lambda num_classes: Watched(3, num_classes), "auto")
    assert devices == ["cuda:1"] * 3
    assert {kind for kind, _ in Watched.seen} == {"cpu"}
    assert not any(training for _, training in Watched.seen)


@pytest.mark.gpu
def test_steps_on_a_gpu(tmp_path):
    Watched.seen = []
    study(tmp_path / "whole", lambda num_classes: Watched(3, num_classes), "cuda").close()
    assert {kind for kind, training in Watched.seen if training} == {"cuda"}

    class OnlyOnCpu(Watched):
        def forward(self, inputs):
            return super().forward(inputs) + torch.zeros(3)

    with pytest.raises(InputError, match=r"methods\.V: a step on one batch failed: .*device"):
        study(tmp_path / "refused", lambda num_classes: OnlyOnCpu(3, num_classes), "cuda")
