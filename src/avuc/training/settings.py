"""`TrainSettings`: how to train. Only numbers and words, so that a recipe can hold them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from avuc.core.errors import InputError
from avuc.core.numbers import check_settings
from avuc.data.augmentation import Policy

Optimizer = Literal["adam", "sgd"]
Precision = Literal["float32", "bfloat16"]
RankNoise = Literal["shared", "own"]
Keep = Literal["last", "best_accuracy"]
Choices: dict[str, tuple[Any, ...]] = {
    "optimizer": get_args(Optimizer),
    "augmentation": get_args(Policy),
    "precision": get_args(Precision),
    "rank_noise": get_args(RankNoise),
    "keep": get_args(Keep),
}

WHOLE = ("epochs", "batch_size", "validate_every", "validation_draws", "checkpoint_every", "models_per_step")
# These settings do not change the result, so a resumed run may use other values.
FREE = ("capture", "compile", "models_per_step", "checkpoint_every", "checkpoint_seconds", "tensorboard")
# Settings added later are left out of the run's identity at their old default, so that old checkpoints still match.
LATER: dict[str, str | bool] = {
    "augmentation": "crop",
    "reset_optimizer": False,
    "keep": "last",
    "freeze_trunk": False,
}


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training run. The defaults are the paper's CIFAR-10 recipe (appendix B).

    Args:
        epochs: number of epochs.
        batch_size: rows per step, over all ranks together.
        optimizer: "adam" or "sgd".
        learning_rate: learning rate at the start.
        milestones, factors: from epoch milestones[i] on, the rate is learning_rate · factors[i].
        momentum, nesterov: of SGD.
        weight_decay: applied to all weights except a posterior's ρ, which it would pull to σ = 0.69.
        reset_optimizer: clear the optimizer's moments at the start of every epoch, as the authors' released code does.
        freeze_trunk: train the last layer only. The layers before it keep their weights and run in evaluation mode, so
            that batch-norm statistics stay, too.
        pad, flip: random crops of images padded by `pad` pixels, random horizontal flips.
        augmentation: "crop" for crops and flips only, "augmix" to add AugMix (docs/guide/data.md).
        kl_anneal_epochs: the KL weight rises linearly from 0 to its full value over this many epochs (0: always full).
        clip_norm: largest norm of the whole gradient (0: no clipping).
        ema_decay: decay of a moving average of weights and batch-norm statistics, which is returned instead of the
            last weights (0: off). SWAG collects the weights of the steps as ever, not this average.
        patience: stop after this many epochs without a better validation NLL and return the best epoch (0: never).
            SWAG's epochs count from the second one that it collects.
        keep: weights to return: "last", or "best_accuracy" for the epoch with the best validation accuracy (the first
            one if several are equal).
        validate_every, validation_draws: epochs between validations, and posterior samples used for each.
        precision: "bfloat16" runs the network under autocast; losses and metrics stay float32 or better.
        compile, capture: use `torch.compile` and CUDA graphs on a GPU.
        models_per_step: number of models that share one joint step.
        checkpoint_every, checkpoint_seconds: write a checkpoint after at least this many epochs and seconds (1 and 0:
            after every epoch). The last checkpoint is always written.
        tensorboard: also write a TensorBoard log.
        sync_batch_norm, rank_noise: used with several ranks only; see docs/reference/training.md.

    >>> settings = TrainSettings()
    >>> [round(settings.rate(epoch) / settings.learning_rate, 4) for epoch in (0, 79, 80, 120, 160, 180)]
    [1.0, 1.0, 0.1, 0.01, 0.001, 0.0005]
    """

    # Names of version 0.1.0 that the constructor and recipes still accept, and what they are called today.
    renamed: ClassVar[Mapping[str, str]] = {"at_once": "models_per_step"}

    epochs: int = 200
    batch_size: int = 107
    optimizer: Optimizer = "adam"
    learning_rate: float = 1.189e-3
    milestones: tuple[int, ...] = (80, 120, 160, 180)
    factors: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0005)
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    reset_optimizer: bool = False
    freeze_trunk: bool = False
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
    models_per_step: int = 8
    checkpoint_every: int = 1
    checkpoint_seconds: float = 30.0
    tensorboard: bool = False
    sync_batch_norm: bool = True
    rank_noise: RankNoise = "shared"

    def __post_init__(self) -> None:
        check_settings(self, "train", WHOLE)
        for name, choices in Choices.items():
            if getattr(self, name) not in choices:
                raise InputError(f"train: {name} must be one of {', '.join(choices)}; found {getattr(self, name)!r}")
        for name in WHOLE:
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
        """Return the learning rate of an epoch, counted from 0."""
        passed = [factor for start, factor in zip(self.milestones, self.factors, strict=True) if epoch >= start]
        return self.learning_rate * (passed[-1] if passed else 1.0)

    def kl_share(self, epoch: int) -> float:
        """Return the fraction of the KL weight that applies in an epoch, counted from 0."""
        return min(1.0, epoch / self.kl_anneal_epochs) if self.kl_anneal_epochs else 1.0

    def identity(self) -> dict[str, str]:
        """Return the settings that change the result, by name. Two runs with equal identities are the same run."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in FREE}
        return {name: repr(value) for name, value in values.items() if name not in LATER or value != LATER[name]}

    @property
    def at_once(self) -> int:
        """Old name of `models_per_step`."""
        warnings.warn("TrainSettings.at_once is now models_per_step", DeprecationWarning, stacklevel=2)
        return self.models_per_step


def _accept_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor take the names in `TrainSettings.renamed`, with a warning that gives the new name."""

    @functools.wraps(init)
    def accept(self: TrainSettings, *args: Any, **values: Any) -> None:
        for old, new in TrainSettings.renamed.items():
            if old in values:
                if new in values:
                    raise InputError(f"train: {old} is the old name of {new}; give {new} only")
                warnings.warn(f"TrainSettings({old}=) is now {new}", DeprecationWarning, stacklevel=2)
                values[new] = values.pop(old)
        init(self, *args, **values)

    return accept


TrainSettings.__init__ = _accept_old_names(TrainSettings.__init__)  # type: ignore[method-assign]
