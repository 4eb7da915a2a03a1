"""AugMix (Hendrycks et al. 2020, arXiv:1912.02781) for a whole batch at once.

Three chains of one to three random operations start from the same image; the result is

    (1 − m)·image + m·Σ_k w_k·chain_k,    w ~ Dirichlet(1, 1, 1),  m ~ Beta(1, 1) = uniform

rounded to bytes. The nine operations are those of the paper, which leaves out contrast, colour, brightness, sharpness,
noise and blur because the test shifts use them. With strength s uniform in [0.1, severity], a random sign ±, int()
dropping the fraction, width W and height H:

    autocontrast, equalize     no strength
    posterize                  keep 4 − int(0.4·s) bits
    solarize                   invert values from 256 − int(25.6·s) on
    rotate                     ± int(3·s) degrees about the centre
    shear_x, shear_y           ± 0.03·s pixels for each row, column
    translate_x, translate_y   ± int(s·W/30), ± int(s·H/30) pixels

The first four replace each value of a channel by another, with a table of 256 entries per image and channel. The
others are affine maps with bilinear interpolation, black outside the image. Both follow Pillow: tables are equal, and
in affine maps a few values in a hundred thousand differ by one grey level, because Pillow computes in float64 and this
in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "solarize",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
AUTOCONTRAST, EQUALIZE, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(9)
NOTHING = len(OPERATIONS)  # the operation after the end of a chain: the identity, as an affine map
CHAINS, DEPTH = 3, 3
SLOTS = CHAINS * DEPTH
WEAKEST = 0.1
COLUMNS = 1 + CHAINS + CHAINS + SLOTS + SLOTS  # m, weights, lengths, operations, strengths


def augmix(images: Tensor, drawn: Tensor, severity: float = 3.0) -> Tensor:
    """Return the augmented images, uint8 (B, H, W, C).

    Args:
        images: uint8 (B, H, W, C).
        drawn: numbers uniform in [0, 1), (B, COLUMNS). The columns are: m; one per chain for its weight; one per chain
            for its length; one per slot for its operation, the three slots of the first chain first; one per slot for
            sign and strength.
        severity: largest strength; default 3.

    >>> images = torch.arange(2 * 8 * 8 * 3).remainder(256).to(torch.uint8).view(2, 8, 8, 3)
    >>> drawn = torch.rand(2, COLUMNS, generator=torch.Generator().manual_seed(0))
    >>> drawn[0, 0] = 0  # m = 0: the original image
    >>> torch.equal(augmix(images, drawn)[0], images[0])
    True
    """
    batch = len(images)
    share, weights, lengths, which, strengths = drawn.T.split([1, CHAINS, CHAINS, SLOTS, SLOTS])
    slot = torch.arange(DEPTH, device=images.device)[:, None]
    operation = _below(which, NOTHING).view(CHAINS, DEPTH, batch)
    operation = torch.where(slot <= _below(lengths, DEPTH)[:, None], operation, NOTHING)
    twice = 2 * strengths.view(CHAINS, DEPTH, batch)  # the first bit is the sign
    strength = WEAKEST + torch.where(twice < 1, twice, twice - 1) * (severity - WEAKEST)
    signed = torch.where(twice < 1, strength, -strength)
    # on a CPU the drawn operations can be read without waiting, so only those are computed
    change = _change if images.device.type != "cpu" or torch.compiler.is_compiling() else _change_where_needed
    chains = images[None]
    for step in range(DEPTH):
        chains = change(chains, operation[:, step], signed[:, step])
    # minus an exponential variable; three of them, normalised, are Dirichlet(1, 1, 1)
    weight = (1 - weights).log().clamp(max=-1e-9)
    weight = (share * weight / weight.sum(0)).view(CHAINS, batch, 1, 1, 1)
    mixed: Tensor = (1 - share).view(batch, 1, 1, 1) * images
    for chain in range(CHAINS):
        mixed = mixed + weight[chain] * chains[chain]
    return (mixed + 0.5).to(torch.uint8)


def _below(uniform: Tensor, bound: int) -> Tensor:
    """Return uniform integers in 0…bound − 1 from numbers in [0, 1); the product may round up to `bound`."""
    return (uniform * bound).to(torch.int32).clamp(max=bound - 1)


def _change(images: Tensor, operation: Tensor, signed: Tensor) -> Tensor:
    """Apply one slot of all chains: images (CHAINS or 1, B, H, W, C), operation and signed strength (CHAINS, B)."""
    moved = _moved(images, *_maps(operation, signed, *images.shape[2:4]))
    replaced = _replaced(images, _tables(_counts(images), operation, signed.abs()))
    return torch.where((operation < ROTATE)[..., None, None, None], replaced, moved)


def _change_where_needed(images: Tensor, operation: Tensor, signed: Tensor) -> Tensor:
    """Like `_change`, but for each image only the drawn operation is computed."""
    changed = images.expand(CHAINS, *images.shape[1:]).flatten(0, 1).clone()
    for moving in (False, True):
        needed = (operation >= ROTATE) & (operation < NOTHING) if moving else operation < ROTATE
        rows = needed.flatten().nonzero().flatten()
        some, which, how = changed[rows][None], operation.flatten()[rows][None], signed.flatten()[rows][None]
        if moving:
            changed[rows] = _moved(some, *_maps(which, how, *images.shape[2:4]))[0]
        else:
            changed[rows] = _replaced(some, _tables(_counts(some), which, how.abs()))[0]
    return changed.view(CHAINS, *images.shape[1:])


# operations that replace values: autocontrast, equalize, posterize, solarize


def _counts(images: Tensor) -> Tensor:
    """Count each value, (…, C, 256). Sums of integers do not depend on the order in which threads add."""
    chains, batch, channels = images.shape[0], images.shape[1], images.shape[4]
    histograms = chains * batch * channels
    first = 256 * torch.arange(histograms, device=images.device).view(chains, batch, 1, 1, channels)
    positions = (first + images).flatten()
    ones = torch.ones_like(positions, dtype=torch.int32)
    empty = torch.zeros(histograms * 256, dtype=torch.int32, device=images.device)
    return empty.scatter_add_(0, positions, ones).view(chains, batch, channels, 256)


def _tables(counts: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Return what each value becomes, uint8 (CHAINS, B, C, 256), as in Pillow's ImageOps."""
    values = torch.arange(256, dtype=torch.int32, device=counts.device)
    operation, strength = operation[..., None, None], strength[..., None, None]
    shift = 4 + (0.4 * strength).to(torch.int32)
    posterized = (values >> shift) << shift
    solarized = torch.where(values < 256 - (25.6 * strength).to(torch.int32), values, 255 - values)
    table = torch.where(operation == POSTERIZE, posterized, solarized)
    table = torch.where(operation == EQUALIZE, _equalized(counts, values), table)
    return torch.where(operation == AUTOCONTRAST, _stretched(counts, values), table).to(torch.uint8)


