"""Split a training set at random, and store the split, so that a study can be repeated with the same images."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset


@dataclass(frozen=True, eq=False)
class Split:
    """Which images of a data set are held out. `split_dataset` makes one.

    Args:
        n: number of images of the data set.
        held_out: sorted indices, int64.
        seed: seed of the random choice.
        stratified: whether the classes have the same share in both parts.
        labels_sha256: SHA-256 of the labels of the data set. It detects that a split is applied to another data set,
            or to the same one in another order.

    >>> data = Dataset(torch.zeros(10, 2, 2, 1, dtype=torch.uint8), torch.arange(10), num_classes=10)
    >>> stored = split_dataset(data, 3, seed=0).to_json()
    >>> train, validation = Split.from_json(stored).apply(data)
    >>> len(train), len(validation)
    (7, 3)
    """

    n: int
    held_out: Tensor
    seed: int
    stratified: bool
    labels_sha256: str

    @property
    def kept(self) -> Tensor:
        """Sorted indices of the images that are not held out."""
        mask = torch.ones(self.n, dtype=torch.bool)
        mask[self.held_out] = False
        return mask.nonzero().flatten()

    def apply(self, data: Dataset) -> tuple[Dataset, Dataset]:
        """Return the training part and the held-out part of the data set that this split was made for."""
        if len(data) != self.n or _sha256(data.labels) != self.labels_sha256:
            raise InputError(
                f"{data.name}: this split was made for another set ({self.n} images, "
                f"labels {self.labels_sha256[:12]}…); use the data of the study, or make a new split"
            )
        return data.subset(self.kept), data.subset(self.held_out)

    def to_json(self) -> str:
        """Return one line of JSON: the indices, the seed and two digests."""
        fields: dict[str, Any] = {
            "n": self.n,
            "seed": self.seed,
            "stratified": self.stratified,
            "labels_sha256": self.labels_sha256,
            "held_out_sha256": _sha256(self.held_out),
            "held_out": self.held_out.tolist(),
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Split:
        """Return a split from `to_json`; raise an `InputError` if the text was changed."""
        try:
            fields = json.loads(text)
            n, indices = fields["n"], fields["held_out"]
            valid = all(type(index) is int for index in [n, fields["seed"], *indices])
            valid = valid and indices == sorted(set(indices))
            labels, digest, stratified = fields["labels_sha256"], fields["held_out_sha256"], fields["stratified"]
            valid = valid and isinstance(labels, str) and isinstance(stratified, bool)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"stored split: not readable ({type(error).__name__}: {error}); make it again") from error
        if not valid or (indices and not 0 <= indices[0] <= indices[-1] < n):
            raise InputError("stored split: indices must be sorted, distinct and inside the set; make it again")
        held_out = torch.tensor(indices, dtype=torch.int64)
        if _sha256(held_out) != digest:
            raise InputError(f"stored split: its {len(indices)} indices do not have the stored digest; make it again")
        return cls(n, held_out, fields["seed"], stratified, labels)


def split_dataset(data: Dataset, held_out: int | float, *, seed: int, stratified: bool = False) -> Split:
    """Choose images to hold out at random, for example 5,000 of the 50,000 of CIFAR-10, as in the paper.

    Args:
        data: the data set.
        held_out: how many images; a float below 1 is a share.
        seed: decides the choice.
        stratified: take the same share of each class; default False. Shares are rounded by the largest remainder, so
            that the total is exact.

    >>> data = Dataset(torch.zeros(10, 2, 2, 1, dtype=torch.uint8), torch.arange(10) % 2, num_classes=2)
    >>> split = split_dataset(data, 4, seed=0, stratified=True)
    >>> data.labels[split.held_out].bincount().tolist(), len(split.kept)
    ([2, 2], 6)
    """
    n = len(data)
    count = round(held_out * n) if isinstance(held_out, float) and held_out < 1 else int(held_out)
    if n < 2:
        raise InputError(f"{data.name}: {n} examples are too few to hold out some of them; expected at least 2")
    if not 0 < count < n:
        raise InputError(
            f"{data.name}: cannot hold out {held_out} of {n} examples; "
            f"expected between 1 and {n - 1}, or a share below 1"
        )
    labels = data.labels.cpu()
    if stratified and labels.ndim > 1:
        raise InputError(
            f"{data.name}: stratified needs one label for each example, found {tuple(labels.shape)}; leave it out"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if stratified:
        classes, sizes = torch.unique(labels, return_counts=True)
        quotas = _quotas(sizes, count)
        taken = [order[labels[order] == c][: int(q)] for c, q in zip(classes, quotas, strict=True)]
        chosen = torch.cat(taken)
    else:
        chosen = order[:count]
    return Split(n, chosen.sort().values, seed, stratified, _sha256(labels))


def _quotas(sizes: Tensor, count: int) -> Tensor:
    """Divide `count` among classes in proportion to `sizes` (largest-remainder method); the sum is exact."""
    scaled = sizes * count
    total = int(sizes.sum())
    quotas = scaled.div(total, rounding_mode="floor")
    remainders = scaled - quotas * total
    extra = torch.argsort(remainders, descending=True, stable=True)[: count - int(quotas.sum())]
    quotas[extra] += 1
    return quotas


def _sha256(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().numpy().astype(np.dtype("<i8")).tobytes()).hexdigest()
