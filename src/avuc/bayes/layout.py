"""Which weights are variational, and their order in the flat vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.core.errors import InputError


@dataclass(frozen=True)
class Named:
    """A choice of weights by their names, as in a saved posterior: of a layer, perhaps only the bias was sampled."""

    names: frozenset[str]


Layers = str | Callable[[str, nn.Module], bool] | Named

# their scales and shifts stay deterministic: they are few, and noise on them acts on whole channels at once
NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Slot:
    """One variational tensor. `places` holds all its names: a tied weight has several and is sampled once."""

    places: tuple[str, ...]
    shape: torch.Size
    order: tuple[int, ...]  # dimensions from slowest to fastest in memory, so that channels_last weights stay so

    @property
    def name(self) -> str:
        return self.places[0]

    def flatten(self, tensor: Tensor) -> Tensor:
        return tensor.permute(self.order).reshape(-1)

    def view(self, segment: Tensor) -> Tensor:
        inverse = [self.order.index(dim) for dim in range(len(self.order))]
        return segment.view([self.shape[dim] for dim in self.order]).permute(inverse)


@dataclass(frozen=True)
class Layout:
    """The order of the variational tensors in the flat vector."""

    slots: tuple[Slot, ...]

    @property
    def sizes(self) -> list[int]:
        return [slot.shape.numel() for slot in self.slots]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named tensors into one new vector."""
        return torch.cat([slot.flatten(tensors[slot.name]) for slot in self.slots])

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors as views of a flat vector, one per slot; autograd sees one operation."""
        return [slot.view(segment) for slot, segment in zip(self.slots, flat.split(self.sizes), strict=True)]

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip((slot.name for slot in self.slots), self.views(flat), strict=True))

    def by_all_names(self, views: list[Tensor]) -> dict[str, Tensor]:
        """Return the views under all their names, as `functional_call` needs them."""
        return {name: view for slot, view in zip(self.slots, views, strict=True) for name in slot.places}


def choose(module: nn.Module, layers: Layers) -> Layout:
    """Return the layout of the chosen weights; `InputError` if they cannot be converted."""
    modules = dict(module.named_modules())
    owned = {name: _weights(child) for name, child in modules.items()}
    owned = {name: weights for name, weights in owned.items() if weights}
    kind = type(module).__name__
    lazy = [name for name, weights in owned.items() if any(is_lazy(weight) for weight in weights.values())]
    if lazy:
        raise InputError(f"{kind}: {lazy[0]!r} is lazy and has no shape yet; run one batch through it first")

    if layers == "all":
        chosen = {
            name: weights
            for name, weights in owned.items()
            if not isinstance(modules[name], NORMALISATIONS) and any(w.requires_grad for w in weights.values())
        }
        chosen = {name: {k: w for k, w in weights.items() if w.requires_grad} for name, weights in chosen.items()}
        problem = "normalisation layers, and parameters with requires_grad=False, stay deterministic"
    elif layers == "last":
        matrices = [
            name
            for name, weights in owned.items()
            if any(w.dim() > 1 for w in weights.values()) and not isinstance(modules[name], NORMALISATIONS)
        ]
        chosen = {name: owned[name] for name in matrices[-1:]}
        problem = "no layer owns a weight of two or more dimensions"
    elif isinstance(layers, Named):
        full = {name: {f"{name}.{k}" if name else k: w for k, w in weights.items()} for name, weights in owned.items()}
        chosen = {name: {k: w for k, w in weights.items() if k in layers.names} for name, weights in full.items()}
        chosen = {name: weights for name, weights in chosen.items() if weights}
        problem = "it has none of the named weights"
    elif callable(layers):
        chosen = {name: weights for name, weights in owned.items() if layers(name, modules[name])}
        listed = ", ".join(f"{name or '(root)'} ({type(modules[name]).__name__})" for name in list(owned)[:8])
        problem = f"the predicate selected none of {len(owned)} layers with weights: {listed or 'none at all'}"
    else:
        raise InputError(f"layers: expected 'all', 'last' or a predicate (name, module) -> bool, found {layers!r}")
    if not chosen:
        raise InputError(f"{kind} has no weights to convert with layers={layers!r}: {problem}")
    return _layout(module, owned, {id(weight) for weights in chosen.values() for weight in weights.values()})


def _weights(module: nn.Module) -> dict[str, nn.Parameter]:
    own = module._parameters.items()
    return {name: p for name, p in own if p is not None and (is_lazy(p) or (p.is_floating_point() and p.numel()))}


def _layout(module: nn.Module, owned: dict[str, dict[str, nn.Parameter]], chosen: set[int]) -> Layout:
    # a module shared under two names is one object and appears once; a tied weight appears once per owner
    tensors: dict[int, nn.Parameter] = {}
    names: dict[int, list[str]] = {}
    for owner, weights in owned.items():
        for name, weight in weights.items():
            if id(weight) in chosen:
                tensors[id(weight)] = weight
                names.setdefault(id(weight), []).append(f"{owner}.{name}" if owner else name)
    kinds: dict[tuple[torch.dtype, torch.device], str] = {}
    for key, weight in tensors.items():
        kinds.setdefault((weight.dtype, weight.device), names[key][0])
    if len(kinds) > 1:
        mixed = "; ".join(f"{name}: {dtype} on {device}" for (dtype, device), name in kinds.items())
        raise InputError(
            f"the variational weights must share one dtype and one device, found {mixed}; convert the module with "
            f".to(...) first, or choose layers that agree"
        )
    for dtype, device in kinds:
        if dtype not in (torch.float32, torch.float64) or device.type == "meta":
            raise InputError(
                f"variational weights are float32 or float64 on a real device, found {dtype} on {device}; use "
                f"module.float() and torch.autocast for half-precision compute"
            )
    return Layout(tuple(Slot(tuple(names[key]), weight.shape, _order(weight)) for key, weight in tensors.items()))


def _order(weight: Tensor) -> tuple[int, ...]:
    if weight.is_contiguous():
        return tuple(range(weight.dim()))
    strides = weight.stride()
    return tuple(sorted(range(weight.dim()), key=lambda dim: (-strides[dim], dim)))
