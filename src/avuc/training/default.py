"""`fit_calibrated`: the default way of training, in one call: the best single model of our studies, for any network.

Step 1 is a plain network, step 2 a posterior around it, tuned by the ELBO (or with the repaired AvUC loss), step 3 a
temperature for its draws, learned on held-out images. All their numbers are those of a row of a shipped recipe.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.calibration import Calibrator
from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.methods import Method, Objective
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.predictions import Predictions
from avuc.study.judge import kept_logits
from avuc.study.recipe import load_recipe
from avuc.training.distributed import Ranks
from avuc.training.fit import fit
from avuc.training.model_trainer import Net
from avuc.training.run import Data, Fitted
from avuc.training.settings import TrainSettings

__all__ = ["Calibrated", "Plan", "Step", "default_plan", "fit_calibrated"]

RECIPE, ROW, WITH_AVUC = "cifar10-best", "MOPED-SVI + TS", "MOPED-AvUC + TS"
# of the recipe's images; crops of others are as wide for their size
SIDE = 32
# of the posterior, for the temperature
DRAWS = 32


class Step(NamedTuple):
    """What `fit` trains: its arguments of these names."""

    method: Method
    objective: Objective
    settings: TrainSettings


class Plan(NamedTuple):
    """The three steps of the default; the calibrator is not fitted yet."""

    first: Step
    second: Step
    calibrator: Calibrator


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A classifier that was trained to know when it is wrong: a posterior, and a temperature for its draws."""

    posterior: Posterior
    calibrator: Calibrator
    first: Fitted  # the plain network
    second: Fitted  # the posterior around it

    def predict(
        self,
        images: Tensor | np.ndarray,
        labels: Tensor | np.ndarray | None = None,
        *,
        samples: int | Literal["auto"] = 128,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        progress: bool = False,
    ) -> Predictions:
        """`avuc.predict` through the calibrator; for many sets of images give both to a `Predictor`."""
        return predict(
            self.posterior,
            images,
            labels,
            samples=samples,
            calibrator=self.calibrator,
            seed=seed,
            dtype=dtype,
            progress=progress,
        )


def fit_calibrated(
    net: Net,
    data: Data,
    validation: Dataset,
    *,
    epochs: int | None = None,
    avuc: bool = False,
    flip: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
    directory: str | Path | None = None,
    progress: bool = True,
) -> Calibrated:
    """Train a network, a posterior around it and a temperature, as the recipe `cifar10-best` does (docs/training.md).

    net, data, seed, device: as `fit` takes them. A `Stream` has crops and flips of its own instead of AugMix.
    validation: held-out images; the temperature is learned on them.
    epochs: of the first step, 200 by the recipe; the second has 30 for each 200, and schedules keep their shares.
    avuc: tune the posterior with the repaired AvUC loss, too; on CIFAR-10 it was no better (docs/reproduction.md).
    flip: also learn from mirrored images. Not where a mirror changes what they show: digits, text.
    directory: its folders `first` and `second` are `fit`'s, `calibrator.json` comes last; the same call goes on from
        what is there, and only reads back what is finished.

    >>> from avuc.data import load_dataset
    >>> from avuc.nets import small_cnn
    >>> data = load_dataset("mnist5k")
    >>> train, held_out = data.subset(range(0, 4000, 20)), data.subset(range(10, 4000, 20))
    >>> found = fit_calibrated(lambda g: small_cnn(10, (28, 28, 1), width=4, generator=g), train, held_out,
    ...                        epochs=2, flip=False, progress=False)
    >>> found.predict(held_out.images[:5], samples=4).probs.shape, found.calibrator.temperature_ > 0
    (torch.Size([5, 10]), True)
    """
    _check(data, validation)
    plan = default_plan(epochs, avuc=avuc)
    folder = None if directory is None else Path(directory)
    if not isinstance(data, Dataset):
        print(f"{data.files.name}: a stream of files has its own crops and flips, so no AugMix", file=sys.stderr)

    def trained(name: str, step: Step, start: Net) -> Fitted:
        settings = replace(step.settings, flip=flip and step.settings.flip)
        if torch.device(device).type != "cuda":
            settings = replace(settings, precision="float32")
        if isinstance(data, Dataset):
            settings = replace(settings, pad=round(settings.pad * min(data.images.shape[1:3]) / SIDE))
        else:
            settings = replace(settings, augmentation="crop")
        return fit(
            step.method,
            start,
            data,
            objective=step.objective,
            settings=settings,
            validation=validation,
            seed=seed,
            device=device,
            directory=None if folder is None else folder / name,
            progress=progress,
        )

    if folder is not None and not any((folder / "second").glob("checkpoint-*")):
        (folder / "calibrator.json").unlink(missing_ok=True)  # of weights that are gone
    first = trained("first", plan.first, net)
    second = trained("second", plan.second, first.models[0])
    if folder is not None and (folder / "calibrator.json").exists():
        return Calibrated(second.posterior, Calibrator.load(folder / "calibrator.json"), first, second)
    calibrator = plan.calibrator.fit(*kept_logits(second.posterior, validation, DRAWS, seed=seed))
    if folder is not None:
        calibrator.save(folder / "calibrator.json")
    return Calibrated(second.posterior, calibrator, first, second)


