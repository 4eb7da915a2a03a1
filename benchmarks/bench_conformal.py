"""Conformal sets against TorchCP 1.2.1 and MAPIE 1.6.0, from the same probabilities in one run.

    pip install torchcp==1.2.1 mapie==1.6.0
    python benchmarks/bench_conformal.py               20,000 × 1,000 probabilities, half to fit, half to predict
    python benchmarks/bench_conformal.py --rows 50000
    python benchmarks/bench_conformal.py --logits      start from logits

One measurement is the threshold from one half and the sets of the other half; the programs take turns. Ours starts from
`Predictions`, TorchCP and MAPIE from the same probabilities as tensors and arrays; the time to make `Predictions`,
which checks them and computes entropies, does not count. With --logits everything counts: ours makes `Predictions` from
logits, TorchCP uses its own softmax, and MAPIE gets that of torch. Peers that are not installed are left out. The peers
compute 1 − p in float32, so a few sets differ by rounding; more than one set in a thousand is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import types
import warnings
from collections.abc import Callable
from unittest.mock import MagicMock

import numpy as np
import torch

from avuc import Predictions
from avuc.conformal import ConformalClassifier
from avuc.conformal.scores import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="number of rows (default 20,000)")
    parser.add_argument("--classes", type=int, default=1_000, help="number of classes (default 1,000)")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts (default 3)")
    parser.add_argument("--logits", action="store_true", help="start from logits, and count all that this takes")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(options.rows, options.classes, generator=generator)
    probs = logits.softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    fit, new = slice(0, options.rows // 2), slice(options.rows // 2, options.rows)
    known, unknown = Predictions(probs[fit], labels[fit]), Predictions(probs[new], labels[new])
    what = "logits" if options.logits else "probabilities"
    print(f"{options.rows:,} × {options.classes:,} {what}, {torch.get_num_threads()} threads, coverage 0.9")
    print(f"{'':22}{'seconds':>9}{'ratio':>8}{'mean size':>11}{'different':>11}")
    for method in METHODS:
        runs: dict[str, Callable[[], torch.Tensor]] = {}
        if options.logits:
            runs["avuc"] = lambda method=method: own_sets(
                method,
                Predictions.from_logits(logits[fit], labels[fit]),
                Predictions.from_logits(logits[new], labels[new]),
            )
        else:
            runs["avuc"] = lambda method=method: own_sets(method, known, unknown)
        if "torchcp" in sys.modules or importlib.util.find_spec("torchcp") is not None:
            kind, rows = ("softmax", logits) if options.logits else ("identity", probs)
            runs["TorchCP"] = lambda method=method, kind=kind, rows=rows: torchcp_sets(
                method, kind, rows[fit], labels[fit], rows[new]
            )
        if importlib.util.find_spec("mapie") is not None and method == "threshold":
            given = (
                (lambda part: logits[part].softmax(1).numpy()) if options.logits else (lambda part: probs[part].numpy())
            )
            runs["MAPIE"] = lambda given=given: mapie_sets(given(fit), labels[fit].numpy(), given(new))
        found = fastest(runs, options.repeats)
        first, ours = found["avuc"]
        for name, (seconds, sets) in found.items():
            different = int((sets != ours).any(1).sum())
            size = float(sets.sum(1).double().mean())
            print(f"{method:12}{name:10}{seconds:9.3f}{seconds / first:7.1f}×{size:11.3f}{different:11,}", flush=True)
            if different > options.rows / 1000:
                raise SystemExit(f"{name}: {different} sets differ")


def fastest(runs: dict[str, Callable[[], torch.Tensor]], repeats: int) -> dict[str, tuple[float, torch.Tensor]]:
    """Return the shortest time and the sets of each program; they take turns, so that a busy moment hits all."""
    best: dict[str, tuple[float, torch.Tensor]] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            sets = run()
            best[name] = (min(best.get(name, (float("inf"),))[0], time.perf_counter() - start), sets)
    return best


def own_sets(method: str, known: Predictions, unknown: Predictions) -> torch.Tensor:
    return ConformalClassifier(method, randomized=False).fit(known).predict_sets(unknown)


def torchcp_sets(method: str, kind: str, rows: torch.Tensor, labels: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    if "torchcp" not in sys.modules:  # its own __init__ imports torch_geometric, a loss torchsort; neither is used here
        place = importlib.util.find_spec("torchcp")
        assert place is not None
        package = types.ModuleType("torchcp")
        package.__path__ = list(place.submodule_search_locations or [])
        sys.modules["torchcp"] = package
        sys.modules.setdefault("torchsort", MagicMock())
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, LAC, RAPS

    score = {
        "threshold": lambda: LAC(score_type=kind),
        "aps": lambda: APS(score_type=kind, randomized=False),
        "raps": lambda: RAPS(score_type=kind, randomized=False, penalty=0.01, kreg=5),
    }[method]()
    conformal = SplitPredictor(score, device=torch.device("cpu"))
    conformal.calculate_threshold(rows, labels, 0.1)
    return torch.as_tensor(conformal.predict_with_logits(new)).bool()


def mapie_sets(probs: np.ndarray, labels: np.ndarray, new: np.ndarray) -> torch.Tensor:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """The rows are the probabilities."""

        def fit(self, rows: np.ndarray, labels: np.ndarray) -> Given:
            self.classes_, self.fitted_ = np.arange(rows.shape[1]), True
            return self

        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            return rows

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return rows.argmax(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conformal = SplitConformalClassifier(Given().fit(probs, labels), 0.9, "lac", prefit=True)
        conformal.conformalize(probs, labels)
        _, sets = conformal.predict_set(new)
    return torch.from_numpy(sets[:, :, 0])


if __name__ == "__main__":
    main()
