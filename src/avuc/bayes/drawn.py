"""What a draw gives: a function with fixed weights, or several draws' outputs as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from avuc.core.private_copy import private_copy

if TYPE_CHECKING:
    from avuc.bayes.module import BayesianModule

__all__ = ["WeightDraw", "stacked"]


class WeightDraw:
    """One function drawn from a posterior: x -> output, with fixed `weights` (flat) and the module in eval mode."""

    def __init__(self, bayesian: BayesianModule, weights: Tensor) -> None:
        self.bayesian, self.weights = bayesian, weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bayesian = self.bayesian
        module = private_copy(bayesian.module).eval()  # another thread may be using the module itself
        return bayesian.run_views(bayesian.layout.views(self.weights), args, kwargs, module=module)


def stacked(outputs: Sequence[Any]) -> Any:
    """Tensors along a new first dimension; tuples, lists and dicts of them item by item."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.stack(list(outputs))
    if isinstance(first, dict):
        return {key: stacked([output[key] for output in outputs]) for key in first}
    if isinstance(first, tuple | list):
        parts = [stacked([output[i] for output in outputs]) for i in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(outputs)
