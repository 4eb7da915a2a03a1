"""Random changes of training images, in two parts: numbers are drawn, and images are a pure function of them.

Everything can be captured in a CUDA graph: nothing copies to the host or synchronises, shapes depend only on the shape
of `indices` (which may be a static buffer that the trainer overwrites before each replay), and all randomness comes
from one generator, which the trainer registers with `graph.register_generator_state(generator)`. The pure part can be
compiled, and serves several models in one call: draw for each with its own generator, put the numbers one above the
other, and apply once.
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

_KEPT: dict[tuple[int, int, int, int, torch.device], tuple[Tensor, Tensor]] = {}


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image: "crop" pads it by `pad` zero pixels, crops back at random and flips at random;
    "augmix" then mixes the result with randomly changed copies of itself, up to strength `severity` of 10 (augmix.py).

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
            raise InputError(f"augmentation: pad must not be negative, found {self.pad}")
        if not 0.1 <= self.severity <= 10:
            raise InputError(f"augmentation: severity must be in [0.1, 10], found {self.severity}")

    @property
    def choices(self) -> int:
        """How many ways there are to crop and flip."""
        return (2 * self.pad + 1) ** 2 * (1 + self.flip)

    def draw(self, rows: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
        """The random part, one launch: the numbers `(rows, K)` that decide what happens to `rows` images.

        "crop": one integer each, whose digits are crop row, crop column and flip, so that these are independent and
        uniform; none (K = 0) without pad and flip. "augmix": numbers in [0, 1), the first of which is the crop's.
        """
        if self.policy == "augmix":
            return torch.rand(rows, 1 + COLUMNS, generator=generator, device=device)
        if self.choices == 1:
            return torch.empty(rows, 0, dtype=torch.int64, device=device)
        return torch.randint(self.choices, (rows, 1), generator=generator, device=device, dtype=torch.int64)

    def apply(self, images: Tensor, indices: Tensor, drawn: Tensor) -> Tensor:
        """The pure part: `images[indices]` changed as `drawn` says, uint8 `(B, H, W, C)`; each row on its own."""
        if self.policy == "augmix" and images.is_cuda:
            mixed: Tensor = _augmix_on_gpu(images, indices, drawn, self.pad, self.flip, self.severity)
            return mixed
        return self._plain(images, indices, drawn)

    def _plain(self, images: Tensor, indices: Tensor, drawn: Tensor) -> Tensor:
        mixing = self.policy == "augmix"
        if self.choices == 1:
            batch = images[indices]
        else:
            # a product with a number next to 1 may round up
            choice = (drawn[:, 0] * self.choices).long().clamp(max=self.choices - 1) if mixing else drawn[:, 0]
            batch = _gather(images, indices, choice, self.pad, 1 + self.flip)
        return augmix(batch, drawn[:, 1:], self.severity) if mixing else batch


# a custom operator: torch.compile then calls it, and with it the kernel, instead of tracing the plain torch code
@torch.library.custom_op(
    "avuc::augmix",
    mutates_args=(),
    schema="(Tensor images, Tensor indices, Tensor drawn, int pad, bool flip, float severity) -> Tensor",
)
def _augmix_on_gpu(images: Tensor, indices: Tensor, drawn: Tensor, pad: int, flip: bool, severity: float) -> Tensor:
    # without the kernel (no accelerators, an older GPU, large images) plain torch does the same
    kernel = augmix_kernel()
    if kernel is not None and kernel.usable(images, pad, flip):
        return kernel.augmix_images(images, indices, drawn, pad=pad, flip=flip, strengths=(WEAKEST, severity))
    return Augmentation("augmix", pad, flip, severity)._plain(images, indices, drawn)


@_augmix_on_gpu.register_fake
def _(images: Tensor, indices: Tensor, drawn: Tensor, pad: int, flip: bool, severity: float) -> Tensor:
    return images.new_empty(indices.shape[0], *images.shape[1:])


def augment(images: Tensor, indices: Tensor, generator: torch.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """The batch `images[indices]`, each padded by `pad` zero pixels, cropped back at random and flipped at random.

    `Augmentation` in one call. The generator lives on the images' device. Returns uint8 `(B, H, W, C)`.

    >>> images = torch.arange(2 * 8 * 8 * 3).remainder(256).to(torch.uint8).view(2, 8, 8, 3)
    >>> augment(images, torch.tensor([1, 0, 1]), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 8, 8, 3])
    """
    augmentation = Augmentation(pad=pad, flip=flip)
    return augmentation.apply(images, indices, augmentation.draw(len(indices), generator, images.device))


def augment_at(images: Tensor, indices: Tensor, top: Tensor, left: Tensor, flipped: Tensor, *, pad: int = 4) -> Tensor:
    """The augmentation with its choices given: crop corner `top`, `left` in `0…2·pad` and `flipped`, each `(B,)`.

    out[b, i, j] = padded[indices[b], top[b] + i, left[b] + (W − 1 − j if flipped[b] else j)]
    """
    return _gather(images, indices, (top * (2 * pad + 1) + left) * 2 + flipped, pad, 2)


def _gather(images: Tensor, indices: Tensor, choice: Tensor, pad: int, flips: int) -> Tensor:
    """One gather of pixels. The padded images are never made: a pixel outside the image has a negative place, is read
    from place 0 and zeroed. Ten small kernels, because launches, not bytes, are what this costs on a GPU."""
    n, height, width, channels = images.shape
    rows, columns = (table.index_select(0, choice) for table in _tables(height, width, pad, flips, images.device))
    place = rows[:, :, None] + columns[:, None, :]
    inside = (place >= 0)[..., None]
    place = torch.add(place.clamp_(min=0), indices[:, None, None], alpha=height * width)
    batch = images.reshape(n * height * width, channels).index_select(0, place.flatten())
    return batch.view(*place.shape, channels) * inside


def _tables(height: int, width: int, pad: int, flips: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once for each shape and kept, so that a captured or eager step does not make them again."""
    if torch.compiler.is_compiling():  # a compiler folds the making into the rest
        return _new_tables(height, width, pad, flips, device)
    key = (height, width, pad, flips, device)
    if key in _KEPT:
        return _KEPT[key]
    tables = _new_tables(*key)
    # made during a graph's capture they are filled only when the graph runs: nobody else may use them
    if not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        _KEPT[key] = tables
    return tables


def _new_tables(height: int, width: int, pad: int, flips: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each choice, where its rows begin in an image's pixels `(choices, H)` and its columns `(choices, W)`.

    Choice `(top·(2·pad + 1) + left)·flips + flipped`. Outside the image the entry is so negative that every sum of a
    row's and a column's is.
    """
    outside = -2 * height * width
    steps = torch.arange(2 * pad + 1, device=device)
    turns = torch.arange(flips, device=device)
    top, left, flipped = (x.flatten()[:, None] for x in torch.meshgrid(steps, steps, turns, indexing="ij"))
    row = torch.arange(height, device=device) + top - pad
    right = torch.arange(width, device=device)
    column = torch.where(flipped == 1, width - 1 - right, right) + left - pad
    rows = torch.where((row >= 0) & (row < height), row * width, outside)
    return rows, torch.where((column >= 0) & (column < width), column, outside)
