"""AvU temperature scaling: choose T so that the model is certain where it is right and uncertain where it is wrong.

    loss(T) = nll_weight · NLL(T) + weight · AvUC(T)

The paper's §3.3 minimises AvUC(T) alone. As printed, that loss has no useful minimum in T: it falls towards T → 0 (or
T → ∞ for weak networks), see docs/calibration.md. The likelihood makes the problem well posed.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.calibration.inputs import are_numbers
from avuc.calibration.scaled import MOST_NLL, Columns, ScaledLogits
from avuc.calibration.search import Minimum
from avuc.calibration.temperature import GRID_ELEMENTS, TemperatureScaling
from avuc.core.errors import InputError
from avuc.losses import area_loss, auavuc_loss, avuc_loss
from avuc.losses.analytic import or_empty
from avuc.losses.quadrants import SampleStatistics, Variant, quadrants_of
from avuc.metrics.binning import bin_index, bin_table
from avuc.metrics.calibration import expected_gap
from avuc.uncertainty import midpoint_threshold

BINS = 15
# the guard's steps from the optimum back to T = 1
GUARD_STEPS = 40
# the share of the gain in NLL over T = 1 that the guard keeps
KEPT = 0.5
# the authors' procedure: the temperature-scaling code they started from, with the paper's rate
AUTHORS_START, AUTHORS_RATE, AUTHORS_STEPS = 1.5, 0.005, 50


class AvUTemperatureScaling(TemperatureScaling):
    """softmax(z/T) with the T that minimises nll_weight·NLL + weight·AvUC, and leaves NLL, ECE and UCE no worse.

    objective   "avuc", "auavuc" (no threshold: the area over all of them), or "paper": the printed loss alone, with the
                threshold fixed at T = 1, no likelihood and no guard, whatever the other arguments say.
    variant     the cells: "monotone", "soft", "paper" or "stopgrad" (which differs from "paper" in its gradient only,
                so a search that reads values finds the same T).
    threshold   "refit": the midpoint of the mean uncertainties of accurate and inaccurate rows at each T; "fixed": the
                same at T = 1; a number in nats; None: half of log C, for the soft variant.
    guard       where NLL, ECE or UCE on the fit data would be worse than at T = 1, go back towards T = 1 as far as it
                takes; so does a T that gives away more than half of what temperature scaling gains in NLL.
    procedure   "search": grid and Brent over `bounds`; "authors": start at T = 1.5, 50 steps of L-BFGS at rate 0.005.
    points      thresholds under the AUAvUC area.

    Learned, beside what TemperatureScaling learns: `unguarded_temperature_`, the optimum before the guard; `guarded_`,
    whether the guard moved it; `threshold_`, the uncertainty threshold at the final temperature.

    >>> logits = np.array([[4.0, 0, 0], [3.0, 0, 0], [0, 3.0, 0], [0, 0.5, 0], [0, 0, 2.0]])
    >>> scaler = AvUTemperatureScaling().fit(logits, np.array([0, 0, 1, 2, 0]))
    >>> 0.05 < scaler.temperature_ < 20
    True
    """

    name: ClassVar[str] = "avuts"
    learned: ClassVar[dict[str, str]] = {
        **TemperatureScaling.learned,
        "unguarded_temperature": "number",
        "guarded": "flag",
        "threshold": "number",
    }

    unguarded_temperature_: float
    guarded_: bool
    threshold_: float

    def __init__(
        self,
        objective: str = "avuc",
        *,
        variant: Variant = "monotone",
        weight: float = 1.0,
        nll_weight: float = 1.0,
        threshold: float | str | None = "refit",
        guard: bool = True,
        procedure: str = "search",
        points: int = 21,
        bounds: tuple[float, float] = (0.05, 20.0),
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(objective, bounds=bounds, tolerance=tolerance)
        self.variant: Variant = variant
        self.weight = weight
        self.nll_weight = nll_weight
        self.threshold = threshold
        self.guard = guard
        self.procedure = procedure
        self.points = points

    def _fit(self, logits: Any, labels: Any) -> None:
        scaled = ScaledLogits.read(logits, labels)
        few = scaled.sample(GRID_ELEMENTS)
        fixed = _midpoint(scaled.columns(1.0))

        def loss(temperature: float) -> float:
            return self._loss(scaled.columns(temperature), fixed, scaled.num_classes)

        likelihood: dict[float, float] = {}

        def coarse(temperature: float) -> float:
            columns = few.columns(temperature)
            likelihood[float(temperature)] = float(columns.nll.mean())
            return self._loss(columns, fixed, few.num_classes)

        found = self._grid_and_brent(loss, coarse, rough=True, jumps=self._literal or self.nll_weight == 0)
        likeliest = min(likelihood, key=likelihood.__getitem__)
        if self.procedure == "authors":
            # whether a minimum exists is the loss's affair; where these steps end, the procedure's
            found = self._authors(scaled, fixed)._replace(at_bound=found.at_bound)
        guarded = self._guarded(scaled, found, likeliest) if self.guard and not self._literal else found
        self.guarded_ = guarded is not found
        if few is not scaled:
            scaled.rows_read += few.rows_read
        self._keep(scaled, guarded)
        self.unguarded_temperature_ = min(max(math.exp(found.x), self.bounds[0]), self.bounds[1])
        columns = scaled.columns(self.temperature_)
        self.loss_ = self._loss(columns, fixed, scaled.num_classes)
        self.threshold_ = self._threshold(columns, fixed, scaled.num_classes)
        self._say(scaled, self.at_bound_)

    @property
    def _literal(self) -> bool:
        return self.objective == "paper"

    def _loss(self, columns: Columns, fixed: float, num_classes: int) -> float:
        rows = SampleStatistics(
            columns.confidence, columns.entropy, columns.correct, torch.ones_like(columns.entropy), num_classes
        )
        if self.objective == "auavuc":
            avu = float(area_loss(rows, self.points, self.variant, group=False))
        else:
            variant: Variant = "paper" if self._literal else self.variant
            ac, au, ic, iu = quadrants_of(rows, self._threshold(columns, fixed, num_classes), variant)
            avu = float(torch.log1p((au + ic) / or_empty(ac + iu)))
        if self._literal:
            return avu
        return self.nll_weight * float(columns.nll.mean()) + self.weight * avu

    def _threshold(self, columns: Columns | None, fixed: float, num_classes: int) -> float:
        if self._literal or self.threshold == "fixed":
            return fixed
        if self.threshold == "refit":
            assert columns is not None
            return _midpoint(columns)
        return 0.5 * math.log(max(num_classes, 2)) if self.threshold is None else float(self.threshold)

    def _guarded(self, scaled: ScaledLogits, found: Minimum, likeliest: float) -> Minimum:
        """The first of the steps from the optimum to T = 1 where NLL, ECE and UCE are no worse than at T = 1.

        A temperature beyond the `likeliest`, seen from T = 1, must also keep the share `KEPT` of the gain in NLL.
        """
        few = scaled.sample(8 * GRID_ELEMENTS)
        at_one = few.columns(1.0)
        before, nll = _gaps(at_one, few.num_classes), float(at_one.nll.mean())
        far, kept = math.log(likeliest), nll - KEPT * max(0.0, nll - few.nll(likeliest))

        def no_worse(x: float) -> bool:
            read = few.columns(math.exp(x))
            beyond = x * far > 0 and abs(x) > abs(far)
            likely = float(read.nll.mean()) <= (kept if beyond else nll)
            return likely and bool(np.all(_gaps(read, few.num_classes) <= before))

        result = found
        for step in range(GUARD_STEPS + 1):
            x = found.x * (1 - step / GUARD_STEPS)
            if step == GUARD_STEPS or no_worse(x):
                result = found if step == 0 else Minimum(x, math.nan, False)
                break
        if few is not scaled:
            scaled.rows_read += few.rows_read
        return result

    def _authors(self, scaled: ScaledLogits, fixed: float) -> Minimum:
        logits = scaled.logits if scaled.draws > 1 else scaled.logits[0]
        temperature = torch.tensor(AUTHORS_START, dtype=torch.float64, device=logits.device, requires_grad=True)
        optimiser = torch.optim.LBFGS([temperature], lr=AUTHORS_RATE, max_iter=AUTHORS_STEPS)

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self._differentiable(logits / temperature, scaled, fixed)
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        low, high = self.bounds
        reached = float(temperature.detach())
        inside = min(max(reached, low), high) if math.isfinite(reached) else low
        return Minimum(math.log(inside), math.nan, False)

    def _differentiable(self, logits: Tensor, scaled: ScaledLogits, fixed: float) -> Tensor:
        if self.objective == "auavuc":
            avu = auavuc_loss(logits, scaled.labels, points=self.points, variant=self.variant, group=False)
        else:
            variant: Variant = "paper" if self._literal else self.variant
            threshold = fixed if self.threshold == "refit" else self._threshold(None, fixed, scaled.num_classes)
            avu = avuc_loss(logits, scaled.labels, threshold, variant=variant, group=False)
        if self._literal:
            return avu
        log_probs = F.log_softmax(logits, dim=-1)
        if scaled.draws > 1:
            log_probs = torch.logsumexp(log_probs, dim=0) - math.log(scaled.draws)
        nll = F.nll_loss(log_probs, scaled.labels, reduction="none").clamp(max=MOST_NLL).mean()
        return self.nll_weight * nll + self.weight * avu

    def _describe(self) -> str:
        return f"objective={self.objective!r}" + ("" if self._literal else f", variant={self.variant!r}")

    def _objectives(self) -> tuple[str, ...]:
        return ("avuc", "auavuc", "paper")

    def _check_params(self) -> None:
        super()._check_params()
        if self.variant not in get_args(Variant):
            raise InputError(f"variant must be one of {get_args(Variant)}; found {self.variant!r}")
        if self.objective == "auavuc" and self.variant == "soft":
            raise InputError("objective 'auavuc' moves a hard threshold, which variant 'soft' has not; use 'monotone'")
        if not are_numbers(self.weight, self.nll_weight) or min(self.weight, self.nll_weight) < 0:
            raise InputError(f"weights must not be negative; found {self.weight!r} and {self.nll_weight!r}")
        if self.threshold not in ("refit", "fixed", None) and not are_numbers(self.threshold):
            raise InputError(f"threshold must be 'refit', 'fixed', a number or None; found {self.threshold!r}")
        if self.threshold is None and self.variant != "soft":
            raise InputError("threshold=None (half of log C) is for variant 'soft'; use 'refit'")
        if not isinstance(self.guard, bool):
            raise InputError(f"guard must be True or False; found {self.guard!r}")
        if self.procedure not in ("search", "authors"):
            raise InputError(f"procedure must be 'search' or 'authors'; found {self.procedure!r}")
        if not isinstance(self.points, int) or self.points < 2:
            raise InputError(f"points must be a whole number, at least 2; found {self.points!r}")


class AUAvUTemperatureScaling(AvUTemperatureScaling):
    """AvU temperature scaling without a threshold: NLL + weight·AUAvUC (the paper's appendix F, made well posed)."""

    name: ClassVar[str] = "auavuts"

    def __init__(
        self,
        objective: str = "auavuc",
        *,
        variant: Variant = "monotone",
        weight: float = 1.0,
        nll_weight: float = 1.0,
        guard: bool = True,
        procedure: str = "search",
        points: int = 21,
        bounds: tuple[float, float] = (0.05, 20.0),
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(
            objective,
            variant=variant,
            weight=weight,
            nll_weight=nll_weight,
            guard=guard,
            procedure=procedure,
            points=points,
            bounds=bounds,
            tolerance=tolerance,
        )

    def _objectives(self) -> tuple[str, ...]:
        return ("auavuc",)


def _midpoint(columns: Columns) -> float:
    """Return the midpoint of the mean entropies of correct and of wrong predictions."""
    u, right = columns.entropy, columns.correct
    return float(midpoint_threshold(u[right].sum(), u[~right].sum(), right.sum(), (~right).sum()))


def _gaps(columns: Columns, num_classes: int) -> Any:
    """(ECE, UCE)"""
    right = columns.correct.cpu().numpy()
    confidence = columns.confidence.cpu().numpy()
    uncertainty = columns.entropy.cpu().numpy() / math.log(max(num_classes, 2))
    return np.array([_gap(confidence, right), _gap(uncertainty, ~right)])


def _gap(stated: Any, happened: Any) -> float:
    return float(expected_gap(bin_table(bin_index(stated, BINS), stated, happened, BINS)))
