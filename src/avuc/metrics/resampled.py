"""Every metric of many resamples at once, from their counts, and how far the metrics of the data may be from the truth.

Shared by the bootstrap over rows (`resampling.py`) and the bootstrap over cells of rows (`cell_bootstrap.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from avuc.metrics import calibration, selective
from avuc.metrics.absolute import AbsoluteSum, Errors, maximum_errors, root_errors
from avuc.metrics.avu import Counts, Threshold, area, cells_below, midpoint, thresholds_between
from avuc.metrics.statistics import Array, BinTable
from avuc.uncertainty import highest_certain

__all__ = ["CONFIDENCE_METRICS", "ENTROPY_METRICS", "Below", "Collected", "confidence_metrics", "entropy_metrics"]

CONFIDENCE_METRICS = {"ece", "mce", "debiased_ece", "adaptive_ece", "aurc"}
ENTROPY_METRICS = {"uce", "avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}


class Below(NamedTuple):
    """Right rows, wrong rows and the sum of what is stated below each group of ascending value, (B, G + 1)."""

    right: Array
    wrong: Array
    stated: Array

    @property
    def rows(self) -> Array:
        """(B, 1) rows of each resample."""
        return self.right[:, -1:] + self.wrong[:, -1:]

    def table(self, cuts: Array, event: Array) -> BinTable:
        """Per bin, where bin l holds the groups from cuts[l] to cuts[l + 1]."""
        rights, wrongs, values, events = (
            np.diff(sums[:, cuts]) for sums in (self.right, self.wrong, self.stated, event)
        )
        return BinTable(rights + wrongs, values, events)


def confidence_metrics(below: Below, cuts: Array, names: Collection[str]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The metrics of rows in order of confidence, and the signed terms of those that sum absolute values.

    The arrays of `below` are overwritten.
    """
    right, wrong, stated = below
    table, rows = below.table(cuts, right), below.rows
    out = {"mce": calibration.maximum_gap(table), "debiased_ece": calibration.debiased_square(table)}
    pieces = {"ece": (table.event - table.value) / rows}
    if "aurc" in names:
        out["aurc"] = selective.risk_area_below(right, wrong)
    if "adaptive_ece" in names:
        stated -= right
        bins = len(cuts) - 1
        pieces["adaptive_ece"] = calibration.equal_mass_pieces(np.add(right, wrong, out=right), stated, bins)
    return out, pieces


def entropy_metrics(
    below: Below,
    cuts: Array,
    values: Array,
    lowest: Array | None,
    threshold: Threshold,
    right_sum: Array,
    wrong_sum: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The metrics of rows in order of entropy, and the signed terms of the uncertainty error.

    `values` are the entropies of the groups; with `lowest`, a group is a cell that begins there. The sums are of the
    entropies of right and of wrong rows, (B).
    """
    right, wrong, _ = below
    table, rows = below.table(cuts, wrong), below.rows
    pieces = {"uce": (table.event - table.value) / rows}
    # the extreme entropies that were drawn
    ends = [
        (np.searchsorted(one[1:], 0, "right"), np.searchsorted(one[1:], total))
        for one, total in zip(right + wrong, rows[:, 0], strict=True)
    ]
    first, last = np.array(ends).T
    low, high = (values if lowest is None else lowest)[first], values[last]
    if threshold == "auto":
        at = midpoint(right_sum, wrong_sum, right[:, -1], wrong[:, -1], low, high)
    else:
        at = np.full(len(right), float(threshold))
    # the threshold itself and the curve's points in one look-up
    thresholds = np.concatenate([highest_certain(at)[:, None], thresholds_between(low, high)], -1)
    counts = cells_below(values, right, wrong, thresholds, lowest)
    here = Counts(*(cell[:, 0] for cell in counts))
    out = {
        "avu": here.avu,
        "avu_auc": area(counts.avu[:, 1:]),
        "p_accurate_given_certain": here.accurate_given_certain,
        "p_uncertain_given_inaccurate": here.uncertain_given_inaccurate,
    }
    return out, pieces


class Collected:
    """The errors of each metric, from blocks of resamples: `values` and `pieces` are those of the data itself.

    `pieces` are the signed terms (1, K) of metrics that sum absolute values; the debiased error is its square.
    """

    def __init__(self, values: Mapping[str, Array], pieces: Mapping[str, Array]) -> None:
        self.values = values
        self.kinked = {name: AbsoluteSum(piece[0]) for name, piece in pieces.items()}
        self.regular: dict[str, list[Array]] = {name: [] for name in values if name not in pieces}

    def add(self, samples: Mapping[str, Array], pieces: Mapping[str, Array]) -> None:
        for name, piece in pieces.items():
            self.kinked[name].add(piece)
        for name, parts in self.regular.items():
            parts.append(self.values[name] - samples[name])

    def errors(self, replicates: int, seed: int, table: BinTable | None) -> dict[str, Errors]:
        """`table` are the bins of confidence, which the maximum error needs."""
        errors = {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in self.regular.items()}
        errors |= {name: kink.errors() for name, kink in self.kinked.items()}
        if "debiased_ece" in errors:
            errors["debiased_ece"] = root_errors(float(self.values["debiased_ece"][0]), errors["debiased_ece"].over)
        if "mce" in errors and table is not None:
            errors["mce"] = maximum_errors(table, replicates, seed)
        return errors
