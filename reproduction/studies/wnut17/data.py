"""WNUT17: rare and emerging names, a tag for each word of a message.

The folder holds, as the public repository davidsbatista/NER-datasets has them (WNUT17; WikiANN/en/test as
wikiann-en-test):

    wnut17train.conll         3,394 tweets
    emerging.dev.conll        1,009 YouTube comments: validation data
    emerging.test.annotated   1,287 messages, also from Reddit and StackExchange, with names that the others do not
                              have: test data, a shift by themselves
    wikiann-en-test           sentences of Wikipedia with persons, places and organisations, the other domain

A sentence is its words with spaces between them, and word t has the label (n, t). Organisations of Wikipedia have no
label, because WNUT17 has two classes for them.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from avuc.core.tasks import IGNORE_INDEX
from avuc.study.shifted_text import mixed

sys.path.append(str(Path(__file__).parents[2]))
from text_words import encode_words, vocabulary_of

VOCABULARY, LENGTH = 8_000, 64  # words
KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
TAGS = ("O", *(f"{place}-{kind}" for kind in KINDS for place in "BI"))
FILES = {"train": "wnut17train.conll", "validation": "emerging.dev.conll", "test": "emerging.test.annotated"}
WIKIPEDIA = {"O": "O", "B-PER": "B-person", "I-PER": "I-person", "B-LOC": "B-location", "I-LOC": "I-location"}
Tagged = tuple[list[str], list[list[int]]]


def load(split: str, root: str) -> tuple[list[str], Tensor]:
    """Return the sentences of "train", "validation" or "test", and the labels (N, LENGTH) of their words."""
    texts, tags = _read(Path(root) / FILES[split])
    return texts, _padded(tags)


def encode(texts: list[str], root: str) -> Tensor:
    """Return what the network takes. The words are those of the training tweets."""
    return encode_words((text.split() for text in texts), _vocabulary(root), VOCABULARY, LENGTH)


def wikipedia(
    texts: list[str], labels: Tensor, severity: int, generator: torch.Generator, root: str
) -> tuple[list[str], Tensor]:
    """Return the sentences with a fifth of them, for each step of severity, replaced by those of Wikipedia."""
    others, tags = _read(Path(root) / "wikiann-en-test")
    return mixed((texts, labels), (others, _padded(tags)), severity, generator)


@cache
def _read(path: Path) -> Tagged:
    texts, tags = [], []
    for block in _blocks(path):
        words, names = zip(*block, strict=True)
        texts.append(" ".join(words))
        tags.append([_number(name) for name in names])
    return texts, tags


def _blocks(path: Path) -> list[list[tuple[str, str]]]:
    """Sentences as lists of (word, tag); an empty line ends a sentence."""
    blocks: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text(encoding="utf-8").split("\n"):
        word, _, tag = line.strip().rpartition("\t")
        if not tag:
            blocks.append([])
        elif word:
            # Wikipedia's words have their language before them; a word has no space inside
            plain = word.removeprefix("en:") if path.name.startswith("wikiann") else word
            blocks[-1].append(("_".join(plain.split()) or "_", tag.split(",")[0]))
    return [block for block in blocks if block]


def _number(tag: str) -> int:
    name = tag if tag in TAGS else WIKIPEDIA.get(tag)
    return IGNORE_INDEX if name is None else TAGS.index(name)


def _padded(tags: list[list[int]]) -> Tensor:
    rows = torch.full((len(tags), LENGTH), IGNORE_INDEX)
    for row, numbers in zip(rows, tags, strict=True):
        row[: len(numbers)] = torch.tensor(numbers[:LENGTH])
    return rows


@cache
def _vocabulary(root: str) -> dict[str, int]:
    return vocabulary_of((text.split() for text in _read(Path(root) / FILES["train"])[0]), VOCABULARY)
