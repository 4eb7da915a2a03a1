"""Triton kernels for a tile of logits: the online softmax of its rows, and its gradient in place.

The matrix products around them are cuBLAS's. Both kernels read a tile (T, width) of h·Wᵀ in the type of the hidden
states and compute in float32. `avuc.losses.linear.tiles` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def update_softmax(
    z: Tensor, bias: Tensor | None, labels: Tensor, part: Partial, options: Options, start: bool = False
) -> None:
    """Add the words of a tile to the online softmax `part`, in place; `options.first` is the tile's first word.

    With `start` this is the first tile, and `part` is only written.
    """
    tokens, width = z.shape
    block = min(FORWARD_BLOCK, triton.next_power_of_2(width))
    _start(
        _update_softmax, (tokens, 1, 1), (z, z.stride(0), z if bias is None else bias, labels, *part), width, options,
        {"START": start, **_flags(bias, options), "BLOCK": block},
    )  # fmt: skip


def replace_by_gradient(
    z: Tensor, bias: Tensor | None, labels: Tensor, predicted: Tensor, coefficients: Coefficients, options: Options
) -> None:
    """Replace h·Wᵀ in a tile by the gradient in it; `options.first` is the tile's first word."""
    tokens, width = z.shape
    block = min(BACKWARD_BLOCK, triton.next_power_of_2(width))
    tensors = (z, z.stride(0), z if bias is None else bias, labels, predicted, *coefficients)
    grid = (tokens, triton.cdiv(width, block), 1)
    _start(_replace_by_gradient, grid, tensors, width, options, {**_flags(bias, options), "BLOCK": block})


_COMPILED: dict[tuple[Any, ...], Any] = {}


def _start(
    kernel: Any, grid: tuple[int, int, int], tensors: tuple[Any, ...], width: int, options: Options, constants: Any
) -> None:
    """Start `kernel`. After its first time it is started without Triton's look at each argument.

    That look takes as long as a small tile. It decides by types, by the alignment of addresses to 16 bytes, by whole
    numbers that are 1 or multiples of 16, and by the constants: all of these are in the key here.
    """
    z, stride, *others = tensors
    arguments = (*tensors, width, options.first, options.softcap or 1.0, options.scale or 1.0)
    addresses = z.data_ptr()
    for other in others:
        addresses |= other.data_ptr()
    numbers = (stride, width, options.first)
    if addresses % 16 or 1 in numbers or max(numbers) >= 1 << 31:
        kernel[grid](*arguments, **constants, num_warps=WARPS)
        return
    key = (
        kernel, z.device, WARPS, *(each.dtype for each in (z, *others)), *(not n % 16 for n in numbers),
        *constants.values(),
    )  # fmt: skip
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*arguments, **constants, num_warps=WARPS)  # None in Triton's interpreter
    else:
        compiled[grid](*arguments, *constants.values())


def _flags(bias: Tensor | None, options: Options) -> dict[str, bool]:
    capped, scaled = options.softcap is not None, options.scale is not None
    return {"HAS_BIAS": bias is not None, "HAS_CAP": capped, "HAS_SCALE": scaled}


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
