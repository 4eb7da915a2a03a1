"""AG News: descriptions of news articles in four classes (World, Sports, Business, Sci/Tech).

The folder holds, as the public repositories forest-snow/alps (data/agnews), HenryPengZou/JointMatch (data/ag_news) and
dejanbatanjac/bbc-article-classify-bert (bbc) have them:

    train.csv                 the original 120,000 training articles, if you have them; otherwise
    alps-dev.tsv, dev.csv     10,001 and 8,000 of them (the file dev.tsv of alps has another name here)
    test.csv                  7,600 test articles
    bbc/{business,sport,tech} BBC articles, the other domain; its other two folders have no class of their own here

Descriptions that occur twice, or in the test data, are not trained on. The smaller files have no titles,
so titles are left out.
"""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from avuc.study.shifted_text import mixed

sys.path.append(str(Path(__file__).parents[2]))
from text_words import encode_words, vocabulary_of, words_of

VOCABULARY, LENGTH = 12_000, 56  # words
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
BBC = {"business": 2, "sport": 1, "tech": 3}
Labelled = tuple[list[str], list[int]]


def load(split: str, root: str) -> tuple[list[str], Tensor]:
    """Return the descriptions and labels of "train" or "test"."""
    texts, labels = _training(root) if split == "train" else _table(Path(root) / "test.csv")
    return texts, torch.tensor(labels)


def encode(texts: list[str], root: str) -> Tensor:
    """Return what the network takes. The words are those of the training articles, held-out ones included."""
    return encode_words(map(words_of, texts), _vocabulary(root), VOCABULARY, LENGTH)


def bbc_news(
    texts: list[str], labels: Tensor, severity: int, generator: torch.Generator, root: str
) -> tuple[list[str], Tensor]:
    """Return the descriptions with a fifth of them, for each step of severity, replaced by those of BBC articles."""
    others, classes = _bbc(root)
    return mixed((texts, labels), (others, torch.tensor(classes)), severity, generator)


@cache
def _training(root: str) -> Labelled:
    here = Path(root)
    whole = here / "train.csv"
    parts = [_table(whole)] if whole.exists() else [_table(here / "alps-dev.tsv"), _table(here / "dev.csv")]
    seen = {_key(text) for text in _table(here / "test.csv")[0]}
    texts, labels = [], []
    for text, label in (pair for part in parts for pair in zip(*part, strict=True)):
        if _key(text) not in seen:
            seen.add(_key(text))
            texts.append(text)
            labels.append(label)
    return texts, labels


def _table(path: Path) -> Labelled:
    """Rows (class from 1, …, description), or (description, name of the class) in a .tsv file."""
    if path.suffix == ".tsv":
        lines = [line.rpartition("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
        rows = [(str(CLASSES.index(name) + 1), text) for text, _, name in lines]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(row[0], row[-1]) for row in csv.reader(file) if row and row[0].isdigit()]
    return [" ".join(text.replace("\\", " ").split()) for _, text in rows], [int(number) - 1 for number, _ in rows]


def _key(text: str) -> str:
    return " ".join(words_of(text.lower()))


@cache
def _bbc(root: str) -> Labelled:
    """The first paragraph of each article, which is what a description is in AG News."""
    texts, labels = [], []
    for name, label in BBC.items():
        for path in sorted((Path(root) / "bbc" / name).glob("*.txt")):
            paragraphs = path.read_text(encoding="utf-8", errors="replace").split("\n\n")
            texts.append(" ".join(paragraphs[1].split()))
            labels.append(label)
    return texts, labels


@cache
def _vocabulary(root: str) -> dict[str, int]:
    return vocabulary_of(map(words_of, _training(root)[0]), VOCABULARY)
