"""Data-parallel training: each rank's rows of a batch, averaged gradients, batch normalisation over all ranks.

With R ranks, rank r trains on its share of the rows of each batch. Each rank scales its loss so that the mean of the
ranks' gradients is the gradient of one process on the whole batch, also when the shares differ: the cross-entropy is
multiplied by R·labels_r/labels, the AvUC quadrants are summed over ranks, and the KL is left as it is. Without
torch.distributed there is one rank, and nothing here has an effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from avuc.core.data_parallel import all_reduce_sum

T = TypeVar("T")
NORMALISATIONS = (_BatchNorm, _InstanceNorm)  # layers with running statistics


class Ranks:
    """This process and the number of processes in the job."""

    def __init__(self) -> None:
        running = dist.is_available() and dist.is_initialized()
        self.size: int = dist.get_world_size() if running else 1
        self.rank: int = dist.get_rank() if running else 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and messages."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Return this rank's rows of a batch. Shares of different ranks differ by one row at most."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over ranks."""
        if self.size == 1:
            return values
        total = values.clone()
        all_reduce_sum(total)
        return total

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by its mean over ranks, in one message.

        DistributedDataParallel sends several messages while the backward pass still runs. Here that would not help: a
        flat posterior has one gradient, which is ready at the end.
        """
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:  # this rank had no rows
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        all_reduce_sum(flat)
        flat /= self.size
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def from_first(self, value: T) -> T:
        """Return rank 0's value, so that rounding or a different file system cannot make ranks decide differently."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        first: T = values[0]
        return first

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @torch.no_grad()
    def average_statistics(self, model: nn.Module) -> None:
        """Replace the running statistics of batch and instance normalisation by their mean over ranks."""
        if self.size == 1:
            return
        for layer in model.modules():
            if isinstance(layer, NORMALISATIONS):
                for statistic in (layer.running_mean, layer.running_var):
                    if statistic is not None:
                        all_reduce_sum(statistic)
                        statistic /= self.size


# Sums over ranks in the middle of a network. They are operators, so that a compiler keeps each of them as one call.
# All ranks must send in the same order. A compiler may reorder calls that do not depend on each other, and do so
# differently on each rank, because the shares differ in size. So the sums are chained: each takes the `token` that the
# one before it returned, and the backward pass runs along the tokens in reverse.


@torch.library.custom_op("avuc::sum_in_net", mutates_args=())
def _sum_in_net(values: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    total = values.clone(memory_format=torch.contiguous_format)
    all_reduce_sum(total)
    return total, token.clone()


@_sum_in_net.register_fake
def _(values: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(values, memory_format=torch.contiguous_format), torch.empty_like(token)


def _sum_in_net_gradient(ctx: Any, of_total: Tensor, of_token: Tensor) -> tuple[Tensor, Tensor]:
    # every rank's loss depends on the sum, so its gradient is summed over ranks as well
    in_values, in_token = _sum_in_net(of_total, of_token)
    return in_values, in_token


_sum_in_net.register_autograd(_sum_in_net_gradient)


class _Chain:
    """The token of the last sum of a forward pass."""

    def __init__(self, device: torch.device) -> None:
        self.token = torch.zeros(1, device=device, requires_grad=True)

    def sum(self, values: Tensor) -> Tensor:
        total: Tensor
        total, self.token = _sum_in_net(values, self.token)
        return total


@contextlib.contextmanager
def global_batch_norm(model: nn.Module, ranks: Ranks, *, over_ranks: bool) -> Iterator[None]:
    """While open, batch and instance normalisation in training mode work with several ranks.

    The layers change their class meanwhile. A compiled function can then serve all models, which it could not if each
    layer had a forward function of its own.

    Args:
        model: its normalisation layers change while the context is open.
        ranks: with one rank nothing changes.
        over_ranks: use the statistics of the rows of all ranks; if False, of this rank's rows only.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, NORMALISATIONS)] if ranks.size > 1 else []
    classes = [type(layer) for layer in layers]
    chain = _Chain(next(model.parameters()).device) if layers and over_ranks else None
    for layer in layers:
        layer.__class__ = _with_ranks(type(layer), over_ranks)  # type: ignore[arg-type, assignment]
        layer.__dict__["chain"] = chain
    try:
        yield
    finally:
        for layer, before in zip(layers, classes, strict=True):
            layer.__class__ = before
            del layer.__dict__["chain"]


@cache
def _with_ranks(kind: type[_NormBase], over_ranks: bool) -> type[_NormBase]:
    mixin: type[_NormBase] = _OverRanks if over_ranks else _OwnRows
    if issubclass(kind, _InstanceNorm):
        mixin = _InstancesOverRanks if over_ranks else _OwnInstances
    return type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {})


class _OwnRows(_BatchNorm):
    """Batch normalisation over this rank's rows, of which there may be none."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) or not self.training:
            return super().forward(x)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        return x


class _OverRanks(_BatchNorm):
    """Batch normalisation over the rows of all ranks."""

    chain: _Chain

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        others = [dim for dim in range(x.dim()) if dim != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        local = torch.cat([exact.sum(others), exact.new_full((1,), x.numel() / x.shape[1])])
        summed = self.chain.sum(local)
        count = summed[-1].detach()
        mean = summed[:-1] / count
        centred = exact - mean.view(shape)
        variance = self.chain.sum(centred.square().sum(others)) / count
        running_mean, running_var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        if running_mean is not None and running_var is not None and seen is not None:
            with torch.no_grad():
                seen += 1
                weight = (1 / seen).to(running_mean.dtype) if self.momentum is None else self.momentum
                unbiased = variance.detach() * count / (count - 1).clamp(min=1)
                running_mean.lerp_(mean.detach().to(running_mean.dtype), weight)
                running_var.lerp_(unbiased.to(running_var.dtype), weight)
        out = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        normalised: Tensor = out.to(x.dtype)
        return normalised


class _OwnInstances(_InstanceNorm):
    """Instance normalisation of this rank's rows, of which there may be none."""

    def _apply_instance_norm(self, x: Tensor) -> Tensor:
        if not len(x):
            return x
        normalised: Tensor = super()._apply_instance_norm(x)
        return normalised


class _InstancesOverRanks(_OwnInstances):
    """Instance normalisation whose running statistics are those of the rows of all ranks."""

    chain: _Chain

    def _apply_instance_norm(self, x: Tensor) -> Tensor:
        running_mean, running_var = self.running_mean, self.running_var
        if not self.training or running_mean is None or running_var is None:
            return super()._apply_instance_norm(x)
        normalised = super()._apply_instance_norm(x)
        # This rank has updated the statistics with the mean of its rows. The update is linear, so the mean over ranks,
        # weighted by their rows, is the update with the mean of all rows.
        rows = running_mean.new_full((1,), len(x))
        summed = self.chain.sum(torch.cat([running_mean * rows, running_var * rows, rows])).detach()
        mean, variance = (summed[:-1] / summed[-1]).chunk(2)
        with torch.no_grad():
            running_mean.copy_(mean)
            running_var.copy_(variance)
        return normalised
