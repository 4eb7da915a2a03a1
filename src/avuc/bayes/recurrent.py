"""nn.LSTM, nn.GRU and nn.RNN keep a second list of their weights; it must hold the draw while they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["drawn_lists", "keep_apart", "put_together"]


def keep_apart(module: nn.Module) -> tuple[str, ...]:
    """Names of the recurrent layers, made ready for drawn weights.

    `flatten_parameters` moves weights in memory in place, which would cut drawn weights off their gradient; many
    networks call it in their forward pass, so on these layers it does nothing.
    """
    names = []
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase):
            child.flatten_parameters = _nothing  # type: ignore[method-assign]
            names.append(name)
    return tuple(names)


def put_together(module: nn.Module) -> None:
    """Undo `keep_apart` on a module that has its own weights again."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase):
            child.__dict__.pop("flatten_parameters", None)
            child.flatten_parameters()


@contextmanager
def drawn_lists(module: nn.Module, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the recurrent layers' own lists hold the drawn tensors; empty the lists afterwards, so that no draw stays."""
    layers = [(name, child) for name, child in module.named_modules() if name in names]
    try:
        for name, child in layers:
            places = [f"{name}.{weight}" if name else weight for weight in child._flat_weights_names]
            own = dict(zip(places, (child._parameters[weight] for weight in child._flat_weights_names), strict=True))
            child._flat_weights = [tensors.get(place, own[place]) for place in places]
            # no remembered weights: the layer takes the list above as it is
            child._flat_weight_refs = [None] * len(places)
        yield
    finally:
        for _, child in layers:
            child._flat_weights = [child._parameters[weight] for weight in child._flat_weights_names]


def _nothing() -> None:
    return None
