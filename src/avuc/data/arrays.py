"""A data set that fits in memory, on any device; its images as a net takes them; the order of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avuc.core.errors import InputError

__all__ = ["UNLABELLED", "Dataset", "as_input", "channel_stats", "epoch_batches"]

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
