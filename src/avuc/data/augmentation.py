"""Augmentation of training images in two steps: `draw` samples random numbers, `apply` is a pure function of them.

Both can be captured in a CUDA graph: nothing is copied to the host, nothing synchronises, and shapes depend only on the
shape of `indices`, which may be a static buffer. All randomness comes from one generator, which the trainer registers
with `graph.register_generator_state(generator)`. `apply` can be compiled. It also serves several models in one call:
draw with the generator of each model, concatenate the numbers, and apply once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from avuc.core.accelerators import augmix_kernel
from avuc.core.errors import InputError
from avuc.data.augmix import COLUMNS, WEAKEST, augmix

Policy = Literal["crop", "augmix"]
"""Name of an augmentation: `"crop"` or `"augmix"`."""

_TABLES: dict[tuple[int, int, int, int, torch.device], tuple[Tensor, Tensor]] = {}


@dataclass(frozen=True)
class Augmentation:
    """Random crop and flip, or these followed by AugMix (Hendrycks et al. 2020, arXiv:1912.02781).

    Args:
        policy: `"crop"` (default) pads an image with `pad` zero pixels on each side, crops a random part of the
            original size and flips it with probability 1/2. `"augmix"` then mixes the result with randomly changed
            copies of itself; `avuc.data.augmix` has the equations.
        pad: number of zero pixels; default 4.
        flip: whether images are flipped; default True. Use False for digits and letters.
        severity: largest strength of the operations of AugMix, in [0.1, 10]; default 3. No effect on `"crop"`.

    >>> images = torch.arange(2 * 8 * 8 * 3).remainder(256).to(torch.uint8).view(2, 8, 8, 3)
    >>> augmentation = Augmentation("crop")
    >>> drawn = augmentation.draw(3, torch.Generator().manual_seed(0), "cpu")
    >>> augmentation.apply(images, torch.tensor([1, 0, 1]), drawn).shape
    torch.Size([3, 8, 8, 3])
    """

    policy: Policy = "crop"
    pad: int = 4
    flip: bool = True
    severity: float = 3.0

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise InputError(
                f"augmentation: policy must be one of {', '.join(get_args(Policy))}; found {self.policy!r}"
            )
        if self.pad < 0:
            raise InputError(f"augmentation: pad must not be negative, found {self.pad}; use 0 for no crop")
        if not 0.1 <= self.severity <= 10:
            raise InputError(f"augmentation: severity must be in [0.1, 10], found {self.severity}; 3 is usual")

    @property
    def choices(self) -> int:
        """Number of different crops and flips: (2·pad + 1)², twice that with flips."""
        return (2 * self.pad + 1) ** 2 * (1 + self.flip)

    def draw(self, rows: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
        """Sample the random numbers for `rows` images in one kernel launch; returns (rows, K).

        For `"crop"` K = 1: an integer in 0…choices − 1 that encodes crop row, crop column and flip, which are
        therefore independent and uniform; K = 0 without pad and flip. For `"augmix"` the numbers are uniform in
        [0, 1), and the first one decides crop and flip.

        Args:
            rows: number of images.
            generator: on `device`.
            device: where the numbers are made.
        """
        if self.policy == "augmix":
            return torch.rand(rows, 1 + COLUMNS, generator=generator, device=device)
        if self.choices == 1:
            return torch.empty(rows, 0, dtype=torch.int64, device=device)
        return torch.randint(self.choices, (rows, 1), generator=generator, device=device, dtype=torch.int64)

    def apply(self, images: Tensor, indices: Tensor, drawn: Tensor) -> Tensor:
        """Return the augmented `images[indices]`, uint8 (B, H, W, C). No image depends on another.

        Args:
            images: the whole data set, uint8 (N, H, W, C).
            indices: int64 (B,).
            drawn: from `draw(B, …)`.
        """
        if self.policy == "augmix" and images.is_cuda:
            mixed: Tensor = _augmix_on_gpu(images, indices, drawn, self.pad, self.flip, self.severity)
            return mixed
        return self._in_torch(images, indices, drawn)

    def _in_torch(self, images: Tensor, indices: Tensor, drawn: Tensor) -> Tensor:
        mixing = self.policy == "augmix"
        if self.choices == 1:
            batch = images[indices]
        else:
            # the product may round up to `choices`
            choice = (drawn[:, 0] * self.choices).long().clamp(max=self.choices - 1) if mixing else drawn[:, 0]
            batch = _gather(images, indices, choice, self.pad, 1 + self.flip)
        return augmix(batch, drawn[:, 1:], self.severity) if mixing else batch


# a custom operator, so that torch.compile calls it, and with it the kernel, instead of tracing the torch code
@torch.library.custom_op(
    "avuc::augmix",
    mutates_args=(),
    schema="(Tensor images, Tensor indices, Tensor drawn, int pad, bool flip, float severity) -> Tensor",
)
def _augmix_on_gpu(images: Tensor, indices: Tensor, drawn: Tensor, pad: int, flip: bool, severity: float) -> Tensor:
    # without the kernel (no avuc/gpu, an older GPU, large images) torch computes the same
    kernel = augmix_kernel()
    if kernel is not None and kernel.usable(images, pad, flip):
        return kernel.augmix_images(images, indices, drawn, pad=pad, flip=flip, strengths=(WEAKEST, severity))
    return Augmentation("augmix", pad, flip, severity)._in_torch(images, indices, drawn)


@_augmix_on_gpu.register_fake
def _(images: Tensor, indices: Tensor, drawn: Tensor, pad: int, flip: bool, severity: float) -> Tensor:
    return images.new_empty(indices.shape[0], *images.shape[1:])


def augment(images: Tensor, indices: Tensor, generator: torch.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """Return a batch with random crops and flips, uint8 (B, H, W, C): `Augmentation("crop")` in one call.

    Args:
        images: the whole data set, uint8 (N, H, W, C).
        indices: the images of the batch, int64 (B,).
        generator: on the device of the images.
        pad: number of zero pixels on each side before the crop; default 4.
        flip: whether each image is flipped with probability 1/2; default True.

    >>> images = torch.arange(2 * 8 * 8 * 3).remainder(256).to(torch.uint8).view(2, 8, 8, 3)
    >>> augment(images, torch.tensor([1, 0, 1]), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 8, 8, 3])
    """
    augmentation = Augmentation(pad=pad, flip=flip)
    return augmentation.apply(images, indices, augmentation.draw(len(indices), generator, images.device))


def augment_at(images: Tensor, indices: Tensor, top: Tensor, left: Tensor, flipped: Tensor, *, pad: int = 4) -> Tensor:
    """Return a batch with given crops and flips, uint8 (B, H, W, C).

        out[b, i, j] = padded[indices[b], top[b] + i, left[b] + (W − 1 − j if flipped[b] else j)]

    Args:
        images: the whole data set, uint8 (N, H, W, C).
        indices: the images of the batch, int64 (B,).
        top: first row of each crop in the padded image, int64 (B,), in 0…2·pad.
        left: first column of each crop, int64 (B,), in 0…2·pad.
        flipped: whether each crop is flipped, bool (B,).
        pad: number of zero pixels on each side; default 4.

    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 2, 2, 1)
    >>> one = torch.tensor([1])  # with pad=1: the crop at (1, 1) is the image itself
    >>> augment_at(image, torch.tensor([0]), one, one, torch.tensor([True]), pad=1).flatten().tolist()
    [1, 0, 3, 2]
    """
    return _gather(images, indices, (top * (2 * pad + 1) + left) * 2 + flipped, pad, 2)


def _gather(images: Tensor, indices: Tensor, choice: Tensor, pad: int, flips: int) -> Tensor:
    """Crop and flip as one gather of pixels.

    Padded images are never built: a pixel outside the image has a negative position, is read from position 0 and then
    zeroed. On a GPU the cost is the number of launches, so there are only ten small kernels.
    """
    n, height, width, channels = images.shape
    rows, columns = (table.index_select(0, choice) for table in _tables(height, width, pad, flips, images.device))
    position = rows[:, :, None] + columns[:, None, :]
    inside = (position >= 0)[..., None]
    position = torch.add(position.clamp_(min=0), indices[:, None, None], alpha=height * width)
    batch = images.reshape(n * height * width, channels).index_select(0, position.flatten())
    return batch.view(*position.shape, channels) * inside


def _tables(height: int, width: int, pad: int, flips: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tables of `_new_tables`; they are computed once per shape and device."""
    if torch.compiler.is_compiling():  # the compiler merges the computation with the rest
        return _new_tables(height, width, pad, flips, device)
    key = (height, width, pad, flips, device)
    if key in _TABLES:
        return _TABLES[key]
    tables = _new_tables(*key)
    # tables made during a graph capture are filled only when the graph runs, so nothing else may use them
    if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        _TABLES[key] = tables
    return tables


def _new_tables(height: int, width: int, pad: int, flips: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the offsets of rows (choices, H) and of columns (choices, W) in the pixels of an image, per choice.

    A choice is (top·(2·pad + 1) + left)·flips + flipped. Entries outside the image are so negative that every sum of a
    row's and a column's offset is negative too.
    """
    outside = -2 * height * width
    steps = torch.arange(2 * pad + 1, device=device)
    flip_values = torch.arange(flips, device=device)
    top, left, flipped = (x.flatten()[:, None] for x in torch.meshgrid(steps, steps, flip_values, indexing="ij"))
    row = torch.arange(height, device=device) + top - pad
    right = torch.arange(width, device=device)
    column = torch.where(flipped == 1, width - 1 - right, right) + left - pad
    rows = torch.where((row >= 0) & (row < height), row * width, outside)
    return rows, torch.where((column >= 0) & (column < width), column, outside)
