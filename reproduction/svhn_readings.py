"""Why SVHN detection is worse than printed: the same trained models, read in different ways.

    python reproduction/svhn_readings.py STUDY --svhn svhn-test.npy --out svhn.csv [--set data.root=FOLDER]

STUDY is a folder that `avuc study cifar10-code` filled, with its models. For every trained SVI and SVI-AvUC model, each
reading changes one thing about how SVHN is detected among clean test images; its AUROC is one line of the CSV file.
`--recipe` and `--methods` read the models of other studies.
Nothing is trained, and no reading is chosen by its result: all of them are written.
"""

from __future__ import annotations

import argparse
import copy
import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from avuc import metrics
from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError, run_script
from avuc.posterior import seeded_generator
from avuc.prediction.predictor import Predictor
from avuc.study.grid import ModelKey
from avuc.study.recipe.load import load_recipe
from avuc.study.worker import StudyWorker
from avuc.uncertainty import entropy, expected_entropy

FIRST = 10_000  # the paper uses the first 10,000 images of SVHN's test set
FEW_DRAWS = 16  # for readings that run the network one draw at a time
BATCH = 500
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

Transform = Callable[[Tensor], Tensor]


def auroc(inside: Tensor, outside: Tensor) -> float:
    return metrics.detection(inside, outside)["auroc"]


def probability_readings(clean: Tensor, svhn: Tensor) -> Iterator[tuple[str, float]]:
    """Readings of the logits (draws, images, classes) of both sets: other scores, fewer draws, more images."""
    inside, outside = clean.softmax(-1), svhn.softmax(-1)
    first = outside[:, :FIRST]
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "entropy": lambda probs: entropy(probs.mean(0)),
        "mutual information": lambda probs: entropy(probs.mean(0)) - expected_entropy(probs),
        "expected entropy": expected_entropy,
        "1 - confidence": lambda probs: 1 - probs.mean(0).amax(-1),
    }
    for name, score in scores.items():
        yield name, auroc(score(inside), score(first))
    for draws in (1, 8, 32):
        yield f"entropy, {draws} draws", auroc(entropy(inside[:draws].mean(0)), entropy(first[:draws].mean(0)))
    yield "entropy, all SVHN test images", auroc(scores["entropy"](inside), scores["entropy"](outside))


def scaled(images: Tensor, change: Transform) -> Tensor:
    """uint8 (N, H, W, C) as float (N, C, H, W) in [0, 1], then changed."""
    return change(images.permute(0, 3, 1, 2).float() / 255)


def as_is(pixels: Tensor) -> Tensor:
    return pixels


def centred(pixels: Tensor) -> Tensor:
    return (pixels - 0.5) / 0.5


def standardised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (CIFAR_MEAN, CIFAR_STD))
    return (pixels - mean) / std


PIXELS: dict[str, tuple[Transform, Transform]] = {
    "SVHN pixels in [-1, 1], clean in [0, 1]": (as_is, centred),
    "SVHN pixels standardised, clean in [0, 1]": (as_is, standardised),
    "both in [-1, 1]": (centred, centred),
    "both standardised": (standardised, standardised),
}


@torch.no_grad()
def mean_entropy(draws: list[Callable[[Tensor], Tensor]], images: Tensor, change: Transform) -> Tensor:
    """Entropy of the mean prediction of some draws, batch by batch."""
    parts = []
    for batch in images.split(BATCH):
        pixels = scaled(batch, change)
        parts.append(entropy(torch.stack([draw(pixels).float().softmax(-1) for draw in draws]).mean(0)))
    return torch.cat(parts)


def in_training_mode(model: nn.Module, seed: int) -> list[Callable[[Tensor], Tensor]]:
    """Draws whose batch normalisation uses the statistics of the test batch: a network left in training mode."""
    own = copy.deepcopy(model).train()
    torch.manual_seed(seed)
    return [own] * FEW_DRAWS  # every call draws new weights


def readings_of(
    work: StudyWorker, key: ModelKey, clean: Tensor, svhn: Tensor, samples: int
) -> Iterator[tuple[str, float]]:
    posterior = work.posterior(key)
    predictor = Predictor(posterior, samples=samples, seed=key.seed)
    yield from probability_readings(predictor.logits(clean), predictor.logits(svhn))
    generators = [seeded_generator(key.seed, index, device=work.device) for index in range(min(FEW_DRAWS, samples))]
    draws = [posterior.draw(generator) for generator in generators]
    first = svhn[:FIRST]
    for name, (change_clean, change_svhn) in PIXELS.items():
        yield name, auroc(mean_entropy(draws, clean, change_clean), mean_entropy(draws, first, change_svhn))
    assert isinstance(posterior, nn.Module)
    batch_draws = in_training_mode(posterior, key.seed)[: len(draws)]
    name = f"batch normalisation by the test batch of {BATCH}"
    yield name, auroc(mean_entropy(batch_draws, clean, as_is), mean_entropy(batch_draws, first, as_is))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="SVHN detection of a study's models, read in different ways")
    parser.add_argument("study", type=Path, help="folder of a cifar10-code study, with its models")
    parser.add_argument("--svhn", type=Path, required=True, help="SVHN test images, uint8 (N, 32, 32, 3)")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--recipe", default="cifar10-code", help="recipe of the study (default: cifar10-code)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument(
        "--methods",
        action="append",
        metavar="METHOD",
        help="a method to read; may be repeated (default: SVI and SVI-AvUC)",
    )
    parser.add_argument("--samples", type=int, default=128, help="posterior draws (default: 128)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    recipe = load_recipe(args.recipe, args.set)
    work = StudyWorker(recipe, args.study, args.device, progress=False)
    clean = work.data.test.images
    svhn = torch.from_numpy(np.load(args.svhn, allow_pickle=False)).to(args.device)
    names = args.methods or ["SVI", "SVI-AvUC"]
    keys = [ModelKey(name, seed) for name in names for seed in recipe.seeds(recipe.row(name))]
    keys = [key for key in keys if work.holds(key)]
    if not keys:
        raise InputError(
            f"{args.study}: no trained models of {', '.join(names)}; run avuc study {args.recipe} there first"
        )
    with atomic_path(args.out) as path, path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["method", "seed", "reading", "auroc"])
        for key in keys:
            for reading, value in readings_of(work, key, clean, svhn, args.samples):
                table.writerow([key.method, key.seed, reading, f"{value:.5f}"])
                print(f"{key.method} {key.seed} {reading}: {value:.4f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_script(main)
