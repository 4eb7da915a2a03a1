"""Lazy layers in a study: the line has the names of the user's network and of its layer."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.methods import SVI, SWAG, Ensemble, Vanilla
from avuc.study import run
from avuc.train import TrainSettings

INPUTS, LABELS = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
TRAIN = TrainSettings(epochs=4, batch_size=20, milestones=(), factors=(), pad=0, flip=False)


def lazy_net(num_classes):
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, num_classes))


def normalised(num_classes):
    return nn.Sequential(nn.Linear(3, 8), nn.LazyBatchNorm1d(), nn.Linear(8, num_classes))


def study(out, **changes):
    given = {"methods": {"M": Vanilla()}, "net": lazy_net, "train": TRAIN, **changes}
    data = {"train": (INPUTS, LABELS), "test": (INPUTS[:30] + 0.5, LABELS[:30])}
    return run(out=out, data=data, validation=20, samples=1, device="cpu", progress=False, **given)


@pytest.mark.parametrize(
    ("changes", "tensor", "needed_by"),
    [
        ({"methods": {"M": SVI()}}, "'0.weight' (LazyLinear)", "methods.M"),
        ({"methods": {"M": SWAG(start=0.0)}}, "'0.weight' (LazyLinear)", "methods.M"),
        ({"train": replace(TRAIN, ema_decay=0.9)}, "'0.weight' (LazyLinear)", "methods.M"),
        ({"net": normalised}, "'1.running_mean' (LazyBatchNorm1d)", "a study"),
    ],
)
def test_lazy_layers_are_named_before_anything_is_trained(tmp_path, changes, tensor, needed_by):
    """The line named AnyInputs, a class of the study, or torch's `__deepcopy__`."""
    function = changes.get("net", lazy_net)
    name = f"{function.__module__}:{function.__name__}"
    line = (
        f"net.name: {name}: {tensor} has no shape before the first batch, and {needed_by} needs one; run a batch "
        f"through the network before {name} returns it, such as net(torch.zeros(2, 3))"
    )
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        study(tmp_path, **changes)
    assert not (tmp_path / "models").exists()


def test_lazy_layers_work_where_the_first_batch_gives_their_shape(tmp_path):
    study(tmp_path, methods={"V": Vanilla(), "E": Ensemble(members=2)}).close()
