"""Reading .safetensors; the header's claims are compared with the file by `avuc.core.tensor_file`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.tensor_file import read_tensors, tensor_places, write_tensors
from avuc.evaluation.files.names import (
    SCORE_NAMES,
    Found,
    Wanted,
    also_labels,
    also_there,
    check_chosen,
    check_size,
    choose,
    find_labels,
    listing,
    needed,
    refuse,
)
from avuc.evaluation.files.sources import FileSource
from avuc.predictions import FORMAT
from avuc.uncertainty import entropy

__all__ = ["labels_tensors", "scores_tensors", "write_scores_tensors"]

# how far the mean of rounded entropies may leave its range, in nats
ENTROPY_SLACK = 1e-3


def scores_tensors(path: Path, wanted: Wanted) -> Found:
    """Tensors are maps of the file until they are touched, so the others cost nothing."""
    held, metadata = read_tensors(path)
    key = choose(path, list(held), wanted.scores_key, SCORE_NAMES, "scores")
    if key is None:
        raise refuse(
            path,
            f"no scores: none of {listing(SCORE_NAMES)} among its keys ({listing(held)})",
            "name the right one with --scores-key",
        )
    found = Found(_held(path, held, key, wanted), f"key {key!r}", key, (key,), notes=also_there(key, held, wanted))
    check_chosen(path, key, found.scores.shape, held, wanted)
    label, alike = find_labels(path, list(held), wanted.labels_key)
    if label is not None:
        found.labels, found.labels_from = _held(path, held, label, wanted), repr(label)
        found.notes += also_labels(alike)
    if metadata.get("format") == FORMAT and key == "probs":
        _add_draws(path, found, held, metadata, None if label is None else held[label])
    return found


def _add_draws(
    path: Path, found: Found, held: dict[str, Tensor], metadata: dict[str, str], labels: Tensor | None
) -> None:
    """What Predictions.save keeps of the draws behind the mean probabilities."""
    samples = metadata.get("samples", "")
    if not samples.isdecimal() or not 1 <= len(samples) <= 9 or int(samples) < 1:
        raise refuse(path, f"its samples are {samples[:20]!r}, not a number of draws", "write it with Predictions.save")
    expected, rows = held.get("expected_entropy"), len(held["probs"]) if held["probs"].ndim else 0
    top = math.log(max(held["probs"].shape[-1], 1)) if held["probs"].ndim else 0.0
    if expected is None or expected.shape != (rows,) or not expected.is_floating_point():
        raise refuse(path, f"its expected_entropy is not {rows:,} numbers", "write it with Predictions.save")
    if rows and not (float(expected.min()) >= -ENTROPY_SLACK and float(expected.max()) <= top + ENTROPY_SLACK):
        raise refuse(path, f"its expected_entropy is not from 0 to {top:.4g} nats", "write it with Predictions.save")
    found.draws, found.expected_entropy = int(samples), expected
    if labels is not None and labels.numel() and bool((labels == -1).all()):
        found.labels = found.labels_from = None  # how Predictions marks rows without labels
    if found.draws > 1:
        found.notes.append(f"the mean of {found.draws:,} draws; a calibrator acts on the mean of the draws")


def labels_tensors(path: Path, wanted: Wanted) -> tuple[Any, str]:
    held, _ = read_tensors(path)
    key, _ = find_labels(path, list(held), wanted.labels_key)
    if key is None:
        raise refuse(path, f"no labels among its keys ({listing(held)})", "name them with --label")
    return _held(path, held, key, wanted), f"{key!r} of {path.name!r}"


def write_scores_tensors(source: Path, destination: Path, found: Found, scores: Tensor) -> None:
    """The file again with new scores under the same key; the other tensors and the metadata are kept."""
    held, metadata = read_tensors(source)
    if found.expected_entropy is not None:
        # what is known of the draws is not true of new scores
        held |= {"expected_entropy": entropy(scores)}
        metadata = {key: value for key, value in metadata.items() if key != "monte_carlo_error"} | {"samples": "1"}
    write_tensors(destination, held | {found.keys[0]: scores}, metadata)


def _held(path: Path, held: dict[str, Tensor], key: str, wanted: Wanted) -> Any:
    tensor = held[key]
    if wanted.in_blocks:
        dtype, shape, offset = tensor_places(path)[key]
        return FileSource(path, offset, shape, dtype, dtype.itemsize, lambda raw: torch.frombuffer(raw, dtype=dtype))
    check_size(path, f"key {key!r}", needed(tensor.numel(), tensor.element_size()), wanted.limit)
    return tensor
