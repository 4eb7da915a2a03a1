"""Choose a calibrator by cross-validation, and do nothing if none of them helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.cross_validation import NORMAL, check_predictions
from avuc.calibration.inputs import are_numbers, as_labels, as_logits, as_weights, refuse_not_logits
from avuc.calibration.layouts import fit_rows
from avuc.calibration.race import NONE, Candidate, Race, Rows, choose
from avuc.calibration.scaled_logits import limited_threads
from avuc.calibration.temperature import TemperatureScaling
from avuc.core.arrays import as_tensor
from avuc.core.display import data_frame
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.predictions import Predictions

# The calibrators that are tried, the preferred one first. This list, its order, the number of folds and of standard
# errors were chosen on one half of the prediction sets of benchmarks/bench_posthoc.py. Each of the three has a ridge or
# smoothing that falls back to a temperature if there are few rows, so the one with the most parameters may be first.
CANDIDATES = ("matrix", "structured-vector", "smoothed")
# With fewer rows, in all or per class, calibrators with few parameters are tried, the simplest first, and the mean NLL
# of held-out rows must not rise at all: an interval of so few rows says little.
FEW_ROWS, FEW_ROWS_PER_CLASS = 200, 20
FEW_CANDIDATES = ("smoothed", "structured-vector")
# with fewer rows or groups nothing is changed
LEAST_ROWS = 20
LEAST_GROUPS = 10
# The cross-validation uses a tenth of the rows, but at least this many rows if they have no more than so many logits.
SHARE = 10
RACE_ROWS = 5_000
RACE_ELEMENTS = 1 << 22
# a fit with a number for each pair of classes takes time in rows × classes²
PAIRWISE = ("matrix", "dirichlet")
MOST_PAIRWISE = 32
# iterative fits of the winner use at most so many logits, and so many rows × classes² for PAIRWISE
ITERATIVE = ("vector", "structured-vector", *PAIRWISE)
FIT_ELEMENTS = 1 << 24
# Precision of iterative fits: in the cross-validation, and of the result.
ROUGH, FINE = 3e-4, 1e-5


class AutoCalibrator(Calibrator):
    """A calibrator chosen by cross-validation, or none if the predictions are better left alone.

    The calibrators compete on the same folds, and one that is clearly behind after a fold is stopped. Of those within
    one standard error (of the paired difference) of the lowest NLL, the first in `methods` is taken. It is refused if
    NLL, the Brier score or ECE of held-out rows get significantly worse than without a calibrator (`check_calibrator`);
    then the next one is taken, and if all are refused, nothing is changed. The winner is fitted on all rows.

    With fewer than 200 rows, or fewer than 20 per class, it is also refused if the mean NLL of held-out rows gets
    higher at all, and the default `methods` are then smoothed and structured-vector.

    A tenth of the rows takes part in the cross-validation, at least 5,000 if they have no more than 4 million logits.
    With more than 16 million logits (for `matrix`: rows × classes²), the winner is fitted on a sample of the rows,
    unless it is a temperature. Fewer than 20 rows, fewer than 10 groups, or labels of a single class leave the
    predictions alone. JSON has the chosen calibrator, so `Calibrator.load` and `avuc apply` read it as such.

    Args:
        methods: names in `CALIBRATORS` to choose from, the preferred one first. Default None: matrix,
            structured-vector and smoothed. ("smoothed", "structured-vector", "matrix") prefers the simplest.
        folds: parts of the cross-validation.
        standard_errors: how far the NLL of a preferred calibrator may be above the lowest. 0: the lowest NLL wins.
        seed: of the folds and of samples of rows.

    Learned attributes:
        chosen_: the fitted calibrator.
        table_: for none and each calibrator: method, nll, change against none, low, high, brier, ece, note.
        reason_: one sentence that says why.
        rows_: number of rows of the cross-validation.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.randint(3, (500,), generator=generator)
    >>> logits = 4 * (torch.randn(500, 3, generator=generator) + torch.eye(3)[labels])  # overconfident
    >>> auto = AutoCalibrator().fit(logits, labels)
    >>> auto.chosen_.name, auto.table_[0].method
    ('smoothed', 'none')
    """

    name: ClassVar[str] = "auto"
    learned: ClassVar[dict[str, str]] = {}

    chosen_: Calibrator
    table_: tuple[Candidate, ...]
    reason_: str
    rows_: int

    def __init__(
        self,
        methods: Sequence[str] | None = None,
        *,
        folds: int = 5,
        standard_errors: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.methods = methods
        self.folds = folds
        self.standard_errors = standard_errors
        self.seed = seed

    def fit(
        self,
        logits: Any,
        labels: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Choose a calibrator, fit it, and return this object.

        Args:
            logits: as for `Calibrator.fit`.
            labels: (N,) or (N, *spatial) class numbers.
            sample_weight: (N,) weights of the rows, for the fits and for the means; ECE is then not judged.
            groups: (N,) numbers; rows of one group (a patient, an image) are held out together. Default None: rows are
                independent; of dense labels, those of one image are a group.
            class_dim: dimension of the classes in `logits`.
            ignore_index: rows with this label are left out (default −100); None: no row is.
        """
        self._check_params()
        layout: dict[str, Any] = {"class_dim": class_dim, "ignore_index": ignore_index}
        together = _groups(groups, as_tensor(labels, "labels"))
        if together is not None:
            together = as_tensor(fit_rows(logits, labels, together, **layout).weights, "groups").flatten()
        given = fit_rows(logits, labels, sample_weight, **layout)
        scores = as_logits(given.logits).detach()
        refuse_not_logits(scores)
        targets, weight = as_labels(given.labels, scores), None
        if given.weights is not None:
            weight = as_weights(given.weights, len(targets)).to(scores.device)
        rows = Rows(scores, targets, weight, None if together is None else together.to(scores.device))
        if weight is not None:
            rows = rows[weight > 0]
        with torch.no_grad():
            self._choose(rows)
        return self

    def _choose(self, rows: Rows) -> None:
        few, self.table_, self.rows_ = _few(rows), (), 0
        if stop := _too_few(rows):
            self._keep(TemperatureScaling.identity(rows.logits.shape[-1]), f"Nothing is changed: {stop}.")
            return
        some = self._sample(rows, max(len(rows) // SHARE, _most_rows(rows, RACE_ROWS, RACE_ELEMENTS)))
        some, self.rows_ = some.cpu(), len(some)
        classes = rows.logits.shape[-1]
        names = self._names(few)
        skipped = {name: _costly(classes) for name in names if name in PAIRWISE and classes > MOST_PAIRWISE}
        if few and self.methods is None:
            skipped |= {name: f"not tried: {few}" for name in CANDIDATES if name not in names}
        parts = len(some) if some.groups is None else len(some.groups.unique())
        race = Race(some, min(self.folds, parts), self.seed)
        with limited_threads(some.logits):
            race.run({name: self._made(name, ROUGH) for name in names if name not in skipped})
            reason, winner = self._winner(race, strict=bool(few))
        self.table_ = (*race.table(), *(Candidate.unknown(name, note) for name, note in skipped.items()))
        if winner == NONE:
            loss = race.mean(NONE)
            self._keep(TemperatureScaling.identity(classes, loss), reason)
        else:
            most = FIT_ELEMENTS // (classes * classes if winner in PAIRWISE else classes)
            used = rows if winner not in ITERATIVE else self._sample(rows, max(most, len(some)))
            self._keep(used.fit(self._made(winner, FINE)), reason)

    def _winner(self, race: Race, *, strict: bool) -> tuple[str, str]:
        """Return the sentence and the name of the calibrator that is used; strict: its mean NLL must not be higher."""
        names, refused = [name for name in race.finished if name != NONE], list[str]()
        before = Predictions(race.runners[NONE].probs, race.rows.labels)
        while names:
            winner, best = choose(race, names, self.standard_errors)
            after = Predictions(race.runners[winner].probs, race.rows.labels)
            check = check_predictions(
                self._made(winner, ROUGH), before, after, folds=race.folds, seed=self.seed, weight=race.rows.weight
            )
            harm = race.mean(winner) > race.mean(NONE) if strict else check.figures["nll"].low > 0
            if not check.worse and not harm:
                return _sentence(race, winner, best, refused), winner
            refused.append(winner)
            names.remove(winner)
        if not any(runner.folds for name, runner in race.runners.items() if name != NONE):
            return "Nothing is changed: no calibrator can take these rows.", NONE
        return "Nothing is changed: every calibrator would make held-out rows worse.", NONE

    def _keep(self, chosen: Calibrator, reason: str) -> None:
        self.chosen_, self.reason_ = chosen, reason
        self.num_classes_: int = chosen.num_classes_
        self.temperature_: float = chosen.temperature_
        self.curve_: tuple[Array, Array] = chosen.curve_
        self.at_bound_: bool = chosen.at_bound_
        self.class_names_: tuple[str, ...] | None = None

    def _sample(self, rows: Rows, most: int) -> Rows:
        """Return at most so many rows, at random; of groups, whole groups until there are enough rows."""
        if most >= len(rows):
            return rows
        generator = torch.Generator().manual_seed(self.seed)
        device = rows.labels.device
        if rows.groups is None:
            return rows[torch.randperm(len(rows), generator=generator)[:most].sort().values.to(device)]
        number, group, sizes = rows.groups.cpu().unique(return_inverse=True, return_counts=True)
        order = torch.randperm(len(number), generator=generator)
        enough = int((sizes[order].cumsum(0) < most).sum()) + 1
        kept = torch.zeros(len(number), dtype=torch.bool)
        kept[order[: max(enough, min(LEAST_GROUPS, len(number)))]] = True
        return rows[kept[group].nonzero()[:, 0].to(device)]

    def _names(self, few: str) -> list[str]:
        if self.methods is not None:
            return list(self.methods)
        return [name for name in (FEW_CANDIDATES if few else CANDIDATES) if name in self.calibrators]

    def _made(self, name: str, tolerance: float) -> Calibrator:
        """Return a calibrator with default parameters; iterative ones with this tolerance."""
        made = self.calibrators[name]()
        if name in ITERATIVE and "tolerance" in made.get_params():
            made.set_params(tolerance=max(tolerance, made.get_params()["tolerance"]))
        return made

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of `table_`."""
        return data_frame({name: [getattr(row, name) for row in self.table_] for name in Candidate._fields})

    def to_json(self) -> str:
        """Return the chosen calibrator as JSON."""
        if not hasattr(self, "chosen_"):
            raise InputError("this AutoCalibrator is not fitted; call fit(logits, labels) first")
        self.chosen_.class_names_ = self.class_names_
        return self.chosen_.to_json()

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        raise NotImplementedError  # `fit` does not call it

    def _apply(self, logits: Tensor) -> Tensor:
        return self.chosen_._apply(logits)

    def _check_params(self) -> None:
        known = [name for name, kind in self.calibrators.items() if not kind.multilabel]
        if self.methods is not None:
            wrong = [name for name in self.methods if name not in known]
            if wrong or not self.methods or isinstance(self.methods, str):
                raise InputError(f"methods must be names of {known}; found {self.methods!r}")
        if not isinstance(self.folds, int) or self.folds < 2:
            raise InputError(f"folds must be a whole number, at least 2; found {self.folds!r}")
        if not are_numbers(self.standard_errors) or self.standard_errors < 0:
            raise InputError(f"standard_errors must be a number, at least 0; found {self.standard_errors!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed must be a whole number; found {self.seed!r}")


def _groups(groups: Any, labels: Tensor) -> Tensor | None:
    """Return the group of every label, in the shape of the labels; of dense labels, each image is a group."""
    dense = labels.ndim > 1 and labels.shape[1:].numel() > 1
    if groups is None:
        if not dense:
            return None
        groups = torch.arange(len(labels))
    numbers = as_tensor(groups, "groups")
    if numbers.shape != labels.shape[:1] or numbers.is_floating_point():
        raise InputError(
            f"groups must be one whole number for each of {len(labels)} rows; found {tuple(numbers.shape)}"
        )
    return numbers.reshape(-1, *[1] * (labels.ndim - 1)).expand(labels.shape)


def _too_few(rows: Rows) -> str:
    """Return why nothing can be learned from these rows, or nothing."""
    many = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    if len(rows) < LEAST_ROWS:
        return f"{many} are too few to choose a calibrator; give at least {LEAST_ROWS}"
    if int(rows.labels.min()) == int(rows.labels.max()):
        return f"all {many} have the same label; give rows of at least two classes"
    groups = LEAST_GROUPS if rows.groups is None else len(rows.groups.unique())
    return f"{groups} groups are too few; give at least {LEAST_GROUPS}" if groups < LEAST_GROUPS else ""


def _few(rows: Rows) -> str:
    """Return why there are too few rows for many parameters, or nothing."""
    classes = rows.logits.shape[-1]
    if len(rows) < FEW_ROWS:
        return f"{len(rows)} rows are fewer than {FEW_ROWS}"
    if len(rows) < FEW_ROWS_PER_CLASS * classes:
        return f"{len(rows)} rows are fewer than {FEW_ROWS_PER_CLASS} for each of {classes} classes"
    return ""


def _most_rows(rows: Rows, most: int, elements: int) -> int:
    return min(most, elements // max(1, rows.logits.numel() // len(rows)))


def _costly(classes: int) -> str:
    return f"not tried: its time grows with classes², and {classes} are more than {MOST_PAIRWISE}"


def _sentence(race: Race, winner: str, best: str, refused: Sequence[str]) -> str:
    change, error = race.difference(winner, NONE)
    rest = ""
    if best != winner:
        more, spread = race.difference(best, winner)
        rest = f"; {best} is {abs(more):.4f} lower (standard error {spread:.4f}), and {winner} is preferred"
    if refused:
        rest += f"; {' and '.join(refused)} would make held-out rows worse"
    verb = "falls" if change < 0 else "changes"
    return (
        f"{winner}: NLL of held-out rows {verb} from {race.mean(NONE):.4f} to {race.mean(winner):.4f} (95 % interval "
        f"of the change {change - NORMAL * error:+.4f} to {change + NORMAL * error:+.4f}){rest}."
    )
