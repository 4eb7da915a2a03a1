"""Evaluate and calibrate saved predictions from Python: the same steps as `avuc evaluate` and `avuc calibrate`.

python examples/evaluate_saved_predictions.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from avuc.evaluation import compare, evaluate
from avuc.evaluation.files import describe, read_scores, write_scores
from avuc.report.metric_text import compared_verdict, verdict


def saved_by_any_framework(path: Path) -> None:
    """Logits that are too large: right about two times in three, and much surer than that."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 2000)
    logits = rng.normal(size=(2000, 10)) + 2 * np.eye(10)[labels]
    np.savez(path, logits=(3 * logits).astype(np.float32), labels=labels)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.npz"
        saved_by_any_framework(path)
        file = read_scores(path)
        print(describe(file))
        print(*verdict(evaluate(file.predictions(), replicates=200)), sep="\n")

        calibrator, comparison = compare(file, "temperature", replicates=200)
        print(*compared_verdict(comparison), sep="\n")
        write_scores(file, file.calibrated(calibrator), Path(folder) / "calibrated.npz")
        print(describe(read_scores(Path(folder) / "calibrated.npz")))


if __name__ == "__main__":
    main()
