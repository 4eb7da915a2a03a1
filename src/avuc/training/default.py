"""`fit_calibrated`: the default training in one call, which was the best method of our study `cifar10-best`.

Step 1 trains a network, step 2 a posterior around it (by the ELBO, optionally with the repaired AvUC loss), step 3 a
temperature for the posterior's samples, on held-out images. The settings are those of the shipped recipe
`cifar10-best`, written here as plain data; a test compares the two.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from avuc.calibration import Calibrator, TemperatureScaling
from avuc.core.atomic import write_text
from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.digest import digest_of
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData, all_labelled
from avuc.methods import SVI, Method, Objective, Vanilla
from avuc.prediction.in_memory import is_loaded
from avuc.prediction.logits import kept_logits
from avuc.training.calibrated import Calibrated, renamed
from avuc.training.distributed import Ranks
from avuc.training.epochs import OnEpoch, in_part
from avuc.training.fit import fit_many, own_data
from avuc.training.fitted import Fitted
from avuc.training.run import Data, Job
from avuc.training.settings import TrainSettings
from avuc.training.start import Net

# the method of the shipped recipe cifar10-best with the same numbers
ROW = "MOPED-SVI + TS"
# width and height of the recipe's images; the padding of crops is scaled to images of other sizes
SIDE = 32
# posterior samples that the temperature is fitted on
DRAWS = 32

POSTERIOR_SETTINGS = TrainSettings(
    epochs=30,
    batch_size=107,
    optimizer="adam",
    learning_rate=3e-4,
    milestones=(15, 22, 27),
    factors=(0.3, 0.1, 0.03),
    pad=4,
    flip=True,
    augmentation="augmix",
    precision="bfloat16",
    validate_every=10,
    checkpoint_every=10,
    models_per_step=10,
)
NETWORK_SETTINGS = replace(
    POSTERIOR_SETTINGS,
    epochs=200,
    optimizer="sgd",
    learning_rate=0.1,
    nesterov=True,
    weight_decay=5e-4,
    milestones=(100, 150, 180),
    factors=(0.2, 0.04, 0.008),
    validate_every=20,
    checkpoint_every=20,
)
POSTERIOR_METHOD = SVI(moped=True, delta=0.1)
ELBO_OBJECTIVE = Objective(kl_weight=0.1)
AVUC_OBJECTIVE = Objective("avuc", beta=3.0, variant="monotone", warmup_epochs=2, kl_weight=0.1)


class Step(NamedTuple):
    """The arguments of `fit` for one step."""

    method: Method
    objective: Objective
    settings: TrainSettings


class Plan(NamedTuple):
    """The three steps of the default: the network, the posterior, and a calibrator that is not fitted yet."""

    network: Step
    posterior: Step
    calibrator: Calibrator

    @property
    def first(self) -> Step:
        """Old name of `network`."""
        return renamed("Plan.first", "network", self.network)

    @property
    def second(self) -> Step:
        """Old name of `posterior`."""
        return renamed("Plan.second", "posterior", self.posterior)


def fit_calibrated(
    net: Net,
    data: Any,
    validation: Any,
    *,
    epochs: int | None = None,
    use_avuc_loss: bool = False,
    flip: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
    directory: str | Path | None = None,
    progress: bool = True,
    avuc: bool | None = None,
    on_epoch: OnEpoch | None = None,
) -> Calibrated:
    """Train a network, a posterior around it and a temperature, as the recipe `cifar10-best` does.

    Args:
        net, data, seed, device, progress: as in `fit`. A `Stream` uses its own crops and flips instead of AugMix.
        validation: held-out data in one of the forms of `fit`, but no `Stream`; the temperature is fitted on them.
        epochs: epochs of the network, 200 by default. The posterior gets 30 for each 200, and all schedules are scaled.
        use_avuc_loss: also use the repaired AvUC loss for the posterior. On CIFAR-10 it was not better
            (docs/reproduction/index.md).
        flip: also train on mirrored images. Use False where a mirrored image means something else: digits, text.
        directory: folder for the results: the folders `first` (network) and `second` (posterior), as written by `fit`,
            and `calibrator.json`. The same call resumes from there, and only reads back what is finished.
        avuc: old name of `use_avuc_loss`.
        on_epoch: as in `fit`, with figures named `network/...` and then `posterior/...`; epochs are counted through.

    >>> from avuc.data import load_dataset
    >>> from avuc.nets import small_cnn
    >>> data = load_dataset("mnist5k")
    >>> train, held_out = data.subset(range(0, 4000, 20)), data.subset(range(10, 4000, 20))
    >>> result = fit_calibrated(lambda g: small_cnn(10, (28, 28, 1), width=4, generator=g), train, held_out,
    ...                         epochs=2, flip=False, progress=False)
    >>> result.predict(held_out.images[:5], samples=4).probs.shape, result.calibrator.temperature_ > 0
    (torch.Size([5, 10]), True)
    """
    if avuc is not None:
        use_avuc_loss = renamed("fit_calibrated(avuc=)", "use_avuc_loss", avuc)
    loaded = is_loaded(data)
    data, validation = own_data(data, validation)
    _check(data, validation)
    plan = default_plan(epochs, use_avuc_loss=use_avuc_loss)
    folder = None if directory is None else Path(directory)
    if isinstance(data, Stream):
        print(f"{data.files.name}: a stream of files has its own crops and flips, so no AugMix", file=sys.stderr)

    def trained(name: str, step: Step, start: Net, call: OnEpoch | None) -> Fitted:
        settings = replace(step.settings, flip=flip and step.settings.flip)
        if torch.device(device).type != "cuda":
            settings = replace(settings, precision="float32")
        if isinstance(data, Dataset):
            settings = replace(settings, pad=round(settings.pad * min(data.images.shape[1:3]) / SIDE))
        else:
            settings = replace(settings, augmentation="crop")
        out = None if folder is None else folder / name
        values = step.method, start, data, step.objective, settings, validation, seed, out, call, loaded
        return fit_many([Job(*values)], device=device, progress=progress)[0]

    if folder is not None and not any((folder / "second").glob("checkpoint-*")):
        (folder / "calibrator.json").unlink(missing_ok=True)  # it was fitted to weights that are gone
    network_fit = trained("first", plan.network, net, in_part(on_epoch, "network", 0))
    later = in_part(on_epoch, "posterior", network_fit.epochs)
    posterior_fit = trained("second", plan.posterior, network_fit.models[0], later)
    posterior = posterior_fit.posterior
    saved = None if folder is None else SavedCalibrator(folder, digest_of(validation))
    calibrator = None if saved is None else saved.read()
    if calibrator is None:
        calibrator = plan.calibrator.fit(*kept_logits(posterior, validation, DRAWS, seed=seed))
        if saved is not None:
            saved.write(calibrator)
    return Calibrated(posterior, calibrator, network_fit, posterior_fit)


class SavedCalibrator(NamedTuple):
    """`calibrator.json` of a folder, and the digest of the validation data that it was fitted on."""

    folder: Path
    digest: str

    @property
    def fitted_on(self) -> Path:
        """The file of the digest."""
        return self.folder / "second" / "calibrated-on.txt"

    def read(self) -> Calibrator | None:
        """Return the calibrator; None if there is none, or if it was fitted on other data."""
        saved = self.folder / "calibrator.json"
        if not saved.exists() or not self.fitted_on.exists() or self.fitted_on.read_bytes() != self.digest.encode():
            return None
        return Calibrator.load(saved)

    def write(self, calibrator: Calibrator) -> None:
        self.fitted_on.unlink(missing_ok=True)  # until the calibrator is complete
        calibrator.save(self.folder / "calibrator.json")
        write_text(self.fitted_on, self.digest)


def default_plan(epochs: int | None = None, *, use_avuc_loss: bool = False, avuc: bool | None = None) -> Plan:
    """Return the three steps of the default.

    Args:
        epochs: epochs of the network; None for the recipe's 200. Schedules are scaled with it.
        use_avuc_loss: also use the AvUC loss for the posterior.
        avuc: old name of `use_avuc_loss`.

    >>> [(step.settings.epochs, step.settings.milestones) for step in default_plan(20)[:2]]
    [(20, (10, 15, 18)), (3, (2,))]
    """
    if avuc is not None:
        use_avuc_loss = renamed("default_plan(avuc=)", "use_avuc_loss", avuc)
    whole = NETWORK_SETTINGS.epochs
    if epochs is not None and epochs < 1:
        raise InputError(f"fit_calibrated: epochs must be at least 1, or None for the recipe's {whole}; found {epochs}")
    share = 1.0 if epochs is None else epochs / whole
    network = Step(Vanilla(), Objective(), NETWORK_SETTINGS)
    posterior = Step(POSTERIOR_METHOD, AVUC_OBJECTIVE if use_avuc_loss else ELBO_OBJECTIVE, POSTERIOR_SETTINGS)
    # the posterior gets at least two epochs: one of warm-up and one with the AvUC loss
    return Plan(_scaled(network, share, 1), _scaled(posterior, share, 2), TemperatureScaling())


def _scaled(step: Step, share: float, least: int) -> Step:
    """Return a step with `share` of its epochs, at least `least`, and its schedules scaled alike."""
    settings, objective = step.settings, step.objective
    epochs = max(least, round(settings.epochs * share))
    share = epochs / settings.epochs
    # if several milestones fall into one epoch, the last one counts
    factors = {max(1, round(m * share)): f for m, f in zip(settings.milestones, settings.factors, strict=True)}
    factors = {milestone: factor for milestone, factor in factors.items() if milestone < epochs}
    settings = replace(
        settings,
        epochs=epochs,
        milestones=tuple(factors),
        factors=tuple(factors.values()),
        kl_anneal_epochs=round(settings.kl_anneal_epochs * share),
        checkpoint_every=1,  # and `checkpoint_seconds`: an epoch may take long on another machine
    )
    if objective.kind != "plain":
        objective = replace(objective, warmup_epochs=max(1, round(objective.warmup_epochs * share)))
    return Step(step.method, objective, settings)


def _check(data: Data, validation: MemoryData | None) -> None:
    """Raise an error before the first epoch for input that would fail after the last one."""
    if validation is None:
        raise InputError(
            "fit_calibrated: the temperature is learned on held-out images; give them as validation "
            "(train, validation = split_dataset(data, 5000).apply(data))"
        )
    if not all_labelled(validation):
        raise InputError(
            f"{validation.name}: the temperature is learned on the validation images; expected at least one, with a "
            "label for each"
        )
    images = data.files if isinstance(data, Stream) else data
    if validation.num_classes != images.num_classes:
        raise InputError(
            f"{validation.name}: validation images of {validation.num_classes} classes for training images of "
            f"{images.num_classes}; take both from one data set"
        )
    if (ranks := Ranks().size) > 1:
        raise InputError(
            f"fit_calibrated trains in one process, found {ranks} ranks; start it without torchrun, or train a method "
            "with fit, which supports ranks"
        )
