"""ConformalClassifier: sets of classes that contain the true class with a given probability."""

from __future__ import annotations

import math
import zlib
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from avuc.conformal.coverage import CoverageCheck, check_coverage, expected_share, kept_share
from avuc.conformal.distributions import beta_quantile
from avuc.conformal.images import Images, coverage_ends, hierarchical_quantile, images_of
from avuc.conformal.inputs import ClassRows, check_classes, check_share, class_rows
from avuc.conformal.saved import Saved, is_number, is_whole
from avuc.conformal.scores import METHODS, SUM_ROUNDING, Score, predicted_roughly, top_class
from avuc.core.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]


class ConformalClassifier(Saved):
    """Split conformal prediction: sets that contain the true class with probability `coverage`, for any model.

    `fit` on held-out predictions takes the ⌈(n + 1) · coverage⌉-th smallest of the n labels' scores as the threshold;
    `predict_sets` returns the classes whose score is at most that. The guarantee needs rows that are exchangeable with
    those of the fit, such as a random split of the same data, and nothing of the model. Pixels of one image and rows of
    one group are not exchangeable with those of others, but images and groups are: with them the threshold is that of
    hierarchical conformal prediction (https://arxiv.org/abs/2306.06342), and `coverage` is the probability for a random
    row of a new image or group. Every group counts the same, however many rows it has.

    Args:
        method: the score: "threshold" (the default; smallest sets), "aps" or "raps" (sets that adapt to each row).
        coverage: share of rows whose set contains the true class (default 0.9).
        class_conditional: whether every class gets a threshold, and the coverage, of its own (default False).
        randomized: whether APS and RAPS use one random number per row, which makes the coverage exact (default True).
        allow_empty: whether a set may be empty (default True); else it holds at least the predicted class, and the
            coverage can be higher.
        penalty: of RAPS, for each place after the first `k_reg` (default 0.01).
        k_reg: of RAPS, number of places without a penalty (default 5).
        seed: of the random numbers (default 0), together with the rows: other data get other numbers.

    >>> probs, labels = [[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8]] * 5, [0, 0, 1, 1] * 5
    >>> conformal = ConformalClassifier(coverage=0.8).fit(probs, labels)
    >>> conformal.predict_sets([[0.95, 0.05], [0.5, 0.5]])
    tensor([[ True, False],
            [False, False]])
    """

    kind: ClassVar[str] = "conformal"
    learned: ClassVar[tuple[str, ...]] = (
        "thresholds",
        "rows",
        "tied",
        "num_classes",
        "class_names",
        "images",
        "groups",
    )
    optional: ClassVar[tuple[str, ...]] = ("images", "groups")

    # (1,), or (C,) if class-conditional: the threshold, inf if every class is in the set; number of rows it comes from
    thresholds_: Array
    rows_: Array
    # whether several rows have the score of the threshold; the coverage can then be higher than it should be
    tied_: bool
    # the images or groups of the rows; None if the rows are independent
    images_: Images | None = None
    # like rows_: the number of images or groups that each threshold comes from; None if the rows are independent
    groups_: Array | None = None

    def __init__(
        self,
        method: str = "threshold",
        coverage: float = 0.9,
        *,
        class_conditional: bool = False,
        randomized: bool = True,
        allow_empty: bool = True,
        penalty: float = 0.01,
        k_reg: int = 5,
        seed: int = 0,
    ) -> None:
        self.method: str = method
        self.coverage: float = coverage
        self.class_conditional: bool = class_conditional
        self.randomized: bool = randomized
        self.allow_empty: bool = allow_empty
        self.penalty: float = penalty
        self.k_reg: int = k_reg
        self.seed: int = seed

    def fit(self, predictions: Any, labels: Any = None, *, logits: bool = False, groups: Any = None) -> Self:
        """Set the thresholds from held-out predictions, and return this classifier.

        Args:
            predictions: `avuc.Predictions` with labels, of data that the model was not trained or calibrated on; or
                probabilities or logits (N, C), dense (N, C, *spatial) or binary (N,), with `labels`.
            labels: class numbers, if `predictions` are probabilities or logits.
            logits: whether `predictions` are logits instead of probabilities (default False); sets from logits take
                less time and memory than `Predictions.from_logits` and sets.
            groups: the group of each row, such as a patient or document, if rows of one group are not independent: one
                name or number for each row, or for each image. Default None: pixels and tokens belong to their image
                or sentence, other rows are independent. With fewer than coverage/(1 − coverage) groups, such as 9 for
                0.9, every class is in every set.
        """
        self._check_params()
        rows = class_rows(predictions, labels, logits=logits, groups=groups)
        rows.check_labelled()
        targets = rows.labels
        uniform = self._uniform(rows, (self.seed, 0), targets)
        scores = self._score().of_labels(rows.scores, targets, uniform, logits=logits)
        parts: list[Any] = [slice(None)]
        if self.class_conditional:
            order = np.argsort(targets, kind="stable")
            parts = np.split(order, np.searchsorted(targets[order], np.arange(1, rows.num_classes)))
        images = rows.images
        self.thresholds_ = np.array([self._quantile(scores[p], None if images is None else images[p]) for p in parts])
        self.rows_ = np.array([len(scores[part]) for part in parts])
        # what `Score.sets` adds to the threshold of sums of probabilities
        rounding = 0.0 if self.method == "threshold" or self.randomized else SUM_ROUNDING
        self.tied_ = any(
            np.isfinite(q) and ((scores[part] >= q) & (scores[part] <= q + rounding)).sum() > 1
            for q, part in zip(self.thresholds_, parts, strict=True)
        )
        self.images_ = self.groups_ = None
        if images is not None:
            self.images_ = images_of(scores <= self.thresholds_[targets if self.class_conditional else 0], images)
            self.groups_ = np.array([np.count_nonzero(np.bincount(images[part])) for part in parts])
        self.num_classes_: int = rows.num_classes
        self.class_names_: tuple[str, ...] | None = None
        return self

    def predict_sets(self, predictions: Any, *, seed: int | None = None, logits: bool = False) -> Tensor:
        """Return which classes are in the set of each row, a bool tensor (M, C) in the order of `predictions.probs`.

        Args:
            predictions: `avuc.Predictions`, or probabilities or logits; labels are not used.
            seed: of the random numbers of APS and RAPS, together with what is predicted. Default None: the
                classifier's; pass another one for every batch if small batches often have equal probabilities, such as
                votes, because these get the same random numbers.
            logits: whether `predictions` are logits instead of probabilities (default False).
        """
        self._check_fitted()
        rows = class_rows(predictions, logits=logits)
        return torch.from_numpy(self._sets(rows, seed)).to(rows.scores.device)

    def _sets(self, rows: ClassRows, seed: int | None = None) -> Array:
        check_classes(rows.num_classes, self.num_classes_)
        uniform = self._uniform(rows, (self.seed if seed is None else seed, 1))
        sets = self._score().sets(rows.scores, self.thresholds_, uniform, logits=rows.logits)
        if not self.allow_empty:
            empty = ~sets.any(1)
            sets[empty] = top_class(rows.scores)[empty]
        return sets

    def check(
        self, predictions: Any, labels: Any = None, *, level: float = 0.95, logits: bool = False, groups: Any = None
    ) -> CoverageCheck:
        """Return coverage and set sizes on new labelled rows, and whether the coverage left its interval: drift.

        Pixels of an image, tokens of a sentence and rows of a group are not independent: every image or group then
        counts the same, and the intervals come from the spread of the coverage from one to the other.

        Args:
            predictions: `avuc.Predictions` with labels that `fit` has not seen, or probabilities with `labels`.
            labels: class numbers, if `predictions` are probabilities or logits.
            level: probability of the interval (default 0.95), so 5 % of checks raise a false alarm.
            logits: whether `predictions` are logits instead of probabilities (default False).
            groups: the group of each row, as in `fit`.
        """
        check_share("level", level)
        self._check_fitted()
        rows = class_rows(predictions, labels, logits=logits, groups=groups)
        rows.check_labelled()
        return check_coverage(
            self._sets(rows),
            rows.labels,
            ranks=self.ranks,
            rows=self._counts,
            exact=self.is_exact,
            level=level,
            wanted=self.coverage,
            fit=self.images_,
            numbers=rows.images,
        )

    def coverage_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return where the coverage on infinitely many new rows lies, given this many rows of calibration.

        It follows Beta(k, n + 1 − k) with k = ⌈(n + 1) · coverage⌉, if no two scores are equal
        (https://arxiv.org/abs/2107.07511, section 3.2). Class-conditional: of the class with the fewest rows, apart
        from classes with too few rows, which are in every set. For pixels, the images of the fit are what is counted,
        and the interval is that of all classes together.

        Args:
            level: probability of the interval (default 0.95).

        >>> probs, labels = [[0.9, 0.1], [0.2, 0.8]] * 500, [0, 1] * 500
        >>> fitted = ConformalClassifier("aps", coverage=0.9).fit(probs, labels)
        >>> [round(end, 3) for end in fitted.coverage_interval()]
        [0.881, 0.918]
        """
        self._check_fitted()
        check_share("level", level)
        enough = self.ranks <= self._counts
        if not enough.any():
            return 1.0, 1.0
        if self.images_ is not None:
            share, kept = (part(self.rows_, self.ranks, self._counts) for part in (expected_share, kept_share))
            ends = coverage_ends(share, level, self.images_, None, rows=int(self.rows_.sum()), new_rows=0, kept=kept)
            return ends[0], ends[1] if self.is_exact else 1.0
        rows = int(self.rows_[enough].min())
        rank = self._rank(rows)
        low, high = (beta_quantile(share, rank, rows + 1 - rank) for share in ((1 - level) / 2, (1 + level) / 2))
        return low, high if self.is_exact else 1.0

    @property
    def ranks(self) -> Array:
        """Rank of each threshold among the n sorted scores, ⌈(n + 1) · coverage⌉; above n, every class is in the set.

        With images or groups, n is their number.
        """
        self._check_fitted()
        return np.array([self._rank(int(count)) for count in self._counts])

    @property
    def _counts(self) -> Array:
        return self.rows_ if self.groups_ is None else self.groups_

    @property
    def least_groups(self) -> int:
        """Number of images or groups that a set without some class needs at least: coverage/(1 − coverage)."""
        return math.ceil(self._share / (1 - self._share))

    @property
    def is_exact(self) -> bool:
        """Whether the coverage has its exact distribution; equal scores or a ban on empty sets can raise it."""
        return self.allow_empty and not self.tied_

    def _rank(self, rows: int) -> int:
        return math.ceil(self._share * (rows + 1))

    @property
    def _share(self) -> Fraction:
        # exactly the decimal number that the user wrote: 0.07 · 100 is 7.000000000000001 in binary
        return Fraction(repr(float(self.coverage)))

    def _quantile(self, scores: Array, images: Array | None = None) -> float:
        if images is not None:
            return hierarchical_quantile(scores, images, self._share)
        rank = self._rank(len(scores))
        return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])

    def _score(self) -> Score:
        penalty = self.penalty if self.method == "raps" else 0.0
        return Score(self.method, penalty, self.k_reg)

    def _uniform(self, rows: ClassRows, seed: tuple[int, int], labels: Array | None = None) -> Array:
        """Return a random number for each row, from the seed, what is predicted and, in a fit, the labels.

        From less, much data would get the same numbers, and the coverage averaged over these data would be theirs.
        """
        if self.method == "threshold" or not self.randomized:
            return np.zeros(len(rows.labels))
        marks = b"" if labels is None else labels.astype("<i8").tobytes()
        number = zlib.crc32(predicted_roughly(rows.scores, rows.logits) + marks)
        return np.random.default_rng((*seed, number)).random(len(rows.labels))

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise InputError("this ConformalClassifier is not fitted; call fit(predictions) or load() first")

    def _check_params(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {METHODS}, found {self.method!r}")
        check_share("coverage", self.coverage)
        for name in ("class_conditional", "randomized", "allow_empty"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, found {getattr(self, name)!r}")
        if not (is_number(self.penalty) and self.penalty >= 0):
            raise InputError(f"penalty must be a number from 0 up, found {self.penalty!r}")
        for name in ("k_reg", "seed"):
            if not (is_whole(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be a whole number from 0 up, found {getattr(self, name)!r}")

    def _restore(self, learned: dict[str, Any]) -> None:
        thresholds, rows, tied = learned["thresholds"], learned["rows"], learned["tied"]
        groups = learned.get("groups")
        number = learned["num_classes"] if self.class_conditional else 1
        counts = rows if groups is None else groups
        for name, values in (("thresholds", thresholds), ("rows", rows), ("groups", counts)):
            if not isinstance(values, list) or len(values) != number:
                raise InputError(f"{name} must be a list of {number} numbers; fit it again")
        if not all(is_whole(count) and count >= 0 for count in [*rows, *counts]) or not isinstance(tied, bool):
            raise InputError("rows and groups must be whole numbers from 0 up, and tied true or false; fit it again")
        # an infinite threshold is saved as null, and only a fit with too few rows has one
        if not all(q is None if self._rank(n) > n else is_number(q) for q, n in zip(thresholds, counts, strict=True)):
            raise InputError("thresholds do not fit the number of rows and the coverage; fit it again")
        self.thresholds_ = np.array([math.inf if q is None else float(q) for q in thresholds])
        self.rows_, self.tied_ = np.array(rows), tied
        self.groups_ = None if groups is None else np.array(groups)
        images = learned.get("images")
        if images is not None:
            # files of earlier versions have no share
            good = isinstance(images, list) and len(images) in (2, 3) and is_whole(images[0]) and images[0] >= 1
            if not good or not all(is_number(value) and value >= 0 for value in images[1:]):
                raise InputError("images must be their number, their spread and their share; fit it again")
            images = Images(images[0], *map(float, images[1:]))
        self.images_ = images


def sets_as_names(sets: Array, names: tuple[str, ...] | None) -> list[list[str]]:
    """Return the names, or numbers, of the classes in each set."""
    known = [str(k) for k in range(sets.shape[1])] if names is None else list(names)
    return [[known[k] for k in np.flatnonzero(row)] for row in sets]
