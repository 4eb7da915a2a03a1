"""One training job and its progress: models, history, checkpoints, validation, early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData, TensorData, all_labelled
from avuc.methods import Method, Objective
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.posterior import Posterior, seed_of
from avuc.prediction.backends.features import FeatureStore
from avuc.training import checkpoint as files
from avuc.training.distributed import Ranks
from avuc.training.epochs import OnEpoch, figures
from avuc.training.fitted import Fitted as Fitted
from avuc.training.freeze_trunk import unfreeze
from avuc.training.identity import Digests, digests_of, settings_of
from avuc.training.log import Log
from avuc.training.model_trainer import VALIDATE, ModelTrainer
from avuc.training.settings import TrainSettings
from avuc.training.start import Net
from avuc.training.trunk_features import trunk_key
from avuc.training.validation import validate

Data = Dataset | TensorData | Stream
Say = Callable[[str], None]
# of the validation data, by the trunks that models have frozen
Features = dict[Hashable, FeatureStore]


@dataclass(frozen=True, eq=False)
class Job:
    """The arguments of `fit`, as `fit_many` takes them.

    Args:
        method, net, data, objective, settings, validation, seed, directory, on_epoch: as in `fit`.
        loaded: whether the data were read from a DataLoader or a torch Dataset, which may give other inputs each time.

    >>> from avuc.data import load_dataset
    >>> from avuc.methods import Vanilla
    >>> from avuc.nets import mlp
    >>> data = load_dataset("mnist5k")
    >>> jobs = [Job(Vanilla(), lambda g: mlp(generator=g), data, Objective(), TrainSettings(), seed=s) for s in (0, 1)]
    >>> [job.seed for job in jobs], jobs[0].num_train
    ([0, 1], 4000)
    """

    method: Method
    net: Net
    data: Data
    objective: Objective
    settings: TrainSettings
    validation: MemoryData | None = None
    seed: int = 0
    directory: Path | None = None
    on_epoch: OnEpoch | None = None
    loaded: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"fit: seed must not be negative, found {self.seed}")
        self.method.check_epochs(self.settings.epochs)
        if isinstance(self.net, nn.Module) and self.method.members > 1:
            raise InputError(
                f"fit: the {self.method.members} models of {self.method.name} need different starts; "
                "give a function of a torch.Generator that makes the network, not one network"
            )
        if self.settings.patience and self.validation is None:
            raise InputError("fit: patience stops training by its validation NLL; give validation data, or patience 0")
        if self.settings.keep != "last" and self.validation is None:
            raise InputError(
                "fit: keep chooses an epoch by its validation accuracy; give validation data, or keep 'last'"
            )
        for use, data in (("training", self.data), ("validation", self.validation)):
            if isinstance(data, Dataset | TensorData) and not all_labelled(data):
                raise InputError(f"{data.name}: {use} needs examples, and a label for each of them")
        if isinstance(self.data, TensorData) and self.settings.augmentation != "crop":
            raise InputError(
                f"{self.data.name}: augmentation {self.settings.augmentation!r} is for uint8 images with one label "
                "each; use 'crop'"
            )
        if isinstance(self.data, Stream) and self.settings.augmentation != "crop":
            raise InputError(
                f"{self.data.files.name}: augmentation {self.settings.augmentation!r} is for images in memory; "
                "a stream of files crops and flips its own: use 'crop', or load them as a Dataset"
            )
        if isinstance(self.data, Stream) and len(self.data) != -(-self.num_train // self.settings.batch_size):
            raise InputError(
                f"{self.data.files.name}: {self.num_train} pictures in {len(self.data)} batches are not batches of "
                f"{self.settings.batch_size} with the last one kept; make the stream with the settings' batch_size"
            )

    @property
    def num_train(self) -> int:
        """Number of training images; of the labelled pixels or tokens, if each has a label."""
        return len(self.data.files) if isinstance(self.data, Stream) else self.data.num_labelled

    def identity(self) -> dict[str, str]:
        """Return what is trained on which data, as text. The checkpoint of a run with another identity is refused."""
        return settings_of(self.method, self.seed, self.data, self.objective, self.settings)


class Run:
    """A job in progress."""

    def __init__(
        self, job: Job, device: torch.device, ranks: Ranks, say: Say, known: Digests, features: Features
    ) -> None:
        self.job: Job = job
        self.features: Features = features
        self.ranks: Ranks = ranks
        self.epoch: int = 0
        self.stopped: bool = False
        self.has_posterior: bool = True
        self.seconds: float = 0.0
        self.calling: bool = False  # whether the caller's own function is running
        self.trained: bool = False  # whether an epoch was trained in this process
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.best_tensors: dict[str, Tensor] = {}
        self.saved: Path | None = None
        self.saved_at: float = time.monotonic()
        self.validation: MemoryData | None = None if job.validation is None else job.validation.to(device)
        num_classes = job.data.files.num_classes if isinstance(job.data, Stream) else job.data.num_classes
        self.trainers: list[ModelTrainer] = [
            ModelTrainer(
                job.method,
                job.net,
                job.objective,
                job.settings,
                num_train=job.num_train,
                num_classes=num_classes,
                seed=job.seed,
                index=index,
                device=device,
                ranks=ranks,
            )
            for index in range(job.method.members)
        ]
        if job.directory is not None or job.settings.patience or job.settings.keep != "last":
            files.refuse_other_state(self.trainers[0].model)
        folder = job.directory if ranks.first else None  # rank 0 reads and writes checkpoints
        about = job.data, job.validation, job.settings, self.trainers[0].model, known
        self.identity: dict[str, str] = (
            job.identity() | digests_of(*about, start=job.net, loaded=job.loaded) if folder else {}
        )
        self._resume(say)
        tensorboard = job.settings.tensorboard
        self.log: Log | None = Log(folder, self.history, tensorboard=tensorboard) if folder else None

    def _resume(self, say: Say) -> None:
        if self.job.directory is None:
            return
        # rank 0's disk decides, so that all ranks start from the same checkpoint
        checkpoint = self.ranks.from_first(
            files.latest(self.job.directory, self.identity, say) if self.ranks.first else None
        )
        if checkpoint is None:
            return
        for trainer in self.trainers:
            files.load_trainer(trainer, checkpoint.tensors, checkpoint.history)
        self.epoch, self.history, self.best = checkpoint.epoch, checkpoint.history, checkpoint.best
        self.stopped, self.seconds, self.saved = checkpoint.stopped, checkpoint.seconds, checkpoint.path
        self.best_tensors = {name: t for name, t in checkpoint.tensors.items() if name.startswith(("best.", "best-"))}

    def finish(self, epoch: int, rows: int, seconds: float) -> list[dict[str, Any]]:
        """Finish an epoch: validate, write log and checkpoint, and return the records."""
        settings = self.job.settings
        records: list[dict[str, Any]] = []
        for trainer in self.trainers:
            record = {
                "epoch": epoch,
                "member": trainer.index,
                "learning_rate": settings.rate(epoch),
                **trainer.end(epoch),
            }
            records.append({**record, "seconds": seconds, "images_per_second": rows / seconds})
        last = epoch + 1 == settings.epochs
        if self.validation is not None and (last or (epoch + 1) % settings.validate_every == 0):
            result = self._validate(self.validation)
            for record in records:
                record |= result
            if self.has_posterior:  # weights without one could not be returned
                self._choose_epoch(epoch, result)
        self.epoch, self.seconds, self.trained = epoch + 1, self.seconds + seconds, True
        self.history += records
        if self.log is not None:
            self.log.add(records)
        if last or self.stopped or self._due(epoch):
            self._save()
        if self.job.on_epoch is not None and self.ranks.first:
            self.calling = True
            self.job.on_epoch(epoch, figures(records))
            self.calling = False
        return records

    def _due(self, epoch: int) -> bool:
        """Return whether a checkpoint is due by epochs and seconds. Rank 0's clock decides."""
        settings = self.job.settings
        if (epoch + 1) % settings.checkpoint_every or not settings.checkpoint_seconds:
            return (epoch + 1) % settings.checkpoint_every == 0
        return self.ranks.from_first(time.monotonic() - self.saved_at >= settings.checkpoint_seconds)

    def _validate(self, data: MemoryData) -> dict[str, float]:
        for trainer in self.trainers:
            trainer.swap_average()
        settings, features, seed = self.job.settings, None, seed_of(self.job.seed, 0, VALIDATE)
        if settings.freeze_trunk:
            trunks = tuple(trunk_key(trainer) for trainer in self.trainers)
            features = self.features.setdefault(trunks, FeatureStore())
        result = validate(self._posterior(None), data, settings, seed, self.threshold, features)
        for trainer in self.trainers:
            trainer.swap_average()
            trainer.train_mode()
        return result

    def _choose_epoch(self, epoch: int, result: dict[str, float]) -> None:
        """Decide by the validation result whether this epoch is the best one and whether to stop."""
        settings = self.job.settings
        if not settings.patience and settings.keep == "last":
            return
        metric = "nll" if settings.patience else "error"  # smaller is better for both
        value = result["validation_nll"] if settings.patience else 1 - result["validation_accuracy"]
        if self.ranks.from_first(not self.best or value < self.best[metric]):
            self.best = {"epoch": epoch, metric: value}
            self.best_tensors = {}
            for trainer in self.trainers:
                trainer.swap_average()
                state = files.model_tensors(trainer, "best")
                self.best_tensors |= {name: tensor.detach().clone() for name, tensor in state.items()}
                trainer.swap_average()
        self.stopped = bool(settings.patience) and epoch - self.best["epoch"] >= settings.patience

    def _save(self) -> None:
        if self.job.directory is None:
            return
        if self.ranks.first:
            tensors = dict(self.best_tensors)
            for trainer in self.trainers:
                tensors |= files.trainer_tensors(trainer)
            checkpoint = files.Checkpoint(
                self.epoch, self.history, self.identity, tensors, self.best, self.stopped, self.seconds
            )
            self.saved = files.save(self.job.directory, checkpoint)
        self.saved, self.saved_at = self.ranks.from_first(self.saved), time.monotonic()

    @property
    def threshold(self) -> float | None:
        known = [trainer.threshold for trainer in self.trainers if trainer.threshold is not None]
        return sum(known) / len(known) if known else None

    def _posterior(self, images: Tensor | None) -> Posterior:
        models = [trainer.model for trainer in self.trainers]
        try:
            posterior, self.has_posterior = self.job.method.posterior(models, images=images), True
            return posterior
        except InputError:
            # SWAG cannot sample before it has collected weights; until then its current weights are validated
            self.has_posterior = False
            return EnsemblePosterior([DeterministicPosterior(model) for model in models])

    def fitted(self, data: Data) -> Fitted:
        """Return the result of training, with the averaged or best weights."""
        for trainer in self.trainers:
            if self.best_tensors:
                files.load_model(trainer, self.best_tensors, "best")
            else:
                trainer.swap_average()
            trainer.optimizer.zero_grad(set_to_none=True)
            unfreeze(trainer.model, trainer.frozen_weights)
            trainer.model.eval()
        models = [trainer.model for trainer in self.trainers]
        # a frozen trunk keeps its batch-norm statistics
        inputs = None if isinstance(data, Stream) or self.job.settings.freeze_trunk else data.inputs
        posterior = self.job.method.posterior(models, images=inputs if isinstance(inputs, Tensor) else None)
        return Fitted(models, posterior, self.history, self.threshold, self.epoch, self.seconds)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
