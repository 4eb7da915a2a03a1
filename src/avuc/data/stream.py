"""Pictures too many for memory, decoded by worker processes; the same batches whatever the number of workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from avuc.core.errors import InputError
from avuc.core.progress import Progress
from avuc.data.arrays import Dataset, epoch_batches
from avuc.data.decode import EvalView, ImageFiles, TrainView, View, decode, decoder_name
from avuc.data.files import check_listed

__all__ = ["Stream", "in_memory"]


class Stream:
    """Batches `(images uint8 (B, H, W, C), labels int64 (B,))` of picture files.

    For training, each epoch has its own order and each picture its own random part and flip, both a function of
    `(seed, epoch, index)` alone: workers, their number and their speed change nothing. For evaluation the order is the
    files' own. `workers` is the number of processes: by default one for each processor, eight at most; 0 decodes in
    this one. With `verify`, a `SHA256SUMS` beside a picture is checked. On a CUDA `device` the copy overlaps with the
    work on the batch before.

        stream = Stream(list_imagenet(ROOT, "train"), 256, train=True, seed=0, workers=8, device="cuda")
        for epoch in range(90):
            for images, labels in stream.epoch(epoch): ...
    """

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        *,
        train: bool = False,
        view: View | None = None,
        size: int = 224,
        seed: int = 0,
        workers: int | None = None,
        decoder: str = "auto",
        device: torch.device | str = "cpu",
        drop_last: bool = False,
        verify: bool = True,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, found {batch_size}")
        processes = min(8, _processors()) if workers is None else workers
        self.files = files
        self.device = torch.device(device)
        self.decoder = decoder_name(decoder)
        if seed < 0:
            raise InputError(f"seed must not be negative, found {seed}")
        chosen: View = view or (TrainView(size) if train else EvalView(size))
        self._batches = _Batches(len(files), batch_size, seed, train, drop_last)
        self._loader: DataLoader[Any] = DataLoader(
            _Decoded(files, chosen, self.decoder, seed, verify),
            batch_sampler=self._batches,
            collate_fn=_collate,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=self.device.type == "cuda",
            # otherwise the loader seeds its workers from the global generator, and so advances it
            generator=torch.Generator().manual_seed(seed),
        )

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch."""
        self._batches.number = epoch
        for images, labels, problem in self._loaded():
            if problem:
                raise InputError(problem)
            if self.device.type == "cpu":
                yield images, labels
            else:
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _loaded(self) -> Iterator[tuple[Tensor, Tensor, str]]:
        try:
            yield from self._loader
        except (RuntimeError, ConnectionError, EOFError) as error:
            workers = self._loader.num_workers
            # torch says which worker is gone; after a kill its queue may break first
            if workers == 0 or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
                raise
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise InputError(
                f"{self.files.name}: a process that decodes pictures was killed ({reason}); the machine has probably "
                f"run out of memory: use fewer workers than {workers} (workers=0 needs the least) or smaller batches"
            ) from error


def in_memory(
    files: ImageFiles,
    view: View,
    *,
    workers: int = 0,
    decoder: str = "auto",
    max_gb: float = 32.0,
    verify: bool = True,
) -> Dataset:
    """Decode all of `files` into one data set; refuses more than `max_gb` of pixels."""
    if not len(files):
        raise InputError(f"{files.root}: no pictures to decode")
    first = _Decoded(files, view, decoder_name(decoder), 0, verify)[0, 0]
    if first.pixels is None:
        raise InputError(first.problem)
    shape, needed = (len(files), *first.pixels.shape), first.pixels.nbytes * len(files)
    if needed > max_gb * 1e9:
        raise InputError(
            f"{files.name}: {shape} takes {needed / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
            "take fewer (limit=), raise max_gb, or read it with avuc.data.Stream"
        )
    stream = Stream(
        files, 64, view=_OneSize(view, first.name, first.pixels), workers=workers, decoder=decoder, verify=verify
    )
    images = torch.empty(shape, dtype=torch.uint8)
    labels = torch.empty(len(files), dtype=torch.int64)
    done = 0
    with Progress(f"decoding {files.name}", len(files)) as bar:
        for batch, targets in stream.epoch():
            images[done : done + len(batch)] = batch
            labels[done : done + len(batch)] = targets
            done += len(batch)
            bar.advance(len(batch))
    origin = f"{files.origin}, decoded with {stream.decoder}"
    return Dataset(images, labels, files.num_classes, files.name, files.class_names, origin)


