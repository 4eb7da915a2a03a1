"""Write reference.json: probabilities of probmetrics 1.3.0 and venn-abers 1.5.4 for the rows of `reference_data`.

    pip install probmetrics==1.3.0 venn-abers==1.5.4 pytorch-minimize numba
    python tests/calibration/make_reference.py

probmetrics converts log-probabilities to float32 and stops at a derivative of 1e-5. Both are changed here, so that its
optimum is compared and not where it stops.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("reference.json")


def reference_data(rows: int = 300, classes: int = 4, seed: int = 11):
    """Logits and labels, drawn from softer probabilities with a bias: the first 260 to fit, the others to predict."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2.5
    soft = np.exp(logits / 1.8 + np.linspace(-0.6, 0.6, classes))
    labels = (np.cumsum(soft / soft.sum(1, keepdims=True), 1) > rng.random((rows, 1))).argmax(1)
    return logits[:260], labels[:260], logits[260:], labels[260:]


def _softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max(1, keepdims=True))
    return exps / exps.sum(1, keepdims=True)


def from_probmetrics() -> dict[str, list]:
    import torch
    from probmetrics.calibrators import get_calibrator, logistic
    from probmetrics.calibrators.temperature_scaling import ETSCalibrator

    torch.set_default_dtype(torch.float64)
    logistic.multiclass_probs_to_logits = np.log
    logistic.torchmin.minimize = partial(logistic.torchmin.minimize, tol=1e-9)
    logits, labels, fresh, _ = reference_data()
    found = {}
    for name in ("svs", "sms", "ts-mix", "ets"):
        calibrator = ETSCalibrator(loss="ce") if name == "ets" else get_calibrator(name)
        calibrator.fit(_softmax(logits), labels)
        found[name] = np.asarray(calibrator.predict_proba(_softmax(fresh)), np.float64).tolist()
    return found


def from_venn_abers() -> dict[str, list]:
    from venn_abers import VennAbersCalibrator

    logits, labels, fresh, _ = reference_data()
    found = {}
    for kind in ("one_vs_all", "one_vs_one"):
        probs = VennAbersCalibrator().predict_proba(
            p_cal=_softmax(logits), y_cal=labels, p_test=_softmax(fresh), p0_p1_output=False, va_type=kind
        )
        found[f"venn-abers {kind}"] = np.asarray(probs).tolist()
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(from_probmetrics() | from_venn_abers(), indent=1) + "\n")
