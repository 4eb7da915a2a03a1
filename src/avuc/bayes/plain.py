"""Which modules `to_bayesian` cannot convert."""

from __future__ import annotations

from torch import nn

from avuc.core.errors import InputError

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_plain(module: nn.Module, posterior: type[nn.Module]) -> None:
    """Raise `InputError` for a module that is or holds a posterior, whose μ and ρ would be sampled, or a wrapper.

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
