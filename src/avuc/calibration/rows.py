"""Rows that a cross-validation uses: samples of them, and stratified folds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Calibrator


@dataclass(frozen=True)
class Rows:
    """Rows that take part: logits (N, C) or (S, N, C), labels (N,), weights (N,) or None, groups (N,) or None."""

    logits: Tensor
    labels: Tensor
    weight: Tensor | None = None
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Tensor) -> Rows:
        weight, groups = (None if each is None else each[rows] for each in (self.weight, self.groups))
        return Rows(self.logits[..., rows, :], self.labels[rows], weight, groups)

    def fit(self, calibrator: Calibrator) -> Calibrator:
        """Return a new calibrator with the same parameters, fitted on these rows."""
        some: dict[str, Any] = {} if self.weight is None else {"sample_weight": self.weight}
        return type(calibrator)(**calibrator.get_params()).fit(self.logits, self.labels, **some)

    def cpu(self) -> Rows:
        weight, groups = (None if each is None else each.cpu() for each in (self.weight, self.groups))
        return Rows(self.logits.cpu(), self.labels.cpu(), weight, groups)

    def sample(self, most: int, seed: int, least_groups: int = 1) -> Rows:
        """Return at most `most` rows, at random and stratified; with groups, whole groups until there are enough rows.

        Every label keeps the same share of its rows, rounded up. Groups are stratified by their most frequent label.
        If there are more labels than rows to keep, some labels have none.
        """
        if most >= len(self):
            return self
        labels, group = self._strata()
        order = stratified_order(labels, torch.Generator().manual_seed(seed))
        if group is None:
            return self[order[:most].sort().values.to(self.labels.device)]
        enough = int((group.bincount()[order].cumsum(0) < most).sum()) + 1
        kept = torch.zeros(len(labels), dtype=torch.bool, device="cpu")
        kept[order[: max(enough, least_groups)]] = True
        return self[kept[group].nonzero()[:, 0].to(self.labels.device)]

    def _strata(self) -> tuple[Tensor, Tensor | None]:
        """Return the label of each row and None; with groups, the most frequent label and the rows' group numbers."""
        if self.groups is None:
            return self.labels.cpu(), None
        number, group = self.groups.cpu().unique(return_inverse=True)
        kinds, kind = self.labels.cpu().unique(return_inverse=True)
        pairs, counts = (group * len(kinds) + kind).unique(return_counts=True)
        order = counts.argsort(stable=True)  # a group's most frequent pair comes last, so it is the one that is stored
        frequent = np.empty(len(number), dtype=np.int64)
        frequent[(pairs[order] // len(kinds)).numpy()] = kinds[pairs[order] % len(kinds)].numpy()
        return torch.from_numpy(frequent), group

    def parts(self, folds: int, seed: int) -> list[Tensor]:
        """Return the rows of each fold, at random and stratified.

        The number of rows with a label differs by at most 1 between folds. Rows of one group are in one fold; groups
        are stratified by their most frequent label.
        """
        generator = torch.Generator().manual_seed(seed)
        labels, group = self._strata()
        order = torch.randperm(len(labels), generator=generator, device="cpu")
        order = order[labels[order].argsort(stable=True)]
        fold = torch.empty_like(order)
        fold[order] = torch.arange(len(order), device="cpu") % folds
        fold = fold if group is None else fold[group]
        return [(fold == index).nonzero()[:, 0] for index in range(folds)]


def stratified_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return indices in a random order, in which the first k have about the same share of each label, for every k.

    The i-th of n indices with a label (from 0) is at i/n of the order.

    >>> labels = torch.tensor([0] * 6 + [1] * 3)
    >>> labels[stratified_order(labels, torch.Generator().manual_seed(0))[:3]].sort().values.tolist()
    [0, 0, 1]
    """
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    order = order[labels[order].argsort(stable=True)]
    _, label, counts = labels[order].unique_consecutive(return_inverse=True, return_counts=True)
    within = torch.arange(len(order), device="cpu") - (counts.cumsum(0) - counts)[label]
    return order[(within / counts[label]).argsort(stable=True)]
