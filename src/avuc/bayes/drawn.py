"""What a draw gives: a function with fixed weights, or several draws' outputs as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from avuc.bayes.module import BayesianModule

__all__ = ["WeightDraw", "stacked"]


class WeightDraw:
    """One function drawn from a posterior: x -> output, with fixed `weights` (flat) and the module in eval mode."""

    def __init__(self, bayesian: BayesianModule, weights: Tensor) -> None:
        self.bayesian, self.weights = bayesian, weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _evaluating(self.bayesian.module):
            return self.bayesian.run(self.weights, *args, **kwargs)


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


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = [child for child in module.modules() if child.training]
    for child in training:
        child.training = False
    try:
        yield
    finally:
        for child in training:
            child.training = True
