"""Write reference.json: thresholds and sets of MAPIE 1.6.0 and TorchCP 1.2.1 for the probabilities of `reference_data`.

    pip install mapie==1.6.0 torchcp==1.2.1
    python tests/conformal/make_reference.py

TorchCP imports large packages for parts that are not used here; empty modules stand in for those not installed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

# of MAPIE: the numbers U are np.random.RandomState(SEED).uniform, once for the fit and once for the sets
SEED = 7
FILE = Path(__file__).with_name("reference.json")


def reference_data(rows: int = 240, classes: int = 6, seed: int = 5):
    """Probabilities in float32 and labels drawn from softer ones: the first half to fit, the second to predict."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    soft = np.exp(logits / 1.5)
    labels = (np.cumsum(soft / soft.sum(1, keepdims=True), 1) > rng.random((rows, 1))).argmax(1)
    probs = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    return probs[: rows // 2], labels[: rows // 2], probs[rows // 2 :], labels[rows // 2 :]


def as_text(sets: np.ndarray) -> list[str]:
    return ["".join("1" if each else "0" for each in row) for row in np.asarray(sets)]


def from_torchcp() -> dict[str, object]:
    import torch

    place = importlib.util.find_spec("torchcp")
    sys.modules["torchcp"] = types.ModuleType("torchcp")  # its own __init__ imports torch_geometric
    sys.modules["torchcp"].__path__ = list(place.submodule_search_locations)
    sys.modules.setdefault("torchsort", MagicMock())
    from torchcp.classification.predictor import ClassConditionalPredictor, SplitPredictor
    from torchcp.classification.score import APS, LAC, RAPS

    fit_probs, fit_labels, probs, _ = (torch.as_tensor(each) for each in reference_data())
    scores = {
        "threshold": LAC(),
        "aps": APS(randomized=False),
        "raps": RAPS(randomized=False, penalty=0.05, kreg=2),
    }
    found: dict[str, object] = {}
    for name, score in scores.items():
        for kind, predictor in (("", SplitPredictor), ("class-conditional ", ClassConditionalPredictor)):
            conformal = predictor(score, device=torch.device("cpu"))
            conformal.calculate_threshold(fit_probs.log(), fit_labels, 0.2)
            sets = conformal.predict_with_logits(probs.log())
            limits = torch.as_tensor(conformal.q_hat).reshape(-1).tolist()
            found[f"torchcp {kind}{name}"] = {"thresholds": limits, "sets": as_text(sets)}
    return found


def from_mapie() -> dict[str, object]:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    fit_probs, fit_labels, probs, _ = reference_data()

    class Given(ClassifierMixin, BaseEstimator):
        """The rows are the probabilities."""

        def fit(self, rows, labels):
            self.classes_, self.fitted_ = np.arange(rows.shape[1]), True
            return self

        def predict_proba(self, rows):
            return rows

        def predict(self, rows):
            return rows.argmax(1)

    found: dict[str, object] = {}
    for name, score, last in (("threshold", "lac", None), ("randomized aps", "aps", "randomized")):
        conformal = SplitConformalClassifier(
            Given().fit(fit_probs, fit_labels), 0.8, score, prefit=True, random_state=SEED
        )
        conformal.conformalize(fit_probs.astype(np.float64), fit_labels)
        last_class = None if last is None else {"include_last_label": last}
        _, sets = conformal.predict_set(probs.astype(np.float64), last_class)
        limit = conformal._mapie_classifier.quantiles_.tolist()
        found[f"mapie {name}"] = {"thresholds": limit, "sets": as_text(sets[:, :, 0])}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    FILE.write_text(json.dumps(from_torchcp() | from_mapie(), indent=0) + "\n", encoding="utf-8")
