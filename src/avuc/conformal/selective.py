"""SelectiveClassifier: answers only some rows, so that their error rate is below a limit with high probability."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from avuc.conformal.betting import Answers, answers_of, choose_threshold, error_interval, evidence_above, least_images
from avuc.conformal.distributions import binomial_cdf, clopper_pearson
from avuc.conformal.inputs import as_predictions, check_classes, check_share, labelled
from avuc.conformal.saved import Saved, is_number, is_whole
from avuc.core.display import Displayed
from avuc.core.errors import InputError
from avuc.predictions import Predictions
from avuc.uncertainty import entropy

Array = np.ndarray[Any, np.dtype[Any]]

SCORES = ("confidence", "entropy")
# every 1/STEPS of the rows, there is a test whether so many can be answered
STEPS = 100
# thresholds of the 0/1 value "is answered": the first one selects all rows, the second one the answered rows
ENDS = np.array([-1.0, 0.5])


@dataclass(frozen=True, repr=False)
class SelectiveCheck(Displayed):
    """Answers and their errors on new labelled rows. `SelectiveClassifier.check` returns it.

    Args:
        rows: number of rows.
        answered: number of rows with an answer.
        errors: number of wrong answers.
        risk: the limit of the error rate.
        level: probability of the intervals.
        error: error rate of the answers; None without answers. Every image counts the same, if there are images.
        error_low: lower end of its interval (Clopper & Pearson; of images: betting, Waudby-Smith & Ramdas), which holds
            for any number of rows or images.
        error_high: upper end.
        error_all: error rate if every row were answered.
        p_value: probability of so many errors or more if the error rate were the limit; of images an upper bound.
        images: number of images, sentences or groups, if the rows belong to such and are not independent: intervals
            and p_value then come from these; None if each row is one by itself.
    """

    rows: int
    answered: int
    errors: int
    risk: float
    level: float
    error: float | None
    error_low: float
    error_high: float
    error_all: float
    p_value: float
    images: int | None = None

    @property
    def coverage(self) -> float:
        """Share of rows with an answer."""
        return self.answered / self.rows

    @property
    def drift(self) -> bool:
        """Whether the error rate is above the limit, by a test of level 1 − `level`."""
        return self.p_value < 1 - self.level

    @property
    def sentence(self) -> str:
        """What the check found, in one or two sentences."""
        rows = f"{self.rows:,} rows" + ("" if self.images is None else f" of {self.images:,} images or groups")
        same = "" if self.images is None else ", each image or group counting the same"
        if self.error is None:
            return f"None of {rows} is answered."
        summary = (
            f"{100 * self.coverage:.1f} % of {rows} are answered, {100 * self.error:.2f} % of them wrongly "
            f"({100 * self.error_low:.2f} to {100 * self.error_high:.2f} %){same}"
        )
        if self.drift:
            return (
                f"{summary}: more than the limit of {100 * self.risk:g} %. Drift: these rows differ from those of the "
                "fit; fit again on rows like these."
            )
        return f"{summary}; the limit is {100 * self.risk:g} %."

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"coverage": self.coverage, "drift": self.drift}

    def _facts(self) -> dict[str, Any]:
        return {"rows": self.rows, "coverage": self.coverage, "error": self.error, "drift": self.drift}


class SelectiveClassifier(Saved):
    """Selective prediction with a guarantee: answers whose error rate is at most `risk`, with probability `level`.

    A row is answered if its confidence is above a threshold (or its entropy below one). `fit` tests, for numbers m of
    rows that are fixed before the labels are seen, whether the error rate above the (m + 1)-th largest score is at most
    `risk`, by exact binomial tests from small to large m, and takes the largest m that passes: Learn then Test with
    fixed-sequence testing from several starts (Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052). The
    guarantee needs rows that are independent and come from the same source as those of the fit; it needs no calibrated
    model.

    Pixels of one image, tokens of one sentence or rows of one group may depend on each other in any way: then only the
    images need to be independent, each counts the same, and the tests count images, see `avuc.conformal.betting`. It
    takes at least `least_rows` images: 219 for the defaults.

    Args:
        risk: highest error rate of the answers (default 0.02).
        level: probability that the guarantee holds (default 0.95).
        score: what decides about an answer, "confidence" (the default) or "entropy".

    >>> probs, labels = [[0.99, 0.01], [0.6, 0.4]] * 500, [0, 1] * 500  # unsure rows are wrong
    >>> selective = SelectiveClassifier(risk=0.05).fit(probs, labels)
    >>> selective.answers([[0.995, 0.005], [0.55, 0.45]])
    tensor([ True, False])
    """

    kind: ClassVar[str] = "selective"
    learned: ClassVar[tuple[str, ...]] = (
        "threshold",
        "rows",
        "answered",
        "errors",
        "num_classes",
        "class_names",
        "images",
    )
    optional: ClassVar[tuple[str, ...]] = ("images",)

    # a row is answered if its score, the confidence or minus the entropy, is above it; −inf: all rows, inf: none
    threshold_: float
    # counts of the fit: rows, rows with an answer, wrong answers
    rows_: int
    answered_: int
    errors_: int
    # number of images or groups of the fit; None if the rows are independent
    images_: int | None = None

    def __init__(self, risk: float = 0.02, level: float = 0.95, *, score: str = "confidence") -> None:
        self.risk: float = risk
        self.level: float = level
        self.score: str = score

    def fit(self, predictions: Any, labels: Any = None, *, groups: Any = None) -> Self:
        """Set the threshold from held-out predictions, and return this classifier. It may answer no row at all.

        Args:
            predictions: `avuc.Predictions` with labels, of data that the model was not trained or calibrated on; or
                probabilities (N, C), dense (N, C, *spatial) or binary (N,), with `labels`.
            labels: class numbers, if `predictions` are probabilities.
            groups: the group of each row, such as a patient or document, if rows of one group are not independent: one
                name or number for each row, or for each image. Default None: pixels and tokens belong to their image
                or sentence, other rows are independent.
        """
        self._check_params()
        checked, rows = labelled(predictions, labels, groups)
        scores, wrong = self._scores(checked), checked.predicted.cpu().numpy() != rows.labels
        self.images_ = None
        if rows.images is None:
            self._fit_rows(scores, wrong)
        else:
            numbers = np.unique(rows.images, return_inverse=True)[1]
            self.images_ = int(numbers.max()) + 1
            self.threshold_ = choose_threshold(scores, wrong, numbers, risk=self.risk, level=self.level)
            answered = self._above(scores, self.threshold_)
            self.rows_, self.answered_, self.errors_ = len(scores), int(answered.sum()), int(wrong[answered].sum())
        self.num_classes_: int = checked.num_classes
        self.class_names_: tuple[str, ...] | None = None
        return self

    def _fit_rows(self, scores: Array, errors: Array) -> None:
        """Set the threshold from independent rows."""
        order = np.argsort(-scores, kind="stable")
        wrong = np.concatenate([[0], np.cumsum(errors[order])])
        descending, rows = scores[order], len(scores)
        self.threshold_, self.rows_, self.answered_, self.errors_ = math.inf, rows, 0, 0
        thresholds: dict[int, float] = {}
        shares: dict[int, float] = {0: 0.0}
        for size, share in self._sizes(rows).items():
            threshold = -math.inf if size == rows else float(descending[size])
            # fewer rows than `size` are above the threshold if scores are equal; sizes with the same rows are one test
            above = int(self._above(descending, threshold).sum())
            thresholds[above], shares[above] = threshold, shares.get(above, 0.0) + share
        level = shares.pop(0)
        for above, share in shares.items():
            level += share
            if binomial_cdf(int(wrong[above]), above, self.risk) <= level:
                self.threshold_, self.answered_, self.errors_ = thresholds[above], above, int(wrong[above])
            else:
                level = 0.0

    def answers(self, predictions: Any) -> Tensor:
        """Return which rows are answered, a bool tensor (M,) in the order of `predictions.probs`.

        Args:
            predictions: `avuc.Predictions`, or probabilities; labels are not used.
        """
        self._check_fitted()
        checked = as_predictions(predictions)
        check_classes(checked.num_classes, self.num_classes_)
        single = checked.probs.dtype != torch.float64
        answered = self._above(self._scores(checked), self.threshold_, single=single)
        return torch.from_numpy(answered).to(checked.probs.device)

    def check(self, predictions: Any, labels: Any = None, *, groups: Any = None) -> SelectiveCheck:
        """Return answers and errors on new labelled rows, and whether the error rate is above the limit: drift.

        Args:
            predictions: `avuc.Predictions` with labels that `fit` has not seen, or probabilities with `labels`.
            labels: class numbers, if `predictions` are probabilities.
            groups: the group of each row, as in `fit`.
        """
        self._check_fitted()
        checked, labelled_rows = labelled(predictions, labels, groups)
        answered = self.answers(checked).cpu().numpy()
        wrong = checked.predicted.cpu().numpy() != labelled_rows.labels
        rows, errors = int(answered.sum()), int(wrong[answered].sum())
        counts = {"rows": len(wrong), "answered": rows, "errors": errors}
        if labelled_rows.images is not None:
            numbers = np.unique(labelled_rows.images, return_inverse=True)[1]
            shares, wrongly = answers_of(answered, wrong, numbers, ENDS)
            every, answers = (Answers(shares[:, k], wrongly[:, k]) for k in (0, 1))
            low, high = error_interval(answers, self.level)
            error, error_all, images = answers.error, every.error, len(every.wrong)
            p_value = math.exp(min(0.0, -evidence_above(answers, self.risk)))
        else:
            low, high = clopper_pearson(errors, rows, self.level)
            error, error_all, images = errors / rows if rows else None, float(wrong.mean()), None
            p_value = 1 - binomial_cdf(errors - 1, rows, self.risk) if errors else 1.0
        return SelectiveCheck(
            **counts,
            risk=self.risk,
            level=self.level,
            error=error,
            error_low=low,
            error_high=high,
            error_all=error_all or 0.0,
            p_value=p_value,
            images=images,
        )

    @property
    def least_rows(self) -> int:
        """Number of answered rows from which on the guarantee is possible: with fewer, even no error proves nothing.

        After a fit on images: the number of images.
        """
        return self._least(1) if self.images_ is None else least_images(self.risk, self.level)

    def _least(self, tests: int) -> int:
        return math.ceil(math.log((1 - self.level) / tests) / math.log1p(-self.risk))

    def _sizes(self, rows: int) -> dict[int, float]:
        """Return the numbers of rows to test, in ascending order, and the level that the test of each adds.

        They depend on the number of rows only. The level 1 − `level` is divided among the starts m, 2m, 4m, …; a test
        that passes hands all it has to the next one.
        """
        starts = next((n for n in range(rows.bit_length(), 0, -1) if self._least(n) << (n - 1) <= rows), 0)
        if not starts:
            return {}
        first = self._least(starts)
        levels = {size: 0.0 for step in range(1, STEPS + 1) if (size := rows * step // STEPS) > first}
        levels |= {first << k: (1 - self.level) / starts for k in range(starts)}
        return dict(sorted(levels.items()))

    def _above(self, scores: Array, threshold: float, *, single: bool = False) -> Array:
        """Return which scores are above a threshold; `single`: they come from float32 probabilities."""
        if self.score == "confidence" and (single or threshold == np.float32(threshold)):
            # these rows or those of the fit have float32: a forest's 0.6 must not be above 0.6
            scores, threshold = scores.astype(np.float32), float(np.float32(threshold))
        above: Array = scores > threshold
        return above

    def _scores(self, predictions: Predictions) -> Array:
        probs = predictions.probs.detach()
        # in float32, so that it does not depend on the type that probabilities were saved in
        found = probs.double().amax(1) if self.score == "confidence" else -entropy(probs.float().double())
        scores: Array = found.cpu().numpy()
        return scores

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise InputError("this SelectiveClassifier is not fitted; call fit(predictions) or load() first")

    def _check_params(self) -> None:
        check_share("risk", self.risk)
        check_share("level", self.level)
        if self.score not in SCORES:
            raise InputError(f"score must be one of {SCORES}, found {self.score!r}")

    def _restore(self, learned: dict[str, Any]) -> None:
        threshold, counts = learned["threshold"], [learned[name] for name in ("rows", "answered", "errors")]
        if not all(is_whole(count) for count in counts) or not counts[0] >= counts[1] >= counts[2] >= 0:
            raise InputError("rows, answered and errors must be whole numbers, none above the one before; fit it again")
        rows, answered, errors = counts
        if not (threshold is None and answered in (0, rows)) and not (is_number(threshold) and answered):
            raise InputError("threshold does not fit the number of answered rows; fit it again")
        without = -math.inf if answered else math.inf
        self.threshold_ = without if threshold is None else float(threshold)
        self.rows_, self.answered_, self.errors_ = rows, answered, errors
        images = learned.get("images")
        if not (images is None or (is_whole(images) and 1 <= images <= rows)):
            raise InputError("images must be their number; fit it again")
        self.images_ = images
