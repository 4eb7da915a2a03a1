"""Intervals of the change between two models on a million rows, next to SciPy's paired bootstrap of one of them.

    python benchmarks/bench_paired_intervals.py            1,000,000 × 10 probabilities, 1,000 resamples
    python benchmarks/bench_paired_intervals.py --quick      150,000 × 10

The models are a network and the same network with a temperature. `paired_intervals` returns every metric, from random
groups of rows. SciPy resamples the rows, and gets the NLL of each row, which is not timed: a mean, which is the fastest
statistic there is. Both intervals of the change of NLL are printed, and the run fails if their widths differ by more
than a tenth.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from scipy import stats

from avuc import Predictions
from avuc.metrics import paired_intervals

REPLICATES, CLASSES, BATCH = 1000, 10, 5
SAME = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    rows = 150_000 if parser.parse_args().quick else 1_000_000
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    logits = rng.standard_normal((rows, CLASSES)) + 3 * np.eye(CLASSES)[labels]
    models = [Predictions.from_logits(logits / temperature, labels) for temperature in (0.7, 1.0)]
    print(f"{rows:,} × {CLASSES}, {REPLICATES:,} resamples, {torch.get_num_threads()} threads")
    start = time.perf_counter()
    changes = paired_intervals(*models[::-1], replicates=REPLICATES)
    ours = time.perf_counter() - start
    of_rows = [-np.log(model.probs.double().numpy()[np.arange(rows), labels]) for model in models]
    start = time.perf_counter()
    result = stats.bootstrap(
        tuple(of_rows),
        lambda before, after, axis=-1: after.mean(axis) - before.mean(axis),
        paired=True,
        vectorized=True,
        n_resamples=REPLICATES,
        batch=BATCH,
        method="percentile",
        rng=rng,
    )
    theirs = time.perf_counter() - start
    mine, scipy = changes["nll"][-2:], result.confidence_interval
    print(f"{'':24}{'seconds':>9}{'ratio':>8}   change of NLL, 95 % interval")
    print(f"{f'avuc, {len(changes)} metrics':24}{ours:9.2f}{'':8}   {mine[0]:+.5f} … {mine[1]:+.5f}")
    print(f"{'SciPy, NLL alone':24}{theirs:9.2f}{theirs / ours:7.1f}×   {scipy.low:+.5f} … {scipy.high:+.5f}")
    if abs((mine[1] - mine[0]) / (scipy.high - scipy.low) - 1) > SAME:
        raise SystemExit("the widths differ by more than a tenth")


if __name__ == "__main__":
    main()
