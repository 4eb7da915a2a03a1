"""WNUT17: recognise rare and emerging names; each word of a message has a tag.

    python reproduction/run_study.py wnut17 --data FOLDER

FOLDER holds files of the public repository davidsbatista/NER-datasets (WNUT17; WikiANN/en/test is renamed to
wikiann-en-test):

    wnut17train.conll         3,394 tweets
    emerging.dev.conll        1,009 YouTube comments: validation data
    emerging.test.annotated   1,287 messages, also from Reddit and StackExchange, with names that the others do not
                              have: test data, which are already shifted
    wikiann-en-test           sentences of Wikipedia with persons, places and organisations, the other domain

A sentence is a string of words with spaces between them; the label of word t of sentence n is (n, t). Organisations of
Wikipedia are ignored, because WNUT17 has two classes for them.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from avuc.core.tasks import IGNORE_INDEX
from avuc.study.data.shifted_text import mixed

sys.path.append(str(Path(__file__).parents[2]))
from text_words import encode_words, vocabulary_of

VOCABULARY, LENGTH = 8_000, 64  # words
KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
TAGS = ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI"))
FILES = {"train": "wnut17train.conll", "validation": "emerging.dev.conll", "test": "emerging.test.annotated"}
WIKIPEDIA = {"O": "O", "B-PER": "B-person", "I-PER": "I-person", "B-LOC": "B-location", "I-LOC": "I-location"}
Tagged = tuple[list[str], list[list[int]]]


def load(split: str, root: str) -> tuple[list[str], Tensor]:
    """Return the sentences of "train", "validation" or "test", and the labels (N, LENGTH) of their words."""
    texts, tags = _read(Path(root) / FILES[split])
    return texts, _padded(tags)


def encode(texts: list[str], root: str) -> Tensor:
    """Return the input of the network. The vocabulary is that of the training tweets."""
    return encode_words((text.split() for text in texts), _vocabulary(root), VOCABULARY, LENGTH)


def wikipedia(
    texts: list[str], labels: Tensor, severity: int, generator: torch.Generator, root: str
) -> tuple[list[str], Tensor]:
    """Return the sentences with `severity` fifths of them replaced by sentences of Wikipedia."""
    wikipedia_texts, tags = _read(Path(root) / "wikiann-en-test")
    return mixed((texts, labels), (wikipedia_texts, _padded(tags)), severity, generator)


@cache
def _read(path: Path) -> Tagged:
    """Return the sentences of a file and the labels of their words."""
    texts, tags = [], []
    for block in _blocks(path):
        words, names = zip(*block, strict=True)
        texts.append(" ".join(words))
        tags.append([_label(name) for name in names])
    return texts, tags


def _blocks(path: Path) -> list[list[tuple[str, str]]]:
    """Return the sentences of a file as lists of (word, tag); an empty line ends a sentence."""
    blocks: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text(encoding="utf-8").split("\n"):
        word, _, tag = line.strip().rpartition("\t")
        if not tag:
            blocks.append([])
        elif word:
            # words of Wikipedia begin with their language; spaces inside a word would split it
            plain = word.removeprefix("en:") if path.name.startswith("wikiann") else word
            blocks[-1].append(("_".join(plain.split()) or "_", tag.split(",")[0]))
    return [block for block in blocks if block]


def _label(tag: str) -> int:
    """Return the label of a tag; `IGNORE_INDEX` if WNUT17 has no such tag."""
    name = tag if tag in TAGS else WIKIPEDIA.get(tag)
    return IGNORE_INDEX if name is None else TAGS.index(name)


def _padded(tags: list[list[int]]) -> Tensor:
    """Return the labels as (N, LENGTH), cut off or filled with `IGNORE_INDEX`."""
    padded = torch.full((len(tags), LENGTH), IGNORE_INDEX)
    for row, labels in zip(padded, tags, strict=True):
        row[: len(labels)] = torch.tensor(labels[:LENGTH])
    return padded


@cache
def _vocabulary(root: str) -> dict[str, int]:
    """Return the vocabulary of the training data."""
    return vocabulary_of((text.split() for text in _read(Path(root) / FILES["train"])[0]), VOCABULARY)
