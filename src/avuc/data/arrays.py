"""A data set that fits in memory, on any device, and the paper's augmentation as one gather.

Everything a training step needs is here and can be captured in a CUDA graph: `augment` and `as_input` never copy to the
host and never synchronise, their shapes depend only on the shape of `indices` (which may be a static buffer that the
trainer overwrites before each replay), and all randomness comes from one generator, which the trainer registers with
`graph.register_generator_state(generator)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avuc.errors import InputError

__all__ = ["UNLABELLED", "Dataset", "as_input", "augment", "augment_at", "channel_stats", "epoch_batches"]

_KEPT: dict[tuple[int, int, int, int, torch.device], tuple[Tensor, Tensor]] = {}
UNLABELLED = -1  # the label of an image whose class is not known (out-of-distribution sets)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images `(N, H, W, C)` uint8 and labels `(N,)` int64 in `[0, num_classes)`, or `UNLABELLED`, on one device.

    >>> data = Dataset(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.tensor([0, 1, 2, 1]), num_classes=3)
    >>> len(data), data.subset([1, 3]).labels.tolist()
    (4, [1, 1])
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    name: str = "data"
    class_names: tuple[str, ...] = ()
    origin: str = ""  # where it came from and how it was checked, in one sentence

    def __post_init__(self) -> None:
        images, labels, name = self.images, self.labels, self.name
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise InputError(
                f"{name}: images must be uint8 (N, H, W, C), found {_dtype(images)} {tuple(images.shape)}; "
                "scale to 0…255 and put the channels last"
            )
        if not images.is_contiguous():  # or every gather would copy the whole set first
            object.__setattr__(self, "images", images.contiguous())
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise InputError(
                f"{name}: labels must be int64 ({len(images)},), one for each image, "
                f"found {_dtype(labels)} {tuple(labels.shape)}"
            )
        if labels.device != images.device:
            raise InputError(f"{name}: images are on {images.device} and labels on {labels.device}; use .to(device)")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(f"{name}: {len(self.class_names)} class names for {self.num_classes} classes")
        if len(labels):
            low, high = (int(bound) for bound in labels.aminmax())
            if low < UNLABELLED or high >= self.num_classes:
                wrong = low if low < UNLABELLED else high
                raise InputError(
                    f"{name}: label {wrong} is outside 0…{self.num_classes - 1} ({self.num_classes} classes)"
                )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        n, height, width, channels = self.images.shape
        return (
            f"Dataset({self.name!r}, {n} images {height}×{width}×{channels}, "
            f"{self.num_classes} classes, {self.images.device})"
        )

    @property
    def device(self) -> torch.device:
        return self.images.device

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on another device; the copy is the only one made."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The images at `indices`, in that order; or those where a boolean mask of length N is true."""
        if isinstance(indices, Tensor) and indices.dtype == torch.bool:
            if indices.shape != self.labels.shape:
                raise InputError(f"{self.name}: a mask needs {len(self)} entries, found {tuple(indices.shape)}")
            indices = indices.nonzero().flatten()
        index = torch.as_tensor(indices, dtype=torch.int64, device=self.device)
        if len(index):
            low, high = (int(bound) for bound in index.aminmax())
            if low < 0 or high >= len(self):
                raise InputError(f"{self.name}: index {low if low < 0 else high} is outside 0…{len(self) - 1}")
        return replace(self, images=self.images[index], labels=self.labels[index])


def augment(images: Tensor, indices: Tensor, generator: torch.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """The batch `images[indices]`, each padded by `pad` zero pixels, cropped back at random and flipped at random.

    One integer is drawn for each image: crop row, crop column and flip are its digits, so they are independent and
    uniform. The generator lives on the images' device. Returns uint8 `(B, H, W, C)`.

    >>> images = torch.arange(2 * 8 * 8 * 3).remainder(256).to(torch.uint8).view(2, 8, 8, 3)
    >>> augment(images, torch.tensor([1, 0, 1]), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 8, 8, 3])
    """
    flips = 2 if flip else 1
    choices = (2 * pad + 1) ** 2 * flips
    choice = torch.randint(choices, indices.shape, generator=generator, device=images.device, dtype=torch.int64)
    return _gather(images, indices, choice, pad, flips)


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


def as_input(
    images: Tensor, mean: Tensor | None = None, std: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 `(N, H, W, C)` as what a net takes: float `(N, C, H, W)` in [0, 1], or `(x − mean)/std` of that.

    The memory stays channels-last, which is what convolutions on a GPU prefer; nothing is moved. `mean` and `std` are
    `(C,)` tensors on the images' device (`channel_stats`).

    >>> as_input(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)).unique().tolist()
    [1.0]
    """
    # dividing bytes gives the default type in one pass; any other type takes two
    scaled = images.div(255) if dtype == torch.get_default_dtype() else images.to(dtype).div(255)
    if mean is not None:
        scaled = scaled - mean.to(scaled)
    if std is not None:
        scaled = scaled / std.to(scaled)
    return scaled.permute(0, 3, 1, 2)


def channel_stats(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel on the [0, 1] scale, exact from the counts of the 256 grey levels.

    A constant channel has deviation 1, so that dividing by it is safe and gives 0.

    >>> channel_stats(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2, 1))
    (tensor([0.5000]), tensor([0.5000]))
    """
    levels = torch.arange(256, dtype=torch.float64, device=images.device) / 255
    flat = images.reshape(-1, images.shape[-1])
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in flat.T]).double()
    share = counts / max(len(flat), 1)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(1)
    deviation = torch.where((counts > 0).sum(1) > 1, variance.sqrt(), 1.0)
    return mean.float(), deviation.float()


def epoch_batches(n: int, batch_size: int, generator: torch.Generator, *, drop_last: bool = False) -> Iterator[Tensor]:
    """Indices of one epoch: every one of `n` once, in random order, `batch_size` at a time; the last may be smaller.

    >>> [len(batch) for batch in epoch_batches(10, 4, torch.Generator().manual_seed(0))]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, found {batch_size}")
    order = torch.randperm(n, generator=generator, device=generator.device)
    for start in range(0, n - batch_size + 1 if drop_last else n, batch_size):
        yield order[start : start + batch_size]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
