"""The metrics of an epoch, summed on the device and read once at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from avuc.core.tasks import IGNORE_INDEX
from avuc.losses.quadrants import Uncertainty, sample_statistics
from avuc.methods import Terms
from avuc.uncertainty import highest_certain, midpoint_threshold

# sums over rows, except the last two, which are sums over steps
SUMS = ("rows", "nll", "kl", "avuc", "total", "right", "u_right", "u_wrong", "judged", "good", "gradient", "steps")
WATCHED = ("logits", "nll", "kl", "avuc", "gradient")


class Meters:
    """The sums of one model in one epoch, and the first step at which a term was NaN or infinite.

    `threshold` is used for AvU: the objective's threshold or, if it has none (yet), the midpoint between the mean
    uncertainties of accurate and inaccurate predictions of the epoch before.
    """

    def __init__(self, device: torch.device, uncertainty: Uncertainty) -> None:
        # Apple's GPUs have no float64
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.uncertainty = uncertainty
        self.sums: Tensor = torch.zeros(len(SUMS), dtype=dtype, device=device)
        self.bad: Tensor = torch.full((len(WATCHED),), -1, dtype=torch.int64, device=device)
        self.threshold: Tensor = torch.full((), math.nan, device=device)
        self.accumulate: Callable[..., None] = accumulate  # `compiled.attach` replaces it

    @property
    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        return [self.sums, self.bad, self.threshold]

    def begin(self) -> None:
        """Start an epoch."""
        self.sums.zero_()
        self.bad.fill_(-1)

    def add(self, logits: Tensor, labels: Tensor, terms: Terms, gradient: Tensor) -> None:
        """Add one step. A rank without rows only counts the step."""
        arguments = logits.detach(), labels, *(term.detach() for term in terms), gradient
        self.accumulate(self.sums, self.bad, self.threshold, self.uncertainty, *arguments)

    def first_bad(self) -> tuple[int, str] | None:
        """Return the first step (from 0) at which a term was NaN or infinite and the name of the term, or None."""
        bad = [(step, order) for order, step in enumerate(self.bad.tolist()) if step >= 0]
        if not bad:
            return None
        step, order = min(bad)
        return step, WATCHED[order]

    def read(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> dict[str, float | None]:
        """Return the means of the epoch over all ranks, and set the threshold for the next epoch."""
        total = dict(zip(SUMS, sum_over_ranks(self.sums).tolist(), strict=True))
        rows, right = total["rows"], total["right"]
        wrong = rows - right
        out: dict[str, float | None] = {name: total[name] / rows for name in ("nll", "kl", "avuc", "total")}
        out["accuracy"] = right / rows
        out["avu"] = total["good"] / total["judged"] if total["judged"] else None
        out["gradient_norm"] = total["gradient"] / total["steps"]
        out["uncertainty_right"] = total["u_right"] / right if right else None
        out["uncertainty_wrong"] = total["u_wrong"] / wrong if wrong else None
        self.threshold.fill_(float(midpoint_threshold(total["u_right"], total["u_wrong"], right, wrong)))
        return out


def all_uncertain(record: dict[str, float | None], threshold: float) -> bool:
    """Return whether (nearly) every prediction of an epoch was more uncertain than the threshold.

    The AvU is then the error rate. That alone could be chance, so both mean uncertainties must be above the threshold.

    >>> all_uncertain({"accuracy": 0.7, "avu": 0.3, "uncertainty_right": 2.2, "uncertainty_wrong": 2.1}, threshold=1.0)
    True
    """
    means = record["uncertainty_right"], record["uncertainty_wrong"]
    avu, accuracy = record["avu"], record["accuracy"]
    if avu is None or accuracy is None or not all(mean is not None and mean > threshold for mean in means):
        return False
    return abs(avu + accuracy - 1) < 1e-3


def epochs_all_uncertain(records: Sequence[dict[str, Any]]) -> int:
    """Return in how many of the last epochs of a model, one after the other, `all_uncertain` holds.

    >>> record = {"accuracy": 0.7, "avu": 0.3, "uncertainty_right": 2.2, "uncertainty_wrong": 2.1, "threshold": 1.0}
    >>> epochs_all_uncertain([record, {**record, "avu": 0.9}, record, record])
    2
    """
    count = 0
    # A record has the threshold of the next epoch. The first epoch has that of its own record if the threshold is
    # given; if it is learned, the first record has no AvU and does not count.
    for before, record in pairwise([*records[:1], *records]):
        limit = before["threshold"]
        count = count + 1 if limit is not None and all_uncertain(record, limit) else 0
    return count


def labelled_rows(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits ([S,] M, C) and labels (M,) of the labelled positions of dense logits; others as they are."""
    if labels.ndim == 1:
        return logits, labels
    rows = logits.detach().movedim(-labels.ndim, -1).flatten(-labels.ndim - 1, -2)
    used = labels.flatten() != IGNORE_INDEX
    return rows[..., used, :], labels.flatten()[used]


def accumulate(
    sums: Tensor,
    bad: Tensor,
    threshold: Tensor,
    uncertainty: Uncertainty,
    logits: Tensor,
    labels: Tensor,
    nll: Tensor,
    kl: Tensor,
    avuc: Tensor,
    total: Tensor,
    gradient: Tensor,
) -> None:
    """Add a step to `sums` and `bad`, in place and without reading anything back to the CPU."""
    rows = sample_statistics(logits, labels, uncertainty, -100, None)
    used = labels != IGNORE_INDEX
    u, right, wrong = rows.uncertainty.to(sums.dtype), rows.correct & used, ~rows.correct & used
    count = used.to(sums.dtype).sum()  # whole numbers summed as such stop Triton 3.6: "operand does not dominate"
    some = count > 0
    judged = torch.where(threshold.isnan(), 0, count)
    # accurate and certain, or inaccurate and uncertain
    good = torch.where(u > highest_certain(threshold), wrong, right).to(sums.dtype).sum() * (judged > 0)
    means = [torch.where(some, term.to(sums.dtype), 0) * count for term in (nll, kl, avuc, total)]
    added = [count, *means, right.sum(), (u * right).sum(), (u * wrong).sum(), judged, good, gradient]
    sums += torch.stack([value.to(sums.dtype) for value in (*added, torch.ones_like(gradient))])
    finite = [(term.isfinite() | ~some) for term in (nll, kl, avuc)]
    fine = torch.stack([logits.isfinite().all(), *finite, gradient.isfinite()])
    bad.copy_(torch.where((bad < 0) & ~fine, sums[-1].long() - 1, bad))
