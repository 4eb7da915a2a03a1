"""Refuse lazy layers, such as `nn.LazyLinear`, where a method needs their shape before the first batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.study.net import AnyInputs
from avuc.study.recipe.config import MethodConfig, Recipe
from avuc.training.model_trainer import with_head


def refuse_lazy_layers(recipe: Recipe, net: nn.Module, batch: Any) -> None:
    """Raise an `InputError` that names the user's network, its lazy layer and the method.

    Args:
        recipe: the study.
        net: its network.
        batch: a few examples, whose shape is in the remedy.
    """
    own = net.net if isinstance(net, AnyInputs) else net
    averages = [name for name, tensor in own.named_buffers() if is_lazy(tensor)]
    if averages:  # torch cannot copy such a network
        raise InputError(_message(recipe, own, averages[0], "a study", batch))
    weights = [name for name, tensor in own.named_parameters() if is_lazy(tensor)]
    for config in recipe.trained if weights else ():
        if not config.skip_training and _needs_shapes(config, net):
            raise InputError(_message(recipe, own, weights[0], f"methods.{config.name}", batch))


def _needs_shapes(config: MethodConfig, net: nn.Module) -> bool:
    assert config.method is not None
    if config.train.ema_decay:
        return True
    try:
        config.method.build(with_head(deep_copy(net), config.objective))
    except Exception:  # torch and the methods raise several kinds
        return True
    return False


def _message(recipe: Recipe, net: nn.Module, tensor: str, needed_by: str, batch: Any) -> str:
    name, kind = recipe.net.name, type(net.get_submodule(tensor.rpartition(".")[0])).__name__
    example = f"net(torch.zeros{(2, *batch.shape[1:])})" if isinstance(batch, Tensor) else "net(**batch)"
    return (
        f"net.name: {name}: {tensor!r} ({kind}) has no shape before the first batch, and {needed_by} needs one; run a "
        f"batch through the network before {name} returns it, such as {example}"
    )
