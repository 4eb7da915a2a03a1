"""Does the printed AvUC loss trap a network in high uncertainty? A small network on very noisy digits, on a CPU.

    python reproduction/uncertain_trap.py            # trains 40 networks (about six minutes), writes the results
    python reproduction/uncertain_trap.py --table    # the table of docs/reference/printed-loss.md, from the results

A perceptron with batch normalisation learns 4,000 digits with Gaussian noise (standard deviation 1.4, new in every
step), so that a third of its predictions stay wrong. Optimizer {SGD with the settings of the factorial experiment,
Adam} × loss {none, AvUC as printed, `stopgrad`, `monotone`}, β = 3, five paired seeds, no temperature. The noise was
chosen in trials with seed 0, which is not used again: with less noise (0.8) the printed loss did not do this harm.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from difference_cell import difference_cell

import avuc
from avuc.core.atomic import write_text
from avuc.data import Dataset, as_input, load_dataset

RESULTS = Path(__file__).parent / "results" / "uncertain-trap.csv"
NOISE, EPOCHS, BATCH, BETA, WARMUP = 1.4, 15, 107, 3.0, 2
SEEDS = (1, 2, 3, 4, 5)
OPTIMIZERS = ("SGD", "Adam")
LOSSES = ("none", "paper", "stopgrad", "monotone")
METRICS = ("accuracy", "mean_confidence", "ece", "nll")
HEAD = ("optimizer", "loss", "seed", *METRICS)


@cache
def digits() -> tuple[Dataset, Dataset]:
    """Return the training and the test digits."""
    return load_dataset("mnist5k"), load_dataset("mnist5k", split="test")


def train(optimizer: str, loss: str, seed: int, epochs: int = EPOCHS, rows: int = 4000) -> dict[str, float]:
    """Train one network and return its figures on the noisy test digits.

    Args:
        optimizer: one of `OPTIMIZERS`.
        loss: one of `LOSSES`.
        seed: seed of the weights, the batches and the noise.
        epochs: number of epochs.
        rows: number of training digits.
    """
    data, test = digits()
    images, labels = as_input(data.images[:rows]), data.labels[:rows]
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    for size in (784, 128):
        layers += [torch.nn.Linear(size, 128, bias=False), torch.nn.BatchNorm1d(128), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10))
    sgd = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimiser = (
        torch.optim.SGD(net.parameters(), **sgd) if optimizer == "SGD" else torch.optim.Adam(net.parameters(), 1.2e-3)
    )
    avuc_loss = None if loss == "none" else avuc.AvUCLoss(beta=BETA, variant=loss, warmup_epochs=WARMUP)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            logits = net(images[batch] + NOISE * torch.randn(images[batch].shape))
            total = F.cross_entropy(logits, labels[batch])
            if avuc_loss is not None:
                total = total + avuc_loss(logits, labels[batch])
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        if avuc_loss is not None:
            avuc_loss.epoch_end()
    generator = torch.Generator().manual_seed(0)  # the same noise for every network
    noisy = as_input(test.images) + NOISE * torch.randn(test.images.shape, generator=generator).permute(0, 3, 1, 2)
    with torch.no_grad():
        predictions = avuc.Predictions.from_logits(net.eval()(noisy), test.labels)
    values = avuc.metrics.evaluate(predictions)
    return {key: float(predictions.confidence.mean() if key == "mean_confidence" else values[key]) for key in METRICS}


def run(seeds: Sequence[int] = SEEDS, **options: int) -> str:
    """Return the figures of every network as CSV."""
    lines = [",".join(HEAD)]
    for optimizer in OPTIMIZERS:
        for loss in LOSSES:
            for seed in seeds:
                values = train(optimizer, loss, seed, **options)
                lines.append(",".join([optimizer, loss, str(seed), *(f"{values[key]:.5f}" for key in METRICS)]))
                print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def table(path: Path = RESULTS) -> str:
    """Return the means without AvUC, and the paired differences of each variant with their 95 % intervals."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        for metric in METRICS:
            values.setdefault((row["optimizer"], row["loss"], metric), {})[row["seed"]] = float(row[metric])
    lines = ["| optimizer | loss | accuracy in % | mean confidence in % | ECE | NLL |", "|---|---|---:|---:|---:|---:|"]
    for optimizer in OPTIMIZERS:
        for loss in LOSSES:
            cells = [optimizer, "cross-entropy" if loss == "none" else f"AvUC `{loss}`"]
            for metric in METRICS:
                scale, decimals = (100, 1) if metric in METRICS[:2] else (1, 3)
                base, compared = values[optimizer, "none", metric], values[optimizer, loss, metric]
                if loss == "none":
                    cells.append(f"{scale * sum(base.values()) / len(base):.{decimals}f}")
                    continue
                cells.append(difference_cell(compared, base, scale, decimals))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table; train nothing")
    if not parser.parse_args().table:
        write_text(RESULTS, run())
    print(table(), end="")


if __name__ == "__main__":
    main()
