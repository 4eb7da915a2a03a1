"""Predictions as one line of text, as a table, and as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avuc.core.display import data_frame


def facts(predictions: Any) -> dict[str, Any]:
    """Return the facts that `repr` shows about predictions."""
    rows, known = len(predictions), int((predictions.labels >= 0).sum())
    result: dict[str, Any] = {"rows": rows, "classes": predictions.num_classes}
    if len(predictions.shape) > 1:
        result["shape"] = predictions.shape
    if predictions.samples > 1:
        result["samples"] = predictions.samples
    if known < rows:
        result["labelled"] = known
    if known:
        result["accuracy"] = float(predictions.correct.sum()) / known
    if predictions.probs.device.type != "cpu":
        result["device"] = str(predictions.probs.device)
    return result


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


def decision_frame(predictions: Any) -> Any:
    """Return a pandas DataFrame with a row for each known decision of a multi-label model."""
    result = frame(predictions.flatten())
    row, column = result.index // predictions.num_labels, result.index % predictions.num_labels
    names = predictions.names or range(predictions.num_labels)
    result.insert(0, "row", row)
    result.insert(1, "name", [names[label_number] for label_number in column])
    return result.reset_index(drop=True)


def decision_table(predictions: Any) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """Return the header and a row for each label: known decisions, share of yes, mean probability, accuracy."""
    rows: list[tuple[Any, ...]] = []
    for column, name in enumerate(predictions.names or range(predictions.num_labels)):
        label = predictions.label(column)
        known = label.labels >= 0
        labels, right = label.labels[known].double(), label.correct[known].double()
        rows.append((name, len(labels), *(float(values.mean()) for values in (labels, label.probs[:, 1], right))))
    return ("label", "decisions", "share of yes", "mean probability", "accuracy"), rows
