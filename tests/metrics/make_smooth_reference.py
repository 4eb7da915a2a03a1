"""Print the SmoothECE of relplot 1.0.3 for the confidences of `confidences`, on a mesh of 20,000 points.

    pip install relplot==1.0.3
    python tests/metrics/make_smooth_reference.py

Confidences are at most 0.99: relplot counts those within about 1/1000 of 1 by half, because its reflection has the last
point of the grid once and all others twice.
"""

from __future__ import annotations

import numpy as np


def confidences(rows: int, power: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences of a model that is calibrated for a power of 1, and which predictions are right."""
    rng = np.random.default_rng(seed)
    probs = np.exp(2 * rng.normal(size=(rows, 5)))
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)
    sharp = probs**power / (probs**power).sum(1, keepdims=True)
    return np.minimum(sharp.max(1), 0.99), sharp.argmax(1) == labels


CASES = ((200, 1.0, 0), (2000, 1.5, 1), (5000, 0.7, 2), (5000, 3.0, 3))

if __name__ == "__main__":
    import relplot.config
    import relplot.metrics

    relplot.config.smECE_mesh_pts = 20_000
    for case in CASES:
        confidence, correct = confidences(*case)
        print(case, float(relplot.metrics.smECE(confidence, correct.astype(float))))
