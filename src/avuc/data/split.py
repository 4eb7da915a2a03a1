"""Split a training set by seed, and keep the split so that a study can be run again on exactly the same images."""

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

__all__ = ["Split", "split_dataset"]


@dataclass(frozen=True, eq=False)
class Split:
    """Which of `n` images are held out. `labels_sha256` is that of the labels of the set it was made for, in order:
    it tells a split that is applied to another set, or to the same one in another order."""

    n: int
    held_out: Tensor  # sorted int64
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
        """The training part and the held-out part of the set this split was made for."""
        if len(data) != self.n or _sha256(data.labels) != self.labels_sha256:
            raise InputError(
                f"{data.name}: this split was made for another set ({self.n} images, "
                f"labels {self.labels_sha256[:12]}…); use the data of the study, or make a new split"
            )
        return data.subset(self.kept), data.subset(self.held_out)

    def to_json(self) -> str:
        """One line of JSON, to be stored with the study."""
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
        """A stored split; its indices must still have the digest that was stored with them."""
        try:
            fields = json.loads(text)
            n, indices = fields["n"], fields["held_out"]
            whole = all(type(index) is int for index in [n, fields["seed"], *indices]) and indices == sorted(
                set(indices)
            )
            labels, digest, stratified = fields["labels_sha256"], fields["held_out_sha256"], fields["stratified"]
            whole = whole and isinstance(labels, str) and isinstance(stratified, bool)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"stored split: not readable ({type(error).__name__}: {error}); make it again") from error
        if not whole or (indices and not 0 <= indices[0] <= indices[-1] < n):
            raise InputError("stored split: indices must be sorted, distinct and inside the set; make it again")
        held_out = torch.tensor(indices, dtype=torch.int64)
        if _sha256(held_out) != digest:
            raise InputError(f"stored split: its {len(indices)} indices do not have the stored digest; make it again")
        return cls(n, held_out, fields["seed"], stratified, labels)


def split_dataset(data: Dataset, held_out: int | float, *, seed: int, stratified: bool = False) -> Split:
    """Hold out `held_out` images (a count, or a share below 1) at random: 5,000 of CIFAR-10's 50,000 in the paper.

    `stratified` takes the same share of every class (rounded so that the total is exact, largest remainders first).

    >>> data = Dataset(torch.zeros(10, 2, 2, 1, dtype=torch.uint8), torch.arange(10) % 2, num_classes=2)
    >>> split = split_dataset(data, 4, seed=0, stratified=True)
    >>> data.labels[split.held_out].bincount().tolist(), len(split.kept)
    ([2, 2], 6)
    """
    n = len(data)
    count = round(held_out * n) if isinstance(held_out, float) and held_out < 1 else int(held_out)
    if not 0 < count < n:
        raise InputError(f"{data.name}: cannot hold out {held_out} of {n} images; expected between 1 and {n - 1}")
    labels = data.labels.cpu()
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
    """`count` shared among classes in proportion to `sizes`: whole parts, then one more to the largest remainders."""
    scaled = sizes * count
    total = int(sizes.sum())
    quotas = scaled.div(total, rounding_mode="floor")
    remainders = scaled - quotas * total
    extra = torch.argsort(remainders, descending=True, stable=True)[: count - int(quotas.sum())]
    quotas[extra] += 1
    return quotas


def _sha256(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().numpy().astype(np.dtype("<i8")).tobytes()).hexdigest()
