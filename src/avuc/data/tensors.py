"""`TensorData`: examples of any kind in memory, such as token ids, tables, or images with a label for each pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.arrays import UNLABELLED, Dataset, as_input
from avuc.data.augmentation import Augmentation

Inputs = Tensor | Mapping[str, Tensor]
Encode = Callable[[list[str]], Any]


@dataclass(frozen=True, eq=False)
class TensorData:
    """Inputs of any kind and their labels in memory, on one device. `Dataset` is for uint8 images with one label each.

    Args:
        inputs: a tensor, or a mapping from the names of the network's arguments to tensors; one row for each example.
            A uint8 tensor holds images (N, H, W, C), which the network gets as floats in [0, 1], (N, C, H, W).
        labels: int64 (N,), or (N, *spatial) for a label for each pixel or token; `IGNORE_INDEX` where there is none.
        num_classes: number of classes.
        name: used in messages and reports.
        class_names: one name per class, or nothing.
        texts: the sentences behind the inputs, or nothing.
        encode: the function that made the inputs from the sentences.

    >>> data = TensorData({"ids": torch.arange(6).view(3, 2)}, torch.tensor([0, 1, 1]), num_classes=2)
    >>> data.batch(torch.tensor([2]))
    ({'ids': tensor([[4, 5]])}, tensor([1]))
    """

    inputs: Inputs
    labels: Tensor
    num_classes: int
    name: str = "data"
    class_names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    encode: Encode | None = None

    def __post_init__(self) -> None:
        if not self.labels.is_floating_point() and self.labels.dtype != torch.int64:
            # in bytes, as masks often are, −100 would be 156
            object.__setattr__(self, "labels", self.labels.long())
        parts = {"inputs": self.inputs} if isinstance(self.inputs, Tensor) else dict(self.inputs)
        rows = len(self.labels)
        for name, tensor in parts.items():
            if tensor.ndim == 0 or len(tensor) != rows:
                raise InputError(f"{self.name}: {rows} labels, but {name} has the shape {tuple(tensor.shape)}")
        if isinstance(self.inputs, Tensor) and self.inputs.dtype == torch.uint8 and self.inputs.ndim != 4:
            raise InputError(
                f"{self.name}: uint8 inputs are images (N, height, width, channels), found {tuple(self.inputs.shape)}; "
                "grey images get a dimension by [..., None], other numbers are converted with .float() or .long()"
            )
        used = self.labels[self.labels != IGNORE_INDEX]
        if len(used):
            low, high = (int(bound) for bound in used.aminmax())
            if low < UNLABELLED or high >= self.num_classes:
                wrong = low if low < UNLABELLED else high
                raise InputError(
                    f"{self.name}: label {wrong} is outside 0…{self.num_classes - 1} ({self.num_classes} classes); "
                    f"positions without a label have {IGNORE_INDEX} (data.ignore_index names another number)"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def images(self) -> Tensor | None:
        """The inputs, if they are uint8 images (N, H, W, C)."""
        is_image = isinstance(self.inputs, Tensor) and self.inputs.dtype == torch.uint8
        return self.inputs if is_image else None  # type: ignore[return-value]

    @property
    def num_labelled(self) -> int:
        """Number of predictions that have a label: of examples, pixels or tokens."""
        return int((self.labels != IGNORE_INDEX).sum())

    def to(self, device: torch.device | str) -> TensorData:
        """Return the data on another device."""
        return replace(self, inputs=each(self.inputs, lambda tensor: tensor.to(device)), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> TensorData:
        """Return the examples at some indices, in that order."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.device)
        texts = tuple(self.texts[row] for row in rows.tolist()) if self.texts else ()
        return replace(
            self, inputs=each(self.inputs, lambda tensor: tensor[rows]), labels=self.labels[rows], texts=texts
        )

    def batch(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Return the examples `rows` as the network takes them, and their labels."""
        if self.images is not None:
            return as_input(self.images[rows]), self.labels[rows]
        return each(self.inputs, lambda tensor: tensor[rows]), self.labels[rows]

    def augmented(self, rows: Tensor, augmentation: Augmentation, drawn: Tensor) -> tuple[Any, Tensor]:
        """Return `batch(rows)`; images with a label for each pixel are cropped and flipped together with their labels.

        Pixels outside the image have no label. Other inputs are not augmented.
        """
        images, labels = self.images, self.labels
        if images is None or labels.shape != images.shape[:3]:
            return self.batch(rows)
        # padding is 0, which is IGNORE_INDEX after the shift
        chosen, all_of_them = labels[rows] - IGNORE_INDEX, torch.arange(len(rows), device=labels.device)
        maps = augmentation.apply(chosen[..., None], all_of_them, drawn)[..., 0] + IGNORE_INDEX
        return as_input(augmentation.apply(images, rows, drawn)), maps


MemoryData = Dataset | TensorData


def all_labelled(data: MemoryData) -> bool:
    """Return whether there are examples, and none of them is `UNLABELLED`."""
    return data.num_labelled > 0 and not bool((data.labels == UNLABELLED).any())


def each(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs with `function` applied to each tensor."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}
