"""A layer with a mask on its input. The mask is a buffer, so one compiled network serves every dropout mask."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


class Masked(nn.Module):
    """A layer whose input is multiplied by `mask`, which has the shape of the input for one image.

    >>> layer = Masked(nn.Linear(2, 1, bias=False))
    >>> layer.mask = torch.tensor([0.0, 2.0])
    >>> bool(layer(torch.tensor([[5.0, 1.0]])) == 2 * layer.layer.weight[0, 1])
    True
    """

    mask: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mask", torch.ones(()), persistent=False)

    # networks of Hugging Face read the type of their weights from a layer

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.layer.weight)

    @property
    def bias(self) -> Tensor | None:
        return cast(Tensor | None, self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x * self.mask.to(x.dtype))
        return out
