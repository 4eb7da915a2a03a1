"""Temperature scaling against netcal 1.4 and scikit-learn, on the same logits in one run.

    python benchmarks/bench_temperature.py            50,000 × 1,000 logits
    python benchmarks/bench_temperature.py --quick     5,000 × 100

The logits are synthetic and overconfident by a factor of 1.6. netcal gets probabilities, as it requires, and the time
of their softmax does not count. It gets them in float64, because its finite differences are below float32 rounding and
it would stay at T = 1. The scaler of scikit-learn is called directly, in float32, without the cross-validation around
it. The NLL of each result is computed here in float64.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from avuc.calibration import TemperatureScaling

SAME = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small and fast")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, classes = (5_000, 100) if options.quick else (50_000, 1_000)
    logits, labels = network_like(rows, classes)
    probs = torch.from_numpy(logits).double().softmax(dim=1).numpy()

    fits: dict[str, Callable[[], tuple[float, float]]] = {
        "avuc": lambda: ours(logits, labels),
        "netcal 1.4": lambda: netcal(probs, labels),
        "scikit-learn": lambda: scikit_learn(logits, labels),
    }
    print(
        f"temperature fit, {rows:,} × {classes:,} float32 logits, {options.threads} threads, best of {options.repeats}"
    )
    print(f"{'':14}{'seconds':>9}{'ratio':>8}{'T':>10}{'NLL':>13}{'evaluations':>13}")
    losses, first = {}, 0.0
    for name, fit in fits.items():
        seconds, temperature, evaluations = fastest(fit, options.repeats)
        first = first or seconds
        losses[name] = nll(logits, labels, temperature)
        row = (
            f"{name:14}{seconds:9.3f}{seconds / first:7.1f}×{temperature:10.6f}{losses[name]:13.8f}{evaluations:13.2f}"
        )
        print(row, flush=True)
    if losses["avuc"] - min(losses.values()) > SAME:
        raise SystemExit(f"avuc's NLL is more than {SAME} above the best")


def network_like(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits z with labels drawn from softmax(z/1.6), so that T is about 1.6."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator) * 2
    favourite = torch.randint(classes, (rows, 1), generator=generator)
    logits.scatter_add_(1, favourite, 16 + 6 * torch.randn(rows, 1, generator=generator))
    labels = torch.multinomial((logits / 1.6).softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits.numpy(), labels.numpy()


def fastest(fit: Callable[[], tuple[float, float]], repeats: int) -> tuple[float, float, float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        temperature, evaluations = fit()
        times.append(time.perf_counter() - start)
    return min(times), temperature, evaluations


def ours(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    scaler = TemperatureScaling().fit(logits, labels)
    return scaler.temperature_, scaler.n_evaluations_


def netcal(probs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    from netcal.scaling import TemperatureScaling as Netcal

    class Counting(Netcal):
        evaluations = 0

        def model(self, *args: object, **kwargs: object) -> torch.Tensor:
            Counting.evaluations += 1
            return super().model(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = Counting()
        scaler.fit(probs, labels)
    # netcal's weight is 1/T
    return 1 / float(np.asarray(scaler.temperature).reshape(-1)[0]), Counting.evaluations


def scikit_learn(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    import sklearn.calibration as module

    original = module.HalfMultinomialLoss

    class Counting(original):
        evaluations = 0

        def __call__(self, *args: object, **kwargs: object) -> float:
            Counting.evaluations += 1
            return super().__call__(*args, **kwargs)

    module.HalfMultinomialLoss = Counting
    try:
        scaler = module._TemperatureScaling().fit(logits, labels)
    finally:
        module.HalfMultinomialLoss = original
    return 1 / float(scaler.beta_), Counting.evaluations


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    total = 0.0
    for start in range(0, len(logits), 1000):
        block = torch.from_numpy(logits[start : start + 1000]).double() / temperature
        target = torch.from_numpy(labels[start : start + 1000])
        total += float(torch.nn.functional.cross_entropy(block, target, reduction="sum"))
    return total / len(logits)


if __name__ == "__main__":
    main()
