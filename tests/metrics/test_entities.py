"""Entity-level F1 against seqeval's figures and against a plain loop over the words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.metrics.entities import entity_counts, entity_tags, f1_of

NAMES = ("O", "B-place", "I-place", "B-name", "I-name")
TAGS = entity_tags(NAMES)
assert TAGS is not None
Sentences = list[tuple[list[int], list[int]]]  # predicted and true classes of each


def counts(sentences: Sentences) -> np.ndarray:
    said, true = (np.array([one for pair in sentences for one in pair[part]], np.int64) for part in (0, 1))
    return entity_counts(said, true, np.repeat(np.arange(len(sentences)), [len(pair[0]) for pair in sentences]), TAGS)


def spans(classes: list[int]) -> set[tuple[str, int, int]]:
    """(kind, first word, place after the last word) of every entity, by walking along the words."""
    found, kind, first = set(), "", 0
    for place, name in enumerate([*(NAMES[number] for number in classes), "O"]):
        if kind and name != f"I-{kind}":
            found.add((kind, first, place))
            kind = ""
        if name != "O" and not kind:
            kind, first = name[2:], place
    return found


# seqeval 1.2.2, f1_score of the same sentences
@pytest.mark.parametrize(
    ("seed", "expected"), [(0, 10 / 11), (1, 14 / 23), (2, 1.0), (3, 1 / 3), (4, 14 / 27), (5, 12 / 17)]
)
def test_figures_of_seqeval(seed: int, expected: float) -> None:
    random = np.random.RandomState(seed)
    number = random.randint(1, 6)
    lengths = random.randint(1, 9, number)
    said = [random.randint(0, 5, length) for length in lengths]
    true = [
        random.randint(0, 5, len(one))
        if random.rand() < 0.3
        else np.where(random.rand(len(one)) < 0.7, one, random.randint(0, 5, len(one)))
        for one in said
    ]
    found = counts([(one.tolist(), other.tolist()) for one, other in zip(said, true, strict=True)])
    assert f1_of(found) == pytest.approx(expected, abs=1e-12)


words = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(st.lists(words, max_size=5))
def test_a_walk_along_the_words(drawn: list[list[tuple[int, int]]]) -> None:
    sentences = [([one for one, _ in each], [other for _, other in each]) for each in drawn]
    pairs = [(spans(said), spans(true)) for said, true in sentences]
    expected = [
        sum(len(said & true) for said, true in pairs),
        *(sum(len(pair[part]) for pair in pairs) for part in (0, 1)),
    ]
    assert counts(sentences).tolist() == expected


def test_extremes() -> None:
    assert math.isnan(f1_of(counts([([0], [0])])))
    assert math.isnan(f1_of(counts([])))
    assert f1_of(counts([([0, 0], [1, 2])])) == 0
    assert f1_of(counts([([1], [1]), ([2], [2])])) == 1  # an entity does not go on in the next sentence
    assert f1_of(counts([([1, 1], [1, 2])])) == 0


@pytest.mark.parametrize("names", [(), ("O",), ("O", "O", "B-x"), ("B-x", "I-x"), ("O", "B-x", "E-x"), ("O", "Bx")])
def test_other_classes_have_no_entities(names: tuple[str, ...]) -> None:
    assert entity_tags(names) is None
