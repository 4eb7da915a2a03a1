"""The report of a study of tokens, words, sentences or pixels of float images: names, captions and metrics that fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from avuc.methods import Vanilla
from avuc.report.study.page import study_page
from avuc.report.study.results import read_results
from avuc.report.study.tables import all_tables
from avuc.study import run
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=2, batch_size=20, learning_rate=1e-2, milestones=(), factors=(), pad=0, flip=False)
WORDS = ("we", "saw", "the", "old", "town", "near", "bath", "york")
IDS = torch.randint(8, (90, 6), generator=torch.Generator().manual_seed(0))
TAGS = torch.where(torch.rand(90, 6, generator=torch.Generator().manual_seed(1)) < 0.2, 0, (IDS > 4).long())


class Tokens(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 8), nn.Linear(8, num_classes)

    def forward(self, ids):
        return self.out(self.embed(ids))


class Sentences(Tokens):
    def forward(self, ids):
        return super().forward(ids).mean(1)


def encode(texts):
    rows = [[WORDS.index(word) if word in WORDS else 8 for word in text.split()][:6] for text in texts]
    return {"ids": torch.tensor([row + [8] * (6 - len(row)) for row in rows])}


def pair(inputs, labels):
    return {"train": (inputs[:60], labels[:60]), "test": (inputs[60:], labels[60:])}


def texts():
    return [" ".join(WORDS[number] for number in row) for row in IDS.tolist()]


def pixels():
    images = torch.rand(90, 1, 5, 5, generator=torch.Generator().manual_seed(2))
    noise = torch.rand(90, 5, 5, generator=torch.Generator().manual_seed(3)) < 0.1
    return images, (images[:, 0] > 0.5).logical_xor(noise).long()


STUDIES = {
    "token": lambda: {
        "data": {name: {"ids": ids, "labels": tags} for name, (ids, tags) in pair(IDS, TAGS).items()},
        "net": Tokens,
        "class_dim": -1,
    },
    "word": lambda: {"data": pair(texts(), TAGS), "net": Tokens, "class_dim": -1, "encode": encode},
    "sentence": lambda: {"data": pair(texts(), TAGS[:, 0]), "net": Sentences, "encode": encode},
    "pixel": lambda: {"data": pair(*pixels()), "net": lambda num_classes: nn.Conv2d(1, num_classes, 3, padding=1)},
}


@pytest.mark.parametrize("unit", STUDIES)
def test_metrics_and_captions_fit_the_task(tmp_path, unit):
    given = {"methods": {"V": Vanilla()}, "train": TRAIN, "validation": 20, "samples": 1, "progress": False}
    store = run(out=tmp_path, device="cpu", **given, **STUDIES[unit]())
    stored = {row[4] for row in store.rows()}
    results = read_results(store)
    page, dense = study_page(results), unit != "sentence"
    assert results.unit == unit
    assert ("mean_iou" in stored) == dense
    for name, title in (("mean_iou", "mIoU"), ("pavpu", "PAvPU")):
        assert (name in results.values) == (unit == "pixel" and name in stored)
        assert (title in page) == (unit == "pixel" and name in stored)
    assert ("image_aurc" in results.values) == dense
    captions = " ".join(table.caption for table in all_tables(results))
    assert ("the coverage on clean data lies in the interval" in captions) != dense
    assert (f"the {unit}s of one example are not independent" in captions) == dense
    shown = store.shown("V", 0, "clean", 0)["mistakes"]
    assert shown
    if unit in ("token", "pixel"):  # the numbers are those of the user's test data
        assert all(mistake["text"] == mistake["is"] for mistake in shown)
        assert [mistake["is"] for mistake in shown] != [f"example {row}" for row in range(len(shown))]
    store.close()