@dataclass(frozen=True)
class _Item:
    pixels: NDArray[np.uint8] | None
    label: int
    name: str
    problem: str = ""


class _Decoded(TorchDataset[_Item]):
    """What a worker does. A bad file travels back as a sentence: raised in a worker it would become a traceback."""

    def __init__(self, files: ImageFiles, view: View, decoder: str, seed: int, verify: bool) -> None:
        self.files, self.view, self.decoder, self.seed, self.verify = files, view, decoder, seed, verify

    def __getitem__(self, key: tuple[int, int]) -> _Item:
        epoch, index = key
        path = self.files.path(index)
        label = int(self.files.labels[index])
        try:
            if self.verify:
                check_listed(path)
            image = decode(path, decoder=self.decoder, mode=self.view.mode)
        except InputError as error:
            return _Item(None, label, str(path), str(error))
        pixels = self.view(image, np.random.default_rng([self.seed, epoch, index]))
        problem = self.view.against(str(path), pixels) if isinstance(self.view, _OneSize) else ""
        return _Item(None if problem else pixels, label, str(path), problem)


@dataclass(frozen=True)
class _OneSize:
    """A view whose pictures must have the size of the first; others are dropped one by one, before they are many."""

    view: View
    name: str
    first: NDArray[np.uint8]

    @property
    def mode(self) -> str:
        return self.view.mode

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        return self.view(image, rng)

    def against(self, name: str, pixels: NDArray[np.uint8]) -> str:
        return "" if pixels.shape == self.first.shape else _sizes(name, pixels, self.name, self.first)


class _Batches(Sampler[list[tuple[int, int]]]):
    """Lists of (epoch, index); the epoch is set before each pass."""

    def __init__(self, n: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool) -> None:
        self.n, self.batch_size, self.seed, self.shuffle, self.drop_last = n, batch_size, seed, shuffle, drop_last
        self.number = 0

    def __len__(self) -> int:
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.number
        if self.shuffle:
            mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
            batches = epoch_batches(
                self.n, self.batch_size, torch.Generator().manual_seed(mixed), drop_last=self.drop_last
            )
        else:
            batches = iter(torch.arange(self.n).split(self.batch_size)[: len(self)])
        for batch in batches:
            yield [(epoch, index) for index in batch.tolist()]


def _collate(items: list[_Item]) -> tuple[Tensor, Tensor, str]:
    labels = torch.tensor([item.label for item in items], dtype=torch.int64)
    problem = next((item.problem for item in items if item.problem), "")
    pixels = [item.pixels for item in items if item.pixels is not None]
    if not problem:
        for item, array in zip(items, pixels, strict=True):
            if array.shape != pixels[0].shape:
                problem = _sizes(item.name, array, items[0].name, pixels[0])
                break
    if problem:
        return torch.empty(0), labels, problem
    return torch.from_numpy(np.stack(pixels)), labels, ""


def _processors() -> int:
    """Those this process may run on, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sizes(name: str, pixels: NDArray[np.uint8] | Tensor, other: str, before: NDArray[np.uint8] | Tensor) -> str:
    found, expected = (f"{x.shape[1]}×{x.shape[0]}" for x in (pixels, before))
    return f"{name}: {found} pixels, but {other} has {expected}; pass size= to bring all to one size"
