"""Calibration and uncertainty of token predictions, from sums of fixed size.

The sums stay on the device of the model; nothing is read from them until the figures are asked for. Definitions are
those of `avuc.metrics`: 15 bins for ECE and UCE, and AvU at the threshold of the loss.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.losses.linear.function import LinearAvUC
from avuc.metrics.binning import BinTable
from avuc.metrics.calibration import expected_gap
from avuc.uncertainty import highest_certain

BINS = 15
# sums over tokens: count and entropy of right and of wrong tokens; nll; if the threshold is known, the count, and the
# number of tokens that are right and certain or wrong and uncertain
NUMBERS = 7


class TokenMetrics:
    """Sums over tokens that add up over batches and ranks."""

    def __init__(self, group: Group = None) -> None:
        self.group = group
        self.sums: Tensor | None = None

    @torch.no_grad()
    def update(self, result: LinearAvUC, words: int, threshold: Tensor) -> None:
        """Add a batch.

        Args:
            result: of `linear_avuc`.
            words: size of the vocabulary.
            threshold: entropy up to which a token is certain; NaN as long as it is not known.
        """
        # Apple's GPUs have no float64
        dtype = torch.float32 if result.entropy.device.type == "mps" else torch.float64
        counted, right, u = (part.reshape(-1) for part in (result.valid, result.correct, result.entropy))
        certain = u <= highest_certain(threshold)
        known = counted & ~threshold.isnan()
        wrong = counted & ~right
        numbers = torch.stack(
            (
                right.sum(),
                wrong.sum(),
                torch.where(right, u, 0).sum(dtype=dtype),
                torch.where(wrong, u, 0).sum(dtype=dtype),
                result.nll.to(dtype) * counted.sum(),
                known.sum(),
                (known & (certain == right)).sum(),
            )
        )
        by_confidence = _table(result.confidence.reshape(-1), right, counted, dtype)
        by_entropy = _table(u.to(dtype) / math.log(max(words, 2)), wrong, counted, dtype)
        sums = torch.cat((numbers.to(dtype), by_confidence.flatten(), by_entropy.flatten()))
        self.sums = sums if self.sums is None else self.sums.to(sums.device) + sums

    def merge(self, other: TokenMetrics) -> None:
        """Add the sums of another one, and empty that one."""
        if other.sums is not None:
            self.sums = other.sums if self.sums is None else self.sums.to(other.sums.device) + other.sums
        other.sums = None

    def pop(self, device: torch.device) -> dict[str, float]:
        """Return the figures of all tokens of all ranks since the last call; none if there was no token.

        Args:
            device: where ranks add up their sums if this one has none.
        """
        length = NUMBERS + 2 * 3 * BINS
        sums = torch.zeros(length, dtype=torch.float64, device=device) if self.sums is None else self.sums
        self.sums = None
        total = sum_over_ranks(sums, self.group).cpu().to(torch.float64).numpy()
        right, wrong, entropy_right, entropy_wrong, nll, known, agree = total[:NUMBERS].tolist()
        tokens = right + wrong
        if not tokens:
            return {}
        confidence, uncertainty = total[NUMBERS:].reshape(2, 3, BINS)
        figures = {
            "token_accuracy": right / tokens,
            "token_nll": nll / tokens,
            "token_ece": _gap(confidence),
            "token_uce": _gap(uncertainty),
        }
        if known:
            figures["token_avu"] = agree / known
        if right:
            figures["token_entropy_right"] = entropy_right / right
        if wrong:
            figures["token_entropy_wrong"] = entropy_wrong / wrong
        return figures


def _table(values: Tensor, event: Tensor, counted: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows, summed value and events of each bin, (3, bins)."""
    # 0 is in the first bin and 1 in the last, so only the edges between bins are compared with
    edges = (torch.arange(1, BINS, dtype=torch.float64) / BINS).to(values)  # as `avuc.metrics.binning.bin_edges`
    index = torch.bucketize(values, edges)
    # sums of masked values are deterministic on GPUs, unlike scatter_add
    member = (index.unsqueeze(0) == torch.arange(BINS, device=values.device).unsqueeze(1)) & counted
    stated = torch.where(member, values, 0).sum(dim=1, dtype=dtype)
    return torch.stack((member.sum(dim=1).to(dtype), stated, (member & event).sum(dim=1).to(dtype)))


def _gap(table: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    return float(expected_gap(BinTable(*table)))
