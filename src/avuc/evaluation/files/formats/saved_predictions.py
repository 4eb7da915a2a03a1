"""What `save` of predictions stores besides probabilities and labels: draws, images of pixels, names of labels."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import ImageRows, RawScores, ReadOptions, find_label_name

# how far the mean of rounded entropies may be outside its range, in nats
ENTROPY_SLACK = 1e-3


def add_draws(
    path: Path, raw: RawScores, tensors: dict[str, Tensor], metadata: dict[str, str], options: ReadOptions
) -> None:
    """Add what `Predictions.save` stored about the draws behind the mean probabilities."""
    probs = tensors["probs"]
    rows, highest = (len(probs), math.log(max(probs.shape[-1], 1))) if probs.ndim else (0, 0.0)
    _add(path, raw, tensors, metadata, (rows,), highest, "Predictions.save")
    label, _ = find_label_name(path, list(tensors), options.labels_key)
    if label is not None and tensors[label].numel() and bool((tensors[label] == -1).all()):
        raw.labels = raw.labels_from = None  # Predictions marks rows without labels with -1
    if "," in metadata.get("shape", ""):
        raw.images = _image_rows(path, rows, metadata["shape"], tensors.get("positions"))
        images = raw.images.shape[0]
        raw.notes.append(f"the rows are positions of {images:,} images or sentences; those of one are not independent")
    if raw.draws > 1:
        raw.notes.append(f"the scores are the mean of {raw.draws:,} posterior samples; a calibrator acts on this mean")


def add_label_draws(path: Path, raw: RawScores, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Add what `MultiLabelPredictions.save` stored: the names of the labels, and the draws behind the mean."""
    shape, save = tuple(tensors["probs"].shape), "MultiLabelPredictions.save"
    _add(path, raw, tensors, metadata, shape, math.log(2), save)
    if "names" in metadata:
        try:
            names = json.loads(metadata["names"])
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise file_error(path, "its metadata 'names' is not a list of names", f"write the file with {save}")
        raw.class_names = tuple(names)
    if raw.draws > 1:
        raw.notes.append(f"the scores are the mean of {raw.draws:,} posterior samples; a calibrator acts on this mean")


def _add(
    path: Path,
    raw: RawScores,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    shape: tuple[int, ...],
    highest: float,
    save: str,
) -> None:
    """Add the number of draws and the expected entropy, of this shape and at most `highest` nats."""
    remedy = f"write the file with {save}"
    samples = metadata.get("samples", "")
    if not samples.isdecimal() or not 1 <= len(samples) <= 9 or int(samples) < 1:
        raise file_error(path, f"its metadata 'samples' is {samples[:20]!r}, not a number of samples", remedy)
    expected = tensors.get("expected_entropy")
    if expected is None or expected.shape != shape or not expected.is_floating_point():
        wanted = " × ".join(f"{size:,}" for size in shape)
        raise file_error(path, f"its expected_entropy is not an array of {wanted} numbers", remedy)
    if expected.numel() and not (
        float(expected.min()) >= -ENTROPY_SLACK and float(expected.max()) <= highest + ENTROPY_SLACK
    ):
        raise file_error(path, f"its expected_entropy is not between 0 and {highest:.4g} nats", remedy)
    raw.draws, raw.expected_entropy = int(samples), expected


def _image_rows(path: Path, rows: int, shape: str, positions: Tensor | None) -> ImageRows:
    """Return what `Predictions.save` stored about the images of the rows."""
    remedy = "write the file with Predictions.save"
    sizes = shape.split(",")
    if not all(size.isdecimal() and size.isascii() and len(size) <= 9 and int(size) for size in sizes):
        raise file_error(path, f"its metadata 'shape' is {shape[:40]!r}, not a shape", remedy)
    found = tuple(map(int, sizes))
    total = math.prod(found)
    if positions is None:
        positions = torch.arange(total) if total == rows else None
    elif positions.shape != (rows,) or positions.dtype != torch.int64:
        positions = None
    elif rows and not (int(positions[0]) >= 0 and int(positions[-1]) < total and bool((positions.diff() > 0).all())):
        positions = None  # they must ascend, so that the rows of one image are neighbours
    if positions is None:
        raise file_error(path, f"its {rows:,} rows are not the positions of its shape {found}", remedy)
    return ImageRows(found, positions)
