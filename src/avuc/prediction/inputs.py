"""The images of one call of `predict`: where they are, and how they are cut into batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.prediction.checks import check_images, tensor_of

Images = Tensor | np.ndarray

# how many numbers a batch of images has: 10,000 CIFAR images on a GPU, what fits into a core's cache on a CPU
BATCH_NUMBERS = {"cuda": 30_720_000}
BATCH_NUMBERS_ELSEWHERE = 786_432


@dataclass(frozen=True)
class Batch:
    """One batch: the number of the batch, and which rows of the dataset it has."""

    number: int
    rows: slice
    source: Tensor | np.ndarray
    device: torch.device

    def __len__(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @cached_property
    def stored(self) -> Tensor:
        """The images as they were given, on the device."""
        part = tensor_of(self.source[self.rows])
        # only copies to a GPU may be asynchronous: a copy to the CPU could be read before it is complete
        return part.to(self.device, non_blocking=self.device.type == "cuda")

    @property
    def input(self) -> Tensor:
        """The images as a network takes them: uint8 is scaled to [0, 1] with the channels first."""
        return as_input(self.stored) if self.stored.dtype == torch.uint8 else self.stored


class Batches:
    """The batches of a dataset, in order. The images are moved to the device once if they fit, else batch by batch."""

    def __init__(
        self, images: Tensor | np.ndarray, labels: Tensor | np.ndarray | None, size: int | None, device: torch.device
    ) -> None:
        check_images(images)
        if size is None:
            numbers = BATCH_NUMBERS.get(device.type, BATCH_NUMBERS_ELSEWHERE)
            size = min(max(numbers // max(1, math.prod(images.shape[1:])), 32), 16_384)
        if size < 1:
            raise InputError(f"batch_size must be at least 1, found {size}")
        self.rows, self.size, self.device = len(images), size, device
        self.labels = torch.full((self.rows,), -1) if labels is None else as_tensor(labels, "labels")
        if self.labels.shape == (self.rows, 1):
            self.labels = self.labels[:, 0]
        if self.labels.shape != (self.rows,):
            raise InputError(f"labels must be one per image, ({self.rows},); found {tuple(self.labels.shape)}")
        self.images = images
        # each sample reads every image again, so they are kept on the GPU if that leaves enough memory for the network
        if device.type == "cuda" and images.nbytes <= torch.cuda.mem_get_info(device)[0] // 4:
            self.images = tensor_of(images).to(device)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one image as it was given."""
        return tuple(self.images.shape[1:])

    @property
    def bytes(self) -> bool:
        """Whether the images are uint8."""
        return self.images.dtype in (torch.uint8, np.uint8)

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for number, start in enumerate(range(0, self.rows, self.size)):
            rows = slice(start, min(start + self.size, self.rows))
            yield Batch(number, rows, self.images, self.device)


def device_of(posterior: object, images: Images, device: torch.device | None) -> torch.device:
    """Return the device to predict on: `device`, to which the posterior is moved, or by default the posterior's own."""
    tensors = [*posterior.parameters(), *posterior.buffers()] if isinstance(posterior, nn.Module) else []
    if device is not None:
        device = _with_index(device)
        if any(tensor.device != device for tensor in tensors):
            assert isinstance(posterior, nn.Module)
            posterior.to(device)
        return device
    for tensor in tensors:
        return tensor.device
    return images.device if isinstance(images, Tensor) else torch.device("cpu")


def _with_index(device: torch.device) -> torch.device:
    """Return a CUDA device with its index; an error if torch finds no CUDA device."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise InputError(f"device={str(device)!r}: torch finds no CUDA device here; use device='cpu' or leave it out")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
