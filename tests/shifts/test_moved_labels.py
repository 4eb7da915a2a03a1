"""Labels of pixels move with the pixels of elastic_transform, and stay under every other corruption."""

from __future__ import annotations

import pytest
import torch

from avuc.core.errors import InputError
from avuc.data.tensors import TensorData
from avuc.shifts import SHIFTS, corrupt, moved_labels
from avuc.study.data.shifted import shifted_data


def scenes(count: int, side: tuple[int, int] = (48, 64)) -> tuple[torch.Tensor, torch.Tensor]:
    """Large flat regions whose grey value is 60 times their label, so that an image shows its labels."""
    generator = torch.Generator().manual_seed(count)
    rows, columns = torch.meshgrid(*(torch.arange(size) for size in side), indexing="ij")
    cuts = torch.randint(16, 32, (count, 2), generator=generator)
    labels = (rows > cuts[:, :1, None]).long() + 2 * (columns > cuts[:, 1:, None]).long()
    return (60 * labels + 30).to(torch.uint8)[..., None].expand(-1, -1, -1, 3).contiguous(), labels


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_labels_follow_the_picture(profile, severity):
    images, labels = scenes(3)
    shifted = corrupt(images, "elastic_transform", severity, seed=4, profile=profile)
    moved = moved_labels(images, labels, "elastic_transform", severity, seed=4, profile=profile)
    shown = ((shifted[..., 0].float() - 30) / 60).round().long()  # the label that the picture shows
    agree, stayed = (shown == moved).float().mean(), (shown == labels).float().mean()
    assert agree > 0.97  # mixtures along the edges
    assert agree > stayed
    assert set(moved.unique().tolist()) <= {0, 1, 2, 3}
    assert moved.dtype == labels.dtype


def test_the_batch_does_not_matter_and_ignored_labels_stay_ignored():
    images, labels = scenes(4)
    images[0, 0, 0] = 1  # all different
    labels[:, :10] = -100
    whole = moved_labels(images, labels, "elastic_transform", 5)
    one = moved_labels(images[2:3], labels[2:3], "elastic_transform", 5)
    assert torch.equal(whole[2:3], one)
    assert (whole == -100).any()
    assert not torch.equal(whole, labels)


@pytest.mark.parametrize("name", [name for name in SHIFTS if name != "elastic_transform"])
def test_other_shifts_keep_the_labels(name):
    images, labels = scenes(1, (8, 8))
    assert moved_labels(images, labels, name, 5) is labels


def test_the_study_moves_them():
    images, labels = scenes(2)
    clean = TensorData(images, labels, 4)
    for name, same in (("elastic_transform", False), ("contrast", True)):
        shifted = shifted_data(clean, name, 5, 0, "imagenet")
        assert torch.equal(shifted.labels, labels) is same
        assert torch.equal(shifted.images, corrupt(images, name, 5, profile="imagenet"))
    rows = TensorData(images, torch.tensor([0, 1]), 4)  # one label for each image
    assert torch.equal(shifted_data(rows, "elastic_transform", 5, 0, "imagenet").labels, rows.labels)


def test_labels_of_another_size_are_refused():
    """They would stay where they are, and be those of other pixels."""
    images, labels = torch.zeros(2, 16, 16, 3, dtype=torch.uint8), torch.zeros(2, 8, 8, dtype=torch.int64)
    with pytest.raises(InputError, match=r"elastic_transform moves pixels, and labels \(2, 8, 8\) are not"):
        moved_labels(images, labels, "elastic_transform", 1)
    with pytest.raises(InputError, match="elastic_transform moves pixels"):
        shifted_data(TensorData(images, labels, 3), "elastic_transform", 1, 0, "imagenet")
    assert moved_labels(images, labels, "fog", 1) is labels
    assert torch.equal(shifted_data(TensorData(images, labels, 3), "fog", 1, 0, "imagenet").labels, labels)
