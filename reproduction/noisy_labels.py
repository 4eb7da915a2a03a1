"""CIFAR-10 with wrong labels on a share of the training images, for recipes/factorial-noisy-labels.toml.

    PYTHONPATH=reproduction avuc study reproduction/recipes/factorial-noisy-labels.toml --set data.root=FOLDER

Held-out and test images keep their labels. They are the same images as in a study without noise.
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
        split: "train" (without the held-out images), "val" (the held-out images) or "test".
        root: folder of the data set; empty for data sets that need none.
        share: share of the training labels that are replaced by another class.
        source: name of the data set.
        held_out: number of held-out images; they are the same as with data.validation = `held_out` in a recipe.
        verify: whether files other than the published ones are refused.
    """
    options = {} if verify else {"verify": False}
    data = load_dataset(source, root or None, split="test" if split == "test" else "train", **options)
    if split == "test":
        return data
    training, validation = split_dataset(data, held_out, seed=0).apply(data)
    if split == "val":
        return validation
    return replace(
        training,
        labels=with_noise(training.labels, training.num_classes, share),
        name=f"{training.name}, {share:g} noise",
    )


def with_noise(labels: Tensor, num_classes: int, share: float, seed: int = 0) -> Tensor:
    """Return labels of which exactly the share `share` is wrong; each of the other classes is equally likely.

    >>> noisy = with_noise(torch.zeros(100, dtype=torch.int64), 10, 0.2)
    >>> int((noisy != 0).sum()), int(noisy.max()) < 10
    (20, True)
    """
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    offsets = torch.randint(1, num_classes, (len(indices),), generator=generator)
    noisy = labels.clone()
    noisy[indices] = (noisy[indices] + offsets) % num_classes
    return noisy
