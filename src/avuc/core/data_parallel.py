"""Differentiable sums over the processes (ranks) of a data-parallel job, for losses that are ratios over the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.errors import InputError

# None: the default group if torch.distributed is running; False: this process alone.
Group = dist.ProcessGroup | None | bool

_rehearsing = False


@contextlib.contextmanager
def rehearsal() -> Iterator[None]:
    """While open, the functions of this module send nothing: a sum over ranks is the rank's own part.

    A rank can compile and try a step inside, without the other ranks. The compiled code is the same as outside.
    """
    global _rehearsing
    before, _rehearsing = _rehearsing, True
    try:
        yield
    finally:
        _rehearsing = before


def all_reduce_sum(values: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Replace `values` by their sum over ranks, in place and without gradient."""
    if not _rehearsing:
        dist.all_reduce(values, group=group)


def world_size(group: Group) -> int:
    """Return the number of processes that share one batch; 1 if torch.distributed is not running."""
    if group is False or not (dist.is_available() and dist.is_initialized()):
        return 1
    size = dist.get_world_size(_resolved(group))
    if size < 1:  # −1 would reverse the sign of every gradient
        raise InputError("avuc: this process is not a member of `group`; use its own group, or group=False")
    return size


def sum_over_ranks(values: Tensor, group: Group = None) -> Tensor:
    """Return the sum over ranks. Every rank must compute the same loss from it.

    The backward pass multiplies by the number of ranks, because DistributedDataParallel then divides by it. So the
    mean gradients are those of one process with the whole batch.
    """
    ranks = world_size(group)
    if ranks == 1:
        return values
    if group is None and torch.compiler.is_compiling():
        return _compiled_sum(values, ranks)  # type: ignore[no-any-return, unused-ignore]
    summed: Tensor = _SumOverRanks.apply(values, _resolved(group), ranks)
    return summed


def reduce_extremum(value: Tensor, group: Group, *, largest: bool) -> Tensor:
    """Return the largest or smallest entry over all ranks, without gradient."""
    value = (value.detach().amax() if largest else value.detach().amin()) if value.numel() else _nothing(value, largest)
    if world_size(group) > 1 and not _rehearsing:
        dist.all_reduce(value, dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN, group=_resolved(group))
    return value


def gather_rows(rows: Tensor, group: Group = None) -> Tensor:
    """Return the rows (N_r, K) of all ranks as one tensor, differentiable; N_r may differ between ranks."""
    ranks = world_size(group)
    return rows if ranks == 1 else _GatherRows.apply(rows, _resolved(group), ranks)


def refuse_second_derivative(group: Group) -> None:
    """Raise `InputError` if ranks share a batch: each rank knows only its part of a second derivative."""
    if world_size(group) > 1:
        raise InputError(
            "avuc: a second derivative (create_graph=True) of a loss that is summed over ranks is not available; "
            "use group=False, which is the loss of this process alone"
        )


def _resolved(group: Group) -> dist.ProcessGroup | None:
    return None if isinstance(group, bool) else group


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None, ranks: int) -> Tensor:
        ctx.ranks, ctx.group = ranks, group
        total = values.clone(memory_format=torch.contiguous_format)
        all_reduce_sum(total, group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx.group)
        return gradient * ctx.ranks, None, None


# `_SumOverRanks` as an operator, which a compiler keeps as one call
@torch.library.custom_op("avuc::sum_over_ranks", mutates_args=(), schema="(Tensor values, int ranks) -> Tensor")
def _compiled_sum(values: Tensor, ranks: int) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    all_reduce_sum(total)
    return total


@_compiled_sum.register_fake
def _(values: Tensor, ranks: int) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _keep_ranks(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.ranks = inputs[1]


_compiled_sum.register_autograd(lambda ctx, gradient: (gradient * ctx.ranks, None), setup_context=_keep_ranks)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup | None, ranks: int) -> Tensor:
        if _rehearsing:
            ctx.start, ctx.rows, ctx.ranks, ctx.group = 0, rows.shape[0], ranks, group
            return rows.clone()
        counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(ranks)]
        dist.all_gather(counts, torch.tensor([rows.shape[0]], device=rows.device), group=group)
        sizes = [int(count) for count in counts]
        padded = rows.new_zeros(max(sizes), rows.shape[1])
        padded[: rows.shape[0]] = rows
        parts = [torch.empty_like(padded) for _ in range(ranks)]
        dist.all_gather(parts, padded, group=group)
        rank = dist.get_rank(group)
        ctx.start, ctx.rows, ctx.ranks, ctx.group = sum(sizes[:rank]), rows.shape[0], ranks, group
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx.group)
        return gradient[ctx.start : ctx.start + ctx.rows] * ctx.ranks, None, None


def _nothing(values: Tensor, largest: bool) -> Tensor:
    """Return the extremum of no values, which does not change the extremum over ranks."""
    return values.new_tensor(float("-inf") if largest else float("inf"))
