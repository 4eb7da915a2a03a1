"""`TensorData`: inputs of any kind, and images whose labels are cropped and flipped with them."""

from __future__ import annotations

import pytest
import torch

from avuc.core.errors import InputError
from avuc.data.augmentation import Augmentation
from avuc.data.tensors import TensorData


def dense(count=6, side=5):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (count, side, side), generator=generator)
    images = (labels * 80 + 10).to(torch.uint8)[..., None]  # a pixel says its label
    return TensorData(images, labels, 3)


@pytest.mark.parametrize(("pad", "flip"), [(0, False), (2, False), (0, True), (2, True)])
def test_labels_move_with_their_pixels(pad, flip):
    data, augmentation = dense(), Augmentation(pad=pad, flip=flip)
    rows = torch.tensor([3, 0, 5, 3])
    drawn = augmentation.draw(4, torch.Generator().manual_seed(1), "cpu")
    images, labels = data.augmented(rows, augmentation, drawn)
    pixels = (images[:, 0] * 255).round().long()
    assert torch.equal(torch.where(labels == -100, 0, labels * 80 + 10), pixels)
    assert bool((labels == -100).any()) == (pad > 0)
    if not pad and not flip:
        assert torch.equal(labels, data.labels[rows])


def test_other_inputs_are_not_augmented():
    data = TensorData({"x": torch.arange(8.0).view(4, 2)}, torch.tensor([0, 1, 1, 0]), 2)
    augmentation = Augmentation(pad=2, flip=True)
    inputs, labels = data.augmented(torch.tensor([2]), augmentation, torch.zeros(1, 1, dtype=torch.int64))
    assert inputs["x"].tolist() == [[4.0, 5.0]]
    assert labels.tolist() == [1]


def test_subset_keeps_sentences_with_their_rows():
    data = TensorData(torch.arange(3.0)[:, None], torch.tensor([0, 1, 0]), 2, texts=("a", "b", "c"))
    part = data.subset([2, 0])
    assert part.texts == ("c", "a")
    assert part.inputs.flatten().tolist() == [2.0, 0.0]
    assert data.to("cpu").texts == data.texts
    assert data.images is None


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(3, 2), torch.tensor([0, 1]), "2 labels, but inputs has the shape"),
        ({"a": torch.zeros(2, 2), "b": torch.zeros(3)}, torch.tensor([0, 1]), "but b has the shape"),
        (torch.zeros(2, 2, dtype=torch.uint8), torch.tensor([0, 1]), "uint8 inputs are images"),
        (torch.zeros(2, 2), torch.tensor([0, 255]), "label 255 is outside 0…1"),
        (torch.zeros(2, 2), torch.tensor([0, -2]), "label -2 is outside"),
    ],
)
def test_refused(inputs, labels, message):
    with pytest.raises(InputError, match=message):
        TensorData(inputs, labels, 2)


def test_ignored_labels_do_not_count():
    labels = torch.tensor([[0, -100], [1, 1]])
    assert TensorData(torch.zeros(2, 2), labels, 2).num_labelled == 3


def test_labels_in_bytes_become_int64() -> None:
    labels = torch.tensor([[156, 3], [255, 0]], dtype=torch.uint8)
    data = TensorData(torch.zeros(2, 2), labels, 256)
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == labels.tolist()
    assert data.num_labelled == 4  # 156 is −100 as a byte
