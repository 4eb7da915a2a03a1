"""Triton kernels for a tile of logits: the online softmax of its rows, and its gradient in place.

The matrix products around them are cuBLAS's. Both kernels read a tile (T, width) of h·Wᵀ in the type of the hidden
states and compute in float32. `avuc.losses.linear.tiles` has the formulas.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from avuc.losses.linear.tiles import Coefficients, Options, Partial

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA comes without Triton
    triton = None

FORWARD_BLOCK = 4096
BACKWARD_BLOCK = 2048
WARPS = 8


def available() -> bool:
    """Return whether Triton is installed."""
    return triton is not None


def jit(kernel: Callable[..., Any]) -> Any:
    """Return the Triton kernel, or the plain function without Triton."""
    return kernel if triton is None else triton.jit(kernel)


def softmax_updater(
    dtype: torch.dtype, bias: Tensor | None, labels: Tensor, part: Partial, options: Options
) -> Callable[[Tensor, int], None]:
    """Return a function of a tile z (T, w) of `dtype` and its first word in `bias`: adds w words to `part`, in place.

    The tile of word 0 comes first: there `part` is only written. `options.first` is the number of word 0 in the whole
    vocabulary.
    """
    start = _starter(_update_softmax, dtype, bias, (labels, *part), options, ("START",))

    def update(z: Tensor, word: int) -> None:
        tokens, width = z.shape
        start((tokens, 1, 1), z, word, (word == 0,), min(FORWARD_BLOCK, _power_of_2(width)))

    return update


def gradient_writer(
    dtype: torch.dtype,
    bias: Tensor | None,
    labels: Tensor,
    predicted: Tensor,
    coefficients: Coefficients,
    options: Options,
) -> Callable[[Tensor, int], None]:
    """Return a function of a tile z (T, w) and its first word: replaces h·Wᵀ by the gradient in it."""
    start = _starter(_replace_by_gradient, dtype, bias, (labels, predicted, *coefficients), options, ())

    def replace(z: Tensor, word: int) -> None:
        tokens, width = z.shape
        block = min(BACKWARD_BLOCK, _power_of_2(width))
        start((tokens, -(-width // block), 1), z, word, (), block)

    return replace


_COMPILED: dict[tuple[Any, ...], dict[tuple[Any, ...], Any]] = {}


def _starter(
    kernel: Any,
    dtype: torch.dtype,
    bias: Tensor | None,
    columns: tuple[Tensor, ...],
    options: Options,
    names: tuple[str, ...],
) -> Callable[[tuple[int, int, int], Tensor, int, tuple[bool, ...], int], None]:
    """Return a function that starts `kernel` for a tile; after the first time without Triton's look at each argument.

    That look takes as long as a small tile. It decides by types, by the alignment of addresses to 16 bytes, by whole
    numbers that are 1 or multiples of 16, and by the constants: all of these are in the two keys here. A kernel that is
    compiled takes addresses in place of tensors, and need not ask the driver for them.
    """
    flags = (bias is not None, options.softcap is not None, options.scale is not None)
    names = (*names, "HAS_BIAS", "HAS_CAP", "HAS_SCALE", "BLOCK")
    numbers = options.softcap or 1.0, options.scale or 1.0
    types = dtype if bias is None else bias.dtype, *(column.dtype for column in columns)
    compiled = _COMPILED.setdefault((kernel, columns[0].device, WARPS, dtype, types, flags), {})
    addresses = tuple(column.data_ptr() for column in columns)
    bits = functools.reduce(operator.or_, addresses)
    of_bias, size = (0, 0) if bias is None else (bias.data_ptr(), bias.element_size())

    def start(grid: tuple[int, int, int], z: Tensor, word: int, own: tuple[bool, ...], block: int) -> None:
        width, stride, first, at = z.shape[1], z.stride(0), options.first + word, z.data_ptr()
        at_bias = of_bias + word * size or at
        constants = (*own, *flags, block)
        usual = not ((bits | at | at_bias) % 16 or 1 in (stride, width, first) or max(stride, width, first) >= 1 << 31)
        key = (*own, block, not stride % 16, not width % 16, not first % 16)
        ready = compiled.get(key) if usual else None
        if ready is not None:
            ready[grid](at, stride, at_bias, *addresses, width, first, *numbers, *constants)
            return
        tensor = z if bias is None else bias[word : word + width]
        named = dict(zip(names, constants, strict=True))
        found = kernel[grid](z, stride, tensor, *columns, width, first, *numbers, **named, num_warps=WARPS)
        if usual:
            compiled[key] = found  # None in Triton's interpreter

    return start


_STARTED: dict[tuple[Any, ...], Any] = {}


def start_once_more(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: dict[str, Any], warps: int
) -> None:
    """Start `kernel`, as `_starter` does: the key has all that Triton looks at, for any tensors and numbers.

    Args:
        kernel: a Triton kernel.
        grid: numbers of programs.
        arguments: by position; the first one is a tensor.
        constants: in the order of the kernel's arguments.
        warps: of a program.
    """
    kinds: list[Any] = []
    values: list[Any] = []
    for value in arguments:
        if isinstance(value, Tensor):
            values.append(value.data_ptr())
            kinds.append((value.dtype, not values[-1] % 16))
        else:
            values.append(value)
            whole = isinstance(value, int)
            kinds.append((value == 1, not value % 16, value.bit_length() < 32) if whole else type(value))
    key = (kernel, arguments[0].device, warps, *kinds, *constants.values())
    ready = _STARTED.get(key)
    if ready is None:
        _STARTED[key] = kernel[grid](*arguments, **constants, num_warps=warps)  # None in Triton's interpreter
    else:
        ready[grid](*values, *constants.values())


def _power_of_2(number: int) -> int:
    """Return the smallest power of 2 that is not below `number`."""
    return 1 << (number - 1).bit_length()


@jit
def _transformed(  # type: ignore[no-untyped-def]
    x, bias, cols, inside, softcap, scale, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SCALE: tl.constexpr
):  # fmt: skip
    if HAS_BIAS:
        x += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALE:
        x *= scale
    if HAS_CAP:
        x = softcap * (2 * tl.sigmoid(2 * x / softcap) - 1)  # softcap·tanh(x/softcap)
    return x


@jit
def _update_softmax(  # type: ignore[no-untyped-def]
    z, stride, bias, labels, largest, rest, spread, label_logit, predicted, width, first, softcap, scale,
    START: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    z += row.to(tl.int64) * stride
    own = tl.load(labels + row) - first
    if START:
        # the lowest finite number: −inf − (−inf) would be NaN if all words of the first block are excluded
        m, s, t = -3.4028234663852886e38, -1.0, 0.0
        best = own * 0
    else:
        m, s, t = tl.load(largest + row), tl.load(rest + row), tl.load(spread + row)
        best = tl.load(predicted + row)
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < width
        x = tl.load(z + cols, mask=inside, other=0.0).to(tl.float32)
        x = _transformed(x, bias, cols, inside, softcap, scale, HAS_BIAS, HAS_CAP, HAS_SCALE)
        x = tl.where(inside, x, float("-inf"))
        highest, place = tl.max(x, axis=0, return_indices=True)  # the first of equal words
        found = highest > m
        best = tl.where(found, place.to(tl.int64) + (first + start), best)
        new = tl.maximum(m, highest)
        # 0·(−inf) is NaN: the floor changes no exponential; NaN itself must pass
        d = tl.maximum(x - new, -104.0, propagate_nan=tl.PropagateNan.ALL)
        e = tl.exp(d)
        kept = tl.exp(m - new)
        t = kept * (t + (1 + s) * (m - new)) + tl.sum(e * d, axis=0)
        e = tl.where(cols == tl.where(found, place + start, -1), 0.0, e)
        s = tl.where(found, kept * (1 + s), s) + tl.sum(e, axis=0)
        m = new
    tl.store(largest + row, m)
    tl.store(rest + row, s)
    tl.store(spread + row, t)
    tl.store(predicted + row, best)
    has = (own >= 0) & (own < width)
    x = tl.load(z + own, mask=has, other=0.0).to(tl.float32)
    x = _transformed(x, bias, own, has, softcap, scale, HAS_BIAS, HAS_CAP, HAS_SCALE)
    if START:
        tl.store(label_logit + row, tl.where(has, x, 0.0))
    else:
        tl.store(label_logit + row, x, mask=has)


@jit
def _replace_by_gradient(  # type: ignore[no-untyped-def]
    z, stride, bias, labels, predicted, largest, constant, slope, at_label, at_predicted, width, first, softcap, scale,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    z += row.to(tl.int64) * stride + cols
    x = tl.load(z, mask=inside, other=0.0).to(tl.float32)
    x = _transformed(x, bias, cols, inside, softcap, scale, HAS_BIAS, HAS_CAP, HAS_SCALE)
    d = tl.maximum(x - tl.load(largest + row), -104.0, propagate_nan=tl.PropagateNan.ALL)
    dz = tl.exp(d) * (tl.load(constant + row) + tl.load(slope + row) * d)
    dz += tl.where(cols == tl.load(labels + row) - first, tl.load(at_label + row), 0.0)
    dz += tl.where(cols == tl.load(predicted + row) - first, tl.load(at_predicted + row), 0.0)
    if HAS_CAP:
        dz *= 1 - (x / softcap) * (x / softcap)
    if HAS_SCALE:
        dz *= scale
    tl.store(z, dz.to(z.dtype.element_ty), mask=inside)
