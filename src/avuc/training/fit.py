"""`fit`: the training loop for every method and objective; `fit_many` trains several models at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.accelerators import training_steps
from avuc.core.errors import InputError
from avuc.core.progress import Progress
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData, TensorData
from avuc.losses.linear.inputs import without_autocast
from avuc.methods import Method, Objective
from avuc.prediction.in_memory import in_memory, is_loaded
from avuc.prediction.inputs import with_index
from avuc.training.batch_norm_check import warn_about_averages
from avuc.training.captured import CapturedSteps
from avuc.training.compiled_steps import CompiledSteps
from avuc.training.distributed import Ranks
from avuc.training.epochs import OnEpoch
from avuc.training.failures import diverged, misfit, rank_lost
from avuc.training.feature_steps import feature_steps
from avuc.training.first_batch import check_first_batch, check_first_images, one_of_each_net
from avuc.training.fitted import Fitted
from avuc.training.identity import Digests
from avuc.training.last_batch import check_last_batch
from avuc.training.log import silent, summary, to_stderr
from avuc.training.model_trainer import ModelTrainer
from avuc.training.run import Data, Features, Job, Run
from avuc.training.settings import TrainSettings
from avuc.training.start import Net, check_arguments
from avuc.training.steps import Diverged, EagerSteps, Steps, check


class OutOfTime(Exception):
    """Training stopped at the end of an epoch because the given time is over. The same call resumes it."""


def fit(
    method: Method,
    net: Net,
    data: Any,
    *,
    objective: Objective | None = None,
    settings: TrainSettings | None = None,
    validation: Any = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    directory: str | Path | None = None,
    progress: bool = True,
    on_epoch: OnEpoch | None = None,
) -> Fitted:
    """Train a method and return the result, which holds its posterior.

    Args:
        method: what to train, for example `avuc.methods.SVI()`.
        net: a function that takes a `torch.Generator` and returns a network (each model of an ensemble then starts
            differently), or a network, whose weights are the start. The network is copied.
        data: a `Dataset`, which is moved to the device once, or a `Stream` of batches from files. A pair (inputs,
            labels) of tensors, a mapping of tensors with "labels", a torch Dataset or a DataLoader is read into memory
            once: its batch size is not used, and a random transform is applied once, not in each epoch.
        objective: the loss; cross-entropy or the negative ELBO by default.
        settings: how to train; the paper's CIFAR-10 recipe by default.
        validation: held-out data in one of these forms, but no `Stream`, evaluated after epochs. `settings.patience`
            and `settings.keep` need them.
        seed: determines everything random.
        device: where to train.
        directory: folder for checkpoints and `log.jsonl`. The same call resumes an interrupted run from there, and
            only reads back a finished one.
        progress: show a progress bar.
        on_epoch: called after each epoch with its number (from 0) and a dict of its figures, averaged over the models
            of an ensemble; on rank 0 only. What it raises ends the training. `avuc.trackers` has ready ones.

    >>> from avuc.data import load_dataset
    >>> from avuc.methods import SVI
    >>> from avuc.nets import mlp
    >>> data = load_dataset("mnist5k").subset(range(0, 4000, 20))
    >>> settings = TrainSettings(epochs=2, batch_size=50, pad=0, flip=False)
    >>> fitted = fit(SVI(), lambda g: mlp(generator=g), data, objective=Objective("avuc", warmup_epochs=1),
    ...              settings=settings, progress=False)
    >>> len(fitted.history), fitted.threshold > 0
    (2, True)
    """
    check_arguments(method, net, objective, settings)
    train, held_out = own_data(data, validation)
    job = Job(
        method,
        net,
        train,
        objective or Objective(),
        settings or TrainSettings(),
        held_out,
        seed,
        None if directory is None else Path(directory),
        on_epoch,
        is_loaded(data),
    )
    return fit_many([job], device=device, progress=progress)[0]


def own_data(data: Any, validation: Any) -> tuple[Data, MemoryData | None]:
    """Return the arguments of `fit` with data of other libraries in memory."""
    train = data if isinstance(data, Stream) else in_memory(data, "data")
    if validation is None:
        return train, None
    classes = train.files.num_classes if isinstance(train, Stream) else train.num_classes
    return train, in_memory(validation, "validation", classes)


def fit_many(
    jobs: Sequence[Job], *, device: torch.device | str = "cpu", progress: bool = True, until: float | None = None
) -> list[Fitted]:
    """Train several jobs and return their results. Each job ends as it would have ended alone.

    Jobs with the same data and settings take their steps together, on a GPU as one CUDA graph. With a frozen trunk and
    no augmentation they take them on its features (docs/reference/training.md). Jobs that differ in data
    or settings are trained one after the other.

    Args:
        jobs: what to train: other seeds, methods or ensembles.
        device: where to train.
        progress: show a progress bar.
        until: a value of `time.monotonic()`. After that time no epoch starts; checkpoints are written and `OutOfTime`
            is raised.

    >>> from avuc.data import load_dataset
    >>> from avuc.methods import SVI, Vanilla
    >>> from avuc.nets import mlp
    >>> data = load_dataset("mnist5k").subset(range(0, 4000, 40))
    >>> settings = TrainSettings(epochs=1, pad=0, flip=False)
    >>> jobs = [Job(method, lambda g: mlp(generator=g), data, Objective(), settings) for method in (Vanilla(), SVI())]
    >>> [len(fitted.history) for fitted in fit_many(jobs, progress=False)]
    [1, 1]
    """
    device = with_index(torch.device(device))
    directories = [job.directory.resolve() for job in jobs if job.directory is not None]
    if len(set(directories)) != len(directories):
        raise InputError("fit_many: two jobs have the same directory; give each its own")
    ranks = Ranks()
    say = to_stderr if ranks.first else silent
    for line in dict.fromkeys(job.objective.unused_reason(job.settings.epochs) for job in jobs):
        if line:
            say(f"warning: {line}")
    done: dict[int, Fitted] = {}
    known: Digests = {}
    features: Features = {}
    groups: dict[tuple[int, TrainSettings], list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault((id(job.data), job.settings), []).append(number)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), without_autocast(device.type):  # the settings decide, not the caller
        for numbers in groups.values():
            data = jobs[numbers[0]].data
            data = data if isinstance(data, Stream) else data.to(device)
            runs = [Run(jobs[number], device, ranks, say, known, features) for number in numbers]
            Loop(runs, data, ranks, say, progress=progress and ranks.first, until=until).run()
            results = [run.fitted(data) for run in runs]
            warn_about_averages(runs, results, data, say)
            done |= dict(zip(numbers, results, strict=True))
    return [done[number] for number in range(len(jobs))]


class Loop:
    """The epochs of runs that share data and settings. All runs are in the same epoch."""

    def __init__(
        self,
        runs: Sequence[Run],
        data: Data,
        ranks: Ranks,
        say: Callable[[str], None],
        *,
        progress: bool,
        until: float | None = None,
    ) -> None:
        self.runs: Sequence[Run] = runs
        self.data: Data = data
        self.ranks: Ranks = ranks
        self.say: Callable[[str], None] = say
        self.progress: bool = progress
        self.until = until
        self.settings: TrainSettings = runs[0].job.settings
        self.rows: int = len(data.files) if isinstance(data, Stream) else len(data)
        self.steps_per_epoch: int = -(-self.rows // self.settings.batch_size)
        self._steps: dict[tuple[int, ...], list[Steps]] = {}
        self._features: dict[Hashable, Tensor | None] = {}  # of frozen trunks
        self._checked = False  # whether the first batch of a stream was

    def run(self) -> None:
        """Train until all epochs are done."""
        epochs = range(min(run.epoch for run in self.runs), self.settings.epochs)
        bar = Progress("training", len(epochs) * self.steps_per_epoch) if self.progress and epochs else None
        try:
            unfinished = [run for run in self.runs if run.epoch in epochs]
            check_last_batch([one for run in unfinished for one in run.trainers], self.data)
            check_first_batch(one_of_each_net(unfinished), self.data)
            for epoch in epochs:
                # after a kill, runs may be at different epochs; those ahead wait for the others
                active = [run for run in self.runs if run.epoch == epoch and not run.stopped]
                if not active:
                    continue
                self._check_time()
                if bar is not None:
                    bar.label = f"epoch {epoch + 1}/{self.settings.epochs}"
                started = time.perf_counter()
                self._epoch(active, epoch, bar)
                seconds = time.perf_counter() - started
                records = [record for run in active for record in run.finish(epoch, self.rows, seconds)]
                if bar is not None:
                    bar.advance(0, summary(records))
        except Diverged as error:
            run = next(run for run in self.runs if error.trainer in run.trainers)
            raise diverged(error, run, epoch) from None
        except (RuntimeError, TypeError) as error:
            if any(run.calling for run in self.runs):
                raise
            line = misfit(error, self.runs[0].trainers[0].model, self.data)
            if line is None and (self.ranks.size == 1 or isinstance(error, TypeError)):
                raise
            raise line or rank_lost(error, self.ranks, self.runs[0].saved, epoch) from error
        finally:
            self._release()
            for run in self.runs:
                run.close()
            if bar is not None:
                bar.close()

    def _check_time(self) -> None:
        """Raise `OutOfTime` if the time is over. Rank 0's clock decides, so that all ranks stop at the same epoch."""
        if self.until is None or not self.ranks.from_first(time.monotonic() >= self.until):
            return
        for run in self.runs:
            if run.epoch and not run.stopped:
                run._save()
        raise OutOfTime("training: its time is over")

    def _epoch(self, active: Sequence[Run], epoch: int, bar: Progress | None) -> None:
        trainers = [trainer for run in active for trainer in run.trainers]
        for batch, step in self._batches(trainers, epoch):
            step(batch)
            if bar is not None:
                bar.advance()
        for trainer in trainers:
            check(trainer)

    def _batches(self, trainers: Sequence[ModelTrainer], epoch: int) -> Iterator[tuple[Any, Callable[[Any], None]]]:
        """Begin an epoch and yield its batches, each with the function that takes a step on it."""
        data, size = self.data, self.settings.batch_size
        steps = [] if isinstance(data, Stream) else self._joint_steps(trainers, data)
        torch.manual_seed(trainers[0].global_seed(epoch))
        trainers = [trainer for part in steps for trainer in part.trainers] or trainers
        for trainer in trainers:
            trainer.begin(epoch)
        if isinstance(data, Stream):
            step = EagerSteps(trainers).on_stream
            for batch in data.epoch(epoch):
                if not self._checked:
                    check_first_images(one_of_each_net(self.runs), *batch)
                    self._checked = True
                yield batch, step
            return

        def joint(indices: Tensor) -> None:
            for part, rows in zip(steps, indices.split([len(part.trainers) for part in steps]), strict=True):
                part(rows)

        orders = torch.stack([trainer.order(self.rows, epoch) for trainer in trainers]).to(data.device)
        for indices in orders.split(size, dim=1):
            yield indices, joint

    def _joint_steps(self, trainers: Sequence[ModelTrainer], data: MemoryData) -> list[Steps]:
        """Return the steps of these models. They are kept, because capturing takes time."""
        key = tuple(id(trainer) for trainer in trainers)
        if key not in self._steps:
            self._release()  # a model has stopped or caught up, so other models train together now
            self._steps[key] = self._new_steps(trainers, data)
        sizes = [self.settings.batch_size] * (self.rows >= self.settings.batch_size)
        sizes += [self.rows % self.settings.batch_size] * (self.rows % self.settings.batch_size > 0)
        for part in self._steps[key]:
            part.prepare(sizes)
        return self._steps[key]

    def _new_steps(self, trainers: Sequence[ModelTrainer], data: MemoryData) -> list[Steps]:
        settings = self.settings
        steps: list[Steps] = []
        if settings.freeze_trunk:
            fast_steps, trainers = feature_steps(trainers, data, self._features, progress=self.progress)
            steps += fast_steps
            if not trainers:
                return steps
        on_gpu = data.device.type == "cuda" and (settings.capture or settings.compile)
        if isinstance(data, TensorData) or not on_gpu:
            return [*steps, EagerSteps(trainers, data)]
        if self.ranks.size > 1:
            return [(CompiledSteps(trainers, data, self.say) if settings.compile else EagerSteps(trainers, data))]
        stacked = training_steps()
        groups: dict[Hashable, list[ModelTrainer]] = {}
        for trainer in trainers:
            supported = stacked is not None and stacked.unsupported_reason(trainer, data) is None
            groups.setdefault(stacked.signature(trainer) if stacked and supported else None, []).append(trainer)
        for kind, group in groups.items():
            make = CapturedSteps if kind is None or stacked is None else stacked.steps
            # parts of equal size, so that they share what is compiled
            count = -(-len(group) // settings.models_per_step)
            bounds = [len(group) * part // count for part in range(count + 1)]
            steps += [make(group[start:stop], data, self.say) for start, stop in pairwise(bounds)]
        return steps

    def _release(self) -> None:
        for steps in self._steps.values():
            for part in steps:
                part.release()
        self._steps.clear()
