"""`Dataset`: images and labels in memory, on any device. Also: network input from bytes, batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avuc.core.errors import InputError

UNLABELLED = -1
"""The label of an image whose class is not known, as in out-of-distribution sets."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels in memory, on one device.

    Args:
        images: uint8 (N, H, W, C).
        labels: int64 (N,), each in 0…num_classes − 1, or `UNLABELLED`.
        num_classes: number of classes.
        name: used in messages and reports; default `"data"`.
        class_names: one name per class, or nothing.
        origin: one sentence on where the data came from and how it was checked.

    >>> data = Dataset(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.tensor([0, 1, 2, 1]), num_classes=3)
    >>> len(data), data.subset([1, 3]).labels.tolist()
    (4, [1, 1])
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    name: str = "data"
    class_names: tuple[str, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        images, labels, name = self.images, self.labels, self.name
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise InputError(
                f"{name}: images must be uint8 (N, H, W, C), found {_dtype_name(images)} {tuple(images.shape)}; "
                "scale to 0…255 and put the channels last"
            )
        if not images.is_contiguous():  # otherwise every gather would first copy the whole set
            object.__setattr__(self, "images", images.contiguous())
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            remedy = "convert them with .long()" if labels.shape == images.shape[:1] else "correct their number"
            raise InputError(
                f"{name}: labels must be int64 ({len(images)},), one for each image, "
                f"found {_dtype_name(labels)} {tuple(labels.shape)}; {remedy}"
            )
        if labels.device != images.device:
            raise InputError(f"{name}: images are on {images.device} and labels on {labels.device}; use .to(device)")
        if not hasattr(self.num_classes, "__index__"):
            raise InputError(
                f"{name}: num_classes must be a whole number, found {type(self.num_classes).__name__}; "
                "names of the classes are class_names="
            )
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(
                f"{name}: {len(self.class_names)} class names for {self.num_classes} classes; "
                "give one per class, or none"
            )
        if len(labels):
            low, high = (int(bound) for bound in labels.aminmax())
            if low < UNLABELLED or high >= self.num_classes:
                wrong = low if low < UNLABELLED else high
                raise InputError(
                    f"{name}: label {wrong} is outside 0…{self.num_classes - 1} ({self.num_classes} classes); "
                    "correct it or num_classes"
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
        """The device of images and labels."""
        return self.images.device

    @property
    def inputs(self) -> Tensor:
        """The images."""
        return self.images

    @property
    def num_labelled(self) -> int:
        """Number of images."""
        return len(self)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images `rows` as a network takes them, float (B, C, H, W) in [0, 1], and their labels."""
        return as_input(self.images[rows]), self.labels[rows]

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data on another device; on the same device nothing is copied."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """Return the images at some indices, in that order.

        Args:
            indices: integers in 0…N − 1, or a boolean mask (N,).
        """
        if isinstance(indices, Tensor) and indices.dtype == torch.bool:
            if indices.shape != self.labels.shape:
                raise InputError(
                    f"{self.name}: a mask needs {len(self)} entries, found {tuple(indices.shape)}; use one per image"
                )
            indices = indices.nonzero().flatten()
        index = torch.as_tensor(indices, dtype=torch.int64, device=self.device)
        if len(index):
            low, high = (int(bound) for bound in index.aminmax())
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise InputError(f"{self.name}: index {wrong} is outside 0…{len(self) - 1}; leave it out")
        return replace(self, images=self.images[index], labels=self.labels[index])


def as_input(
    images: Tensor, mean: Tensor | None = None, std: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return images as network input: float (N, C, H, W), x = images/255 or (images/255 − mean)/std.

    The memory format stays channels-last, which convolutions on a GPU prefer.

    Args:
        images: uint8 (N, H, W, C).
        mean: (C,), on the device of the images (see `channel_stats`); default: not subtracted.
        std: (C,), on the device of the images; default: no division.
        dtype: of the result; default float32.

    >>> as_input(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)).unique().tolist()
    [1.0]
    """
    # dividing bytes gives the default dtype in one pass; any other dtype takes two
    scaled = images.div(255) if dtype == torch.get_default_dtype() else images.to(dtype).div(255)
    if mean is not None:
        scaled = scaled - mean.to(scaled)
    if std is not None:
        scaled = scaled / std.to(scaled)
    return scaled.permute(0, 3, 1, 2)


def channel_stats(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, (C,) float32 each, on the scale [0, 1].

    They are computed from the counts of the 256 values, so they do not depend on the order of the images. A constant
    channel gets the deviation 1: normalised, it is 0.

    Args:
        images: uint8 (N, H, W, C).

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
    """Yield the indices of one epoch, int64 (B,): each of 0…n − 1 once, in random order.

    Args:
        n: number of images.
        batch_size: B; the last batch may be smaller.
        generator: decides the order; the indices are on its device.
        drop_last: leave out a smaller last batch; default False.

    >>> [len(batch) for batch in epoch_batches(10, 4, torch.Generator().manual_seed(0))]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, found {batch_size}; use 1 or more")
    order = torch.randperm(n, generator=generator, device=generator.device)
    for start in range(0, n - batch_size + 1 if drop_last else n, batch_size):
        yield order[start : start + batch_size]


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
