"""Batches of picture files that do not fit in memory, decoded by worker processes."""

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

from avuc.core.errors import InputError, loader_process_died
from avuc.core.progress import Progress
from avuc.data.arrays import Dataset, epoch_batches
from avuc.data.decode import EvalView, ImageFiles, TrainView, View, decode, decoder_name
from avuc.data.files import check_sha256sums


class Stream:
    """Batches of picture files: images uint8 (B, H, W, C) and labels int64 (B,).

    The order of an epoch and the random part and flip of each picture depend on `(seed, epoch, index)` only, so the
    number of workers does not change the batches.

    Args:
        files: from `list_folder`, `list_imagenet` or `list_imagenet_c`.
        batch_size: B; the last batch of an epoch may be smaller.
        train: random order, random parts and flips; default False: the order of the files, and central parts.
        view: a function `(Pillow image, numpy generator) -> uint8 (H, W, C)` with the attribute `mode` (`"RGB"` or
            `"L"`); default: the usual views of ImageNet training and evaluation.
        size: side of the default views; default 224.
        seed: not negative; default 0.
        workers: number of processes that decode; default: one per processor, at most 8. 0 decodes in this process.
        decoder: `"auto"` (default: torchvision if it can be imported, else Pillow), `"pillow"` or `"torchvision"`.
        device: where batches are put; default `"cpu"`. Copies to a GPU overlap with the work on the previous batch.
        drop_last: leave out a smaller last batch; default False.
        verify: compare pictures with `SHA256SUMS` in their folder, if there is one.

    >>> import tempfile
    >>> from avuc.data import list_folder
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("cat.png", "dog.png", "fox.png"):
    ...         Image.new("RGB", (40, 30)).save(f"{root}/{name}")
    ...     stream = Stream(list_folder(root), batch_size=2, size=28, workers=0)
    ...     [tuple(images.shape) for images, labels in stream.epoch()]
    [(2, 28, 28, 3), (1, 28, 28, 3)]
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
            raise InputError(f"batch_size must be at least 1, found {batch_size}; use 1 or more")
        processes = min(8, _processors()) if workers is None else workers
        self.files = files
        self.device: torch.device = torch.device(device)
        self.decoder: str = decoder_name(decoder)
        if seed < 0:
            raise InputError(f"seed must not be negative, found {seed}; use 0 or more")
        chosen: View = view or (TrainView(size) if train else EvalView(size))
        self._batches = _Batches(len(files), batch_size, seed, train, drop_last)
        self._loader: DataLoader[Any] = DataLoader(
            _Decoded(files, chosen, self.decoder, seed, verify),
            batch_sampler=self._batches,
            collate_fn=_collate,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=self.device.type == "cuda",
            # otherwise the loader takes its seed from the global generator and changes its state
            generator=torch.Generator().manual_seed(seed),
        )

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch.

        Args:
            epoch: its number; decides order and random views if `train` is set; default 0.
        """
        self._batches.epoch = epoch
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
            # after a worker is killed, its queue may break before torch notices
            if workers == 0 or (isinstance(error, RuntimeError) and not loader_process_died(error)):
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
    """Decode picture files into one data set.

    Args:
        files: the pictures.
        view: what is cut from each picture; all results must have one size.
        workers: number of processes that decode; default 0, this process.
        decoder: see `Stream`.
        max_gb: more than this many gigabytes of pixels are refused; default 32.
        verify: see `Stream`.
    """
    if not len(files):
        raise InputError(f"{files.root}: no pictures to decode; check the folder")
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
    """Decodes a picture in a worker. Problems are returned as text: errors raised in a worker become tracebacks."""

    def __init__(self, files: ImageFiles, view: View, decoder: str, seed: int, verify: bool) -> None:
        self.files, self.view, self.decoder, self.seed, self.verify = files, view, decoder, seed, verify

    def __getitem__(self, key: tuple[int, int]) -> _Item:
        epoch, index = key
        path = self.files.path(index)
        label = int(self.files.labels[index])
        try:
            if self.verify:
                check_sha256sums(path)
            image = decode(path, decoder=self.decoder, mode=self.view.mode)
        except InputError as error:
            return _Item(None, label, str(path), str(error))
        pixels = self.view(image, np.random.default_rng([self.seed, epoch, index]))
        problem = self.view.problem(str(path), pixels) if isinstance(self.view, _OneSize) else ""
        return _Item(None if problem else pixels, label, str(path), problem)


@dataclass(frozen=True)
class _OneSize:
    """A view whose results must all have the size of the first one; other results are dropped, to save memory."""

    view: View
    name: str
    first: NDArray[np.uint8]

    @property
    def mode(self) -> str:
        return self.view.mode

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        return self.view(image, rng)

    def problem(self, name: str, pixels: NDArray[np.uint8]) -> str:
        """Return what is wrong with the size of a picture, or an empty string."""
        return "" if pixels.shape == self.first.shape else _size_problem(name, pixels, self.name, self.first)


class _Batches(Sampler[list[tuple[int, int]]]):
    """Batches as lists of (epoch, index); `epoch` is set before each pass."""

    def __init__(self, n: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool) -> None:
        self.n, self.batch_size, self.seed, self.shuffle, self.drop_last = n, batch_size, seed, shuffle, drop_last
        self.epoch = 0

    def __len__(self) -> int:
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.epoch
        if self.shuffle:
            seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0]) >> 1
            batches = epoch_batches(
                self.n, self.batch_size, torch.Generator().manual_seed(seed), drop_last=self.drop_last
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
                problem = _size_problem(item.name, array, items[0].name, pixels[0])
                break
    if problem:
        return torch.empty(0), labels, problem
    return torch.from_numpy(np.stack(pixels)), labels, ""


def _processors() -> int:
    """Return the number of processors that this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size_problem(name: str, pixels: NDArray[np.uint8] | Tensor, other: str, before: NDArray[np.uint8] | Tensor) -> str:
    actual, expected = (f"{x.shape[1]}×{x.shape[0]}" for x in (pixels, before))
    return f"{name}: {actual} pixels, but {other} has {expected}; pass size= to bring all to one size"
