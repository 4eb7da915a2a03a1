"""The network of a recipe, and its initial weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors
from avuc.nets import NETS
from avuc.study.sections import NetConfig


def make_net(
    config: NetConfig,
    num_classes: int,
    image_shape: tuple[int, int, int],
    weights: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> nn.Module:
    """Return the recipe's network.

    Args:
        config: the table [net].
        num_classes, image_shape: of the data; the shape is (height, width, channels).
        weights: initial weights; None for those of `config.weights`, or random ones if there is no such file.
        generator: of the random weights.
    """
    make: Callable[..., nn.Module] = NETS[config.name]
    try:
        net = make(num_classes, image_shape, generator=generator, **config.options)
    except TypeError as error:
        raise InputError(f"net: {config.name} does not take these options ({error})") from error
    given = _read_weights(Path(config.weights)) if weights is None and config.weights else weights
    if given is not None:
        try:
            net.load_state_dict(dict(given))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{config.weights or 'init_from'}: these weights do not fit {config.name}: {reason}"
            ) from error
    return net


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        return {name: tensor.clone() for name, tensor in read_tensors(path)[0].items()}
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: net.weights cannot be read ({error.strerror})") from error
    except Exception as error:  # torch raises whatever its reader met
        raise InputError(f"{path}: net.weights is no file of weights ({' '.join(str(error).split())[:120]})") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{path}: net.weights holds no state_dict (names to tensors)")
    return found
