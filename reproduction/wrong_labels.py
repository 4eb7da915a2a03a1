"""Does AvUC help with wrong labels on other data, with SGD, and against label smoothing? Small networks, on a CPU.

    python reproduction/wrong_labels.py            # trains 100 networks, writes the results
    python reproduction/wrong_labels.py --table    # the table of docs/reproduction/when-avuc-helps.md, from the results

With CIFAR-10 and 20 % wrong labels, `monotone` helped (recipes/factorial-noisy-labels.toml). This experiment tries to
repeat it. A small convolutional network learns 3,500 digits of MNIST, of which 20 % have a wrong label. Optimizer
{Adam, SGD with weight decay} × loss {cross-entropy, AvUC as printed, `monotone`, a confidence penalty, label
smoothing}, β = 3, ten paired seeds. The temperature is learned on 500 digits with right labels. Test data: 1,000
digits, clean and with all 19 shifts of the library at intensity 5.

Fixed before the ten seeds were run: the primary figures, which are those of the factorial experiment that need no
other data (NLL, ECE, AURC and AvU-AUC at intensity 5, all with a temperature) and accuracy on clean digits; and the
strength of the penalty (`PENALTY`), the one of 0.1, 0.3 and 1 whose mean confidence on the 500 digits is nearest to
that of `monotone`, with seed 0, which is not used again. Label smoothing has its usual strength, 0.1. Nothing else was
tuned.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from difference_cell import difference_cell
from noisy_labels import with_noise
from torch import Tensor

import avuc
from avuc.calibration import TemperatureScaling
from avuc.core.atomic import write_text
from avuc.data import as_input, load_dataset
from avuc.nets.small_cnn import small_cnn
from avuc.shifts import SHIFTS, corrupt
from avuc.uncertainty import entropy

RESULTS = Path(__file__).parent / "results" / "wrong-labels.csv"
SHARE, HELD_OUT, EPOCHS, BATCH, BETA, WARMUP = 0.2, 500, 40, 107, 3.0, 5
SEEDS = tuple(range(1, 11))
PENALTY = {"Adam": 0.3, "SGD": 0.1}
SMOOTHING = 0.1
LOSSES = {
    "none": "cross-entropy",
    "paper": "AvUC as printed",
    "monotone": "AvUC `monotone`",
    "penalty": "confidence penalty",
    "smoothing": "label smoothing",
}
METRICS = ("nll", "ece", "aurc", "avu_auc")
FIGURES = (
    *(f"{metric}_5" for metric in METRICS),
    "accuracy_5",
    "accuracy_clean",
    "confidence",
    "learned",
    "temperature",
)
HEAD = ("optimizer", "loss", "seed", *FIGURES)


@cache
def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    """Return the training, held-out and test digits; only the training labels are wrong."""
    data, test = load_dataset("mnist5k"), load_dataset("mnist5k", split="test")
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    sets = {"clean": test.images} | {name: corrupt(test.images, name, 5) for name in SHIFTS}
    return (
        (as_input(data.images[training]), with_noise(data.labels[training], 10, SHARE)),
        (as_input(data.images[held_out]), data.labels[held_out]),
        {name: (as_input(images), test.labels) for name, images in sets.items()},
    )


def train(optimizer: str, loss: str, seed: int, *, strength: float | None = None, **options: int) -> dict[str, float]:
    """Train one network and return its figures.

    Args:
        optimizer: "Adam" or "SGD".
        loss: a key of `LOSSES`.
        seed: seed of the weights and the batches.
        strength: of the confidence penalty; default: `PENALTY`.
        options: `epochs`, and `rows`, the number of training digits.
    """
    (images, labels), held_out, sets = digits()
    epochs, rows = options.get("epochs", EPOCHS), options.get("rows", len(labels))
    images, labels = images[:rows], labels[:rows]
    torch.manual_seed(seed)
    net = small_cnn(10, (28, 28, 1))
    sgd = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimiser = (
        torch.optim.SGD(net.parameters(), **sgd) if optimizer == "SGD" else torch.optim.Adam(net.parameters(), 1.2e-3)
    )
    steps = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs * 6 // 10, epochs * 8 // 10])
    avuc_loss = avuc.AvUCLoss(beta=BETA, variant=loss, warmup_epochs=WARMUP) if loss in ("paper", "monotone") else None
    penalty = (PENALTY[optimizer] if strength is None else strength) if loss == "penalty" else 0.0
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            logits = net(images[batch])
            total = F.cross_entropy(logits, labels[batch], label_smoothing=SMOOTHING if loss == "smoothing" else 0.0)
            if avuc_loss is not None:
                total = total + avuc_loss(logits, labels[batch])
            if penalty and epoch >= WARMUP:
                total = total - penalty * entropy(logits.softmax(-1)).mean()
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        steps.step()
        if avuc_loss is not None:
            avuc_loss.epoch_end()
    net.eval()
    with torch.no_grad():
        outputs = net(held_out[0])
        calibrator = TemperatureScaling().fit(outputs, held_out[1])
        values = {
            name: avuc.metrics.evaluate(avuc.Predictions.from_logits(calibrator.transform(net(inputs)), truth))
            for name, (inputs, truth) in sets.items()
        }
        learned = float((net(images).argmax(-1) == labels).double().mean())
    means = {
        metric: sum(float(values[name][metric]) for name in SHIFTS) / len(SHIFTS) for metric in (*METRICS, "accuracy")
    }
    return {f"{metric}_5": value for metric, value in means.items()} | {
        "accuracy_clean": float(values["clean"]["accuracy"]),
        "confidence": float(outputs.softmax(-1).amax(-1).double().mean()),
        "learned": learned,
        "temperature": calibrator.temperature_,
    }


def _one(job: tuple[str, str, int, dict[str, int]]) -> str:
    optimizer, loss, seed, options = job
    torch.set_num_threads(1)
    values = train(optimizer, loss, seed, **options)
    return ",".join([optimizer, loss, str(seed), *(f"{values[name]:.5f}" for name in FIGURES)])


def run(seeds: Sequence[int] = SEEDS, processes: int = 2, **options: int) -> str:
    """Return the figures of every network as CSV."""
    jobs = [(optimizer, loss, seed, options) for optimizer in PENALTY for loss in LOSSES for seed in seeds]
    lines = [",".join(HEAD)]
    with get_context("spawn").Pool(processes) as pool:
        for line in pool.imap(_one, jobs):
            lines.append(line)
            print(line, flush=True)
    return "\n".join(lines) + "\n"


def read(path: Path = RESULTS) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return (optimizer, loss, figure) → value by seed."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name in FIGURES:
                values.setdefault((row["optimizer"], row["loss"], name), {})[row["seed"]] = float(row[name])
    return values


def table(path: Path = RESULTS) -> str:
    """Return the means with cross-entropy, and the paired differences of each loss with their 95 % intervals."""
    values = read(path)
    titles = ("NLL", "ECE", "AURC", "AvU-AUC", "accuracy in %", "accuracy in %, clean")
    lines = ["| optimizer | loss | " + " | ".join(titles) + " |", "|---|---|" + "---:|" * len(titles)]
    for optimizer in PENALTY:
        for loss, title in LOSSES.items():
            cells = [optimizer, title]
            for name in FIGURES[: len(titles)]:
                scale, decimals = (100, 1) if name.startswith("accuracy") else (1, 2 if name == "nll_5" else 3)
                base, compared = values[optimizer, "none", name], values[optimizer, loss, name]
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
