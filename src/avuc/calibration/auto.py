"""Choose a calibrator or a mixture by cross-validation, and do nothing if none of them helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.auto_rules import (
    LEAST_GROUPS,
    MOST_PAIRWISE,
    PAIRWISE,
    costly,
    few_rows,
    most_rows,
    sentence,
    too_few,
)
from avuc.calibration.base import Array, Calibrator
from avuc.calibration.blend import BlendedCalibrator
from avuc.calibration.fold_fits import FoldFits
from avuc.calibration.inputs import are_numbers, as_labels, as_logits, as_weights, refuse_not_logits
from avuc.calibration.layouts import fit_groups, fit_rows
from avuc.calibration.race import BLEND, NONE, Candidate, Race, choose
from avuc.calibration.rows import Rows
from avuc.calibration.scaled_logits import limited_threads
from avuc.calibration.temperature import TemperatureScaling
from avuc.core.display import data_frame
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX

# What follows was chosen on one half of the prediction sets of benchmarks/bench_posthoc.py.
# Parts of the mixture, besides none, for few classes and for many. The first of them is the simpler candidate.
PARTS, MANY_PARTS = ("matrix", "loose-matrix"), ("smoothed", "loose-structured-vector")
# the prior of the mixture's weights counts as this many rows with equal weights
PRIOR = 5.0
# shares of a candidate in a mixture with the uncalibrated predictions; the first one that does no harm is taken
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01)
# the candidate that is left if all others do harm: a temperature and a smoothing that are found together
JOINT, LAST = "joint-", "joint-smoothed"
# candidates without a mixture, the simplest first; those for few rows
CANDIDATES = ("smoothed", "structured-vector", "matrix")
FEW_CANDIDATES = CANDIDATES[:2]
# with fewer rows for each pair of classes the ridge leaves little of a matrix, so MANY_PARTS are used
PART_ROWS = 2
# calibrators with a lower ridge than the default
LOOSE, LOOSE_RIDGES = "loose-", {"loose-matrix": 0.1, "loose-structured-vector": 0.03}
# The cross-validation uses a tenth of the rows, but at least this many rows if they have no more than so many logits.
SHARE = 10
RACE_ROWS = 5_000
RACE_ELEMENTS = 1 << 21
# iterative fits of the winner use at most so many logits, and so many rows × classes² for PAIRWISE
ITERATIVE = ("vector", "structured-vector", "loose-structured-vector", *PAIRWISE)
FIT_ELEMENTS = 1 << 24
# Precision of iterative fits: in the cross-validation, and of the result.
ROUGH, FINE = 1e-3, 1e-5


class AutoCalibrator(Calibrator):
    """The simplest calibrator that is as good as the best one by cross-validation; never worse than none there.

    Candidates compete on the same stratified folds. The simpler one is `matrix`, the most complex one is a mixture
    p = Σ_k w_k p_k of `matrix`, `matrix` with a tenth of its ridge, and the uncalibrated predictions. The weights w are
    those with the lowest NLL of held-out rows, where equal weights count as 5 rows.

    1. Guard: NLL, the Brier score and ECE of held-out rows must not be higher than without a calibrator. A candidate
       for which one of them is, is mixed with the uncalibrated predictions until none is; if no share of it will do, it
       is refused. If both are refused, `smoothed` with `joint=True` is tried; if it is refused, nothing is changed.
    2. One-standard-error rule: of the candidates that are left, the simplest one whose NLL is within one standard error
       (of the paired difference of rows) of the lowest.

    With more than 32 classes, or fewer than 2 rows for each pair of classes, the candidates are `smoothed` and the
    mixture of it, `structured-vector` with 3 % of its ridge, and the uncalibrated predictions. These are the only part
    of the result that depends on the scale of the logits. The result is fitted
    on all rows; `chosen_` is a single calibrator or a `BlendedCalibrator`.

    A tenth of the rows takes part in the cross-validation, at least 5,000 if they have no more than 2 million logits:
    the same share of each label, at random; of groups, whole groups, the same share of each most frequent label.
    With more than 16 million logits (for `matrix`: rows × classes²), the winner is fitted on a sample of the rows,
    unless it is a temperature. Fewer than 20 rows, fewer than 10 groups, or labels of a single class leave the
    predictions alone. JSON has the chosen calibrator, so `Calibrator.load` and `avuc apply` read it as such.

    Args:
        methods: names in `CALIBRATORS` to choose one from by the same rules, the preferred (simplest) one first. None
            of them is mixed. Default None: the candidates above.
        folds: parts of the cross-validation. Default None: 3 if there is a mixture, 5 otherwise.
        standard_errors: how far the NLL of a simpler candidate may be above the lowest. 0: the lowest NLL wins.
        seed: of the folds and of samples of rows.
        blend: whether there is a mixture. Default None: as one of the candidates, if no `methods` are given. True: it
            is the only candidate; with `methods`, a mixture of these. False: smoothed, structured-vector and, with at
            least 200 rows and 20 per class, matrix compete.

    Learned attributes:
        chosen_: the fitted calibrator.
        table_: for none and each calibrator: method, nll, change against none, low, high, brier, ece, note; all of
            held-out rows. The note of the row that is used begins with "used". Calibrators that are only part of the
            mixture have a row, too.
        reason_: one sentence that says why.
        rows_: number of rows of the cross-validation.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.randint(3, (500,), generator=generator)
    >>> logits = 4 * (torch.randn(500, 3, generator=generator) + torch.eye(3)[labels])  # overconfident
    >>> auto = AutoCalibrator().fit(logits, labels)
    >>> auto.chosen_.name, [row.method for row in auto.table_]
    ('matrix', ['none', 'matrix', 'loose-matrix', 'blend'])
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
        folds: int | None = None,
        standard_errors: float = 1.0,
        seed: int = 0,
        blend: bool | None = None,
    ) -> None:
        self.methods = methods
        self.folds = folds
        self.standard_errors = standard_errors
        self.seed = seed
        self.blend = blend

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
            sample_weight: (N,) weights of the rows, for the fits, and for NLL, the Brier score and ECE of the guard.
            groups: (N,) names or numbers; rows of one group (a patient, an image) are held out together, and the
                standard errors are those of groups. Default None: rows are independent; of dense labels, those of one
                image are a group.
            class_dim: dimension of the classes in `logits`.
            ignore_index: rows with this label are left out (default −100); None: no row is.
        """
        self._check_params()
        layout: dict[str, Any] = {"class_dim": class_dim, "ignore_index": ignore_index}
        together = fit_groups(logits, labels, groups, **layout)
        flat = fit_rows(logits, labels, sample_weight, **layout)
        scores = as_logits(flat.logits).detach()
        refuse_not_logits(scores)
        targets, weight = as_labels(flat.labels, scores), None
        if flat.weights is not None:
            weight = as_weights(flat.weights, len(targets)).to(scores.device)
        rows = Rows(scores, targets, weight, None if together is None else torch.from_numpy(together).to(scores.device))
        if weight is not None:
            rows = rows[weight > 0]
        with torch.no_grad():
            self._choose(rows)
        return self

    def _choose(self, rows: Rows) -> None:
        few, self.table_, self.rows_ = few_rows(rows), (), 0
        if stop := too_few(rows):
            self._keep(TemperatureScaling.identity(rows.logits.shape[-1]), f"Nothing is changed: {stop}.")
            return
        some = rows.sample(max(len(rows) // SHARE, most_rows(rows, RACE_ROWS, RACE_ELEMENTS)), self.seed, LEAST_GROUPS)
        some, self.rows_ = some.cpu(), len(some)
        classes = rows.logits.shape[-1]
        names = self._names(few, some)
        skipped = {name: costly(classes) for name in names if name in PAIRWISE and classes > MOST_PAIRWISE}
        if few and self.methods is None and not self._blends:
            skipped |= {name: f"not tried: {few}" for name in CANDIDATES if name not in names}
        parts = len(some) if some.groups is None else len(some.groups.unique())
        folds = (3 if self._blends else 5) if self.folds is None else self.folds
        race = Race(some, min(folds, parts), self.seed)
        with limited_threads(some.logits):
            race.run(
                {name: self._new_calibrator(name, ROUGH) for name in names if name not in skipped},
                stop=not self._blends,
            )
            reason, weights, loss = self._winner(race)
        self.table_ = (*race.table(), *(Candidate.unknown(name, note) for name, note in skipped.items()))
        self._keep(self._fitted(rows, race, weights, loss), reason)

    def _fitted(self, rows: Rows, race: Race, weights: dict[str, float], loss: float) -> Calibrator:
        """Return the calibrators with these weights, fitted on all rows, or on a sample of many."""
        classes = rows.logits.shape[-1]
        none = TemperatureScaling.identity(classes, race.mean(NONE))
        names = [name for name in weights if name != NONE]
        if not names:
            return none
        used = rows
        if any(name in ITERATIVE for name in names):
            most = FIT_ELEMENTS // (classes * classes if any(name in PAIRWISE for name in names) else classes)
            used = rows.sample(max(most, self.rows_), self.seed, LEAST_GROUPS)
        fits = race.fits if not used.logits.is_cuda else FoldFits(used.logits, used.labels, used.weight)
        fits.next_fold(used.logits, used.labels, used.weight)
        with limited_threads(used.logits):
            fitted = fits.finish({name: self._new_calibrator(name, FINE) for name in names})
        if len(weights) == 1:
            return fitted[names[0]]
        shares = np.array(list(weights.values()))
        return BlendedCalibrator.of([fitted.get(name, none) for name in weights], shares, loss)

    def _winner(self, race: Race) -> tuple[str, dict[str, float], float]:
        """Return the sentence, the weights of the calibrators that are used, and their NLL of held-out rows."""
        nothing = {NONE: 1.0}, race.mean(NONE)
        names = [name for name in race.finished if name != NONE]
        if not any(runner.folds for name, runner in race.runners.items() if name != NONE):
            return "Nothing is changed: no calibrator can take these rows.", *nothing
        mixture = dict.fromkeys(names, 1.0)
        if self._blends and names:
            mixture = dict(zip([NONE, *names], race.blend([NONE, *names], PRIOR).tolist(), strict=True))
            names = [BLEND] if self.blend else [names[0], BLEND]
        shares = SHARES if self._blends else SHARES[:1]
        admitted = [name for name in names if race.admit(name, shares)]
        if not admitted and self._blends and self.methods is None:
            race.run({LAST: self._new_calibrator(LAST, FINE)}, stop=False)
            admitted = [LAST] if race.runners[LAST].folds and race.admit(LAST, shares) else []
        if not admitted:
            return "Nothing is changed: every calibrator would make held-out rows worse.", *nothing
        winner, best = choose(race, admitted, self.standard_errors)
        runner = race.runners[winner]
        share, runner.remark = runner.share, f"used: {runner.remark}" if runner.remark else "used"
        weights = mixture if winner == BLEND else {NONE: 0.0, winner: 1.0}
        weights = {name: share * weight + (1 - share) * (name == NONE) for name, weight in weights.items()}
        weights = {name: weight for name, weight in weights.items() if weight > 0}
        refused = [name for name in names if name not in admitted]
        return sentence(race, winner, best, weights, refused), weights, race.mean(winner)

    def _keep(self, chosen: Calibrator, reason: str) -> None:
        self.chosen_, self.reason_ = chosen, reason
        self.num_classes_: int = chosen.num_classes_
        self.temperature_: float = chosen.temperature_
        self.curve_: tuple[Array, Array] = chosen.curve_
        self.at_bound_: bool = chosen.at_bound_
        self.class_names_: tuple[str, ...] | None = None

    @property
    def _blends(self) -> bool:
        return self.methods is None if self.blend is None else self.blend

    def _names(self, few: str, rows: Rows) -> list[str]:
        if self.methods is not None:
            return list(self.methods)
        if self._blends:
            classes = rows.logits.shape[-1]
            enough = classes <= MOST_PAIRWISE and len(rows) >= PART_ROWS * classes * classes
            return list(PARTS if enough else MANY_PARTS)
        return [name for name in (FEW_CANDIDATES if few else CANDIDATES) if name in self.calibrators]

    def _new_calibrator(self, name: str, tolerance: float) -> Calibrator:
        """Return a calibrator with default parameters; iterative ones with this tolerance."""
        calibrator = self.calibrators[name.removeprefix(LOOSE).removeprefix(JOINT)]()
        if (name in ITERATIVE or name == LAST) and "tolerance" in calibrator.get_params():
            calibrator.set_params(tolerance=max(tolerance, calibrator.get_params()["tolerance"]))
        if name == LAST:
            calibrator.set_params(joint=True)
        return calibrator.set_params(ridge=LOOSE_RIDGES[name]) if name in LOOSE_RIDGES else calibrator

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
        known = [name for name, kind in self.calibrators.items() if not kind.multilabel and name != BLEND]
        if self.methods is not None:
            wrong = [name for name in self.methods if name not in known]
            if wrong or not self.methods or isinstance(self.methods, str):
                raise InputError(f"methods must be names of {known}; found {self.methods!r}")
        if self.folds is not None and (not isinstance(self.folds, int) or self.folds < 2):
            raise InputError(f"folds must be a whole number, at least 2; found {self.folds!r}")
        if not are_numbers(self.standard_errors) or self.standard_errors < 0:
            raise InputError(f"standard_errors must be a number, at least 0; found {self.standard_errors!r}")
        if not isinstance(self.blend, bool | None):
            raise InputError(f"blend must be True, False or None; found {self.blend!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed must be a whole number; found {self.seed!r}")
