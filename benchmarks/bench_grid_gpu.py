"""The whole grid of one variational ResNet-20, as a study judges it: 81 sets × 10,000 images × 128 draws, with metrics.

    python benchmarks/bench_grid_gpu.py [--data CIFAR-10 FOLDER] [--device cuda] [--json OUT]
    python benchmarks/bench_grid_gpu.py --device cpu --quick          # a smoke run anywhere

The clean images and 16 shifts × 5 severities, made on the device; the draws' mean prediction on each; every metric and
curve of each set, in threads beside the device. Without --data the images are random, smoothed to have shapes in them.
The whole is timed from the first image to the last metric, once with nothing warm (the kernel's compilation, the draws)
and once more. `shifts` and `prediction` are what the device spends, `metrics` what the threads do; at most 75 s in all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d, interpolate

from avuc.bayes import BayesianModule, to_bayesian
from avuc.core.atomic import write_text
from avuc.data import Dataset, load_dataset
from avuc.data.arrays import as_input
from avuc.nets import resnet20
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions
from avuc.shifts import PAPER, SEVERITIES, corrupt
from avuc.study.evaluation.judge import Variant, judge, predict_all
from avuc.study.store.records import MetricsAndCurves

LIMIT_SECONDS = 75


def test_images(folder: Path | None, rows: int, device: torch.device) -> Dataset:
    if folder is not None:
        return load_dataset("cifar10", folder, split="test").subset(torch.arange(rows)).to(device)
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(rows, 3, 8, 8, generator=generator)
    smooth = avg_pool2d(interpolate(rough, scale_factor=4.5, mode="bilinear"), 5, stride=1)
    images = (255 * smooth).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return Dataset(images, torch.randint(10, (rows,), generator=generator), num_classes=10).to(device)


def model(data: Dataset) -> BayesianModule:
    """Untrained, with batch normalisation that has seen the images: the arithmetic of a trained one."""
    posterior = to_bayesian(resnet20(generator=torch.Generator().manual_seed(0)), initial_std=0.05).to(data.device)
    with torch.no_grad():
        posterior.train()(as_input(data.images[:512]))
    return posterior.eval()


class Clock:
    """Seconds by stage; the device is waited for at each end."""

    def __init__(self, device: torch.device) -> None:
        self.wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self.seconds = {"shifts": 0.0, "prediction": 0.0}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.wait()
        self.seconds[stage] += time.perf_counter() - start


def judged(found: Predictions, clean: MetricsAndCurves | None) -> tuple[MetricsAndCurves, float]:
    """The cell, and the seconds that its thread was at work."""
    start = time.thread_time()
    threshold, entropy = (None, None) if clean is None else (clean.metrics["threshold"], clean.entropy)
    told = judge(found, threshold=threshold, bins=15, clean_entropy=entropy)
    return told, time.thread_time() - start


def grid(data: Dataset, predictor: Predictor, draws: int, shifts: list[tuple[str, int]]) -> dict[str, float]:
    clock, variants = Clock(data.device), [Variant("SVI", draws)]
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        with clock("prediction"):
            (found,) = predict_all(predictor, data, variants, seed=0)
        clean, spent = judged(found, None)
        cells: list[Future[tuple[MetricsAndCurves, float]]] = []
        for name, severity in shifts:
            with clock("shifts"):
                shifted = Dataset(corrupt(data.images, name, severity), data.labels, data.num_classes)
            with clock("prediction"):
                (found,) = predict_all(predictor, shifted, variants, seed=0)
            cells.append(pool.submit(judged, found, clean))
        told = [cell.result() for cell in cells]
    assert all("ece" in one.metrics and "auroc" in one.metrics for one, _ in told)
    spent += sum(seconds for _, seconds in told)
    return {**clock.seconds, "metrics": spent, "total": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--quick", action="store_true", help="64 images, 2 draws, two shifts")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows, draws = (64, 2) if options.quick else (10_000, 128)
    shifts = [(name, severity) for name in PAPER for severity in SEVERITIES]
    shifts = shifts[:2] if options.quick else shifts
    data = test_images(options.data, rows, device)
    predictor = Predictor(model(data), samples=draws, dtype=torch.bfloat16 if device.type == "cuda" else None)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}: {len(shifts) + 1} sets × {rows} images × {draws} draws")
    results = {}
    for when in ("first", "again"):
        seconds = results[when] = grid(data, predictor, draws, shifts)
        per_draw = 1e3 * seconds["prediction"] / ((len(shifts) + 1) * draws)
        parts = ", ".join(f"{stage} {value:.2f}" for stage, value in seconds.items())
        print(f"{when}: {parts} s; {per_draw:.2f} ms a draw and set", flush=True)
        if when == "first":
            print(f"limit {LIMIT_SECONDS} s: {'kept' if seconds['total'] <= LIMIT_SECONDS else 'exceeded'}")
    if options.json:
        told = {"device": name, "torch": torch.__version__, "sets": len(shifts) + 1, "images": rows, "draws": draws}
        write_text(options.json, json.dumps({**told, "seconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
