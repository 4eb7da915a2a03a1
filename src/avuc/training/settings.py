"""How to train: numbers and words only, so that a recipe can hold them; and what they say about each epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from avuc.core.errors import InputError
from avuc.data.augmentation import Policy

__all__ = ["TrainSettings"]

Optimizer = Literal["adam", "sgd"]
Precision = Literal["float32", "bfloat16"]
RankNoise = Literal["shared", "own"]
Keep = Literal["last", "best_accuracy"]
Choices = {
    "optimizer": get_args(Optimizer),
    "augmentation": get_args(Policy),
    "precision": get_args(Precision),
    "rank_noise": get_args(RankNoise),
    "keep": get_args(Keep),
}

# what may differ between a run and the run that goes on with it: none of them changes what is computed
FREE = ("capture", "compile", "at_once", "checkpoint_every", "checkpoint_seconds", "tensorboard")
# Settings added later are left out of the run's identity at their old default, so that old checkpoints still match.
LATER = {"augmentation": "crop", "reset_optimizer": False, "keep": "last"}


@dataclass(frozen=True)
class TrainSettings:
    """The defaults are the paper's CIFAR-10 recipe (appendix B): Adam, 200 epochs, batches of 107.

    learning_rate is multiplied by factors[i] from epoch milestones[i] on (0.1, 0.01, 0.001, 0.0005: of the first rate).
    weight_decay: of everything but a posterior's ρ, which it would pull to σ = 0.69.
    pad, flip: random crops from images padded by `pad` pixels, random horizontal flips.
    augmentation: "crop" is only that, "augmix" mixes in random changes that are none of the test shifts (docs/data.md).
    kl_anneal_epochs: the KL's weight rises linearly from 0 at epoch 0 to its full value at that epoch (0: full always).
    clip_norm: largest norm of the whole gradient (0: no clipping). ema_decay: train on, but hand out the moving average
        of weights and statistics (0: off).
    patience: stop after that many epochs without a better validation NLL, and go back to the best one (0: never).
    reset_optimizer: the optimiser forgets its moments at the start of every epoch, as the authors' released code does,
        which makes a new Adam each time.
    keep: the weights that are handed out: "last", or "best_accuracy": those of the epoch with the best accuracy on the
        validation data (the first of equals).
    validate_every, validation_draws: how often the validation data are looked at, and with how many posterior draws.
    precision: "bfloat16" runs the net under autocast; losses and metrics stay float32 or better.
    compile, capture: the fast path on CUDA; at_once: how many models share one captured step.
    checkpoint_every, checkpoint_seconds: at least so many epochs and seconds between checkpoints (1 and 0: one after
        each epoch); the last one is always written.
    sync_batch_norm, rank_noise: across the ranks of a distributed run; see docs/training.md.

    >>> settings = TrainSettings()
    >>> [round(settings.rate(epoch) / settings.learning_rate, 4) for epoch in (0, 79, 80, 120, 160, 180)]
    [1.0, 1.0, 0.1, 0.01, 0.001, 0.0005]
    """

    epochs: int = 200
    batch_size: int = 107
    optimizer: Optimizer = "adam"
    learning_rate: float = 1.189e-3
    milestones: tuple[int, ...] = (80, 120, 160, 180)
    factors: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0005)
    momentum: float = 0.9  # of SGD
    nesterov: bool = False
    weight_decay: float = 0.0
    reset_optimizer: bool = False
    pad: int = 4
    flip: bool = True
    augmentation: Policy = "crop"
    kl_anneal_epochs: int = 0
    clip_norm: float = 0.0
    ema_decay: float = 0.0
    patience: int = 0
    keep: Keep = "last"
    validate_every: int = 1
    validation_draws: int = 1
    precision: Precision = "float32"
    compile: bool = True
    capture: bool = True
    at_once: int = 8
    checkpoint_every: int = 1
    checkpoint_seconds: float = 30.0
    tensorboard: bool = False
    sync_batch_norm: bool = True
    rank_noise: RankNoise = "shared"

    def __post_init__(self) -> None:
        for name, choices in Choices.items():
            if getattr(self, name) not in choices:
                raise InputError(f"train: {name} must be one of {', '.join(choices)}; found {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "validate_every", "validation_draws", "checkpoint_every", "at_once"):
            if getattr(self, name) < 1:
                raise InputError(f"train: {name} must be at least 1, found {getattr(self, name)}")
        for name in ("weight_decay", "pad", "kl_anneal_epochs", "clip_norm", "patience", "checkpoint_seconds"):
            if not getattr(self, name) >= 0:
                raise InputError(f"train: {name} must not be negative, found {getattr(self, name)}")
        if not self.learning_rate > 0 or not 0 <= self.momentum < 1 or not 0 <= self.ema_decay < 1:
            raise InputError(
                "train: learning_rate must be positive, momentum and ema_decay in [0, 1); found "
                f"{self.learning_rate}, {self.momentum}, {self.ema_decay}"
            )
        if self.patience and self.keep != "last":
            raise InputError("train: patience goes back to the best validation NLL; it cannot be combined with keep")
        if len(self.milestones) != len(self.factors) or list(self.milestones) != sorted(set(self.milestones)):
            raise InputError(
                "train: milestones are rising epochs, with one factor for each; found "
                f"{list(self.milestones)} and {list(self.factors)}"
            )

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        passed = [factor for start, factor in zip(self.milestones, self.factors, strict=True) if epoch >= start]
        return self.learning_rate * (passed[-1] if passed else 1.0)

    def kl_share(self, epoch: int) -> float:
        """How much of the KL's weight an epoch has."""
        return min(1.0, epoch / self.kl_anneal_epochs) if self.kl_anneal_epochs else 1.0

    def identity(self) -> dict[str, str]:
        """What makes another run of it, name by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in FREE}
        return {name: repr(value) for name, value in values.items() if name not in LATER or value != LATER[name]}
