"""Predictions as one line of text, and as a pandas DataFrame."""

from __future__ import annotations

from typing import Any

from avuc.core.display import data_frame


def facts(predictions: Any) -> dict[str, Any]:
    """Return what `repr` says of predictions."""
    rows, known = len(predictions), int((predictions.labels >= 0).sum())
    found: dict[str, Any] = {"rows": rows, "classes": predictions.num_classes}
    if len(predictions.shape) > 1:
        found["shape"] = predictions.shape
    if predictions.samples > 1:
        found["samples"] = predictions.samples
    if known < rows:
        found["labelled"] = known
    if known:
        found["accuracy"] = float(predictions.correct.sum()) / known
    if predictions.probs.device.type != "cpu":
        found["device"] = str(predictions.probs.device)
    return found


def frame(predictions: Any) -> Any:
    """Return a pandas DataFrame with a row for each prediction."""
    names = ["label", "predicted", "confidence", "entropy", "correct"]
    if predictions.samples > 1:
        names.append("mutual_information")
    columns = {name: getattr(predictions, "labels" if name == "label" else name).cpu().numpy() for name in names}
    positions = predictions.positions
    result = data_frame(columns, None if positions is None else positions.cpu().numpy())
    unlabelled = result["label"] < 0
    if unlabelled.any():
        result["correct"] = result["correct"].astype("boolean").mask(unlabelled)
    return result
