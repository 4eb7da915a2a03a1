"""Fold batch normalisation into the convolution before it: the same function, with less memory traffic.

In evaluation mode batch normalisation is affine per channel, and a convolution is linear, so

    γ (w ∗ x + b − m)/√(v + ε) + β  =  (s w) ∗ x + ((b − m) s + β),        s = γ/√(v + ε).

This is exact, up to rounding, if the convolution's output goes into one batch normalisation and nowhere else.
`conv_bn_pairs` finds such pairs in any module by tracing its calls (trace.py). A module that cannot be traced is left
as it is. This is the only folding in the package; the GPU kernels get their weights from here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from avuc.core.private_copy import private_copy
from avuc.nets.trace import trace

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by name, including buffers that are not in the `state_dict`."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def conv_bn_pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Return the names (convolution, batch normalisation) of all pairs that can be folded exactly.

    >>> conv_bn_pairs(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()))
    [('0', '1')]
    """
    if not any(type(layer) in NORMALISATIONS for layer in module.modules()):
        return []
    traced = trace(module)
    if traced is None:
        return []
    graph, layers, read = traced
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    originals = dict(module.named_modules())  # with their hooks
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    owners.update(id(b) for _, b in module.named_buffers(remove_duplicate=False))
    pairs = []
    for node in graph.nodes:
        if node.op != "call_module" or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        if user.op != "call_module" or user.args != (node,):
            continue
        conv_name, bn_name = str(node.target), str(user.target)
        conv, bn = originals[conv_name], originals[bn_name]
        if (
            type(conv) in CONVOLUTIONS
            and type(bn) in NORMALISATIONS
            and calls[conv_name] == calls[bn_name] == 1
            and not any(id(tensor) in read for name in (conv_name, bn_name) for tensor in _own(layers[name]))
            and _can_fold(conv, bn, owners)
        ):
            pairs.append((conv_name, bn_name))
    return pairs


def _can_fold(conv: nn.Module, bn: nn.Module, owners: Counter[int]) -> bool:
    """Return whether nothing stands between the two layers, and their tensors are of one type and not shared.

    Hooks between the layers, a forward function of a layer's own, parametrisations and tied weights prevent folding. A
    hook before the convolution, such as dropout, changes only its input and does not.
    """
    weight, mean = conv._parameters.get("weight"), bn._buffers.get("running_mean")
    return (
        not conv._forward_hooks
        and not bn._forward_hooks
        and not bn._forward_pre_hooks
        and "forward" not in vars(conv)
        and "forward" not in vars(bn)
        and not parametrize.is_parametrized(conv)
        and isinstance(weight, Tensor)
        and mean is not None
        and weight.dtype == mean.dtype
        and all(owners[id(tensor)] == 1 for layer in (conv, bn) for tensor in _own(layer))
    )


def _own(layer: nn.Module) -> list[Tensor]:
    return [*layer.parameters(), *layer.buffers()]


@dataclass(frozen=True)
class Folded:
    """A copy of a module without the folded layers, and how its weights follow from those of the module.

    Attributes:
        module: the copy, in evaluation mode. Its own weights are meaningless; use `weights`.
        pairs: names (convolution, batch normalisation) that were folded.
        eps: the ε of each batch normalisation.
    """

    module: nn.Module
    pairs: tuple[tuple[str, str], ...]
    eps: tuple[float, ...]

    def affine(self, state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return scale s and shift (b − m) s + β of each pair; `state` is `state_of` the original module."""
        pairs = []
        for (conv, bn), eps in zip(self.pairs, self.eps, strict=True):
            scale = torch.rsqrt(state[f"{bn}.running_var"] + eps)
            if f"{bn}.weight" in state:
                scale = scale * state[f"{bn}.weight"]
            shift = -state[f"{bn}.running_mean"] * scale
            if f"{conv}.bias" in state:
                shift = shift + state[f"{conv}.bias"] * scale
            if f"{bn}.bias" in state:
                shift = shift + state[f"{bn}.bias"]
            pairs.append((scale, shift))
        return pairs

    def weights(
        self,
        state: Mapping[str, Tensor],
        affine: list[tuple[Tensor, Tensor]] | None = None,
        changed: Collection[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the weights of the copy.

        Args:
            state: every parameter and buffer of the original module (`state_of`), possibly with new values.
            affine: the result of `affine(state)` if it is already known.
            changed: names in `state` that are new; the result then has only what follows from these.
        """
        removed = {bn for _, bn in self.pairs}
        names = state if changed is None else changed
        folded = {name: state[name] for name in names if name.rpartition(".")[0] not in removed}
        constants = self.affine(state) if affine is None else affine
        for (conv, _), (scale, shift) in zip(self.pairs, constants, strict=True):
            weight = folded.get(f"{conv}.weight")
            if weight is not None:
                folded[f"{conv}.weight"] = weight * scale.view(-1, *[1] * (weight.dim() - 1))
                folded[f"{conv}.bias"] = shift
        return folded

    def fixed(self, sampled: Mapping[str, Tensor]) -> bool:
        """Return whether scales and shifts stay the same when only these weights are replaced."""
        used = {name for conv, bn in self.pairs for name in (f"{conv}.bias", *(f"{bn}.{x}" for x in _BN_STATE))}
        return used.isdisjoint(sampled)


_BN_STATE = ("weight", "bias", "running_mean", "running_var")


def fold(module: nn.Module, pairs: bool = True) -> Folded:
    """Return a copy of the module in evaluation mode with every exact pair folded (`pairs=False`: none).

    >>> from torch.func import functional_call
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    >>> folded = fold(net)
    >>> x = torch.rand(1, 1, 5, 5)
    >>> torch.allclose(functional_call(folded.module, folded.weights(state_of(net)), x), net(x), atol=1e-6)
    True
    """
    pair_names = conv_bn_pairs(module) if pairs else []
    slim = private_copy(module).eval()
    eps = []
    for conv_name, bn_name in pair_names:
        conv, bn = slim.get_submodule(conv_name), slim.get_submodule(bn_name)
        assert isinstance(conv, CONVOLUTIONS)
        assert isinstance(bn, NORMALISATIONS)
        eps.append(bn.eps)
        conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels), requires_grad=False)
        # change the object itself into an identity: the network may also use it under another name, or from a list
        bn._parameters.clear()
        bn._buffers.clear()
        bn.__class__ = nn.Identity  # type: ignore[assignment]
    return Folded(slim, tuple(pair_names), tuple(eps))
