"""Entity-level F1 of token classification (Tjong Kim Sang & De Meulder 2003, https://arxiv.org/abs/cs/0306050).

An entity is a run of tokens: B-x begins one of kind x, and I-x continues it. I-x after something else than an entity of
kind x begins one, too, as in the script `conlleval` and in seqeval. An entity is found if its first token, its last
token and its kind are right.

    F1 = 2 · found / (predicted entities + labelled entities)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.metrics.arrays import Array

Integers = NDArray[np.int64]
OUTSIDE = -1


class EntityTags(NamedTuple):
    """What the classes mean.

    Args:
        kinds: (C,) number of the kind of entity; −1 for the class O.
        begins: (C,) whether the class is B-x.
    """

    kinds: Integers
    begins: NDArray[np.bool_]


def entity_tags(class_names: Sequence[str]) -> EntityTags | None:
    """Return what the classes mean if they are the tags O, B-x and I-x; None for other classes.

    >>> entity_tags(["O", "B-place", "I-place", "B-name"]).kinds
    array([-1,  0,  0,  1])
    >>> entity_tags(["cat", "dog"]) is None
    True
    """
    pairs = [("O", "") if name == "O" else tuple(name.split("-", 1)) for name in class_names]
    plain = all(len(pair) == 2 and pair[0] in ("O", "B", "I") for pair in pairs)
    kinds = list(dict.fromkeys(pair[1] for pair in pairs if pair[0] != "O" and len(pair) == 2))
    if not plain or not kinds or [*class_names].count("O") != 1:
        return None
    numbers = [OUTSIDE if pair[0] == "O" else kinds.index(pair[1]) for pair in pairs]
    return EntityTags(np.array(numbers), np.array([pair[0] == "B" for pair in pairs]))


def entity_counts(predicted: Integers, labels: Integers, sentences: Integers, tags: EntityTags) -> Array:
    """Return (3,): entities that are found, predicted and labelled. They add up over batches of whole sentences.

    Args:
        predicted: (N,) predicted classes of the labelled tokens, in their order.
        labels: (N,) class numbers.
        sentences: (N,) number of the sentence of each token; the tokens of a sentence stand together.
        tags: what the classes mean.

    >>> tags = entity_tags(["O", "B-place", "I-place"])
    >>> said, true = np.array([1, 2, 0, 1]), np.array([1, 2, 0, 0])
    >>> entity_counts(said, true, np.array([0, 0, 0, 0]), tags)
    array([1., 2., 1.])
    """
    first = np.ones(len(labels), bool)
    first[1:] = sentences[1:] != sentences[:-1]
    (starts, ends), (true_starts, true_ends) = (_entities(tags, each, first) for each in (predicted, labels))
    both = starts & true_starts
    same = (tags.kinds[predicted] == tags.kinds[labels]) & (ends == true_ends)
    return np.array([(both & same).sum(), starts.sum(), true_starts.sum()], np.float64)


def f1_of(counts: Array) -> float:
    """Return the F1 of `entity_counts`; NaN if there is no entity at all.

    >>> round(f1_of(np.array([1.0, 2.0, 1.0])), 3)
    0.667
    """
    found, predicted, labelled = counts
    return float(2 * found / (predicted + labelled)) if predicted + labelled else math.nan


def _entities(tags: EntityTags, classes: Integers, first: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Integers]:
    """Return whether each token begins an entity, and the index after the last token of an entity from there."""
    kinds = tags.kinds[classes]
    other = first.copy()  # whether the token before is not of the same entity kind
    other[1:] |= kinds[1:] != kinds[:-1]
    starts = (kinds != OUTSIDE) & (tags.begins[classes] | other)
    # an entity ends where another one begins, where no entity is, and at the end of the sentence
    stops = np.append(starts | (kinds == OUTSIDE) | first, True).nonzero()[0]
    ends: Integers = stops[np.searchsorted(stops, np.arange(len(classes)), side="right")]
    return starts, ends
