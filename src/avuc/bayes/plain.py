"""Which modules `to_bayesian` cannot convert."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.core.private_copy import changed_by_eval

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_plain(module: Any, posterior: type[nn.Module]) -> None:
    """Raise `InputError` for a module that is or holds a posterior, whose μ and ρ would be sampled, a wrapper, a
    recurrent layer with a computed weight, or weights that `eval()` changes.

    Args:
        module: the module to convert.
        posterior: the class of posteriors.
    """
    if not isinstance(module, nn.Module):
        found = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise InputError(f"to_bayesian: module must be a network (nn.Module), found {found}")
    for name, child in module.named_modules():
        where = f"{name!r} in {type(module).__name__}" if name else f"the {type(child).__name__}"
        if isinstance(child, posterior):
            raise InputError(
                f"to_bayesian: {where} is a posterior already; convert the plain network, such as its mean_module()"
            )
        if isinstance(child, WRAPPERS):  # cannot run with other weights than its own
            raise InputError(
                f"to_bayesian: {where} is a data-parallel wrapper; convert the network inside it (.module), then wrap "
                "the result"
            )
        if isinstance(child, torch.jit.ScriptModule):
            raise InputError(
                f"to_bayesian: {where} is a TorchScript module, whose weights cannot be replaced; convert the network "
                "before torch.jit.script or torch.jit.trace"
            )
        computed = [weight for weight in _weight_names(child) if weight not in child._parameters]
        if computed:  # the layer keeps a list of its weights, in which a computed one is out of date or missing
            raise InputError(
                f"to_bayesian: {where} computes its weight {computed[0]!r} (weight_norm, pruning or another "
                "parametrisation), and such a recurrent layer cannot be converted; make the weight a parameter again, "
                "for example with torch.nn.utils.parametrize.remove_parametrizations"
            )
    changed = changed_by_eval(module, from_training=True)
    if changed:
        raise InputError(
            f"to_bayesian: eval() changes {changed!r} in {type(module).__name__}, as if adapters are merged into the "
            "weights, and would not change sampled weights; switch that off, for example with merge_weights=False of "
            "loralib"
        )


def check_checkpointing(module: nn.Module, weights: Collection[str]) -> None:
    """Raise `InputError` if a layer with sampled weights uses gradient checkpointing of Hugging Face.

    Its forward pass would run again in the backward pass, when the sample of the weights is gone.

    Args:
        module: the module to convert.
        weights: names of the weights to sample.
    """
    using = [name for name, child in module.named_modules() if getattr(child, "gradient_checkpointing", False) is True]
    # a model that holds such layers has the attribute, too
    layers = [f"{name}." for name in using if not any(other.startswith(f"{name}.") for other in using)]
    inside = [(layer, weight) for weight in weights for layer in layers if weight.startswith(layer)]
    if inside:
        layer, weight = inside[0]
        raise InputError(
            f"to_bayesian: {layer.removesuffix('.')!r} uses gradient checkpointing, which cannot run again with the "
            f"sampled weight {weight!r}; call gradient_checkpointing_disable(), or choose other layers"
        )


def check_embeddings(module: nn.Module, weights: Collection[str]) -> None:
    """Raise `InputError` for an embedding that changes a sampled weight in place or gives it sparse gradients.

    Args:
        module: the module to convert.
        weights: names of the weights to sample.
    """
    for name, child in module.named_modules(remove_duplicate=False):
        if not isinstance(child, nn.Embedding | nn.EmbeddingBag) or f"{name}.weight".removeprefix(".") not in weights:
            continue
        where = f"to_bayesian: {name!r}" if name else f"to_bayesian: the {type(child).__name__}"
        if child.max_norm is not None:
            raise InputError(
                f"{where} has max_norm={child.max_norm:g}, which changes its weight in place, and a sampled weight "
                "cannot be changed; set max_norm to None, or choose other layers"
            )
        if child.sparse:
            raise InputError(
                f"{where} has sparse=True, but the gradient of a posterior is not sparse; set sparse to False, or "
                "choose other layers"
            )


def _weight_names(layer: nn.Module) -> list[str]:
    return list(layer._flat_weights_names) if isinstance(layer, nn.RNNBase) else []


def check_known(what: str, value: str, names: Iterable[str]) -> None:
    """Raise `InputError` if a value is not one of the names."""
    if value not in names:
        raise InputError(f"{what}: expected one of {', '.join(names)}, found {value!r}")
