"""One sample of the weights as a function, and the outputs of several samples as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from avuc.bayes.variational import Variational
from avuc.core.private_copy import private_copy


class WeightDraw:
    """One posterior sample: a function x -> output with fixed weights. `BayesianModule.draw` returns it.

    The module runs in eval mode, on a private copy, so other threads can use the module at the same time.

    Args:
        bayesian: the `BayesianModule` that the weights belong to.
        weights: all variational weights of the sample, (number of weights), in the order of `bayesian.layout`.

    >>> from avuc.bayes import to_bayesian
    >>> sample = to_bayesian(torch.nn.Linear(4, 3)).draw(torch.Generator().manual_seed(0))
    >>> sample(torch.zeros(8, 4)).shape, sample.weights.shape
    (torch.Size([8, 3]), torch.Size([15]))
    """

    def __init__(self, bayesian: Variational, weights: Tensor) -> None:
        self.bayesian: Variational = bayesian
        self.weights: Tensor = weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bayesian = self.bayesian
        module = private_copy(bayesian.module).eval()
        return bayesian.run_views(bayesian.layout.views(self.weights), args, kwargs, module=module)


def own_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], samples: int
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the arguments of a network for each sample, as copies but for the last sample.

    A network may change its input in place, such as x -= mean; the next sample would get the changed one.
    """
    for left in range(samples - 1, -1, -1):
        copied = [value.clone() if left and isinstance(value, Tensor) else value for value in (*args, *kwargs.values())]
        yield tuple(copied[: len(args)]), dict(zip(kwargs, copied[len(args) :], strict=True))


def stacked(outputs: Sequence[Any]) -> Any:
    """Stack tensors along a new first dimension; tuples, lists and dicts are stacked item by item."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.stack(list(outputs))
    if isinstance(first, dict):
        return {key: stacked([output[key] for output in outputs]) for key in first}
    if isinstance(first, tuple | list):
        parts = [stacked([output[i] for output in outputs]) for i in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(outputs)
