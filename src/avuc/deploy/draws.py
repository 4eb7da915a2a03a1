"""The samples of a posterior with fixed weights, as one module from inputs to logits (S, N, C).

If the samples differ only in the last linear layer, the module stores and runs the network before it once. Otherwise
there is one copy of the network for each sample; weights that are not sampled are shared by the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import WeightDraw
from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy, private_copy
from avuc.methods.dropout import MaskDraw
from avuc.nets.trace import trace
from avuc.posterior import Draw, NetDraw, Posterior
from avuc.prediction.backends.backend import net_with_weights
from avuc.prediction.backends.dropout_masks import Shapes, mask_shapes, masked_net, masks_of
from avuc.prediction.backends.shared_trunk import is_plain_linear, sampled_layer
from avuc.prediction.model import sample_of
from avuc.prediction.outputs import Logits, logits_of

Inputs = Tensor | Mapping[str, Tensor]


class Copies(nn.Module):
    """One network for each sample."""

    def __init__(self, nets: list[nn.Module], logits: Logits | None) -> None:
        super().__init__()
        self.nets: nn.ModuleList = nn.ModuleList(nets)
        self.logits: Logits | None = logits
        self.samples: int = len(nets)

    def forward(self, inputs: Inputs) -> Tensor:
        if self.samples == 1:
            return torch.stack([_output(self.nets[0], inputs, self.logits)])
        # a network may change its input in place, such as x -= mean
        return torch.stack([_output(net, _copy(inputs), self.logits) for net in self.nets])


class SharedTrunk(nn.Module):
    """The network up to its last layer, and the last layers (S, C, F) of all samples."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, trunk: nn.Module, weight: Tensor, bias: Tensor | None, flat: bool) -> None:
        super().__init__()
        self.trunk: nn.Module = trunk
        self.flat: bool = flat
        self.samples: int = len(weight)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, inputs: Inputs) -> Tensor:
        features = _output(self.trunk, inputs)
        if self.flat and features.ndim != 2:
            raise InputError(f"dropout before the last layer needs features (N, F), found {tuple(features.shape)}")
        logits = torch.einsum("n...f,scf->sn...c", features, self.weight)
        if self.bias is None:
            return logits
        samples, classes = self.bias.shape
        return logits + self.bias.view(samples, *[1] * (features.ndim - 1), classes)


class Function(nn.Module):
    """A sample that is any function of the inputs; whether it can be exported depends on it."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, inputs: Any) -> Any:
        return self.draw(inputs)


@torch.no_grad()
def fixed_draws(
    posterior: Posterior, samples: int, seed: int, example: Inputs | None, logits: Logits | None = None
) -> Copies | SharedTrunk:
    """Return the first samples of a posterior as one module.

    Args:
        posterior: the posterior; it is copied, so later training does not change the module.
        samples: number of samples, at most as many as the posterior has.
        seed: seed of the samples, as in `predict`.
        example: one input, for dropout masks whose shape depends on it.
        logits: returns the logits from the output of the network; None: see `logits_of`.
    """
    tensors = [*posterior.parameters(), *posterior.buffers()] if isinstance(posterior, nn.Module) else []
    device = tensors[0].device if tensors else torch.device("cpu")
    count = samples if posterior.num_draws is None else min(samples, posterior.num_draws)
    draws = [sample_of(posterior, index, seed, device) for index in range(count)]
    shared = _shared_trunk(draws) if count > 1 and logits is None else None
    if shared is not None:
        return shared
    bases: dict[int, tuple[nn.Module, Shapes]] = {}
    return Copies([_network(draw, bases, example) for draw in draws], logits)


def _network(draw: Draw, bases: dict[int, tuple[nn.Module, Shapes]], example: Inputs | None) -> nn.Module:
    """Return one sample as a network; `bases` has a copy of each network that several samples share."""
    if isinstance(draw, MaskDraw):
        if id(draw.net) not in bases:
            bases[id(draw.net)] = _masked(draw, example)
        base, shapes = bases[id(draw.net)]
        net, device = private_copy(base, share_buffers=True), next(draw.net.parameters()).device
        for name, mask in masks_of(draw, shapes, device).items():
            layer = net.get_submodule(name.rpartition(".")[0])
            layer.register_buffer("mask", mask.clone())
        return net
    if isinstance(draw, WeightDraw) and draw.bayesian.recurrent:
        plain: nn.Module = draw.bayesian._plain(draw.weights)  # type: ignore[attr-defined]
        return plain.eval()
    if isinstance(draw, nn.Module):
        draw = NetDraw(draw, {})
    with_weights = net_with_weights(draw)
    if with_weights is None:
        return Function(draw)
    if id(with_weights.key) not in bases:
        bases[id(with_weights.key)] = (deep_copy(with_weights.build()).eval(), {})
    net = private_copy(bases[id(with_weights.key)][0], share_buffers=True)
    places = _places(net)
    for name, value in with_weights.weights.items():
        fixed = value.detach().clone()
        for layer, leaf in places[name]:
            if leaf in layer._parameters:
                fixed = fixed if isinstance(fixed, nn.Parameter) else nn.Parameter(fixed, requires_grad=False)
                layer._parameters[leaf] = fixed
            else:
                layer._buffers[leaf] = fixed
    return net


def _places(net: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return by name every layer and attribute that holds a weight or buffer: a tied one has several places.

    Some samples, such as those of SWAG, name a tied weight only once.
    """
    tensors = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    together: dict[int, list[tuple[nn.Module, str]]] = {}
    for name, tensor in tensors:
        owner, _, leaf = name.rpartition(".")
        together.setdefault(id(tensor), []).append((net.get_submodule(owner), leaf))
    return {name: together[id(tensor)] for name, tensor in tensors}


