"""Reading .safetensors; the header's claims are compared with the file by `avuc.core.tensor_file`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.tensor_file import read_tensors, tensor_places, write_tensors
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import (
    SCORE_NAMES,
    RawScores,
    ReadOptions,
    check_chosen,
    check_size,
    choose_name,
    find_label_name,
    memory_bytes,
    other_labels_note,
    other_scores_note,
)
from avuc.evaluation.files.sources import FileSource
from avuc.predictions import FORMAT
from avuc.uncertainty import entropy

# how far the mean of rounded entropies may leave its range, in nats
ENTROPY_SLACK = 1e-3


def scores_tensors(path: Path, options: ReadOptions) -> RawScores:
    """Tensors are maps of the file until they are touched, so the others cost nothing."""
    held, metadata = read_tensors(path)
    key = choose_name(path, list(held), options.scores_key, SCORE_NAMES, "scores")
    if key is None:
        raise file_error(
            path,
            f"no scores: none of {listing(SCORE_NAMES)} among its keys ({listing(held)})",
            "name the right one with --scores-key",
        )
    raw = RawScores(
        _held(path, held, key, options), f"key {key!r}", key, (key,), notes=other_scores_note(key, held, options)
    )
    check_chosen(path, key, raw.scores.shape, held, options)
    label, alike = find_label_name(path, list(held), options.labels_key)
    if label is not None:
        raw.labels, raw.labels_from = _held(path, held, label, options), repr(label)
        raw.notes += other_labels_note(alike)
    if metadata.get("format") == FORMAT and key == "probs":
        _add_draws(path, raw, held, metadata, None if label is None else held[label])
    return raw


def _add_draws(
    path: Path, raw: RawScores, held: dict[str, Tensor], metadata: dict[str, str], labels: Tensor | None
) -> None:
    """What Predictions.save keeps of the draws behind the mean probabilities."""
    samples = metadata.get("samples", "")
    if not samples.isdecimal() or not 1 <= len(samples) <= 9 or int(samples) < 1:
        raise file_error(
            path, f"its samples are {samples[:20]!r}, not a number of draws", "write it with Predictions.save"
        )
    expected, rows = held.get("expected_entropy"), len(held["probs"]) if held["probs"].ndim else 0
    top = math.log(max(held["probs"].shape[-1], 1)) if held["probs"].ndim else 0.0
    if expected is None or expected.shape != (rows,) or not expected.is_floating_point():
        raise file_error(path, f"its expected_entropy is not {rows:,} numbers", "write it with Predictions.save")
    if rows and not (float(expected.min()) >= -ENTROPY_SLACK and float(expected.max()) <= top + ENTROPY_SLACK):
        raise file_error(
            path, f"its expected_entropy is not from 0 to {top:.4g} nats", "write it with Predictions.save"
        )
    raw.draws, raw.expected_entropy = int(samples), expected
    if labels is not None and labels.numel() and bool((labels == -1).all()):
        raw.labels = raw.labels_from = None  # how Predictions marks rows without labels
    if raw.draws > 1:
        raw.notes.append(f"the mean of {raw.draws:,} draws; a calibrator acts on the mean of the draws")


def labels_tensors(path: Path, options: ReadOptions) -> tuple[Any, str]:
    held, _ = read_tensors(path)
    key, _ = find_label_name(path, list(held), options.labels_key)
    if key is None:
        raise file_error(path, f"no labels among its keys ({listing(held)})", "name them with --label")
    return _held(path, held, key, options), f"{key!r} of {path.name!r}"


def write_scores_tensors(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """The file again with new scores under the same key; the other tensors and the metadata are kept."""
    held, metadata = read_tensors(source)
    if raw.expected_entropy is not None:
        # what is known of the draws is not true of new scores
        held |= {"expected_entropy": entropy(scores)}
        metadata = {key: value for key, value in metadata.items() if key != "monte_carlo_error"} | {"samples": "1"}
    write_tensors(destination, held | {raw.keys[0]: scores}, metadata)


def _held(path: Path, held: dict[str, Tensor], key: str, options: ReadOptions) -> Any:
    tensor = held[key]
    if options.in_blocks:
        dtype, shape, offset = tensor_places(path)[key]
        return FileSource(path, offset, shape, dtype, dtype.itemsize, lambda raw: torch.frombuffer(raw, dtype=dtype))
    check_size(path, f"key {key!r}", memory_bytes(tensor.numel(), tensor.element_size()), options.limit)
    return tensor
