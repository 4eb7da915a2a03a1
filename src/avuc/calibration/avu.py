"""AvU temperature scaling: choose T so that correct predictions are certain and wrong ones uncertain.

    loss(T) = nll_weight · NLL(T) + weight · AvUC(T)

Krishnan & Tickoo 2020 (§3.3, https://arxiv.org/abs/2012.07923) minimise AvUC(T) alone. As printed, that loss has no
useful minimum in T: it falls towards T → 0 (or T → ∞ for weak networks), see docs/concepts/avuts.md. The likelihood
makes the problem well posed.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.calibration.avu_guard import no_worse_than_one
from avuc.calibration.inputs import are_numbers
from avuc.calibration.scalar_search import Minimum
from avuc.calibration.scale import is_doubtful, minimum_by_scale
from avuc.calibration.scaled_logits import MOST_NLL, ScaledLogits, ScaledPredictions
from avuc.calibration.temperature import GRID_ELEMENTS, TemperatureScaling
from avuc.core.errors import InputError
from avuc.losses import area_loss, auavuc_loss, avuc_loss
from avuc.losses.analytic import or_empty
from avuc.losses.quadrants import SampleStatistics, Variant, quadrants_of

# steps of the guard from the optimum back to T = 1
GUARD_STEPS = 40
# the procedure of the paper's authors: L-BFGS as in the usual temperature-scaling code, with the paper's learning rate
AUTHORS_START, AUTHORS_RATE, AUTHORS_STEPS = 1.5, 0.005, 50


class AvUTemperatureScaling(TemperatureScaling):
    """AvU temperature scaling: the T that minimises NLL + AvUC, with a guard for NLL, ECE and UCE.

        p = softmax(z/T),    loss(T) = nll_weight · NLL(T) + weight · AvUC(T)
        AvUC = log(1 + (n_AU + n_IC)/(n_AC + n_IU))

    Args:
        objective: "avuc"; "auavuc", which integrates over all thresholds; or "paper", the printed AvUC loss alone with
            the threshold fixed at T = 1, no likelihood and no guard, whatever the other arguments are.
        variant: of the soft quadrants n_AC, n_AU, n_IC and n_IU: "monotone", "soft", "paper" or "stopgrad". "stopgrad"
            differs from "paper" only in its gradient, so the search finds the same T.
        weight: weight of AvUC.
        nll_weight: weight of the mean negative log-likelihood.
        threshold: "refit", the midpoint of the mean entropies of correct and wrong rows at each T; "fixed", the
            midpoint at T = 1; a number in nats; None, half of log C, for the variant "soft".
        guard: whether T moves back towards 1 until NLL, ECE and UCE on the fit data are no worse than at T = 1. It also
            moves back if it gives up more than half of the gain in NLL that temperature scaling has. T = 1 stands for
            the given logits, so with a guard the result for c z is not that for z; without, T is c T but for jumps of
            the loss.
        procedure: "search", grid and Brent's method over `bounds`; "authors", 50 steps of L-BFGS with learning rate
            0.005 from T = 1.5.
        points: number of thresholds for "auavuc".
        bounds: smallest and largest T.
        tolerance: precision of log T.

    Learned attributes, besides those of `TemperatureScaling`:
        unguarded_temperature_: optimum before the guard.
        guarded_: whether the guard changed it.
        threshold_: uncertainty threshold at the final temperature, in nats.

    >>> import numpy as np
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

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        if sample_weight is not None and self.procedure == "authors":
            raise InputError("procedure='authors' knows no sample_weight; use procedure='search'")
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        few = scaled.subsample(GRID_ELEMENTS)
        fixed = scaled.at(1.0).threshold()

        def loss(temperature: float) -> float:
            return self._loss(scaled.at(temperature), fixed, scaled.num_classes)

        likelihood: dict[float, float] = {}

        def coarse(temperature: float) -> float:
            columns = few.at(temperature)
            likelihood[float(temperature)] = columns.mean(columns.nll)
            return self._loss(columns, fixed, few.num_classes)

        def search() -> Minimum:
            likelihood.clear()
            return self._grid_and_brent(loss, coarse, rough=True, jumps=jumps)

        def search_likely() -> Minimum:
            # without a most likely T inside the range, the minimum comes from the range
            found = search()
            return found._replace(at_bound=found.at_bound or self._at_end(likelihood))

        jumps = self._literal or self.nll_weight == 0
        self._range: tuple[float, float] | None = None
        minimum = search()
        likeliest = min(likelihood, key=likelihood.__getitem__)
        usual = self._may_widen and self.procedure == "search" and not jumps
        if usual and (self._at_end(likelihood) or is_doubtful(scaled, minimum, self.curve_[1])):
            before, minimum = minimum, minimum_by_scale(self, scaled, minimum, search_likely)
            if minimum is not before:
                likeliest = min(likelihood, key=likelihood.__getitem__)
                low, high = self._limits
                self._range = min(low, 1.0), max(high, 1.0)  # the guard may end at T = 1
        if self.procedure == "authors":
            # T comes from the authors' procedure; the search only shows whether there is a minimum inside the bounds
            minimum = self._authors(scaled, fixed)._replace(at_bound=minimum.at_bound)
        guarded = self._guarded(scaled, minimum, likeliest) if self.guard and not self._literal else minimum
        self.guarded_ = guarded is not minimum
        if few is not scaled:
            scaled.rows_read += few.rows_read
        self._store(scaled, guarded)
        self.unguarded_temperature_ = min(max(math.exp(minimum.x), self._limits[0]), self._limits[1])
        columns = scaled.at(self.temperature_)
        self.loss_: float = self._loss(columns, fixed, scaled.num_classes)
        self.threshold_ = self._threshold(columns, fixed, scaled.num_classes)
        self._warn_user(scaled, self.at_bound_)

    @staticmethod
    def _at_end(likelihood: dict[float, float]) -> bool:
        """Return whether the lowest NLL of a grid is at one of its ends."""
        likeliest = min(likelihood, key=likelihood.__getitem__)
        return likeliest in (min(likelihood), max(likelihood))

    @property
    def _literal(self) -> bool:
        return self.objective == "paper"

    def _loss(self, columns: ScaledPredictions, fixed: float, num_classes: int) -> float:
        weight = torch.ones_like(columns.entropy) if columns.weight is None else columns.weight
        rows = SampleStatistics(columns.confidence, columns.entropy, columns.correct, weight, num_classes)
        if self.objective == "auavuc":
            avu = float(area_loss(rows, self.points, self.variant, group=False))
        else:
            variant: Variant = "paper" if self._literal else self.variant
            ac, au, ic, iu = quadrants_of(rows, self._threshold(columns, fixed, num_classes), variant)
            avu = float(torch.log1p((au + ic) / or_empty(ac + iu)))
        if self._literal:
            return avu
        return self.nll_weight * columns.mean(columns.nll) + self.weight * avu

    def _threshold(self, columns: ScaledPredictions | None, fixed: float, num_classes: int) -> float:
        if self._literal or self.threshold == "fixed":
            return fixed
        if self.threshold == "refit":
            assert columns is not None
            return columns.threshold()
        return 0.5 * math.log(max(num_classes, 2)) if self.threshold is None else float(self.threshold)

    def _guarded(self, scaled: ScaledLogits, minimum: Minimum, likeliest: float) -> Minimum:
        """Return the first step from the optimum towards T = 1 at which NLL, ECE and UCE are no worse than at T = 1."""
        few = scaled.subsample(8 * GRID_ELEMENTS)
        quick = no_worse_than_one(few, likeliest)
        # a step is tried on few rows first; all rows then confirm it
        exact = quick if few is scaled else no_worse_than_one(scaled, likeliest)
        result = minimum
        for step in range(GUARD_STEPS + 1):
            x = minimum.x * (1 - step / GUARD_STEPS)
            if step == GUARD_STEPS or (quick(x) and (exact is quick or exact(x))):
                result = minimum if step == 0 else Minimum(x, math.nan, False)
                break
        if few is not scaled:
            scaled.rows_read += few.rows_read
        return result

    def _authors(self, scaled: ScaledLogits, fixed: float) -> Minimum:
        logits = scaled.logits if scaled.samples > 1 else scaled.logits[0]
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
        if scaled.samples > 1:
            log_probs = torch.logsumexp(log_probs, dim=0) - math.log(scaled.samples)
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
    """AvU temperature scaling without a threshold: the T that minimises NLL + AUAvUC, with the same guard.

        loss(T) = nll_weight · NLL(T) + weight · AUAvUC(T)

    AUAvUC integrates AvU over the thresholds u_min + t (u_max − u_min), t from 0 to 1 (Krishnan & Tickoo 2020, appendix
    F, which minimises it alone).

    Args:
        objective: "auavuc", the only one here.
        variant: of the soft quadrants: "monotone", "paper" or "stopgrad".
        weight: weight of AUAvUC.
        nll_weight: weight of the mean negative log-likelihood.
        guard: see `AvUTemperatureScaling`.
        procedure: see `AvUTemperatureScaling`.
        points: number of thresholds.
        bounds: smallest and largest T.
        tolerance: precision of log T.

    >>> import numpy as np
    >>> logits = np.array([[4.0, 0, 0], [3.0, 0, 0], [0, 3.0, 0], [0, 0.5, 0], [0, 0, 2.0]])
    >>> scaler = AUAvUTemperatureScaling().fit(logits, np.array([0, 0, 1, 2, 0]))
    >>> 0.05 < scaler.temperature_ < 20
    True
    """

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
