"""Coverage of conformal sets of pixels after a fit on few images: thresholds that count images, and the usual one.

The usual threshold, that of split conformal prediction, takes all pixels together, as if they were independent rows.
Pixels of one simulated image are almost alike. Coverage is that of new images, averaged over fits, with the 95 %
interval of the mean.

    python benchmarks/bench_conformal_groups.py [--fits 300] [--coverage 0.9]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from avuc.conformal import ConformalClassifier

IMAGES = (5, 9, 20, 50, 100)
Array = np.ndarray[Any, np.dtype[Any]]


def maps(rng: np.random.Generator, images: int, pixels: int = 40) -> tuple[Array, Array]:
    """Return probabilities (N, 2, pixels) and labels of images whose pixels share how hard they are."""
    hard = rng.normal(size=(images, 1)) + 0.1 * rng.normal(size=(images, pixels))
    labels = rng.integers(0, 2, (images, pixels))
    right = 1 / (1 + np.exp(hard - 1))
    one = np.where(labels == 1, right, 1 - right)
    return np.stack([1 - one, one], 1), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=300, help="number of fits for each number of images")
    parser.add_argument("--coverage", type=float, default=0.9, help="the coverage that is asked for")
    args = parser.parse_args()
    probs, labels = maps(np.random.default_rng(7), 20_000, 10)
    new = np.sort(1 - np.take_along_axis(probs, labels[:, None], 1).ravel())  # scores of pixels of new images
    print(f"coverage of new images, {args.coverage:.0%} asked for, {args.fits} fits")
    print(f"{'images of the fit':>18} {'counting images':>18} {'counting pixels':>18}")
    for images in IMAGES:
        rng, found = np.random.default_rng(1), np.empty((args.fits, 2))
        for fit in range(args.fits):
            some, answers = maps(rng, images)
            rows = some.transpose(0, 2, 1).reshape(-1, 2), answers.reshape(-1)
            for column, data in enumerate(((some, answers), rows)):
                threshold = ConformalClassifier(coverage=args.coverage).fit(*data).thresholds_[0]
                found[fit, column] = np.searchsorted(new, threshold, "right") / len(new)
        reach = 1.96 * found.std(0, ddof=1) / math.sqrt(args.fits)
        cells = [f"{100 * mean:.1f} ± {100 * half:.1f} %" for mean, half in zip(found.mean(0), reach, strict=True)]
        print(f"{images:>18} {cells[0]:>18} {cells[1]:>18}")


if __name__ == "__main__":
    main()
