"""A warning at the end of a training that never left the warm-up of its `AvUCLoss`."""

from __future__ import annotations

import sys
import warnings
import weakref
from dataclasses import dataclass

from torch import nn

# fewer batches without the end of an epoch are a trial, not a training
FEWEST_BATCHES = 100


@dataclass
class Progress:
    """How far a training came.

    Args:
        warmup_epochs: epochs of the warm-up.
        warmup_steps: batches of the warm-up, if they are counted instead.
        batches: batches of logits with a gradient, in the warm-up.
        epochs: epochs that ended.
        finished: whether the warm-up is over, or somebody else reports it.
    """

    warmup_epochs: int
    warmup_steps: int | None
    batches: int = 0
    epochs: int = 0
    finished: bool = False

    def reason(self) -> str:
        """Return what is wrong, an empty text if nothing is."""
        few = self.batches < (1 if self.epochs else FEWEST_BATCHES)
        if self.finished or few:
            return ""
        if self.warmup_steps is not None:
            return (
                f"the training ended after {self.batches:,} of {self.warmup_steps:,} warm-up batches; pass fewer "
                "warmup_steps, or a threshold"
            )
        if not self.epochs:
            return (
                f"epoch_end() was never called in {self.batches:,} batches; call it after each epoch, or pass "
                "warmup_steps"
            )
        return (
            f"the training ended after {self.epochs} of {self.warmup_epochs} warm-up epochs; pass fewer warmup_epochs, "
            "or a threshold"
        )


def watched(loss: nn.Module, progress: Progress) -> Progress:
    """Report an unfinished warm-up when the loss is deleted or Python ends; copies of the loss do not report."""
    weakref.finalize(loss, _report, progress)
    return progress


def _report(progress: Progress) -> None:
    reason = progress.reason()
    # an error that ended the program says more
    if reason and getattr(sys, "last_value", None) is None:
        warnings.warn(f"AvUCLoss: the AvUC term was never used: {reason}", stacklevel=1)
