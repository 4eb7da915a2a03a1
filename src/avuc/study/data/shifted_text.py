"""Shifted sentences, with one label each or a label for each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.arrays import UNLABELLED
from avuc.data.tensors import MemoryData, TensorData, each
from avuc.shifts.streams import stable_seed
from avuc.shifts.text import TEXT_SHIFTS, kept_words, only_words
from avuc.study.own.text_file import read_sentences

SEVERITIES = 5


def sentences_of(returned: Any, clean: TensorData, path: str) -> tuple[list[str], Tensor]:
    """Return the sentences and labels that the user's function returned; labels stay if it returned only sentences."""
    labels = clean.labels
    pair = isinstance(returned, tuple) and len(returned) == 2 and not isinstance(returned[0], str)
    texts, new_labels = returned if pair else (returned, labels)
    if not isinstance(texts, list | tuple) or [*map(type, texts)] != [str] * len(clean):
        raise InputError(f"study.shifts: {path} must return as many sentences as it gets, a list of str")
    if not pair:
        if labels.ndim > 1 and [*map(_count, texts)] != [*map(_count, clean.texts)]:
            raise InputError(
                f"study.shifts: {path} changes the number of words, and each word has a label; return the pair "
                "(sentences, labels)"
            )
        return list(texts), labels
    if not isinstance(new_labels, Tensor) or (new_labels.shape, new_labels.dtype) != (labels.shape, labels.dtype):
        raise InputError(
            f"study.shifts: {path} must return labels {tuple(labels.shape)}, {labels.dtype}, like those that it gets"
        )
    return list(texts), new_labels


def text_shifted(clean: MemoryData, name: str, severity: int, seed: int) -> TensorData:
    """Return sentences shifted by one of TEXT_SHIFTS, or mixed with those of a file; arguments as in `shifted_data`."""
    if not isinstance(clean, TensorData) or not clean.texts:
        raise InputError(
            f"study.shifts: {name!r} changes sentences, and {clean.name} has none; load gives sentences as a pair "
            "(list of str, labels), with data.encode"
        )
    generator = torch.Generator().manual_seed(stable_seed(name, severity, seed))
    title = f"{name} {severity}"
    if clean.labels.ndim > 1:
        return _words_shifted(clean, name, severity, generator)
    if name in TEXT_SHIFTS:
        return encoded(clean, TEXT_SHIFTS[name](clean.texts, severity, generator), clean.labels, title)
    texts, numbers = read_sentences(name, clean.num_classes, clean.class_names)
    other = texts, torch.tensor(numbers, device=clean.device)
    return encoded(clean, *mixed((clean.texts, clean.labels), other, severity, generator), title)


def _words_shifted(clean: TensorData, name: str, severity: int, generator: torch.Generator) -> TensorData:
    """Shift sentences with a label for each word; a dropped word loses its label, too."""
    labels = clean.labels
    counts = torch.tensor([*map(_count, clean.texts)], device=clean.device)
    positions = torch.arange(labels.shape[1], device=clean.device)
    fits = labels.ndim == 2 and not bool((labels[positions >= counts[:, None]] != IGNORE_INDEX).any())
    if name not in TEXT_SHIFTS or not fits:
        raise InputError(
            f"study.shifts: {name!r} does not fit these labels; typos and word_dropout need labels (N, T), label t for "
            "the t-th word between spaces"
        )
    title = f"{name} {severity}"
    if name != "word_dropout":
        return encoded(clean, TEXT_SHIFTS[name](clean.texts, severity, generator), labels, title)
    kept, moved = kept_words(clean.texts, severity, generator), torch.full_like(labels, IGNORE_INDEX)
    for row, stay in enumerate(kept):
        known = [position for position in stay if position < len(positions)]
        moved[row, : len(known)] = labels[row, known]
    return encoded(clean, only_words(clean.texts, kept), moved, title)


def word_labels(texts: Sequence[str], like: Tensor) -> Tensor:
    """Return labels (N, T) of unlabelled sentences: UNLABELLED where there is a word, IGNORE_INDEX after the last one.

    Args:
        texts: the sentences.
        like: labels of other sentences, (…, T).

    >>> word_labels(["two words"], torch.zeros(5, 3)).tolist()
    [[-1, -1, -100]]
    """
    counts = torch.tensor([*map(_count, texts)], dtype=torch.int64)
    after = torch.arange(like.shape[-1]) >= counts[:, None]
    return torch.full(after.shape, UNLABELLED).masked_fill(after, IGNORE_INDEX)


def _count(text: str) -> int:
    return len(text.split())


def mixed(
    clean: tuple[Sequence[str], Tensor],
    other: tuple[Sequence[str], Tensor],
    severity: int,
    generator: torch.Generator,
) -> tuple[list[str], Tensor]:
    """Return sentences and labels of which some come from another domain: one fifth for each step of severity.

    Args:
        clean: sentences and their labels, (N,) or (N, T).
        other: sentences of the other domain and their labels; each is used once before any is used again.
        severity: 1 to 5; at 5 all sentences are replaced.
        generator: chooses them, on the CPU.

    >>> texts, labels = mixed((["a"] * 5, torch.zeros(5)), (["b"], torch.ones(1)), 2, torch.Generator())
    >>> sorted(texts), labels.sum()
    (['a', 'a', 'a', 'b', 'b'], tensor(2.))
    """
    texts, labels = list(clean[0]), clean[1].clone()
    count = round(len(texts) * severity / SEVERITIES)
    rows = torch.randperm(len(texts), generator=generator)[:count].tolist()
    others = torch.randperm(len(other[0]), generator=generator).tolist()  # a file may be sorted by label
    for number, row in enumerate(rows):
        chosen = others[number % len(others)]
        texts[row], labels[row] = other[0][chosen], other[1][chosen]
    return texts, labels


def encoded(clean: TensorData, texts: list[str], labels: Tensor, title: str) -> TensorData:
    """Return the data with other sentences and labels, encoded in the same way."""
    assert clean.encode is not None
    inputs = each(clean.encode(texts), lambda tensor: tensor.to(clean.device))
    return replace(clean, inputs=inputs, labels=labels, texts=tuple(texts), name=title)
