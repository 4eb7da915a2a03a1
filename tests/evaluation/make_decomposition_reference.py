"""Print the decomposition of probmetrics 1.3.0 for the probabilities of `sharp_probs`: temperature scaling on all rows.

pip install probmetrics==1.3.0
python tests/evaluation/make_decomposition_reference.py
"""

from __future__ import annotations

import numpy as np


def sharp_probs(rows: int = 400, classes: int = 4, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of an overconfident model, and labels."""
    rng = np.random.default_rng(seed)
    probs = np.exp(1.5 * rng.normal(size=(rows, classes)))
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)
    return probs**1.8 / (probs**1.8).sum(1, keepdims=True), labels


if __name__ == "__main__":
    import torch
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalProbs
    from probmetrics.metrics import Metrics, MetricsWithCalibration
    from probmetrics.splitters import AllSplitter

    probs, labels = sharp_probs()
    metrics = MetricsWithCalibration(
        Metrics.from_names(["logloss", "brier"]),
        get_calibrator("temp-scaling", calibrate_with_mixture=False),
        AllSplitter(),
    )
    found = metrics.compute_all(
        CategoricalProbs(torch.eye(probs.shape[1], dtype=torch.float64)[labels]),
        CategoricalProbs(torch.from_numpy(probs)),
    )
    for name, value in found.items():
        print(name, float(value))
