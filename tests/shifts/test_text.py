"""Shifts of sentences: how much they change, what they keep, and that a sentence does not depend on the others."""

from __future__ import annotations

import re
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.shifts.text import (
    DROP_RATES,
    NEIGHBOURS,
    TEXT_SHIFTS,
    TYPO_RATES,
    kept_words,
    only_words,
    typos,
    word_dropout,
)

SENTENCES = [f"sentence number {number} is about a quick brown fox" for number in range(300)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TEXT_SHIFTS)
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_a_sentence_does_not_depend_on_the_others(name, severity):
    shift = TEXT_SHIFTS[name]
    whole = shift(SENTENCES, severity, generator(3))
    assert whole[7:9] == shift(SENTENCES[7:9], severity, generator(3))
    assert whole == shift(SENTENCES, severity, generator(3))
    assert whole != shift(SENTENCES, severity, generator(4))


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_share_of_typos(severity):
    changed = typos(SENTENCES, severity, generator())
    letters = [(a, b) for old, new in zip(SENTENCES, changed, strict=True) for a, b in zip(old, new, strict=True)]
    typed = [(a, b) for a, b in letters if a in string.ascii_lowercase]
    share = sum(a != b for a, b in typed) / len(typed)
    assert share == pytest.approx(TYPO_RATES[severity - 1], abs=0.01)
    assert all(a == b or b in NEIGHBOURS[a] for a, b in letters)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_share_of_dropped_words(severity):
    changed = word_dropout(SENTENCES, severity, generator())
    kept = sum(len(text.split()) for text in changed) / sum(len(text.split()) for text in SENTENCES)
    assert 1 - kept == pytest.approx(DROP_RATES[severity - 1], abs=0.02)


def test_kept_words_are_those_of_word_dropout():
    places = kept_words(SENTENCES, 4, generator(2))
    expected = word_dropout(SENTENCES, 4, generator(2))
    assert [" ".join(s.split()[p] for p in kept) for s, kept in zip(SENTENCES, places, strict=True)] == expected


def test_neighbours_are_mutual_and_known():
    assert set(NEIGHBOURS) == set(string.ascii_lowercase)
    assert all(key in NEIGHBOURS[other] for key, others in NEIGHBOURS.items() for other in others)
    assert set(NEIGHBOURS["g"]) == set("fhtyvb")
    assert set(NEIGHBOURS["q"]) == set("wa")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5), st.integers(1, 5), st.sampled_from(sorted(TEXT_SHIFTS)))
def test_any_text(texts, severity, name):
    changed = TEXT_SHIFTS[name](texts, severity, generator())
    assert len(changed) == len(texts)
    for old, new in zip(texts, changed, strict=True):
        if name == "typos":
            assert len(new) == len(old)
        else:
            words = iter(old.split())
            assert all(word in words for word in new.split())  # in order
            assert bool(new) == bool(old.split())


def test_capital_letters_stay_capital():
    changed = typos(["HELLO WORLD " * 20], 5, generator())[0]
    assert changed.isupper()


NO_BREAK = "le prix\u00a0: 5\u202fkm à\u3000pied  et\tà vélo"


def test_space_between_words_that_stay_is_kept():
    for seed in range(40):
        (kept,) = kept_words([NO_BREAK], 2, generator(seed))
        (changed,) = word_dropout([NO_BREAK], 2, generator(seed))
        words = NO_BREAK.split()
        assert changed.split() == [words[index] for index in kept]
        for pair, together in (((1, 2), "prix\u00a0:"), ((3, 4), "5\u202fkm"), ((5, 6), "à\u3000pied")):
            assert (together in changed) == (set(pair) <= set(kept))
        if len(kept) == len(words):
            assert changed == "le prix\u00a0: 5\u202fkm à\u3000pied et à vélo"


def test_space_around_missing_words():
    assert only_words([NO_BREAK], [[1, 4]]) == ["prix km"]
    assert only_words(["\u3000一\u3000二\u00a0三\u3000"], [[0, 2]]) == ["\u3000一\u3000三\u3000"]
    assert only_words(["\u3000一\u3000二\u00a0三\u3000"], [[1]]) == ["二"]
    assert only_words(["\u00a0", "é a"], [[], []]) == ["", ""]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=40), st.integers(1, 5))
def test_ascii_is_as_before(text, severity):
    (kept,) = kept_words([text], severity, generator())
    assert word_dropout([text], severity, generator()) == [" ".join(text.split()[index] for index in kept)]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab \t\u00a0\u3000é", max_size=20), st.data())
def test_words_at_any_indices(text, data):
    words = text.split()
    chosen = sorted(data.draw(st.sets(st.integers(0, len(words) - 1)))) if words else []
    assert only_words([text], [chosen])[0].split() == [words[index] for index in chosen]
    if words:  # nothing but runs of ASCII white space changes
        ends_gone = re.sub(r"^[ \t]+(?=\S)|(?<=\S)[ \t]+$", "", text)
        expected = re.sub(r"(?<=\S)[ \t]+(?=\S)", " ", ends_gone)
        assert only_words([text], [range(len(words))]) == [expected]
