"""Coverage and set sizes on labelled rows, with the interval in which the coverage should lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from avuc.conformal.distributions import beta_binomial, central_interval, clopper_pearson, total_of
from avuc.conformal.images import Images, coverage_ends, images_of, share_interval
from avuc.core.display import Displayed

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ClassCoverage:
    """Coverage and mean set size of the rows of one class; NaN without rows.

    Args:
        label: class number.
        rows: number of rows.
        coverage: share of rows whose set contains the class; of pixels, the mean of this share over images.
        low: lower end of the interval of that share (Clopper & Pearson; of pixels: Korn & Graubard).
        high: upper end.
        mean_size: mean number of classes in the sets of these rows.
    """

    label: int
    rows: int
    coverage: float
    low: float
    high: float
    mean_size: float


@dataclass(frozen=True, repr=False)
class CoverageCheck(Displayed):
    """Coverage and set sizes on new labelled rows. `ConformalClassifier.check` returns it.

    Args:
        rows: number of rows.
        wanted: the coverage that was asked for.
        coverage: share of rows whose set contains the true class; of pixels and rows of groups, the mean of this share
            over the images or groups.
        low: lower end of the interval in which the coverage of so many new rows lies, without drift.
        high: upper end; 1 if the coverage can be higher than it should be, see `ConformalClassifier.is_exact`.
        level: probability of the interval.
        mean_size: mean number of classes in a set.
        sizes: number of rows by the size of their set, (C + 1).
        classes: coverage and set size of each class.
        images: number of images, sentences or groups, if the rows belong to such and are not independent: the
            intervals then come from these; None if each row is one by itself.
    """

    rows: int
    wanted: float
    coverage: float
    low: float
    high: float
    level: float
    mean_size: float
    sizes: tuple[int, ...]
    classes: tuple[ClassCoverage, ...]
    images: int | None = None

    @property
    def drift(self) -> bool:
        """Whether the coverage left its interval: these rows are not like those of the fit."""
        return not self.low <= self.coverage <= self.high

    @property
    def sentence(self) -> str:
        """What the check found, in one or two sentences."""
        interval = f"({100 * self.level:g} % interval: {100 * self.low:.2f} to {100 * self.high:.2f} %)"
        of = "" if self.images is None else f" of {self.images:,} images or groups, each of which counts the same,"
        summary = f"The sets of {100 * self.coverage:.2f} % of {self.rows:,} rows{of} contain the true class"
        if not self.drift:
            return f"{summary}, as expected {interval}."
        side = "less" if self.coverage < self.low else "more"
        return (
            f"{summary}, {side} than expected {interval}. Drift: these rows differ from those of the fit; fit again on "
            "rows like these."
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; NaN becomes None."""
        content = asdict(self) | {"drift": self.drift, "sizes": list(self.sizes)}
        content["classes"] = [
            {name: None if value != value else value for name, value in asdict(each).items()} for each in self.classes
        ]
        return content

    def _facts(self) -> dict[str, Any]:
        interval = f"{self.low:.4g} … {self.high:.4g}"
        return {
            "rows": self.rows,
            "coverage": self.coverage,
            "interval": interval,
            "mean_size": self.mean_size,
            "drift": self.drift,
        }


def covered_interval(new: Array, *, ranks: Array, rows: Array, exact: bool, level: float) -> tuple[int, int]:
    """Return the ends of the interval of the number of covered rows, if there is no drift.

    Args:
        new: number of new rows of each threshold, (1,) or (C,).
        ranks, rows, exact, level: as in `check_coverage`.
    """
    laws = zip(new.tolist(), ranks.tolist(), rows.tolist(), strict=True)
    parts = [beta_binomial(m, k, max(0, n + 1 - k)) for m, k, n in laws if m]
    low, high = central_interval(total_of(parts), level)
    return low, high if exact else int(new.sum())


def check_coverage(
    sets: Array,
    labels: Array,
    *,
    ranks: Array,
    rows: Array,
    exact: bool,
    level: float,
    wanted: float,
    fit: Images | None = None,
    numbers: Array | None = None,
) -> CoverageCheck:
    """Return coverage and set sizes, with the interval that follows from the rows of the fit.

    Given the fit, the number of covered rows of each threshold is beta-binomial: a share from Beta(k, n + 1 − k). Rows
    that are pixels or tokens are judged by their images, see `avuc.conformal.images`.

    Args:
        sets: (N, C) bool.
        labels: (N,) class numbers.
        ranks: k of each threshold, (1,) or (C,).
        rows: n of each threshold: its rows, or its images.
        exact: whether the law is exact; else the coverage may be higher, and the interval ends at 1.
        level: probability of the interval.
        wanted: the coverage that was asked for.
        fit: the images of the fit; None if its rows were independent.
        numbers: (N,) the image of each row; None if the rows are independent.
    """
    total, classes = sets.shape
    hit, size = sets[np.arange(total), labels], sets.sum(1)
    new = np.array([total]) if len(rows) == 1 else np.bincount(labels, minlength=classes)
    images = None if numbers is None else images_of(hit, numbers)
    if fit is None and images is None:
        ends = covered_interval(new, ranks=ranks, rows=rows, exact=exact, level=level)
        low, high = ends[0] / total, ends[1] / total
    elif ((ranks > rows) | (new == 0)).all():
        low = high = 1.0
    else:
        share = expected_share(new, ranks, rows)
        kept = kept_share(new, ranks, rows)
        low, high = coverage_ends(share, level, fit, images, rows=int(rows.sum()), new_rows=total, kept=kept)
        high = high if exact else 1.0
    return CoverageCheck(
        rows=total,
        wanted=wanted,
        coverage=float(hit.mean() if images is None or images.share is None else images.share),
        low=low,
        high=high,
        level=level,
        mean_size=float(size.mean()),
        sizes=tuple(np.bincount(size, minlength=classes + 1).tolist()),
        classes=tuple(_by_class(hit, size, labels, classes, level, numbers)),
        images=None if images is None else images.number,
    )


def expected_share(new: Array, ranks: Array, rows: Array) -> float:
    """Return the expected coverage of new rows, `new` of each threshold: k/(n + 1), or 1 if the fit had too few."""
    return float((new * np.minimum(1, ranks / (rows + 1))).sum() / new.sum())


def kept_share(new: Array, ranks: Array, rows: Array) -> float:
    """Return n/(n + 1) averaged over new rows, `new` of each threshold; 1 for a threshold that covers everything."""
    return float((new * np.where(ranks > rows, 1.0, rows / (rows + 1))).sum() / new.sum())


def _by_class(
    hit: Array, size: Array, labels: Array, classes: int, level: float, numbers: Array | None
) -> Iterator[ClassCoverage]:
    counts: Sequence[int] = np.bincount(labels, minlength=classes).tolist()
    covered = np.bincount(labels, weights=hit, minlength=classes)
    totals = np.bincount(labels, weights=size, minlength=classes)
    nan = float("nan")
    for label, rows in enumerate(counts):
        events = int(covered[label])
        share = events / rows if rows else nan
        if numbers is None:
            ends = clopper_pearson(events, rows, level)
        else:
            here = hit[labels == label], numbers[labels == label]
            ends = share_interval(*here, level)
            share = images_of(*here).share or 0.0 if rows else nan
        yield ClassCoverage(label, rows, share, *ends, totals[label] / rows if rows else nan)
