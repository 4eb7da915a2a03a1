"""A posterior prints the layers of its network, and the digest of a run is that of earlier versions."""

from __future__ import annotations

import copy
import hashlib

import torch
from torch import nn

from avuc import to_bayesian
from avuc.training.identity import _digest


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Linear(4, 3),
        nn.Linear(3, 3, bias=False),
        nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "gru": nn.GRU(3, 4)}),
        nn.Bilinear(2, 3, 4),
        nn.TransformerEncoderLayer(8, 2, 16),
    )


def body(text: str) -> list[str]:
    return [line.strip().removeprefix("(module): ") for line in text.splitlines()]


def test_the_layers_are_those_of_the_network() -> None:
    net = layers()
    for chosen in ("all", "last", lambda name, module: isinstance(module, nn.Linear)):
        made = to_bayesian(net, layers=chosen)
        before = {name: id(value) for name, value in made.named_parameters()}
        assert body(repr(made))[2:-1] == body(repr(net))
        assert {name: id(value) for name, value in made.named_parameters()} == before
        assert made.module[2].weight is None or chosen == "last"
    outer = nn.Sequential(nn.ReLU(), to_bayesian(nn.Linear(2, 3)))
    assert "Linear(in_features=2, out_features=3, bias=True)" in repr(outer)


def test_a_layer_with_two_names_and_one_that_prints_its_weight() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def extra_repr(self) -> str:
            return f"size={tuple(self.weight.shape)}"

    shared = nn.Linear(3, 3)
    made = to_bayesian(nn.Sequential(shared, Scale(), shared))
    assert repr(made).count("Linear(in_features=3, out_features=3, bias=True)") == 2
    assert "Scale(size=(3,))" in repr(made)
    assert repr(copy.deepcopy(made)) == repr(made)


def test_checkpoints_of_earlier_versions_have_the_same_digest() -> None:
    text = (
        "BayesianModule(\n  mean_field, weight, 15 variational weights in 2 tensors\n"
        "  (module): Linear(in_features=4, out_features=3, bias=False)\n)"
    )
    made = to_bayesian(nn.Linear(4, 3))
    assert _digest(made) == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert "bias=True" in repr(made)
    outer = nn.Sequential(to_bayesian(layers()))
    assert _digest(outer) == hashlib.sha256(f"Sequential(\n  (0): {inner(outer[0])}\n)".encode()).hexdigest()[:12]
    assert repr(outer).count("bias=False") == 1


def inner(module: nn.Module) -> str:
    """The text of earlier versions, as a child."""
    return nn.Module.__repr__(module).replace("\n", "\n  ")
