"""Reading .safetensors; the header's claims are compared with the file by `avuc.tensorfile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.scores.names import LABEL_NAMES, SCORE_NAMES, Found, Wanted, also_there, check_size, choose, listing, refuse
from avuc.scores.sources import FileSource
from avuc.tensorfile import read_tensors, tensor_places, write_tensors

__all__ = ["labels_tensors", "scores_tensors", "write_scores_tensors"]


def scores_tensors(path: Path, wanted: Wanted) -> Found:
    """Tensors are maps of the file until they are touched, so the others cost nothing."""
    held, _ = read_tensors(path)
    key = choose(path, list(held), wanted.scores_key, SCORE_NAMES, "scores")
    if key is None:
        raise refuse(
            path,
            f"no scores: none of {listing(SCORE_NAMES)} among its keys ({listing(held)})",
            "name the right one with --scores-key",
        )
    found = Found(_held(path, held, key, wanted), f"key {key!r}", key, (key,), notes=also_there(key, held, wanted))
    label = choose(path, list(held), wanted.labels_key, LABEL_NAMES, "labels")
    if label is not None:
        found.labels, found.labels_from = _held(path, held, label, wanted), repr(label)
    return found


def labels_tensors(path: Path, wanted: Wanted) -> tuple[Any, str]:
    held, _ = read_tensors(path)
    key = choose(path, list(held), wanted.labels_key, LABEL_NAMES, "labels")
    if key is None:
        raise refuse(path, f"no labels among its keys ({listing(held)})", "name them with --labels-key")
    return _held(path, held, key, wanted), f"{key!r} of {path.name!r}"


def write_scores_tensors(source: Path, destination: Path, found: Found, scores: Tensor) -> None:
    """The file again with new scores under the same key; the other tensors and the metadata are kept."""
    held, metadata = read_tensors(source)
    write_tensors(destination, held | {found.keys[0]: scores}, metadata)


def _held(path: Path, held: dict[str, Tensor], key: str, wanted: Wanted) -> Any:
    tensor = held[key]
    if wanted.in_blocks:
        dtype, shape, offset = tensor_places(path)[key]
        return FileSource(path, offset, shape, dtype, dtype.itemsize, lambda raw: torch.frombuffer(raw, dtype=dtype))
    check_size(path, f"key {key!r}", tensor.numel() * tensor.element_size(), wanted.limit)
    return tensor
