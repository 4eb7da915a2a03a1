"""`fit`: the one training loop, for every method and objective; `fit_many` for several models at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.progress import Progress
from avuc.data.arrays import Dataset
from avuc.gpu.stacked.choice import reason_against, signature
from avuc.gpu.stacked.steps import StackedSteps
from avuc.methods import Method, Objective
from avuc.training.captured import FastSteps
from avuc.training.distributed import Ranks
from avuc.training.log import summary
from avuc.training.model_trainer import Member, Net
from avuc.training.run import Data, Fitted, Job, Run
from avuc.training.settings import TrainSettings
from avuc.training.steps import Diverged, EagerSteps, Steps, check

__all__ = ["OutOfTime", "fit", "fit_many"]


class OutOfTime(Exception):
    """Training has stopped at the end of an epoch because its time was over; the same call goes on from there."""


def fit(
    method: Method,
    net: Net,
    data: Data,
    *,
    objective: Objective | None = None,
    settings: TrainSettings | None = None,
    validation: Dataset | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    directory: str | Path | None = None,
    progress: bool = True,
) -> Fitted:
    """Train a method on data; the result holds its posterior.

    net: a function of a `torch.Generator` that makes the network (each model of an ensemble gets its own start), or a
        network, whose weights are where training starts.
    data: a `Dataset`, which moves to the device once, or a `Stream`, whose batches come from files.
    validation: looked at after epochs; only it can stop training early (`settings.patience`).
    directory: checkpoints and `log.jsonl` go there, and a run that was interrupted goes on from there; a finished one
        is only read back.

    Everything random follows from `seed`.

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
    job = Job(
        method,
        net,
        data,
        objective or Objective(),
        settings or TrainSettings(),
        validation,
        seed,
        None if directory is None else Path(directory),
    )
    return fit_many([job], device=device, progress=progress)[0]


