"""`avuc.torchmetrics.CalibrationSuite` against the same metrics from torchmetrics itself.

    python benchmarks/bench_torchmetrics.py [--quick]

Both get the same batches of logits, one after the other, and compute once at the end. torchmetrics has accuracy, ECE
and MCE (which share their state in a MetricCollection), class-wise ECE (one BinaryCalibrationError for each class), the
Brier score (MeanSquaredError of one-hot labels) and NLL (the logarithm of Perplexity); its user takes the softmax once
for each batch. The suite computes these six and nine more. The values must agree. Times are CPU seconds on one thread,
which other work on the machine hardly changes: the median of several rounds that alternate between the two.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torchmetrics import MeanSquaredError, MetricCollection
from torchmetrics.classification import BinaryCalibrationError, MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.text import Perplexity

from avuc.torchmetrics import CalibrationSuite

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
GOAL = 3.0
# torchmetrics sums in float32
TOLERANCE = 2e-4
Batches = list[tuple[Tensor, Tensor]]


def make(rows: int, classes: int, size: int) -> Batches:
    """Batches of logits of a somewhat overconfident classifier, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator).mul_(3)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator)[:, 0]
    return list(zip(logits.split(size), labels.split(size), strict=True))


def ours(batches: Batches, classes: int) -> dict[str, float]:
    suite = CalibrationSuite(classes)
    for logits, labels in batches:
        suite.update(logits, labels)
    return {name: float(value) for name, value in suite.compute().items()}


def theirs(batches: Batches, classes: int) -> dict[str, float]:
    rows = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(classes, average="micro"),
            "ece": MulticlassCalibrationError(classes, n_bins=15, norm="l1"),
            "mce": MulticlassCalibrationError(classes, n_bins=15, norm="max"),
        }
    )
    each = [BinaryCalibrationError(n_bins=15) for _ in range(classes)]
    squares, perplexity = MeanSquaredError(), Perplexity()
    for logits, labels in batches:
        probs, hits = logits.softmax(1), one_hot(labels, classes)
        rows.update(probs, labels)
        for k, metric in enumerate(each):
            metric.update(probs[:, k], hits[:, k])
        squares.update(probs, hits)
        perplexity.update(logits[None], labels[None])
    values = {name: float(value) for name, value in rows.compute().items()}
    values["classwise_ece"] = statistics.fmean(float(metric.compute()) for metric in each)
    values["brier"] = float(squares.compute()) * classes
    values["nll"] = float(perplexity.compute().log())
    return values


def timed(function: Callable[[], dict[str, float]]) -> tuple[float, dict[str, float]]:
    start = time.process_time()
    values = function()
    return time.process_time() - start, values


def compare(rows: int, classes: int, size: int, rounds: int) -> float:
    batches = make(rows, classes, size)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for place, function in enumerate((ours, theirs)):
            seconds, values = timed(lambda function=function: function(batches, classes))
            times[place].append(seconds)
            if function is ours:
                own = values
    for name, value in values.items():
        if abs(value - own[name]) > TOLERANCE:
            raise SystemExit(f"{name}: ours {own[name]}, torchmetrics {value}")
    suite, peers = (statistics.median(each) for each in times)
    print(
        f"{rows:,} × {classes} in batches of {size:,}: torchmetrics ({len(values)} metrics) {peers:.3f} s, "
        f"suite ({len(own)} metrics) {suite:.3f} s: {peers / suite:.1f}x"
    )
    return peers / suite


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, to check that everything runs")
    quick = parser.parse_args().quick
    rows, rounds = (10_000, 2) if quick else (50_000, 3)
    # everything that is loaded once is loaded before the measurement
    ours(make(2_000, 10, 1_000), 10)
    theirs(make(2_000, 10, 1_000), 10)
    ratios = [compare(rows, *case, rounds) for case in ((10, 128), (10, 1_000), (100, 128), (100, 1_000))]
    good = min(ratios) >= GOAL
    print(f"faster than torchmetrics: {min(ratios):.1f}x or more (goal {GOAL:.0f}x)")
    print("goal reached" if good else "GOAL MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
