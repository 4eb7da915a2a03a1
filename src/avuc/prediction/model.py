"""A posterior from what `predict` was given: a posterior, a plain network, or a list of networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from avuc.bayes import BayesianModule
from avuc.core.caller import warn_caller
from avuc.core.errors import InputError
from avuc.methods.dropout_hooks import drops_in_training
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.swag import SWAGModel
from avuc.methods.vanilla import DeterministicPosterior
from avuc.posterior import Draw, Posterior, sample_generator

ACCEPTED = "a network (nn.Module), a list of networks (an ensemble), or a posterior with draw(generator) and num_draws"


def posterior_of(model: Any) -> Posterior:
    """Return the model as a posterior: a network has one sample, a list of networks one for each.

    >>> posterior_of([nn.Linear(2, 3), nn.Linear(2, 3)]).num_draws
    2
    """
    if isinstance(model, list | tuple):
        if not model:
            raise InputError("an ensemble needs at least one network, found an empty list")
        return EnsemblePosterior([posterior_of(member) for member in model])
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        model = model.module  # the copies on other devices are not needed
    if not _draws(model):
        if isinstance(model, nn.Module):
            _refuse_inner_posterior(model)
            _refuse_lazy_layers(model)
            _warn_of_built_model(model)
            return DeterministicPosterior(model)
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InputError(f"predict needs {ACCEPTED}; found {kind}, which has no draw() and num_draws{_remedy(model)}")
    _check_count(model)
    posterior: Posterior = model
    return posterior


def _remedy(model: Any) -> str:
    """Return what to pass in place of the result of a training, or of weights; "" if nothing better is known."""
    if isinstance(getattr(model, "posterior", None), Posterior):
        return "; pass its .posterior"
    if isinstance(model, Mapping) and any(isinstance(value, torch.Tensor) for value in model.values()):
        return "; load these weights into a network, net.load_state_dict(weights), and pass the network"
    return ""


def sample_of(posterior: Posterior, index: int, seed: int, device: torch.device) -> Draw:
    """Return the sample that `predict(posterior, seed=seed)` uses at this index."""
    member = getattr(posterior, "member", None)
    if posterior.num_draws is not None and member is not None:
        chosen: Draw = member(index)
        return chosen
    return posterior.draw(sample_generator(seed, index, device))


def takes_bytes(model: Any) -> bool:
    """Return whether uint8 images, scaled to [0, 1], are what the model was made for.

    This holds for the networks of `avuc.nets`, for posteriors that the methods of this package made, and for posteriors
    that are not modules. Any other network may expect another mean and scale.

    >>> from avuc.nets import mlp
    >>> takes_bytes(mlp(3)), takes_bytes(nn.Linear(2, 3))
    (True, False)
    """
    if isinstance(model, list | tuple):
        return all(takes_bytes(member) for member in model)
    if not isinstance(model, nn.Module):
        return True
    return any(getattr(module, "takes_bytes", False) is True for module in model.modules())


def _draws(model: Any) -> bool:
    return not isinstance(model, type) and callable(getattr(model, "draw", None)) and hasattr(model, "num_draws")


def _refuse_lazy_layers(net: nn.Module) -> None:
    """Raise for layers without weights yet: the first batch would give them random ones."""
    lazy = [name for name, weight in net.named_parameters() if is_lazy(weight)]
    if lazy:
        raise InputError(
            f"{type(net).__name__}: {lazy[0]!r} has no values yet: the network is not trained; train or load it first"
        )


def _refuse_inner_posterior(net: nn.Module) -> None:
    """Raise for a network around a posterior, which would draw new weights for each batch, whatever the seed."""
    for name, module in net.named_modules():
        if isinstance(module, BayesianModule):
            raise InputError(
                f"{type(net).__name__} has a posterior inside, {name!r}, whose samples cannot be chosen from outside: "
                f"pass model.{name}, or build it from plain layers and convert all of it with to_bayesian"
            )


def _warn_of_built_model(net: nn.Module) -> None:
    """Warn of the model that Dropout or SWAG builds: it is one network, and its samples come from its posterior."""
    if isinstance(net, SWAGModel):
        built, without = "SWAG", "with its last weights"
    elif drops_in_training(net):
        built, without = "Dropout", "without dropout"
    else:
        return
    warn_caller(
        f"a model built by {built} is predicted as one network, {without}: pass {built}().posterior([model]) for the "
        "samples of its posterior, or Vanilla().posterior([model]) if one network is meant (all in avuc.methods)"
    )


def _check_count(posterior: Any) -> None:
    count = posterior.num_draws
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"the posterior's num_draws must be None or a whole number from 1 up, found {count!r}")
    if count > 1 and not callable(getattr(posterior, "member", None)):
        raise InputError(
            f"the posterior has num_draws={count} but no member(index): random samples would use some members twice "
            "and others never; add the method, or set num_draws to None"
        )