def default_plan(epochs: int | None = None, *, avuc: bool = False) -> Plan:
    """The three steps as the recipe has them, or scaled to so many epochs of the first one.

    >>> [(step.settings.epochs, step.settings.milestones) for step in default_plan(20)[:2]]
    [(20, (10, 15, 18)), (3, (2,))]
    """
    recipe = load_recipe(RECIPE)
    third = recipe.row(WITH_AVUC if avuc else ROW)
    second = recipe.row(third.of)
    first = recipe.row(second.start)
    assert first.method is not None
    assert second.method is not None
    assert third.calibrator is not None
    plan = Plan(
        Step(first.method, first.objective, first.train),
        Step(second.method, second.objective, second.train),
        third.calibrator.make(),
    )
    whole = first.train.epochs
    if epochs is not None and epochs < 1:
        raise InputError(f"fit_calibrated: epochs must be at least 1, or None for the recipe's {whole}; found {epochs}")
    share = 1.0 if epochs is None else epochs / whole
    # two epochs at least of the second step: its warm-up, and one with the AvUC loss
    return plan._replace(first=_scaled(plan.first, share, 1), second=_scaled(plan.second, share, 2))


def _scaled(step: Step, share: float, least: int) -> Step:
    settings, objective = step.settings, step.objective
    epochs = max(least, round(settings.epochs * share))
    share = epochs / settings.epochs
    # of several milestones in one epoch the last counts
    factors = {max(1, round(m * share)): f for m, f in zip(settings.milestones, settings.factors, strict=True)}
    factors = {milestone: factor for milestone, factor in factors.items() if milestone < epochs}
    settings = replace(
        settings,
        epochs=epochs,
        milestones=tuple(factors),
        factors=tuple(factors.values()),
        kl_anneal_epochs=round(settings.kl_anneal_epochs * share),
        checkpoint_every=1,  # and 30 seconds: an epoch may be long elsewhere than on the recipe's GPU
    )
    if objective.kind != "plain":
        objective = replace(objective, warmup_epochs=max(1, round(objective.warmup_epochs * share)))
    return Step(step.method, objective, settings)


def _check(data: Data, validation: Dataset) -> None:
    """Before the first epoch, what would be missing after the last."""
    if not isinstance(validation, Dataset):
        raise InputError(
            "fit_calibrated: the temperature is learned on held-out images; give them as validation, a Dataset "
            f"(train, validation = split_dataset(data, 5000).apply(data)); found {type(validation).__name__}"
        )
    if not len(validation) or int(validation.labels.min()) < 0:
        raise InputError(
            f"{validation.name}: the temperature is learned on the validation images; expected at least one, with a "
            "label for each"
        )
    images = data if isinstance(data, Dataset) else data.files
    if validation.num_classes != images.num_classes:
        raise InputError(
            f"{validation.name}: validation images of {validation.num_classes} classes for training images of "
            f"{images.num_classes}; take both from one data set"
        )
    if (ranks := Ranks().size) > 1:
        raise InputError(
            f"fit_calibrated trains in one process, found {ranks} ranks; start it without torchrun, or train a method "
            "with fit, which knows ranks"
        )
