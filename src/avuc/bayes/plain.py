"""Which modules `to_bayesian` cannot convert."""

from __future__ import annotations

from torch import nn

from avuc.core.errors import InputError

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_plain(module: nn.Module, posterior: type[nn.Module]) -> None:
    """Raise `InputError` for a module that is or holds a posterior, whose μ and ρ would be sampled, a wrapper, or a
    recurrent layer with a computed weight.

    Args:
        module: the module to convert.
        posterior: the class of posteriors.
    """
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
        computed = [weight for weight in _weight_names(child) if weight not in child._parameters]
        if computed:  # the layer keeps a list of its weights, in which a computed one is out of date or missing
            raise InputError(
                f"to_bayesian: {where} computes its weight {computed[0]!r} (weight_norm, pruning or another "
                "parametrisation), and such a recurrent layer cannot be converted; make the weight a parameter again, "
                "for example with torch.nn.utils.parametrize.remove_parametrizations"
            )


def _weight_names(layer: nn.Module) -> list[str]:
    return list(layer._flat_weights_names) if isinstance(layer, nn.RNNBase) else []
