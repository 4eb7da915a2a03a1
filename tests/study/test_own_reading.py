"""Data that are not read as the user means, found before anything is trained: random, repeated or empty."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods import Vanilla
from avuc.study import run
from avuc.study.data import own as own_data
from avuc.study.engines.ray import _WORKERS, _worker
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)
NUMBERS = torch.arange(180.0).view(60, 3).remainder(7.0) / 7 + torch.arange(60.0)[:, None] / 60
LABELS = torch.arange(60) % 3


def small(out, **changes):
    given = {"methods": {"V": Vanilla()}, "net": lambda num_classes: nn.Linear(3, num_classes), "train": TRAIN}
    return run(out=out, **{**given, "validation": 20, "samples": 1, "device": "cpu", "progress": False, **changes})


def refused(out, message, **changes):
    """Expect one line before anything is trained."""
    with pytest.raises(InputError, match=message) as raised:
        small(out, **changes)
    assert "\n" not in str(raised.value)
    assert not (out / "models").exists()


# functions that return other data each time


def random_rows(split):
    shift = np.random.default_rng().normal(size=(60, 3))
    return NUMBERS + torch.from_numpy(shift).float(), LABELS


def globally_random(split):
    """Global random numbers are seeded before each call."""
    return NUMBERS + torch.randn(60, 3) + (split == "test"), LABELS


def only_test_is_random(split):
    return random_rows(split) if split == "test" else (NUMBERS, LABELS)


@pytest.mark.parametrize(("load", "split"), [(random_rows, "train"), (only_test_is_random, "test")])
def test_data_without_a_fixed_seed(tmp_path, load, split):
    message = rf"data.source: .*:{load.__name__}\(split='{split}'\) returns other data if it is called again; give its"
    refused(tmp_path, message, data=load)


def test_data_from_global_random_numbers_can_be_repeated(tmp_path):
    small(tmp_path, data=globally_random).close()
    small(tmp_path, data=globally_random).close()


def test_slow_functions_are_called_once(tmp_path, monkeypatch):
    """Their data are compared when the study is resumed."""
    monkeypatch.setattr(own_data, "MOST_SECONDS", 0.01)

    def slow(split):
        time.sleep(0.02)
        return random_rows(split)

    small(tmp_path, data=slow).close()
    with pytest.raises(InputError, match="the data 'training' have changed"):
        small(tmp_path, data=slow)


def test_another_process_that_gets_other_data(tmp_path, monkeypatch):
    """A worker of Ray compares its data with those of the driver."""
    monkeypatch.setattr(own_data, "MOST_SECONDS", 0.0)
    recipe = small(tmp_path, data=random_rows).recipe()
    prints = {"training": "0" * 32, "clean": "0" * 32}
    common = recipe.to_toml(), str(tmp_path), "cpu", torch.get_num_threads(), (os.getcwd(), "")
    try:
        with pytest.raises(InputError, match=r"random_rows\(split='train'\) returns other data"):
            _worker(*common, (recipe.given_objects(), prints), "one run")
    finally:
        _WORKERS.clear()


# datasets that every worker reads


class Rows(IterableDataset):
    def __init__(self, numbers, shares=False, noise=False):
        self.numbers, self.shares, self.noise = numbers, shares, noise

    def __iter__(self):
        info = get_worker_info()
        for row in range(len(self.numbers)):
            if not self.shares or info is None or row % info.num_workers == info.id:
                yield self.numbers[row] + (torch.rand(3) if self.noise else 0), LABELS[row]


def rows(workers, **settings):
    return {
        split: DataLoader(Rows(numbers, **settings), batch_size=10, num_workers=workers)
        for split, numbers in (("train", NUMBERS), ("test", NUMBERS[:30] + 0.5))
    }


def test_examples_that_every_worker_reads(tmp_path):
    message = r"\(train\): each of 2 workers of the DataLoader reads .*so each example comes 2 times; .*get_worker_info"
    refused(tmp_path, message, data=rows(2))


def test_random_examples_that_every_worker_reads(tmp_path, capsys):
    small(tmp_path, data=rows(2, noise=True)).close()
    said = capsys.readouterr().err
    assert "reads its IterableDataset as a whole: 120 examples instead of 60; if the copies are not meant" in said
    assert "get_worker_info" in said


@pytest.mark.parametrize(("workers", "shares"), [(2, True), (1, False), (0, False)])
def test_examples_that_are_read_once(tmp_path, capsys, workers, shares):
    store = small(tmp_path, data=rows(workers, shares=shares))
    assert store.select("SELECT rows FROM cells WHERE shift = 'clean'") == [(30,)]
    assert "workers" not in capsys.readouterr().err


# nothing to read

EMPTY = {
    "DataLoader": lambda: DataLoader([], batch_size=4),
    "iterable": lambda: DataLoader(Rows(NUMBERS[:0]), batch_size=4),
    "torch Dataset": lambda: TensorDataset(NUMBERS[:0], LABELS[:0]),
    "pair": lambda: (NUMBERS[:0], LABELS[:0]),
    "lists": lambda: ([], []),
}


@pytest.mark.parametrize("form", EMPTY)
@pytest.mark.parametrize("split", ["train", "test"])
def test_empty_data_are_named(tmp_path, form, split):
    data = {"train": (NUMBERS, LABELS), "test": (NUMBERS[:30] + 0.5, LABELS[:30])} | {split: EMPTY[form]()}
    refused(tmp_path, rf"data.source: object:data \({split}\): there are no examples; look at the files", data=data)


def test_empty_sentences_and_other_data_are_named(tmp_path):
    texts = {"train": ([f"a {n}" for n in range(60)], LABELS), "test": ([], [])}
    refused(tmp_path, r"object:data \(test\): there are no examples", data=texts, encode=encoded)
    data = {"train": (NUMBERS, LABELS), "test": (NUMBERS[:30] + 0.5, LABELS[:30])}
    refused(tmp_path, r"study.ood: .*: there are no examples", data=data, ood=[lambda split: DataLoader([])])


def encoded(texts):
    return torch.tensor([[float(len(text))] * 3 for text in texts])


def test_an_empty_dataset_of_images_is_named(tmp_path):
    images = torch.randint(256, (60, 1, 3, 1), generator=torch.Generator().manual_seed(0)).byte()
    full, none = Dataset(images, LABELS, 3), Dataset(images[:0], LABELS[:0], 3)
    for split, data in (("test", {"train": full, "test": none}), ("train", {"train": none, "test": full})):
        refused(tmp_path, rf"\({split}\): there are no examples", data=data)
