"""How a network calls its layers: all of them in evaluation mode, and with few rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def call_every_layer(net: nn.Module) -> nn.Module:
    """Let a transformer of torch call its layers in evaluation mode, where its fast path would skip their dropout."""
    for layer in net.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # read by the fast path only
        elif isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
    return net


def number_of_rows(arguments: Arguments) -> int | None:
    """Return the number of rows of the first tensor among the arguments of a network; None if there is no tensor."""
    args, kwargs = arguments
    return next((len(part) for part in (*args, *kwargs.values()) if isinstance(part, Tensor) and part.ndim), None)


def copies_of_first_row(arguments: Arguments, count: int) -> Arguments:
    """Return the arguments of a network with `count` copies of the first row, in all tensors that have the rows.

    >>> copies_of_first_row(((torch.tensor([[1.0], [2.0]]),), {}), 2)[0][0].tolist()
    [[1.0], [1.0]]
    """
    rows = number_of_rows(arguments)

    def few(part: Any) -> Any:
        has_rows = isinstance(part, Tensor) and part.ndim and len(part) == rows
        return torch.cat([part[:1]] * count) if has_rows else part

    args, kwargs = arguments
    return tuple(map(few, args)), {name: few(part) for name, part in kwargs.items()}
