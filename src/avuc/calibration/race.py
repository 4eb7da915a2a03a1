"""Cross-validate several calibrators together, and stop those that cannot win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.blend import BlendedCalibrator, blend_weights
from avuc.calibration.fold_fits import FoldFits
from avuc.calibration.metric_change import NORMAL, mean_and_error
from avuc.core.errors import InputError
from avuc.metrics.calibration import confidence_table, expected_gap
from avuc.metrics.statistics import NLL_FLOOR, Statistics, prediction_statistics

# no calibrator, which takes part under this name
NONE = "none"
# the mixture of several calibrators
BLEND = BlendedCalibrator.name
# a calibrator with less weight than this in a mixture is left out
LEAST_WEIGHT = 2e-3
# after a fold, a calibrator is stopped if its NLL is this many standard errors above the lowest one
STOP = 3.0
# a stop needs at least this many held-out rows, because a standard error of few rows is not reliable
STOP_ROWS = 50
# of ECE
BINS = 15


class Candidate(NamedTuple):
    """One calibrator on held-out rows; [low, high] is the 95 % interval of the change of NLL against none."""

    method: str
    nll: float
    change: float
    low: float
    high: float
    brier: float
    ece: float
    note: str

    @classmethod
    def unknown(cls, method: str, note: str) -> Candidate:
        """Return the row of a calibrator that was not fitted."""
        return cls(method, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, note)


@dataclass
class Runner:
    """What the cross-validation has found out about one calibrator.

    probs   (N, C) probabilities of held-out rows
    nll     (N,) −log p_y of held-out rows; NaN where a row was not held out yet
    folds   number of folds that are done
    note    why it was stopped; empty if it was not
    statistics  of `probs`, once they are needed
    """

    probs: Tensor
    nll: Array
    folds: int = 0
    note: str = ""
    statistics: Statistics | None = None


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
        """Return at most so many rows, at random; of groups, whole groups until there are enough rows."""
        if most >= len(self):
            return self
        generator = torch.Generator().manual_seed(seed)
        device = self.labels.device
        if self.groups is None:
            return self[torch.randperm(len(self), generator=generator)[:most].sort().values.to(device)]
        number, group, sizes = self.groups.cpu().unique(return_inverse=True, return_counts=True)
        order = torch.randperm(len(number), generator=generator)
        enough = int((sizes[order].cumsum(0) < most).sum()) + 1
        kept = torch.zeros(len(number), dtype=torch.bool)
        kept[order[: max(enough, min(least_groups, len(number)))]] = True
        return self[kept[group].nonzero()[:, 0].to(device)]

    def parts(self, folds: int, seed: int) -> list[Tensor]:
        """Return the rows of each fold, at random; rows of one group are in one fold."""
        generator = torch.Generator().manual_seed(seed)
        if self.groups is None:
            return list(torch.randperm(len(self), generator=generator).tensor_split(folds))
        number, group = self.groups.unique(return_inverse=True)
        order = torch.randperm(len(number), generator=generator)
        fold = torch.empty_like(order)
        for index, part in enumerate(order.tensor_split(folds)):
            fold[part] = index
        return [(fold[group] == index).nonzero()[:, 0] for index in range(folds)]


@dataclass
class Race:
    """Run calibrators on the same folds.

    Args:
        rows: rows of the cross-validation.
        folds: number of folds.
        seed: of the folds.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.randint(3, (90,), generator=generator)
    >>> race = Race(Rows(torch.eye(3)[labels] + torch.randn(90, 3, generator=generator), labels), folds=3, seed=0)
    >>> race.run({})
    >>> race.runners["none"].folds
    3
    """

    rows: Rows
    folds: int
    seed: int
    runners: dict[str, Runner] = field(default_factory=dict)
    fits: FoldFits = field(init=False, repr=False, compare=False)

    def run(self, calibrators: Mapping[str, Calibrator], *, stop: bool = True) -> None:
        """Hold out one fold after the other.

        Args:
            calibrators: by name; only their classes and parameters are used.
            stop: whether only calibrators that may still win are fitted.
        """
        shape = self.rows.logits.shape[-2:]
        dtype = torch.float64 if self.rows.logits.dtype == torch.float64 else torch.float32
        for name in (NONE, *calibrators):
            self.runners[name] = Runner(torch.empty(shape, dtype=dtype), np.full(len(self.rows), np.nan))
        fits = self.fits = FoldFits(self.rows.logits, self.rows.labels, self.rows.weight)
        for part in self.rows.parts(self.folds, self.seed):
            rest = torch.ones(len(self.rows), dtype=torch.bool)
            rest[part] = False
            known, new = self.rows[rest], self.rows[part]
            fits.next_fold(known.logits, known.labels, known.weight)
            self._store(NONE, part, probabilities(new.logits))
            for name, calibrator in calibrators.items():
                if self.runners[name].note:
                    continue
                try:
                    fitted = fits.fit(name, calibrator)
                except InputError as error:
                    self.runners[name].note = str(error)
                    continue
                self._store(name, part, probabilities(fitted._apply(new.logits)))
            if stop:
                self._stop(list(calibrators))

    def blend(self, names: Sequence[str], prior: float) -> Array:
        """Add the mixture of some calibrators, with the weights that are best on held-out rows, and return these.

        Args:
            names: calibrators that were fitted in all folds.
            prior: how many rows equal weights count as.
        """
        weight = None if self.rows.weight is None else self.rows.weight.numpy()
        chosen = np.exp(-np.stack([self.runners[name].nll for name in names], 1))
        weights = blend_weights(chosen, prior, weight)
        weights = np.where(weights >= LEAST_WEIGHT, weights, 0.0)
        weights /= weights.sum()
        probs = sum(float(w) * self.runners[name].probs for w, name in zip(weights, names, strict=True) if w > 0)
        assert isinstance(probs, Tensor)
        self.runners[BLEND] = Runner(torch.empty_like(probs), np.full(len(self.rows), np.nan))
        self._store(BLEND, torch.arange(len(self.rows)), probs)
        return weights

    def _store(self, name: str, part: Tensor, probs: Tensor) -> None:
        runner = self.runners[name]
        runner.probs[part] = probs.to(runner.probs.dtype)
        chosen = probs.double().gather(-1, self.rows.labels[part][:, None])[:, 0]
        runner.nll[part.numpy()] = -chosen.clamp(min=NLL_FLOOR).log().numpy()
        runner.folds += 1

    def _stop(self, names: Sequence[str]) -> None:
        """Stop calibrators that are clearly above the lowest NLL."""
        alive = [name for name in (NONE, *names) if not self.runners[name].note]
        leader = min(alive, key=lambda name: self.mean(name))
        done = self.runners[NONE].folds
        if done == self.folds or np.isfinite(self.runners[NONE].nll).sum() < STOP_ROWS:
            return
        for name in alive:
            change, error = self.difference(name, leader)
            if name != NONE and change > STOP * error:
                self.runners[name].note = f"stopped after {done} of {self.folds} folds: {leader} is better"

    def mean(self, name: str) -> float:
        """Return the (weighted) mean NLL of the rows that were held out so far."""
        nll = self.runners[name].nll
        done = np.isfinite(nll)
        weight = None if self.rows.weight is None else self.rows.weight.numpy()[done]
        return float(np.average(nll[done], weights=weight)) if done.any() else math.nan

    @property
    def finished(self) -> list[str]:
        """Names of the calibrators that were fitted in all folds."""
        return [name for name, runner in self.runners.items() if not runner.note]

    def difference(self, name: str, other: str) -> tuple[float, float]:
        """Return the mean of NLL(name) − NLL(other) over paired rows, and its standard error."""
        change = self.runners[name].nll - self.runners[other].nll
        done = np.isfinite(change)
        weight, groups = (None if each is None else each.numpy()[done] for each in (self.rows.weight, self.rows.groups))
        return mean_and_error(change[done], weight, groups)

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of a calibrator that was fitted in all folds."""
        runner = self.runners[name]
        if runner.statistics is None:
            runner.statistics = prediction_statistics(runner.probs, self.rows.labels)
        return runner.statistics

    def table(self) -> list[Candidate]:
        """Return the result of each calibrator. With weights, the Brier score and ECE are NaN."""
        table = []
        for name, runner in self.runners.items():
            if not runner.folds:
                table.append(Candidate.unknown(name, runner.note))
                continue
            change, error = self.difference(name, NONE)
            reach = NORMAL * error
            brier = calibration = math.nan
            if not runner.note and self.rows.weight is None:
                statistics = self.statistics(name)
                brier, calibration = (
                    float(statistics.brier.mean()),
                    float(expected_gap(confidence_table(statistics, BINS))),
                )
            figures = (self.mean(name), change, change - reach, change + reach, brier, calibration)
            table.append(Candidate(name, *figures, runner.note))
        return table


def probabilities(logits: Tensor) -> Tensor:
    """Return softmax probabilities (N, C), the mean over draws of (S, N, C)."""
    probs = logits.softmax(-1)
    return probs.mean(0) if probs.ndim == 3 else probs


def choose(race: Race, names: Sequence[str], errors: float) -> tuple[str, str]:
    """Return the first calibrator whose NLL is within `errors` standard errors of the lowest, and the lowest.

    Args:
        race: after its run.
        names: calibrators to choose from, the preferred one first.
        errors: 0 chooses the lowest NLL, 1 is the one-standard-error rule.
    """
    best = min(names, key=race.mean)
    for name in names:
        change, error = race.difference(name, best)
        if change <= errors * error:
            return name, best
    return best, best
