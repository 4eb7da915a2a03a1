"""Copies of a network: with tensors of its own, or, so that several threads can use one network, with the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.core.errors import InputError


def deep_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a network with tensors of its own, as `copy.deepcopy` does.

    It also copies layers whose weight is computed in each forward pass and kept as an attribute (pruning, and the
    `weight_norm` and `spectral_norm` of torch.nn.utils), which torch refuses to copy.

    >>> from torch.nn.utils import prune
    >>> layer = prune.random_unstructured(nn.Linear(2, 3), "weight", amount=0.5)
    >>> deep_copy(layer).weight.requires_grad
    False
    """
    return _copied(module, {id(tensor): tensor.detach().clone() for tensor in _computed(module)})


def _computed(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors of a network that are results of a computation; each forward pass makes new ones."""
    for layer in module.modules():
        for value in (*vars(layer).values(), *layer._buffers.values()):
            if isinstance(value, Tensor) and not value.is_leaf:
                yield value


def written_in_forward(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a network that a forward pass in evaluation mode, or `eval()` itself, may write to.

    These are its buffers, such as the counters of a user's layer or the ranges of an observer, the weights of
    embeddings with `max_norm`, which torch scales in place, and those of layers with a `train()` of their own.

    >>> len(written_in_forward(nn.Embedding(5, 3))), len(written_in_forward(nn.Embedding(5, 3, max_norm=1.0)))
    (0, 1)
    """
    embeddings = [layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    scaled = [layer.weight for layer in embeddings if layer.max_norm is not None and isinstance(layer.weight, Tensor)]
    switching = [layer for layer in module.modules() if layer.training and type(layer).train is not nn.Module.train]
    switched = [weight for layer in switching for weight in layer.parameters(recurse=False)]
    return [tensor for tensor in (*module.buffers(), *scaled, *switched) if not is_lazy(tensor)]


def private_copy(module: nn.Module, *, share_buffers: bool = False) -> nn.Module:
    """Return a copy that shares parameters, but has its own modules, modes, hooks and buffers.

    `eval()` and `functional_call` change a network for every thread that uses it; on a private copy they do not. What
    a forward pass may write to (`written_in_forward`) is copied, unless `share_buffers` says that the copy may write to
    the original's. The copy takes about 0.1 ms per layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Dropout())
    >>> twin = private_copy(net).eval()
    >>> twin[0].weight is net[0].weight, net.training
    (True, True)
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for tensor in () if share_buffers else written_in_forward(module):
        own = tensor.detach().clone()
        shared[id(tensor)] = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
    try:
        return _copied(module, {id(tensor): tensor.detach() for tensor in _computed(module)} | shared)
    except (TypeError, RuntimeError) as error:  # an attribute, such as a lock or an open file, that cannot be copied
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{type(module).__name__} cannot be copied ({reason}), and predict runs a copy so that your network stays "
            "as it is; remove the attribute, or give its class a __deepcopy__"
        ) from error


def _copied(module: nn.Module, known: dict[int, Tensor]) -> nn.Module:
    duplicate: nn.Module = copy.deepcopy(module, dict(known))
    return duplicate


def changed_by_eval(module: nn.Module, *, from_training: bool) -> str:
    """Return the name of a weight that `eval()` changes; an empty text if there is none.

    Some adapters (loralib) are added to the weights of their layer in evaluation mode, and taken away in training mode.
    A private copy in evaluation mode would change the weights that it shares with the network.

    Args:
        module: the network; it is not changed.
        from_training: whether it is put into training mode first.
    """
    if all(type(layer).train is nn.Module.train and type(layer).eval is nn.Module.eval for layer in module.modules()):
        return ""  # nearly all networks, which need no copy
    try:
        scratch = deep_copy(module)
    except (TypeError, RuntimeError):  # such as a wrapper with a process group
        return ""
    if from_training:
        scratch.train()
    named = [*scratch.named_parameters(), *scratch.named_buffers()]
    before = {name: tensor.detach().clone() for name, tensor in named if not is_lazy(tensor)}
    scratch.eval()
    after = {**dict(scratch.named_parameters()), **dict(scratch.named_buffers())}
    changed = (name for name, value in before.items() if name not in after or not _equal(after[name], value))
    return next(changed, "")


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