def _masked(draw: MaskDraw, example: Inputs | None) -> tuple[nn.Module, Shapes]:
    net = masked_net(draw.net)
    if net is None:
        raise InputError("these dropout layers share a layer or have other hooks, so their masks cannot be fixed")
    if example is None:
        raise InputError(
            "dropout masks have the shape of each layer's input: give one input of the network, example=images[:1]"
        )
    shapes = mask_shapes(draw, **example) if isinstance(example, Mapping) else mask_shapes(draw, example[:1])
    if shapes is None:
        raise InputError("a layer with dropout is not called exactly once, so its masks cannot be fixed")
    return net.requires_grad_(False), shapes


def _shared_trunk(draws: list[Draw]) -> SharedTrunk | None:
    """Return the module for samples that differ in the last linear layer only; None if they do not."""
    layer = sampled_layer(draws[0])
    if layer is None:
        return None
    dropout = isinstance(draws[0], MaskDraw)
    first = net_with_weights(draws[0])
    net = draws[0].net if isinstance(draws[0], MaskDraw) else first.build() if first is not None else None
    if net is None or not layer or not is_plain_linear(net, layer, dropout) or not _ends_with(net, layer):
        return None
    weights, biases = [], []
    last = net.get_submodule(layer)
    assert isinstance(last, nn.Linear)
    for draw in draws:
        if sampled_layer(draw) != layer:
            return None
        with_weights = net_with_weights(draw)
        if with_weights is not None:
            if first is None or with_weights.key is not first.key:
                return None
            weights.append(with_weights.weights.get(f"{layer}.weight", last.weight))
            biases.append(with_weights.weights.get(f"{layer}.bias", last.bias))
        else:
            assert isinstance(draw, MaskDraw)
            (mask,) = masks_of(draw, {layer: (last.in_features,)}, last.weight.device).values()
            weights.append(last.weight * mask.to(last.weight.dtype))
            biases.append(last.bias)
    trunk = deep_copy(net).eval().requires_grad_(False)
    owner, _, leaf = layer.rpartition(".")
    setattr(trunk.get_submodule(owner), leaf, nn.Identity())
    bias = None if last.bias is None else torch.stack([each.detach() for each in biases])
    return SharedTrunk(trunk, torch.stack([each.detach() for each in weights]), bias, dropout)


def _ends_with(net: nn.Module, layer: str) -> bool:
    """Return whether the output of the network is the output of this layer, which is called once."""
    traced = trace(net)
    if traced is None:
        return False
    nodes = list(traced.graph.nodes)
    calls = [node for node in nodes if node.op == "call_module" and node.target == layer]
    return len(calls) == 1 and nodes[-1].args[0] is calls[0]


def _copy(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: value.clone() for name, value in inputs.items()}
    return inputs.clone()


def _output(net: nn.Module, inputs: Inputs, logits: Logits | None = None) -> Tensor:
    out = net(**inputs) if isinstance(inputs, Mapping) else net(inputs)
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return logits_of(out, first.shape[0], logits)
