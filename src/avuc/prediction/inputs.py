"""The images of one call of `predict`: where they are, and how they are cut into batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.prediction.arguments import Arguments, tensor_of
from avuc.prediction.checks import check_images

# numbers in a batch of images: 10,000 CIFAR images on a GPU, 85 on a CPU, where the activations of a convolution, many
# times as many numbers, should stay in the cache
BATCH_NUMBERS = {"cuda": 30_720_000}
BATCH_NUMBERS_ELSEWHERE = 262_144


class InputGuard:
    """Keeps data as they are if a network changes its input in place, such as `x -= mean` in `forward`.

    Every sample runs over the same data, so the next sample, and the user, would get changed data. The first batch is
    given as a copy. If a network has changed it, all other batches are given as copies, too.
    """

    def __init__(self) -> None:
        self.in_place: bool = False
        self._given: list[tuple[Tensor, int]] = []  # the last copies, with torch's count of changes

    def protected(self, arguments: Arguments, first: bool) -> Arguments:
        """Return the arguments, or a copy.

        Args:
            arguments: of a batch.
            first: whether this is the first batch.
        """
        self.in_place |= any(tensor._version != version for tensor, version in self._given)
        self._given = []
        if not first and not self.in_place:
            return arguments
        with torch.inference_mode(False), torch.no_grad():
            copied = arguments.map(lambda array: tensor_of(array).clone())
        self._given = [(tensor, tensor._version) for _, tensor in copied.arrays() if isinstance(tensor, Tensor)]
        return copied


@dataclass(frozen=True)
class Batch:
    """One batch: the number of the batch, and which rows of the dataset it has."""

    number: int
    rows: slice
    source: Arguments
    device: torch.device
    whole: bool = False  # the batch is the whole dataset, whose arguments are then used as they are
    guard: InputGuard = field(default_factory=InputGuard)

    def __len__(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments as they were given, on the device."""
        # only copies to a GPU may be asynchronous: a copy to the CPU could be read before it is complete
        asynchronous = self.device.type == "cuda"
        part = self.source if self.whole else self.source[self.rows]
        return part.map(lambda array: tensor_of(array).to(self.device, non_blocking=asynchronous))

    @property
    def stored(self) -> Tensor:
        """The images as they were given, on the device."""
        only = self.arguments.only
        assert isinstance(only, Tensor)
        return only

    @property
    def input(self) -> Arguments:
        """The arguments as a network takes them: uint8 images are scaled to [0, 1] with the channels first."""
        if self.source.scaled:
            return Arguments((as_input(self.stored),), {})
        return self.guard.protected(self.arguments, self.number == 0)


class Batches:
    """The batches of a dataset, in order. The data are moved to the device once if they fit, else batch by batch.

    Args:
        data: the arguments of the network, with all rows; or a tensor or an array of images.
        labels: one for each row, in any layout; None if there are none.
        size: rows per batch; None: what suits the device.
        device: where the network is.
        rows: number of rows; None: that of `data`.
        count: how many such datasets follow one another, the batches of a loader.
    """

    def __init__(
        self,
        data: Arguments | Tensor | np.ndarray,
        labels: Any,
        size: int | None,
        device: torch.device,
        rows: int | None = None,
        count: int = 1,
    ) -> None:
        arguments = Arguments.of(data)
        if arguments.scaled and arguments.only is not None:
            check_images(arguments.only)
        self.rows: int = arguments.rows() if rows is None else rows
        if self.rows == 0:
            raise InputError("predict needs at least one image, found none")
        # rows of a batch for a compiled function, which should see few different numbers of rows
        self.filled: int = size or 0
        each = sum(math.prod(array.shape[1:]) for _, array in arguments.arrays())
        if size is None:
            numbers = BATCH_NUMBERS.get(device.type, BATCH_NUMBERS_ELSEWHERE)
            size = min(max(numbers // max(1, each), 32), 16_384)
            self.filled = min(size, 1 << (self.rows - 1).bit_length())
        if size < 1:
            raise InputError(f"batch_size must be at least 1, found {size}")
        if size < self.rows:
            arguments.rows()  # an error if they cannot be cut into batches
        self.size: int = size
        self.numbers: int = each * min(size, self.rows)  # count of numbers in the arguments of one batch
        self.device: torch.device = device
        self.expected_rows: int = count * self.rows
        self.labels: Tensor | None = None if labels is None else as_tensor(labels, "labels")
        if self.labels is not None and (self.labels.ndim == 0 or len(self.labels) != self.rows):
            raise InputError(f"labels must be one per image, ({self.rows},); found {tuple(self.labels.shape)}")
        self.arguments: Arguments = arguments
        self.guard: InputGuard = InputGuard()
        # each sample reads every image again, so they are kept on the GPU if that leaves enough memory for the network
        if device.type == "cuda" and arguments.nbytes <= torch.cuda.mem_get_info(device)[0] // 4:
            self.arguments = arguments.map(lambda array: tensor_of(array).to(device))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one image as it was given; of the first argument if there are several."""
        return next((tuple(array.shape[1:]) for _, array in self.arguments.arrays()), ())

    @property
    def images(self) -> Tensor | np.ndarray | None:
        """The images, if they are the only argument."""
        return self.arguments.only

    @property
    def bytes(self) -> bool:
        """Whether the images are uint8 and scaled for the network."""
        return self.arguments.scaled

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for number, start in enumerate(range(0, self.rows, self.size)):
            rows = slice(start, min(start + self.size, self.rows))
            yield Batch(number, rows, self.arguments, self.device, len(self) == 1, self.guard)


def device_of(posterior: object, data: Arguments, device: torch.device | None) -> torch.device:
    """Return the device to predict on: `device`, to which the posterior is moved, or by default the posterior's own."""
    tensors = [*posterior.parameters(), *posterior.buffers()] if isinstance(posterior, nn.Module) else []
    if device is not None:
        device = with_index(device)
        if any(tensor.device != device for tensor in tensors):
            assert isinstance(posterior, nn.Module)
            posterior.to(device)
        return device
    if any(tensor.is_meta for tensor in tensors):
        raise InputError("weights of the model are on the meta device, where they have no values; load them first")
    for tensor in tensors:
        return tensor.device
    devices = (array.device for _, array in data.arrays() if isinstance(array, Tensor))
    return next(devices, torch.device("cpu"))


def with_index(device: torch.device) -> torch.device:
    """Return a CUDA device with its index; an error if torch finds no CUDA device."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise InputError(f"device={str(device)!r}: torch finds no CUDA device here; use device='cpu' or leave it out")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
