"""AG News: descriptions of news articles in four classes (World, Sports, Business, Sci/Tech).

    python reproduction/run_study.py ag-news --data FOLDER

FOLDER holds files of the public repositories forest-snow/alps (data/agnews), HenryPengZou/JointMatch (data/ag_news) and
dejanbatanjac/bbc-article-classify-bert (bbc):

    train.csv                 the original 120,000 training articles, if you have them; otherwise
    alps-dev.tsv, dev.csv     10,001 and 8,000 of them (rename dev.tsv of alps to alps-dev.tsv)
    test.csv                  7,600 test articles
    bbc/{business,sport,tech} BBC articles, the other domain; its other two folders have no class in AG News

Duplicate descriptions and descriptions in the test data are not used for training. The smaller files have no titles, so
titles are left out.
"""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from avuc.study.data.shifted_text import mixed

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
    """Return the input of the network. The vocabulary is that of the training articles, held-out ones included."""
    return encode_words(map(words_of, texts), _vocabulary(root), VOCABULARY, LENGTH)


def bbc_news(
    texts: list[str], labels: Tensor, severity: int, generator: torch.Generator, root: str
) -> tuple[list[str], Tensor]:
    """Return the descriptions with `severity` fifths of them replaced by descriptions of BBC articles."""
    bbc_texts, bbc_labels = _bbc(root)
    return mixed((texts, labels), (bbc_texts, torch.tensor(bbc_labels)), severity, generator)


@cache
def _training(root: str) -> Labelled:
    """Return the training descriptions and labels, without duplicates and without those of the test data."""
    folder = Path(root)
    original = folder / "train.csv"
    parts = [_table(original)] if original.exists() else [_table(folder / "alps-dev.tsv"), _table(folder / "dev.csv")]
    seen = {_key(text) for text in _table(folder / "test.csv")[0]}
    texts, labels = [], []
    for text, label in (pair for part in parts for pair in zip(*part, strict=True)):
        if _key(text) not in seen:
            seen.add(_key(text))
            texts.append(text)
            labels.append(label)
    return texts, labels


def _table(path: Path) -> Labelled:
    """Read rows (class from 1, …, description), or (description, name of the class) in a .tsv file."""
    if path.suffix == ".tsv":
        lines = [line.rpartition("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
        rows = [(str(CLASSES.index(name) + 1), text) for text, _, name in lines]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(row[0], row[-1]) for row in csv.reader(file) if row and row[0].isdigit()]
    return [" ".join(text.replace("\\", " ").split()) for _, text in rows], [int(number) - 1 for number, _ in rows]


def _key(text: str) -> str:
    """Return the words of a description in lower case, by which duplicates are found."""
    return " ".join(words_of(text.lower()))


@cache
def _bbc(root: str) -> Labelled:
    """Return the first paragraph of each article, which corresponds to a description in AG News."""
    texts, labels = [], []
    for name, label in BBC.items():
        for path in sorted((Path(root) / "bbc" / name).glob("*.txt")):
            paragraphs = path.read_text(encoding="utf-8", errors="replace").split("\n\n")
            texts.append(" ".join(paragraphs[1].split()))
            labels.append(label)
    return texts, labels


@cache
def _vocabulary(root: str) -> dict[str, int]:
    """Return the vocabulary of the training data."""
    return vocabulary_of(map(words_of, _training(root)[0]), VOCABULARY)
