"""nn.LSTM, nn.GRU and nn.RNN keep a second list of their weights, which must hold the sampled weights as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


def keep_apart(module: nn.Module) -> tuple[str, ...]:
    """Prepare the recurrent layers for sampled weights and return their names.

    `flatten_parameters` moves weights in memory, which would cut sampled weights off their gradient. Many networks
    call it in their forward pass, so on these layers it does nothing.
    """
    names = []
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase):
            child.flatten_parameters = _nothing  # type: ignore[method-assign]
            names.append(name)
    return tuple(names)


def put_together(module: nn.Module) -> None:
    """Undo `keep_apart` for a module that has weights of its own again."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase):
            child.__dict__.pop("flatten_parameters", None)
            child.flatten_parameters()


@contextmanager
def drawn_lists(module: nn.Module, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put the sampled tensors into the recurrent layers' own lists, and remove them afterwards."""
    layers = [(name, child) for name, child in module.named_modules() if name in names]
    try:
        for name, child in layers:
            full_names = [f"{name}.{weight}" if name else weight for weight in child._flat_weights_names]
            own = dict(
                zip(full_names, (child._parameters[weight] for weight in child._flat_weights_names), strict=True)
            )
            child._flat_weights = [tensors.get(full_name, own[full_name]) for full_name in full_names]
            # without these references the layer uses the list above as it is
            child._flat_weight_refs = [None] * len(full_names)
        yield
    finally:
        for _, child in layers:
            child._flat_weights = [child._parameters[weight] for weight in child._flat_weights_names]


def _nothing() -> None:
    return None
