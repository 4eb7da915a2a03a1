"""The network of a recipe, and its initial weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors
from avuc.nets import NETS
from avuc.prediction.outputs import logits_of
from avuc.study.own.code import ANY_ERROR, bound, described, find, seeded
from avuc.study.recipe.sections import NetConfig

RETURN = "let its forward return the logits alone"
REMEDY = f"{RETURN}, or an object that has them as 'logits'"


def make_net(
    config: NetConfig,
    num_classes: int,
    image_shape: tuple[int, int, int] | None,
    weights: Mapping[str, Tensor] | None,
    generator: torch.Generator,
    *,
    any_inputs: bool = False,
) -> nn.Module:
    """Return the recipe's network.

    Args:
        config: the table [net].
        num_classes, image_shape: of the data; the shape is (height, width, channels), or None if they are not images.
        weights: initial weights; None for those of `config.weights`, or random ones if there is no such file.
        generator: of the random weights.
        any_inputs: wrap the network so that it takes inputs of any kind; see `AnyInputs`.
    """
    net = (_own_net if config.is_own else _known_net)(config, num_classes, image_shape, generator)
    from_file = weights is None and bool(config.weights)
    initial = _read_weights(Path(config.weights)) if from_file else weights
    wrapped = AnyInputs(net, config.class_dim) if any_inputs else net
    if config.is_own and not any_inputs and image_shape is not None and _returns_object(net, image_shape):
        # no wrapper: the names of the weights stay those of the user's network
        net.register_forward_hook(_take_logits)
    if initial is not None:
        try:
            (net if from_file else wrapped).load_state_dict(dict(initial))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{config.weights or 'init_from'}: these weights do not fit {config.name}: {reason}"
            ) from error
    return wrapped


class AnyInputs(nn.Module):
    """A network that takes a tensor or a mapping of keyword arguments, and returns logits with the classes second.

    Args:
        net: the network. Its output may be a tensor, or have one as `logits`, as in Hugging Face.
        class_dim: dimension of the classes in its logits.
    """

    def __init__(self, net: nn.Module, class_dim: int = 1) -> None:
        super().__init__()
        self.net: nn.Module = net
        self.class_dim: int = class_dim

    def forward(self, inputs: Any = None, /, **named: Any) -> Tensor:
        if isinstance(inputs, Mapping):
            inputs, named = None, {**inputs, **named}
        output = self.net(inputs, **named) if inputs is not None else self.net(**named)
        rows = len(inputs) if inputs is not None else len(next(iter(named.values())))
        logits = logits_of(output, rows, remedy=REMEDY)
        return logits if self.class_dim == 1 or logits.ndim < 3 else logits.movedim(self.class_dim, 1)


def _returns_object(net: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """Return whether a network of images returns something other than a tensor, as those of Hugging Face do.

    Only such networks get a hook, because fast paths are for networks without hooks.
    """
    height, width, channels = image_shape
    first = next(net.parameters(), None)
    images = torch.zeros(2, channels, height, width, device=None if first is None else first.device)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return not isinstance(copy.deepcopy(net).eval()(images), Tensor)
    except ANY_ERROR:  # the trial before training says it
        return False


def _take_logits(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
    return logits_of(output, len(inputs[0]), remedy=REMEDY)


def _known_net(
    config: NetConfig, num_classes: int, image_shape: tuple[int, int, int] | None, generator: torch.Generator
) -> nn.Module:
    if image_shape is None:
        raise InputError(f"net.name: {config.name} is for images; these data need a network of your own")
    make: Callable[..., nn.Module] = NETS[config.name]
    try:
        return make(num_classes, image_shape, generator=generator, **config.arguments)
    except TypeError as error:
        raise InputError(f"net: {config.name} does not take these options ({error})") from error


def _own_net(
    config: NetConfig, num_classes: int, image_shape: tuple[int, int, int] | None, generator: torch.Generator
) -> nn.Module:
    """Return the network that the user's function returns, or a copy of a network from Python."""
    function = find(config.name, "net.name")
    if isinstance(function, nn.Module):
        return copy.deepcopy(function)
    offered: dict[str, Any] = {"generator": generator, "num_classes": num_classes}
    if image_shape is not None:
        offered["image_shape"] = image_shape
    call = bound(function, offered, config.arguments, "net", config.name)
    # most networks take their initial weights from torch's own random numbers
    with seeded((generator.initial_seed() + 1) % 2**63):
        try:
            net = call()
        except InputError:
            raise
        except ANY_ERROR as error:
            raise InputError(f"net.name: {config.name} failed: {described(error)}") from error
    if not isinstance(net, nn.Module):
        raise InputError(f"net.name: {config.name} returned a {type(net).__name__}; expected a torch.nn.Module")
    return net


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return {name: tensor.clone() for name, tensor in read_tensors(path)[0].items()}
        except InputError as error:
            raise InputError(f"net.weights: {error}") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: net.weights cannot be read ({error.strerror})") from error
    except Exception as error:  # torch raises many kinds of errors for a broken file
        raise InputError(f"{path}: net.weights is no file of weights ({' '.join(str(error).split())[:120]})") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path}: net.weights holds no state_dict (names to tensors)")
    return state
