"""Turn sentences into tensors for the text studies: the word, its beginning, its ending and its shape.

reproduction/studies/{ag-news,sst2,wnut17}/data.py use it; reproduction/run_study.py runs these studies.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

WORDS = re.compile(r"\w+|[^\w\s]")
PADDING, UNKNOWN = 0, 1
BUCKETS = 2048  # hash buckets of the beginnings, and as many of the endings
AFFIX = 3  # number of letters of a beginning or an ending
SHAPES = 32
FEATURES = 4  # features of a word: itself, its beginning, its ending, its shape


def words_of(text: str) -> list[str]:
    """Return the words and punctuation marks of a sentence.

    >>> words_of("It's good.")
    ['It', "'", 's', 'good', '.']
    """
    return WORDS.findall(text)


def vocabulary_of(sentences: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Return the index of each word that occurs at least twice in the training sentences, most frequent first.

    Args:
        sentences: the words of each sentence.
        size: largest number of indices; 0 and 1 stand for padding and for unknown words.

    >>> vocabulary_of([["A", "b", "a"], ["b", "a", "c"]], 10)
    {'a': 2, 'b': 3}
    """
    counts = Counter(word.lower() for words in sentences for word in words)
    frequent = sorted((-count, word) for word, count in counts.items() if count > 1)[: max(0, size - 2)]
    return {word: index for index, (_, word) in enumerate(frequent, start=2)}


def encode_words(sentences: Iterable[Sequence[str]], vocabulary: dict[str, int], size: int, length: int) -> Tensor:
    """Return sentences as int32 (N, length, FEATURES): indices into one table of embeddings, 0 after the end.

    A sentence without words becomes one unknown word.

    Args:
        sentences: the words of each sentence; words after the first `length` are left out.
        vocabulary: the result of `vocabulary_of`.
        size: the largest size of the vocabulary; the other features have the indices after it.
        length: number of words of a sentence in the result.

    >>> encode_words([["A"]], {"a": 2}, 10, 2).shape, table_rows(10)
    (torch.Size([1, 2, 4]), 4138)
    """
    cache: dict[str, tuple[int, ...]] = {}
    encoded = []
    for words in sentences:
        features = []
        for word in list(words[:length]) or [""]:
            if word not in cache:
                cache[word] = _features(word, vocabulary, size)
            features.append(cache[word])
        encoded.append(features + [(PADDING,) * FEATURES] * (length - len(features)))
    return torch.tensor(encoded, dtype=torch.int32).view(-1, length, FEATURES)


def table_rows(size: int) -> int:
    """Return the number of embeddings that `encode_words` needs for a vocabulary of at most `size` words."""
    return size + 2 * BUCKETS + SHAPES


def _features(word: str, vocabulary: dict[str, int], size: int) -> tuple[int, ...]:
    """Return the `FEATURES` indices of a word."""
    lower = word.lower()
    shape = (
        word[:1].isupper(),
        len(word) > 1 and word.isupper(),
        any(letter.isdigit() for letter in word),
        not word.isalnum(),
        word[:1] in ("@", "#"),
    )
    return (
        vocabulary.get(lower, UNKNOWN),
        size + zlib.crc32(lower[:AFFIX].encode("utf-8", "surrogatepass")) % BUCKETS,
        size + BUCKETS + zlib.crc32(lower[-AFFIX:].encode("utf-8", "surrogatepass")) % BUCKETS,
        size + 2 * BUCKETS + sum(is_set << bit for bit, is_set in enumerate(shape)),
    )
