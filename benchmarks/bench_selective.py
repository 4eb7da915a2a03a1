"""Rows that SelectiveClassifier answers, and how often its promise breaks; MAPIE on the same rows, if it is installed.

First real predictions: digits with noise. Rows are drawn from them with replacement, so that they are the population
and its error rate is known. MAPIE controls 1 − precision of "the prediction is right" with its 100 thresholds.

Then the hardest populations, with error rates at the limit: the share of fits above the limit.

    python benchmarks/bench_selective.py [--fits 1000] [--hard 2500]
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from avuc.conformal import SelectiveClassifier

LEVEL = 0.95
LIMIT = 0.05 + 1e-6  # an error rate just above the limit of 5 %
Array = np.ndarray[Any, np.dtype[Any]]
# shares of the rows, surest first, up to which each error rate holds; whether rows of one rate have equal scores
HARD: dict[str, tuple[list[float], list[float], bool]] = {
    "at the limit everywhere": ([1], [LIMIT], False),
    "all scores equal": ([1], [LIMIT], True),
    "at the limit from half of the rows on": ([0.3, 0.5, 1], [0, LIMIT * 2.5, LIMIT], False),
    "just below the limit, then far above": ([0.5, 0.51, 1], [0.04, 0.6, 0.2], False),
    "bad, good, bad": ([0.2, 0.5, 0.6, 1], [0.0505, 0.025, 0.175, 0.0505], False),
    "three scores": ([0.5, 0.7, 1], [0.045, 0.0626, LIMIT], True),
    "five scores at the limit": ([0.2, 0.4, 0.6, 0.8, 1], [LIMIT] * 5, True),
}


def digits() -> tuple[Array, Array]:
    """Return probabilities and labels of rows that the model was not trained on; about 16 % errors."""
    data, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(data))
    data, labels = data[order] / 16, labels[order]
    data = data + np.random.default_rng(1).normal(size=data.shape) * 0.25
    model = LogisticRegression(max_iter=500, C=3.0).fit(data[:300], labels[:300])
    return model.predict_proba(data[300:]), labels[300:]


def ours(probs: Array, labels: Array, risk: float) -> float:
    return SelectiveClassifier(risk, LEVEL).fit(probs, labels).threshold_


def mapie(method: str) -> Callable[[Array, Array, float], float]:
    """Return a function that gives MAPIE's lowest valid threshold."""
    from mapie.risk_control import BinaryClassificationController, precision

    def threshold(probs: Array, labels: Array, risk: float) -> float:
        sure, right = probs.max(1), (probs.argmax(1) == labels).astype(int)
        controller = BinaryClassificationController(
            lambda rows: np.stack([1 - sure[rows], sure[rows]], 1),
            precision,
            1 - risk,
            confidence_level=LEVEL,
            list_predict_params=np.linspace(0.99, 0, 100),
            fwer_method=method,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing can be answered
            valid = controller.calibrate(np.arange(len(right)), right).valid_predict_params
        return float(np.nextafter(valid.min(), -1)) if len(valid) else math.inf

    return threshold


def on_digits(fits: int) -> None:
    probs, labels = digits()
    sure, wrong = probs.max(1), probs.argmax(1) != labels
    methods = {"avuc": (ours, fits)}
    try:
        for name in ("bonferroni_holm", "fixed_sequence"):
            methods[f"MAPIE {name}"] = mapie(name), max(1, fits // 5)
    except ImportError:
        print("MAPIE is not installed")
    print(f"digits, {100 * wrong.mean():.0f} % errors, level {LEVEL}")
    print(f"{'limit':>6} {'rows':>6} {'method':>24} {'answered':>9} {'fits above the limit':>21}")
    for risk in (0.05, 0.1):
        known = max((sure >= t).mean() for t in sure if wrong[sure >= t].mean() <= risk)
        print(f"{risk:>6} {'all':>6} {'known error rates':>24} {100 * known:>7.1f} %")
        for rows in (300, 1000, 3000):
            for name, (method, count) in methods.items():
                rng, answered, above = np.random.default_rng(0), 0.0, 0
                for _ in range(count):
                    index = rng.integers(0, len(labels), rows)
                    chosen = sure > method(probs[index], labels[index], risk)
                    answered += chosen.mean() / count
                    above += bool(chosen.any() and wrong[chosen].mean() > risk)
                print(f"{risk:>6} {rows:>6} {name:>24} {100 * answered:>7.1f} % {above:>12} of {count}")


def above_the_limit(case: tuple[list[float], list[float], bool], rows: int, fits: int) -> int:
    """Return how many fits answer with an error rate above 5 %."""
    ends, rates, ties = np.array(case[0], float), np.array(case[1], float), case[2]
    starts, masses = np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0)
    rng, above = np.random.default_rng(rows), 0
    for _ in range(fits):
        place = rng.random(rows)
        part = np.searchsorted(ends, place)
        sure = 1 - 0.4 * (starts[part] if ties else place)
        selective = SelectiveClassifier(0.05, LEVEL)
        selective.fit(np.stack([sure, 1 - sure], 1), (rng.random(rows) < rates[part]).astype(int))
        if selective.answered_:
            last = min(1.0, (1 - selective.threshold_) / 0.4)
            answered = masses * (starts < last - 1e-9) if ties else np.clip(last - starts, 0, masses)
            above += answered @ rates / answered.sum() > 0.05 + 1e-9
    return above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=1000, help="number of fits on digits; MAPIE gets a fifth of them")
    parser.add_argument("--hard", type=int, default=2500, help="number of fits on each of the hardest populations")
    args = parser.parse_args()
    on_digits(args.fits)
    sizes = (59, 200, 1000)
    print(f"\nfits above a limit of 5 %; 5.0 % are allowed, of {args.hard} fits")
    print(f"{'error rate of the rows':>40}" + "".join(f"{f'{rows} rows':>12}" for rows in sizes))
    for name, case in HARD.items():
        shares = [above_the_limit(case, rows, args.hard) / args.hard for rows in sizes]
        print(f"{name:>40}" + "".join(f"{100 * share:>10.1f} %" for share in shares))


if __name__ == "__main__":
    main()
