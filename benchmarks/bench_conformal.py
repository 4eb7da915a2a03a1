"""Conformal sets against TorchCP 1.2.1 and MAPIE 1.6.0, from the same probabilities in one run.

    pip install torchcp==1.2.1 mapie==1.6.0
    python benchmarks/bench_conformal.py               20,000 × 1,000 probabilities, half to fit, half to predict
    python benchmarks/bench_conformal.py --rows 50000

One measurement is the threshold from one half and the sets of the other half. Ours starts from `Predictions`, TorchCP
and MAPIE from the same probabilities as tensors and arrays; the time to make `Predictions`, which checks them, does not
count. Peers that are not installed are left out. The peers compute 1 − p in float32, so a few sets differ by rounding;
more than one set in a thousand is an error.
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
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(options.rows, options.classes, generator=generator)).softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    fit, new = slice(0, options.rows // 2), slice(options.rows // 2, options.rows)
    known, unknown = Predictions(probs[fit], labels[fit]), Predictions(probs[new], labels[new])
    print(f"{options.rows:,} × {options.classes:,} probabilities, {torch.get_num_threads()} threads, coverage 0.9")
    print(f"{'':22}{'seconds':>9}{'ratio':>8}{'mean size':>11}{'different':>11}")
    for method in METHODS:
        runs: dict[str, Callable[[], torch.Tensor]] = {
            "avuc": lambda method=method: ConformalClassifier(method, randomized=False).fit(known).predict_sets(unknown)
        }
        if "torchcp" in sys.modules or importlib.util.find_spec("torchcp") is not None:
            runs["TorchCP"] = lambda method=method: torchcp_sets(method, probs[fit], labels[fit], probs[new])
        if importlib.util.find_spec("mapie") is not None and method == "threshold":
            runs["MAPIE"] = lambda: mapie_sets(probs[fit].numpy(), labels[fit].numpy(), probs[new].numpy())
        first, ours = 0.0, torch.empty(0)
        for name, run in runs.items():
            seconds, sets = fastest(run, options.repeats)
            first, ours = (first, ours) if first else (seconds, sets)
            different = int((sets != ours).any(1).sum())
            size = float(sets.sum(1).double().mean())
            print(f"{method:12}{name:10}{seconds:9.3f}{seconds / first:7.1f}×{size:11.3f}{different:11,}", flush=True)
            if different > options.rows / 1000:
                raise SystemExit(f"{name}: {different} sets differ")


def fastest(run: Callable[[], torch.Tensor], repeats: int) -> tuple[float, torch.Tensor]:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        sets = run()
        best = min(best, time.perf_counter() - start)
    return best, sets


def torchcp_sets(method: str, probs: torch.Tensor, labels: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
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
        "threshold": lambda: LAC(score_type="identity"),
        "aps": lambda: APS(score_type="identity", randomized=False),
        "raps": lambda: RAPS(score_type="identity", randomized=False, penalty=0.01, kreg=5),
    }[method]()
    conformal = SplitPredictor(score, device=torch.device("cpu"))
    conformal.calculate_threshold(probs, labels, 0.1)
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
