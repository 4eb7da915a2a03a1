"""The ranks of a data-parallel run: who takes which rows, gradients averaged, batch normalisation over all rows.

With R ranks, rank r takes its share of the rows of each global batch. Every rank's loss is scaled so that the mean of
the ranks' gradients is the gradient of one process on the whole batch, whatever the shares: the cross-entropy by
R·rows_r/rows, the AvUC cells by their own sum over ranks, the KL not at all. Without torch.distributed there is one
rank and none of this does anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Ranks", "global_batch_norm"]

T = TypeVar("T")


class Ranks:
    """This process among the others."""

    def __init__(self) -> None:
        running = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if running else 1
        self.rank = dist.get_rank() if running else 0

    @property
    def first(self) -> bool:
        """Whether this rank writes and speaks for all."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """This rank's rows of a batch; shares differ by one row at most."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def sum(self, values: Tensor) -> Tensor:
        if self.size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """As DistributedDataParallel does, but in one message: a flat posterior has one gradient, ready at the end."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:  # this rank had no rows
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def from_first(self, value: T) -> T:
        """What the first rank has: neither rounding nor another view of the disk may make ranks go separate ways."""
        if self.size == 1:
            return value
        said: list[Any] = [value]
        dist.broadcast_object_list(said, src=0)
        first: T = said[0]
        return first

    @torch.no_grad()
    def average_statistics(self, model: nn.Module) -> None:
        """Running statistics of batch normalisation, measured by each rank on its own rows, as one."""
        if self.size == 1:
            return
        for layer in model.modules():
            if isinstance(layer, _BatchNorm):
                for statistic in (layer.running_mean, layer.running_var):
                    if statistic is not None:
                        dist.all_reduce(statistic)
                        statistic /= self.size


class _SumForAll(torch.autograd.Function):
    """Σ over ranks of a value that each rank's own loss depends on: the gradients are summed over ranks too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


@contextlib.contextmanager
def global_batch_norm(model: nn.Module, ranks: Ranks, *, over_ranks: bool) -> Iterator[None]:
    """While open, batch normalisation in training uses the statistics of the rows of all ranks (or, with
    `over_ranks` false, of its own rows, and of none where it has none)."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)] if ranks.size > 1 else []
    for layer in layers:
        layer.forward = _Forward(layer, over_ranks)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Forward:
    def __init__(self, layer: _BatchNorm, over_ranks: bool) -> None:
        self.layer, self.over_ranks = layer, over_ranks

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not layer.training:
            return type(layer).forward(layer, x)
        if not self.over_ranks:
            if len(x):
                return type(layer).forward(layer, x)
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked += 1
            return x
        others = [dim for dim in range(x.dim()) if dim != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        exact = x.float()
        local = torch.cat([exact.sum(others), exact.new_full((1,), x.numel() / x.shape[1])])
        summed = _SumForAll.apply(local)
        count = summed[-1].detach()
        mean = summed[:-1] / count
        centred = exact - mean.view(shape)
        variance = _SumForAll.apply(centred.square().sum(others)) / count
        running_mean, running_var, seen = layer.running_mean, layer.running_var, layer.num_batches_tracked
        if running_mean is not None and running_var is not None and seen is not None:
            with torch.no_grad():
                seen += 1
                momentum = 1.0 / float(seen) if layer.momentum is None else layer.momentum
                running_mean.lerp_(mean.detach(), momentum)
                running_var.lerp_(variance.detach() * count / (count - 1).clamp(min=1), momentum)
        out = centred * torch.rsqrt(variance + layer.eps).view(shape)
        if layer.weight is not None:
            out = out * layer.weight.view(shape) + layer.bias.view(shape)
        normalised: Tensor = out.to(x.dtype)
        return normalised
