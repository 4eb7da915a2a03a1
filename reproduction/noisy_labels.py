"""CIFAR-10 with wrong labels on a share of the training images, for recipes/factorial-noisy-labels.toml.

    PYTHONPATH=reproduction avuc study reproduction/recipes/factorial-noisy-labels.toml --set data.root=FOLDER

Held-out and test images keep their labels, and they are the same images as without noise.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from avuc.data import Dataset, load_dataset, split_dataset


def load(
    split: str, root: str, share: float = 0.2, source: str = "cifar10", held_out: int = 5000, verify: bool = True
) -> Dataset:
    """Return the images of a split.

    Args:
        split: "train" (without the held-out images), "val" (those that are held out) or "test".
        root: folder of the data set; empty for data sets that need none.
        share: how many of the training labels are replaced by another class.
        source: the data set.
        held_out: number of images that are held out: those that a recipe with data.validation = `held_out` holds out.
        verify: False also reads files that are not the published ones.
    """
    options = {} if verify else {"verify": False}
    data = load_dataset(source, root or None, split="test" if split == "test" else "train", **options)
    if split == "test":
        return data
    kept, other = split_dataset(data, held_out, seed=0).apply(data)
    if split == "val":
        return other
    return replace(kept, labels=with_noise(kept.labels, kept.num_classes, share), name=f"{kept.name}, {share:g} noise")


def with_noise(labels: Tensor, num_classes: int, share: float, seed: int = 0) -> Tensor:
    """Return labels of which exactly `share` are wrong: each of the other classes is equally likely.

    >>> noisy = with_noise(torch.zeros(100, dtype=torch.int64), 10, 0.2)
    >>> int((noisy != 0).sum()), int(noisy.max()) < 10
    (20, True)
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    steps = torch.randint(1, num_classes, (len(chosen),), generator=generator)
    out = labels.clone()
    out[chosen] = (out[chosen] + steps) % num_classes
    return out