def _equalized(counts: Tensor, values: Tensor) -> Tensor:
    """Map each value to its share of the pixels below it; no change if fewer than 255 pixels are below the highest."""
    below = counts.cumsum(-1, dtype=torch.int32) - counts
    step = torch.where(counts > 0, below, 0).amax(-1, keepdim=True) // 255
    equalized = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, values)


def _stretched(counts: Tensor, values: Tensor) -> Tensor:
    """Map the lowest value to 0 and the highest to 255, with Pillow's rounding, which is sometimes off by 1.

    The products are never negative. Clamping them at 0 prevents a compiler from fusing them with the subtraction, which
    would round differently.
    """
    low = torch.where(counts > 0, values, 255).amin(-1, keepdim=True)
    high = torch.where(counts > 0, values, 0).amax(-1, keepdim=True)
    # a tensor of 255, because torch computes 255/x as 255·(1/x)
    scale = torch.full_like(low, 255, dtype=torch.float64) / (high - low).clamp(min=1)
    stretched = (values * scale).clamp(min=0) - (low * scale).clamp(min=0)
    return torch.where(high > low, stretched.clamp(0, 255).to(torch.int32), values)


def _replaced(images: Tensor, tables: Tensor) -> Tensor:
    chains, batch = tables.shape[:2]
    height, width, channels = images.shape[2:]
    positions = images.expand(chains, -1, -1, -1, -1).reshape(chains, batch, height * width, channels).transpose(2, 3)
    return tables.gather(3, positions.long()).transpose(2, 3).reshape(chains, batch, height, width, channels)


# operations that move pixels: rotate, shear, translate


def _maps(operation: Tensor, signed: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    """Return a, b, c, d, e, f, each (CHAINS, B, 1, 1): pixel (x, y) is read at (a·x + b·y + c, d·x + e·y + f)."""

    def only(which: int, amount: Tensor) -> Tensor:
        return torch.where(operation == which, amount, 0.0)[..., None, None]

    angle = only(ROTATE, (3 * signed).trunc() * (math.pi / 180))
    cosine, sine = angle.cos(), angle.sin()
    # about the centre of the image
    right = (1 - cosine) * (width / 2) + sine * (height / 2)
    down = (1 - cosine) * (height / 2) - sine * (width / 2)
    return (
        cosine,
        only(SHEAR_X, 0.03 * signed) - sine,
        only(TRANSLATE_X, (signed * (width / 30)).trunc()) + right,
        only(SHEAR_Y, 0.03 * signed) + sine,
        cosine,
        only(TRANSLATE_Y, (signed * (height / 30)).trunc()) + down,
    )


def _moved(images: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Interpolate bilinearly at the mapped pixel centres and drop the fraction; border pixels are repeated."""
    chains, batch, height, width, channels = images.shape
    x = torch.arange(width, device=images.device) + 0.5
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]
    column, row = a * x + b * y + c, d * x + e * y + f
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    left, top = (column - 0.5).floor(), (row - 0.5).floor()
    to_right, to_bottom = (column - 0.5 - left)[..., None], (row - 0.5 - top)[..., None]
    columns = [(left + step).clamp(0, width - 1).long() for step in (0, 1)]
    rows = [(top + step).clamp(0, height - 1).long() * width for step in (0, 1)]
    first = (height * width) * torch.arange(chains * batch, device=images.device).view(chains, batch, 1, 1)
    pixels = images.reshape(-1, channels)

    def line(start: Tensor) -> Tensor:
        left, right = (
            pixels.index_select(0, (first + start + column).flatten()).view(*start.shape, channels).float()
            for column in columns
        )
        return left + (right - left) * to_right

    upper, lower = line(rows[0]), line(rows[1])
    return (upper + (lower - upper) * to_bottom).to(torch.uint8) * inside[..., None]
