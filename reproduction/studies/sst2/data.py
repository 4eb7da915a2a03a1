"""SST-2: sentences of film reviews, negative (0) or positive (1).

    python reproduction/run_study.py sst2 --data FOLDER

FOLDER holds files of the public repositories forest-snow/alps (data/SST-2) and AcademiaSinicaNLPLab/sentiment_dataset
(data):

    train.tsv, dev.tsv      67,349 phrases of the training sentences, GLUE's training set in two parts
    stsa.binary.dev         872 sentences: validation data
    stsa.binary.test        1,821 sentences: test data
    mpqa.all                10,606 opinions in news articles, the other domain

The phrases of `dev.tsv` come from the same sentences as those of `train.tsv`. A temperature fitted on them would be too
low, so they are training data.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from avuc.study.data.shifted_text import mixed

sys.path.append(str(Path(__file__).parents[2]))
from text_words import encode_words, vocabulary_of, words_of

VOCABULARY, LENGTH = 10_000, 40  # words
FILES = {"validation": "stsa.binary.dev", "test": "stsa.binary.test"}
Labelled = tuple[list[str], list[int]]


def load(split: str, root: str) -> tuple[list[str], Tensor]:
    """Return the sentences and labels of "train", "validation" or "test"."""
    texts, labels = _training(root) if split == "train" else _sentences(Path(root) / FILES[split])
    return texts, torch.tensor(labels)


def encode(texts: list[str], root: str) -> Tensor:
    """Return the input of the network. The vocabulary is that of the training phrases."""
    return encode_words(map(words_of, texts), _vocabulary(root), VOCABULARY, LENGTH)


def news_opinions(
    texts: list[str], labels: Tensor, severity: int, generator: torch.Generator, root: str
) -> tuple[list[str], Tensor]:
    """Return the sentences with `severity` fifths of them replaced by opinions in news articles."""
    opinions, opinion_labels = _sentences(Path(root) / "mpqa.all")
    return mixed((texts, labels), (opinions, torch.tensor(opinion_labels)), severity, generator)


@cache
def _training(root: str) -> Labelled:
    """Return the training phrases and labels, without those that are validation or test sentences."""
    held_out = {text for name in FILES.values() for text in _sentences(Path(root) / name)[0]}
    texts, labels = [], []
    for name in ("train.tsv", "dev.tsv"):
        for line in (Path(root) / name).read_text(encoding="utf-8").split("\n")[1:]:
            text, _, label = line.rpartition("\t")
            if text and text.strip() not in held_out:
                texts.append(text.strip())
                labels.append(int(label))
    return texts, labels


def _sentences(path: Path) -> Labelled:
    """Read a file with lines "label sentence"."""
    lines = [line.split(" ", 1) for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    return [text.strip() for _, text in lines], [int(label) for label, _ in lines]


@cache
def _vocabulary(root: str) -> dict[str, int]:
    """Return the vocabulary of the training data."""
    return vocabulary_of(map(words_of, _training(root)[0]), VOCABULARY)
