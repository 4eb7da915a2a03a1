"""The metrics of many resamples at once, computed from cumulative counts, and the errors of each metric.

Shared by the bootstrap over predictions (rows.py) and the bootstrap over cells of similar predictions (cells.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

import avuc.metrics.calibration as calibration
import avuc.metrics.selective as selective
from avuc.metrics.arrays import Array
from avuc.metrics.avu import QuadrantCounts, area, quadrant_counts_from_cumulative
from avuc.metrics.binning import BinTable
from avuc.metrics.resampling.absolute_error import AbsoluteSum, hidden_spread, maximum_errors, root_errors
from avuc.metrics.resampling.percentile import Errors
from avuc.metrics.threshold import Threshold, thresholds_between
from avuc.uncertainty import highest_certain, midpoint_threshold

CONFIDENCE_METRICS = {"ece", "mce", "debiased_ece", "adaptive_ece", "aurc"}
ENTROPY_METRICS = {"uce", "avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}


class CumulativeCounts(NamedTuple):
    """Sums over the groups before each of G groups of ascending value, and over all; (B, G + 1) for B resamples.

    right   correct predictions
    wrong   wrong predictions
    stated  stated values: confidence, or normalised entropy
    """

    right: Array
    wrong: Array
    stated: Array

    @property
    def rows(self) -> Array:
        """(B, 1) number of predictions of each resample."""
        return self.right[:, -1:] + self.wrong[:, -1:]

    def hidden(self, bins: int) -> dict[str, Array]:
        """Return `hidden_spread` of the adaptive error of the first resample."""
        right, wrong, stated = (sums[0] for sums in self)
        return {"adaptive_ece": hidden_spread(right + wrong, right, stated, bins)}

    def table(self, cuts: Array, event: Array) -> BinTable:
        """Return the sums of each bin, where bin l holds the groups from cuts[l] to cuts[l + 1]."""
        rights, wrongs, values, events = (
            np.diff(sums[:, cuts]) for sums in (self.right, self.wrong, self.stated, event)
        )
        return BinTable(rights + wrongs, values, events)


def confidence_metrics(
    below: CumulativeCounts, cuts: Array, names: Collection[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the metrics that depend on the order of confidence, and the signed terms of the calibration errors.

    Args:
        below: counts by ascending confidence; its arrays are overwritten.
        cuts: (bins + 1,) first group of each bin, and the number of groups.
        names: which metrics are wanted.

    Returns:
        Values (B,) by metric, `debiased_ece` as its square; signed terms (B, bins) of `ece` and `adaptive_ece`.
    """
    right, wrong, stated = below
    table, rows = below.table(cuts, right), below.rows
    out = {"mce": calibration.maximum_gap(table), "debiased_ece": calibration.debiased_square(table)}
    terms = {"ece": (table.event - table.value) / rows}
    if "aurc" in names:
        out["aurc"] = selective.risk_area_below(right, wrong)
    if "adaptive_ece" in names:
        stated -= right
        bins = len(cuts) - 1
        terms["adaptive_ece"] = calibration.equal_mass_terms(np.add(right, wrong, out=right), stated, bins)
    return out, terms


def entropy_metrics(
    below: CumulativeCounts,
    cuts: Array,
    values: Array,
    lowest: Array | None,
    threshold: Threshold,
    right_sum: Array,
    wrong_sum: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the metrics that depend on the order of entropy, and the signed terms of the uncertainty error.

    Args:
        below: counts by ascending entropy.
        cuts: (bins + 1,) first group of each bin, and the number of groups.
        values: (G,) entropy of each group, or the largest entropy of each if `lowest` is given.
        lowest: (G,) smallest entropy of each group; None: all entropies of a group are equal.
        threshold: entropy up to which a prediction is certain, or "auto".
        right_sum: (B,) sum of the entropies of correct predictions.
        wrong_sum: (B,) sum of the entropies of wrong predictions.
    """
    right, wrong, _ = below
    table, rows = below.table(cuts, wrong), below.rows
    terms = {"uce": (table.event - table.value) / rows}
    # smallest and largest entropy of each resample
    ends = [
        (np.searchsorted(cumulative[1:], 0, "right"), np.searchsorted(cumulative[1:], total))
        for cumulative, total in zip(right + wrong, rows[:, 0], strict=True)
    ]
    first, last = np.array(ends).T
    low, high = (values if lowest is None else lowest)[first], values[last]
    if threshold == "auto":
        at = midpoint_threshold(right_sum, wrong_sum, right[:, -1], wrong[:, -1], low=low, high=high)
    else:
        at = np.full(len(right), float(threshold))
    # the threshold and the points of the curve in one search
    thresholds = np.concatenate([highest_certain(at)[:, None], thresholds_between(low, high)], -1)
    counts = quadrant_counts_from_cumulative(values, right, wrong, thresholds, lowest)
    here = QuadrantCounts(*(count[:, 0] for count in counts))
    out = {
        "avu": here.avu,
        "avu_auc": area(counts.avu[:, 1:]),
        "p_accurate_given_certain": here.accurate_given_certain,
        "p_uncertain_given_inaccurate": here.uncertain_given_inaccurate,
    }
    return out, terms


class ErrorCollector:
    """Collects the errors of each metric from blocks of resamples."""

    def __init__(
        self,
        values: Mapping[str, Array],
        terms: Mapping[str, Array],
        hidden: Mapping[str, Array] | None = None,
        seed: int = 0,
    ) -> None:
        """Args:
        values: (1,) metrics of the data itself, the debiased error as its square.
        terms: (1, K) signed terms of the metrics that sum absolute values.
        hidden: (K,) standard errors of terms whose resamples show no noise, by metric; None: there are none.
        seed: of that noise.
        """
        self.values = values
        hidden = hidden or {}
        self.absolute: dict[str, AbsoluteSum] = {
            name: AbsoluteSum(term[0], hidden.get(name), seed) for name, term in terms.items()
        }
        self.regular: dict[str, list[Array]] = {name: [] for name in values if name not in terms}

    def add(self, samples: Mapping[str, Array], terms: Mapping[str, Array]) -> None:
        """Add a block of resamples: metrics (B,) and signed terms (B, K)."""
        for name, term in terms.items():
            self.absolute[name].add(term)
        for name, parts in self.regular.items():
            parts.append(self.values[name] - samples[name])

    def errors(
        self,
        replicates: int,
        seed: int,
        table: BinTable | None,
        spread: Array | None = None,
        square: float | None = None,
    ) -> dict[str, Errors]:
        """Return the errors of every metric.

        Args:
            replicates, seed: of the errors of `mce`.
            table: the bins of confidence; `mce` needs them.
            spread: of their gaps, if rows of a group are not independent.
            square: of the debiased error, if the data are a sample of other rows, whose errors are wanted.
        """
        errors = {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in self.regular.items()}
        errors |= {name: absolute_sum.errors() for name, absolute_sum in self.absolute.items()}
        if "debiased_ece" in errors:
            square = float(self.values["debiased_ece"][0]) if square is None else square
            errors["debiased_ece"] = root_errors(square, errors["debiased_ece"].over)
        if "mce" in errors and table is not None:
            errors["mce"] = maximum_errors(table, replicates, seed, spread)
        return errors