def fit_many(
    jobs: Sequence[Job], *, device: torch.device | str = "cpu", progress: bool = True, until: float | None = None
) -> list[Fitted]:
    """Train several jobs side by side: seeds, methods, members of ensembles. Each ends as it would have alone.

    Jobs that share their data and settings take their steps together, on a GPU as one captured graph: CIFAR ResNets as
    one stacked network, others with a stream for each model. Groups that differ in these follow one another.

    until: a value of `time.monotonic()`; once it is past, no further epoch begins: checkpoints are written and
        `OutOfTime` is raised.
    """
    place = torch.device(device)
    if str(place) == "cuda":
        place = torch.device("cuda", torch.cuda.current_device())
    directories = [job.directory.resolve() for job in jobs if job.directory is not None]
    if len(set(directories)) != len(directories):
        raise InputError("fit_many: two jobs have the same directory; give each its own")
    ranks = Ranks()
    say = _say if ranks.first else _silent
    done: dict[int, Fitted] = {}
    groups: dict[tuple[int, TrainSettings], list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault((id(job.data), job.settings), []).append(number)
    devices = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for numbers in groups.values():
            data = jobs[numbers[0]].data
            data = data.to(place) if isinstance(data, Dataset) else data
            runs = [Run(jobs[number], place, ranks, say) for number in numbers]
            Loop(runs, data, ranks, say, progress=progress and ranks.first, until=until).run()
            done |= {number: run.fitted(data) for number, run in zip(numbers, runs, strict=True)}
    return [done[number] for number in range(len(jobs))]


class Loop:
    """The epochs of runs that share data and settings, in lockstep."""

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
        self.runs, self.data, self.ranks, self.say, self.progress = runs, data, ranks, say, progress
        self.until = until
        self.settings = runs[0].job.settings
        self.rows = len(data) if isinstance(data, Dataset) else len(data.files)
        self.steps_per_epoch = -(-self.rows // self.settings.batch_size)
        self._steps: dict[tuple[int, ...], list[Steps]] = {}

    def run(self) -> None:
        epochs = range(min(run.epoch for run in self.runs), self.settings.epochs)
        bar = Progress("training", len(epochs) * self.steps_per_epoch) if self.progress and epochs else None
        try:
            for epoch in epochs:
                # after a kill runs may stand at different epochs; those ahead wait until the others catch up
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
            raise self._diverged(error, epoch) from None
        except RuntimeError as error:
            if self.ranks.size == 1:
                raise
            raise self._lost(error, epoch) from error
        finally:
            self._release()
            for run in self.runs:
                run.close()
            if bar is not None:
                bar.close()

    def _check_time(self) -> None:
        """Between epochs. The first rank's clock decides: all ranks stop at the same epoch."""
        if self.until is None or not self.ranks.from_first(time.monotonic() >= self.until):
            return
        for run in self.runs:
            if run.epoch and not run.stopped:
                run._save()
        raise OutOfTime("training: its time is over")

    def _epoch(self, active: Sequence[Run], epoch: int, bar: Progress | None) -> None:
        members = [member for run in active for member in run.members]
        for indices, steps in self._begun(members, epoch):
            steps(indices)
            if bar is not None:
                bar.advance()
        for member in members:
            check(member)

    def _begun(self, members: Sequence[Member], epoch: int) -> Iterator[tuple[Any, Callable[[Any], None]]]:
        """Start an epoch: its batches, and what to do with each."""
        data, size = self.data, self.settings.batch_size
        steps = self._joint_steps(members, data) if isinstance(data, Dataset) else []
        torch.manual_seed(members[0].global_seed(epoch))
        members = [member for one in steps for member in one.members] or members
        for member in members:
            member.begin(epoch)
        if not isinstance(data, Dataset):
            for batch in data.epoch(epoch):
                yield batch, EagerSteps(members).on_stream
            return

        def joint(indices: Tensor) -> None:
            for one, part in zip(steps, indices.split([len(one.members) for one in steps]), strict=True):
                one(part)

        orders = torch.stack([member.order(self.rows, epoch) for member in members]).to(data.device)
        for indices in orders.split(size, dim=1):
            yield indices, joint

    def _joint_steps(self, members: Sequence[Member], data: Dataset) -> list[Steps]:
        """How these models take their steps: kept, because capturing them takes time."""
        key = tuple(id(member) for member in members)
        if key not in self._steps:
            self._release()  # models have stopped, or caught up: other graphs from now on
            self._steps[key] = self._new_steps(members, data)
        sizes = [self.settings.batch_size] * (self.rows >= self.settings.batch_size)
        sizes += [self.rows % self.settings.batch_size] * (self.rows % self.settings.batch_size > 0)
        for one in self._steps[key]:
            one.prepare(sizes)
        return self._steps[key]

    def _new_steps(self, members: Sequence[Member], data: Dataset) -> list[Steps]:
        settings = self.settings
        fast = data.device.type == "cuda" and (settings.capture or settings.compile)
        if fast and self.ranks.size > 1:
            self.say(f"training: the steps of {self.ranks.size} ranks run eagerly, neither compiled nor captured")
        if not fast or self.ranks.size > 1:
            return [EagerSteps(members, data)]
        groups: dict[Hashable, list[Member]] = {}
        for member in members:
            kind = signature(member) if reason_against(member, data) is None else None
            groups.setdefault(kind, []).append(member)
        steps: list[Steps] = []
        for kind, group in groups.items():
            # parts of even sizes: what is compiled for one serves the next
            count = -(-len(group) // settings.at_once)
            bounds = [len(group) * part // count for part in range(count + 1)]
            for start, stop in pairwise(bounds):
                part = group[start:stop]
                steps.append((FastSteps if kind is None else StackedSteps)(part, data, self.say))
        return steps

    def _release(self) -> None:
        for steps in self._steps.values():
            for one in steps:
                if isinstance(one, StackedSteps):
                    one.release()
        self._steps.clear()

    def _diverged(self, error: Diverged, epoch: int) -> InputError:
        run = next(run for run in self.runs if error.member in run.members)
        saved = "there is no checkpoint" if run.saved is None else f"the last good checkpoint is {run.saved}"
        return InputError(
            f"training {run.job.method.name} (seed {run.job.seed}, model {error.member.index}): epoch {epoch}, "
            f"{error}; {saved}; a lower learning_rate, clip_norm or precision float32 may help"
        )

    def _lost(self, error: RuntimeError, epoch: int) -> InputError:
        saved = self.runs[0].saved
        again = "there is no checkpoint yet" if saved is None else f"the last checkpoint is {saved}"
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        return InputError(
            f"rank {self.ranks.rank} of {self.ranks.size} stopped in epoch {epoch} ({reason}): most likely another "
            f"rank has died; {again}: run the same command again, with any number of ranks"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silent(line: str) -> None:
    return
