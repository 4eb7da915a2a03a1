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
from avuc.calibration.metric_change import NORMAL, Figures, figures, mean_and_error
from avuc.calibration.rows import Rows
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

# the name under which "no calibrator" takes part
NONE = "none"
# titles of the metrics that the guard checks
TITLES = {"nll": "NLL", "brier": "the Brier score", "ece": "ECE"}
# the mixture of several calibrators
BLEND = BlendedCalibrator.name
# a calibrator with less weight than this in a mixture is left out
LEAST_WEIGHT = 2e-3
# after a fold, a calibrator is stopped if its NLL is this many standard errors above the lowest one
STOP = 3.0
# a stop needs at least this many held-out rows, because a standard error of few rows is not reliable
STOP_ROWS = 50


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
    """The results of one calibrator in the cross-validation so far.

    probs   (N, C) probabilities of held-out rows
    nll     (N,) −log p_y of held-out rows; NaN where a row was not held out yet
    folds   number of folds that are done
    note    why it was stopped; empty if it was not
    figures of `probs`, once they are needed
    share   its part of a mixture with the uncalibrated predictions
    remark  what the guard did
    """

    probs: Tensor
    nll: Array
    folds: int = 0
    note: str = ""
    figures: Figures | None = None
    share: float = 1.0
    remark: str = ""


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
    parts: list[Tensor] = field(default_factory=list)
    fits: FoldFits = field(init=False, repr=False, compare=False)

    def run(self, calibrators: Mapping[str, Calibrator], *, stop: bool = True) -> None:
        """Hold out one fold after the other; in a second call, the same folds for further calibrators.

        Args:
            calibrators: by name; only their classes and parameters are used.
            stop: whether only calibrators that may still win are fitted.
        """
        first = not self.runners
        if first:
            self.fits = FoldFits(self.rows.logits, self.rows.labels, self.rows.weight)
            self.parts = self.rows.parts(self.folds, self.seed)
        fits = self.fits
        for name in (*([NONE] if first else ()), *calibrators):
            self._enter(name)
        for part in self.parts:
            rest = torch.ones(len(self.rows), dtype=torch.bool, device="cpu")
            rest[part] = False
            known, new = self.rows[rest], self.rows[part]
            fits.next_fold(known.logits, known.labels, known.weight)
            if first:
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

    def _enter(self, name: str) -> None:
        shape = self.rows.logits.shape[-2:]
        dtype = torch.float64 if self.rows.logits.dtype == torch.float64 else torch.float32
        self.runners[name] = Runner(torch.empty(shape, dtype=dtype, device="cpu"), np.full(len(self.rows), np.nan))

    def blend(self, names: Sequence[str], prior: float) -> Array:
        """Add the mixture of some calibrators, with the weights that are best on held-out rows, and return these.

        The figures of the mixture are those of held-out rows, too: the rows of a fold are mixed with weights from the
        other folds.

        Args:
            names: calibrators that were fitted in all folds.
            prior: how many rows equal weights count as.
        """
        weight = None if self.rows.weight is None else self.rows.weight.numpy()
        chosen = np.exp(-np.stack([self.runners[name].nll for name in names], 1))
        weights = blend_weights(chosen, prior, weight)
        self._enter(BLEND)
        for part in self.parts:
            rest = np.ones(len(self.rows), dtype=bool)
            rest[part.numpy()] = False
            some = blend_weights(chosen[rest], prior, None if weight is None else weight[rest], weights)
            kept = zip(without_small(some), names, strict=True)
            self._store(BLEND, part, sum(float(w) * self.runners[name].probs[part] for w, name in kept if w > 0))
        return without_small(weights)

    def admit(self, name: str, shares: Sequence[float]) -> bool:
        """Return whether a calibrator makes neither NLL nor the Brier score nor ECE of held-out rows worse than none.

        Args:
            name: of the calibrator.
            shares: largest first. Of p = (1 − s) p_none + s p, the first share s that does no harm is taken.
        """
        runner, none = self.runners[name], self.runners[NONE]
        first = self.figures(name).worse(self.figures(NONE))
        if not first:
            return True
        why = " and ".join(TITLES[metric] for metric in first)
        most = self._most(runner.probs)
        for share in (share for share in shares if share < 1 and share <= most):
            probs = none.probs.lerp(runner.probs, share)
            if not self._figures(probs).worse(self.figures(NONE)):
                self._enter(name)
                self._store(name, torch.arange(len(self.rows), device="cpu"), probs)
                new = self.runners[name]
                new.share, new.folds = share, runner.folds
                new.remark = f"{100 * share:.0f} % of it, the rest none: alone it makes {why} worse"
                return True
        runner.remark = f"refused: it makes {why} worse"
        return False

    def _most(self, probs: Tensor) -> float:
        """Return up to which share s the Brier score of (1 − s) p_none + s p is not above that of none.

        With the residual r = p_none − y and the step d = p − p_none it changes by 2 s r·d + s² d·d.
        """
        step, before = probs - self.runners[NONE].probs, self.runners[NONE].probs
        along = (before * step).sum(-1) - step.gather(-1, self.rows.labels[:, None])[:, 0]
        square = step.square().sum(-1)
        if self.rows.weight is not None:
            along, square = along * self.rows.weight, square * self.rows.weight
        return -2 * float(along.double().sum()) / max(float(square.double().sum()), 1e-300)

    def _store(self, name: str, part: Tensor, probs: Any) -> None:
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

    def figures(self, name: str) -> Figures:
        """Return the figures of a calibrator that was fitted in all folds."""
        runner = self.runners[name]
        if runner.figures is None:
            runner.figures = self._figures(runner.probs)
        return runner.figures

    def _figures(self, probs: Tensor) -> Figures:
        weight = None if self.rows.weight is None else self.rows.weight.numpy()
        return figures(probs, self.rows.labels, weight)

    def table(self) -> list[Candidate]:
        """Return the result of each calibrator."""
        table = []
        for name, runner in self.runners.items():
            if not runner.folds:
                table.append(Candidate.unknown(name, runner.note))
                continue
            change, error = self.difference(name, NONE)
            reach = NORMAL * error
            _, brier, ece = (math.nan,) * 3 if runner.note else self.figures(name)
            note = runner.note or runner.remark
            table.append(Candidate(name, self.mean(name), change, change - reach, change + reach, brier, ece, note))
        return table


def probabilities(logits: Tensor) -> Tensor:
    """Return softmax probabilities (N, C), the mean over draws of (S, N, C)."""
    probs = logits.softmax(-1)
    return probs.mean(0) if probs.ndim == 3 else probs


def without_small(weights: Array) -> Array:
    """Return weights with the sum 1, of which those below `LEAST_WEIGHT` are 0."""
    kept = np.where(weights >= LEAST_WEIGHT, weights, 0.0)
    return np.asarray(kept / kept.sum())


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
