"""What an epoch is judged by, summed on the device and read once at its end."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from avuc.losses.quadrants import Uncertainty, sample_statistics
from avuc.methods import Terms
from avuc.uncertainty import highest_certain

__all__ = ["Meters", "accumulate"]

# sums over rows, but for the last two: over steps
SUMS = ("rows", "nll", "kl", "avuc", "total", "right", "u_right", "u_wrong", "judged", "good", "gradient", "steps")
WATCHED = ("logits", "nll", "kl", "avuc", "gradient")


class Meters:
    """Sums of one model's epoch, and the first step at which something stopped being finite.

    `threshold` is what AvU is counted with: the objective's own, or where it has none (yet) the midpoint of the mean
    uncertainties of right and wrong predictions of the epoch before.
    """

    def __init__(self, device: torch.device, uncertainty: Uncertainty) -> None:
        # Apple's GPUs have no float64
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.uncertainty = uncertainty
        self.sums = torch.zeros(len(SUMS), dtype=dtype, device=device)
        self.bad = torch.full((len(WATCHED),), -1, dtype=torch.int64, device=device)
        self.threshold = torch.full((), math.nan, device=device)
        self.accumulate: Callable[..., None] = accumulate  # or its compiled form

    @property
    def state(self) -> list[Tensor]:
        return [self.sums, self.bad, self.threshold]

    def begin(self) -> None:
        self.sums.zero_()
        self.bad.fill_(-1)

    def add(self, logits: Tensor, labels: Tensor, terms: Terms, gradient: Tensor) -> None:
        """One step. A rank without rows adds a step and nothing else."""
        given = logits.detach(), labels, *(term.detach() for term in terms), gradient
        self.accumulate(self.sums, self.bad, self.threshold, self.uncertainty, *given)

    def first_bad(self) -> tuple[int, str] | None:
        """The step (from 0) at which a term was first NaN or infinite, and which term it was."""
        found = [(step, order) for order, step in enumerate(self.bad.tolist()) if step >= 0]
        if not found:
            return None
        step, order = min(found)
        return step, WATCHED[order]

    def read(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> dict[str, float | None]:
        """The epoch's means, over all ranks; moves the threshold on for the next epoch."""
        total = dict(zip(SUMS, sum_over_ranks(self.sums).tolist(), strict=True))
        rows, right = total["rows"], total["right"]
        wrong = rows - right
        groups = [value / n for value, n in ((total["u_right"], right), (total["u_wrong"], wrong)) if n]
        out: dict[str, float | None] = {name: total[name] / rows for name in ("nll", "kl", "avuc", "total")}
        out["accuracy"] = right / rows
        out["avu"] = total["good"] / total["judged"] if total["judged"] else None
        out["gradient_norm"] = total["gradient"] / total["steps"]
        out["uncertainty_right"] = total["u_right"] / right if right else None
        out["uncertainty_wrong"] = total["u_wrong"] / wrong if wrong else None
        self.threshold.fill_(sum(groups) / len(groups))
        return out


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
    """Add a step to `sums` and `bad`, in place; nothing here has a gradient, and nothing is read back."""
    rows = sample_statistics(logits, labels, uncertainty, -100, None)
    u, right = rows.uncertainty.to(sums.dtype), rows.correct
    count = u.new_full((), len(labels))
    some = count > 0
    judged = torch.where(threshold.isnan(), 0, count)
    # sure and right, or unsure and wrong
    good = (right ^ (u > highest_certain(threshold))).sum() * (judged > 0)
    means = [torch.where(some, term.to(sums.dtype), 0) * count for term in (nll, kl, avuc, total)]
    added = [count, *means, right.sum(), (u * right).sum(), (u * ~right).sum(), judged, good, gradient]
    sums += torch.stack([value.to(sums.dtype) for value in (*added, torch.ones_like(gradient))])
    finite = [(term.isfinite() | ~some) for term in (nll, kl, avuc)]
    fine = torch.stack([logits.isfinite().all(), *finite, gradient.isfinite()])
    bad.copy_(torch.where((bad < 0) & ~fine, sums[-1].long() - 1, bad))
