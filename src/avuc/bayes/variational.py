"""The part of `BayesianModule` that the other files of this package use, so that they need not import it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from avuc.bayes.layout import Layout


class Variational(Protocol):
    """A module with variational weights w = μ + softplus(ρ)·z, one flat vector each."""

    mu: nn.Parameter
    rho: nn.Parameter
    layout: Layout
    module: nn.Module
    recurrent: tuple[str, ...]

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the flat noise z of one sample."""
        ...

    def run_views(
        self, views: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], *, module: nn.Module | None = None
    ) -> Any:
        """Return the original module's output with these weights."""
        ...

    def mean_module(self) -> nn.Module:
        """Return a plain copy of the original module with every weight at its posterior mean."""
        ...
