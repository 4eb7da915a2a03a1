"""Data of other libraries in memory, and training on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods import Vanilla
from avuc.prediction import predict
from avuc.prediction.in_memory import in_memory
from avuc.train import TrainSettings, fit, fit_calibrated

IMAGES = torch.randint(256, (40, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 3
FLOATS = IMAGES.movedim(3, 1) / 255
PAIRS = TensorDataset(IMAGES, LABELS)
SETTINGS = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)

FORMS = {
    "tensors": (IMAGES, LABELS),
    "arrays": (IMAGES.numpy(), LABELS.numpy()),
    "torch dataset": PAIRS,
    "loader": DataLoader(PAIRS, batch_size=7, shuffle=True),
    "subset": DataLoader(Subset(PAIRS, range(40)), batch_size=7, drop_last=True),
}


def make_net(generator: torch.Generator) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_the_network_of_the_dataset(form: str) -> None:
    data = FORMS[form]
    found = in_memory(data, "data")
    assert isinstance(found, Dataset)
    assert torch.equal(found.images, IMAGES)
    assert torch.equal(found.labels, LABELS)
    assert found.num_classes == 3
    ours, same = (
        fit(Vanilla(), make_net, given, settings=SETTINGS, validation=given, progress=False)
        for given in (data, Dataset(IMAGES, LABELS, 3))
    )
    assert torch.equal(ours.models[0][1].weight, same.models[0][1].weight)
    assert ours.history[0]["validation_nll"] == same.history[0]["validation_nll"]


def test_a_dataset_leaves_the_random_numbers_of_torch() -> None:
    """An evaluation in the middle of a training loop must not change the numbers of the steps after it."""
    examples = Subset(TensorDataset(FLOATS, LABELS), range(40))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before = torch.get_rng_state()
    predict(net, examples, progress=False)
    fit(Vanilla(), net, examples, settings=SETTINGS, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(TorchDataset[tuple[Tensor, int]]):
    """Transforms its examples at random."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(2), index


def test_the_generator_of_a_loader_decides_the_transforms_of_its_workers() -> None:
    reads = []
    for _ in range(2):
        loader = DataLoader(Noisy(), num_workers=1, generator=torch.Generator().manual_seed(3))
        reads.append(in_memory(loader, "data").inputs)
    assert torch.equal(*reads)


def test_float_images_and_mappings() -> None:
    loader = DataLoader(TensorDataset(FLOATS, LABELS), batch_size=16)
    result = fit_calibrated(make_net, loader, (FLOATS[:20], LABELS[:20]), epochs=2, progress=False)
    assert result.predict(FLOATS[:5], samples=2).probs.shape == (5, 3)
    named = in_memory({"input": FLOATS, "labels": LABELS}, "data", num_classes=4)
    assert (named.num_classes, len(named)) == (4, 40)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FLOATS, "data: there are no labels; expected an avuc Dataset, a pair"),
        ("folder", "data: data must be .* expected an avuc Dataset"),
        ((FLOATS, LABELS / 2), "data: labels must be class indices, found torch.float32"),
        ((IMAGES.movedim(3, 1), LABELS), "have the channels first"),
        ((FLOATS, np.array(["ash", "oak"])[LABELS % 2]), r"data: labels must be class indices, found text \('ash'\)"),
        (DataLoader([(torch.zeros(2), "oak")] * 4), r"data: labels must be class indices, found text \('oak'\)"),
        (DataLoader(TensorDataset(FLOATS, FLOATS, LABELS)), r"found list of 3 .*; let the data yield pairs"),
        (
            DataLoader([{"x": torch.zeros(2), "labels": 0, "path": "a.png"}]),
            r"batch\['path'\] must be a tensor.*let",
        ),
        ((FLOATS, LABELS[:, None].expand(-1, 3).float()), "for independent labels, train in a loop of your own"),
        (DataLoader([(np.zeros(k), 0) for k in (2, 3)]), "data: batches of different shapes"),
    ],
)
def test_what_cannot_be_read_is_one_line(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fit(Vanilla(), make_net, data, settings=SETTINGS, progress=False)
    assert "\n" not in str(caught.value)


def test_a_table_is_told_how_to_become_an_array() -> None:
    pandas = pytest.importorskip("pandas")
    table, line = pandas.DataFrame({"age": [30, 40]}), r"found DataFrame; pass table.to_numpy\(\).astype\('float32'\)"
    with pytest.raises(InputError, match=line):
        fit(Vanilla(), nn.Linear(1, 2), (table, torch.tensor([0, 1])), settings=SETTINGS, progress=False)
    with pytest.raises(InputError, match=line):
        predict(nn.Linear(1, 2), table, progress=False)
