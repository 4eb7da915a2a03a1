"""What would give wrong figures without an error: the same rows in two splits, stale data, code that is edited."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from avuc.core.errors import InputError
from avuc.data.tensors import TensorData
from avuc.methods import Vanilla
from avuc.study import run
from avuc.study.data.own import load_own
from avuc.study.data.shifted import shifted_data
from avuc.study.evaluation.png import png
from avuc.study.own.code import find
from avuc.study.own.digest import begin, code_digest
from avuc.study.own.text_file import read_sentences
from avuc.study.recipe.sections import DataConfig
from avuc.study.recipe.starter import write_starter
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)
NUMBERS = torch.arange(60.0)[:, None].expand(60, 2).clone()
LABELS = torch.arange(60) % 2


def small(out, **changes):
    given = {"methods": {"V": Vanilla()}, "net": lambda num_classes: nn.Linear(2, num_classes), "train": TRAIN}
    return run(out=out, **{**given, "samples": 1, "device": "cpu", "progress": False, **changes})


def loaded(source, split="train", **settings):
    from avuc.study.data.own import forget
    from avuc.study.own.code import register

    forget()
    return load_own(DataConfig(source=register(source, "data"), validation=5, **settings), split)


def test_a_sampler_that_chooses_rows_is_kept():
    """Two loaders of one dataset, told apart by their samplers only."""
    rows = {"train": [7, 3, 5, 1], "test": [0, 2]}

    def load(split):
        return DataLoader(TensorDataset(NUMBERS, LABELS), batch_size=3, sampler=SubsetRandomSampler(rows[split]))

    assert loaded(load).inputs[:, 0].tolist() == [1, 3, 5, 7]
    assert loaded(load, "test").inputs[:, 0].tolist() == [0, 2]


def test_other_samplers_are_used_as_they_are():
    only = torch.zeros(60)
    only[[1, 4]] = 1.0

    def load(split):
        sampler = WeightedRandomSampler(only.tolist(), 10)
        return DataLoader(TensorDataset(NUMBERS, LABELS), batch_size=4, sampler=sampler)

    found = loaded(load).inputs[:, 0]
    assert len(found) == 10
    assert set(found.tolist()) <= {1.0, 4.0}


@pytest.mark.parametrize("settings", [{"shuffle": True}, {}, {"shuffle": True, "drop_last": True}])
def test_usual_loaders_are_read_in_order(settings):
    def load(split):
        return DataLoader(Subset(TensorDataset(NUMBERS, LABELS), range(50)), batch_size=8, **settings)

    assert loaded(load).inputs[:, 0].tolist() == list(range(50))


class Rows(IterableDataset):
    def __iter__(self):
        yield from zip(NUMBERS, LABELS, strict=True)


def test_the_last_batch_of_an_iterable_dataset_is_kept():
    assert len(loaded(lambda split: DataLoader(Rows(), batch_size=16, drop_last=True))) == 60


class Opened(Dataset):
    """A dataset that each reading process opens."""

    opened = False

    def __len__(self):
        return 12

    def __getitem__(self, index):
        assert self.opened
        return NUMBERS[index], LABELS[index]


def open_it(worker):
    torch.utils.data.get_worker_info().dataset.opened = True


def test_reading_processes_are_prepared():
    def load(split):
        return DataLoader(Opened(), batch_size=5, shuffle=True, num_workers=1, worker_init_fn=open_it)

    assert len(loaded(load)) == 12


def test_a_function_without_split_is_refused(tmp_path):
    def load(count=60):
        return NUMBERS[:count], LABELS[:count]

    with pytest.raises(InputError, match=r"takes no 'split', so training and test data would be the same"):
        small(tmp_path, data=load)


def test_rows_without_a_label_are_refused_before_training(tmp_path):
    missing = LABELS.clone()
    missing[:7] = -1
    with pytest.raises(InputError, match="7 test labels are -1, which is no class"):
        small(tmp_path, data={"train": (NUMBERS, LABELS), "test": (NUMBERS, missing)})


def test_ignore_index_counts_for_tensor_data_too():
    labels = torch.tensor([[0, 1], [1, 2]])
    found = loaded(lambda split: TensorData(torch.zeros(2, 2), labels, 3), ignore_index=0)
    assert found.labels.tolist() == [[-100, 1], [1, 2]]


def test_changed_data_are_loaded_again(tmp_path):
    data = {"train": (NUMBERS, LABELS), "test": (NUMBERS[:20] + 0.5, LABELS[:20])}
    small(tmp_path / "a", data=data).close()
    data["test"] = (NUMBERS[:30] + 0.5, LABELS[:30])
    store = small(tmp_path / "b", data=data)
    assert set(store.select("SELECT rows FROM cells WHERE shift = 'clean'")) == {(30,)}
    with pytest.raises(InputError, match="the data 'clean' have changed"):
        small(tmp_path / "a", data=data)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("channels", [2, 4])
def test_images_of_any_number_of_channels(tmp_path, channels, dense):
    images = torch.randint(256, (40, 5, 5, channels), generator=torch.Generator().manual_seed(0)).byte()
    labels = (images[..., 0] > 127).long() if dense else (images[:, 0, 0, 0] > 127).long()
    dense_net = partial(nn.Conv2d, channels, kernel_size=1)
    store = small(
        tmp_path,
        data={"train": (images[:30], labels[:30]), "test": (images[30:], labels[30:])},
        net=(lambda num_classes: dense_net(num_classes))
        if dense
        else (lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(25 * channels, num_classes))),
    )
    assert store.gallery()["clean", 0].startswith(b"\x89PNG")
    assert png(images[0].numpy())


def test_values_that_an_object_carries_count():
    def brighter(batch, by):
        return batch + by

    def made(by):
        def shift(batch):
            return batch + by

        return shift

    class Brighter:
        def __init__(self, by):
            self.by, self.calls = by, 0

        def __call__(self, batch):
            self.calls += 1
            return batch + self.by

    for make in (lambda by: partial(brighter, by=by), made, Brighter):
        begin()
        assert code_digest(make(1)) == code_digest(make(1))
        assert code_digest(make(1)) != code_digest(make(2))
    counting = Brighter(1)
    before = code_digest(counting)
    counting(1)
    assert code_digest(counting) == before  # during a study
    begin()
    assert code_digest(counting) != before


def test_code_that_is_edited_during_a_study(tmp_path, monkeypatch):
    """What runs is the code that was imported, so its digest stays."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "edited_parts.py"
    file.write_text("def shift(batch):\n    return batch\n")
    try:
        before = code_digest(find("edited_parts:shift", "study.shifts"))
        file.write_text("def shift(batch):\n    return batch + 1  # a new idea\n")
        assert code_digest(find("edited_parts:shift", "study.shifts")) == before
    finally:
        sys.modules.pop("edited_parts", None)
        sys.path.remove(str(tmp_path))


def test_a_file_sorted_by_label_gives_all_labels(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("text,label\n" + "bad,0\n" * 100 + "good,1\n" * 100)
    texts = tuple(f"sentence {n}" for n in range(50))
    clean = TensorData(
        torch.zeros(50, 1), torch.zeros(50).long(), 2, texts=texts, encode=lambda t: torch.zeros(len(t), 1)
    )
    shifted = shifted_data(clean, str(file), 5, 0, "paper")  # type: ignore[arg-type]
    assert 8 < int(shifted.labels.sum()) < 42  # which rows depends on the path of the file
    assert [text == "good" for text in shifted.texts] == shifted.labels.bool().tolist()


def test_sentences_with_unusual_characters(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("\ufefftext,label\r\ngood\u2028film\x85,1\r\n", newline="")
    assert read_sentences(str(file), 2) == (["good\u2028film\x85"], [1])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text,label\na film of 2,1,0\n", r"row 2: more cells than the 2 columns; put sentences that contain ','"),
        ("text\nhello, world\n", r"row 2: more cells than the 1 columns"),
        ("text\tlabel\ngood\t1\tfilm\n", r"more cells"),
        ("text,label,label\ngood,0,1\n", r"the columns 'label' and 'label'"),
        ("text,sentence,label\nid7,good,1\n", r"the columns 'text' and 'sentence'"),
    ],
)
def test_sentences_that_are_cut_at_a_comma_and_columns_of_one_meaning_are_refused(
    tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / ("a b.tsv" if "\t" in content else "a b.csv")
    file.write_text(content)
    with pytest.raises(InputError, match=problem):
        read_sentences(str(file), 2, labelled="label" in content)


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_stray_quotes_join_no_sentences(tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / {"\t": "other.tsv", ",": "other.csv"}[delimiter]
    texts, labels = ['12" pipe', '"good', "fine", 'bad"', '"', "ok", '"', '"x" y', '"all"'], [1, 0, 1, 0, 0, 1, 1, 0, 1]
    rows = [["text", "label"], *zip(texts, map(str, labels), strict=True)]
    file.write_text("\n".join(map(delimiter.join, rows)) + "\n")
    assert read_sentences(str(file), 2) == ([*texts[:-1], "all"], labels)
    file.write_text("\n".join(delimiter.join(row[::-1]) for row in rows) + "\n")
    assert read_sentences(str(file), 2) == ([*texts[:-1], "all"], labels)
    file.write_text('text,label\n"a, x\nb",1\n"two\nlines",0\n'.replace(",label", f"{delimiter}label"))
    if delimiter == ",":  # quotes that csv writers set
        assert read_sentences(str(file), 2) == (["a, x\nb", "two\nlines"], [1, 0])
    file.write_text('text\n"a\nb\n')
    with pytest.raises(InputError, match=r"line 2: a double quote opens a cell .* up to line 3"):
        read_sentences(str(file), 2, labelled=False)


def test_empty_cells_at_the_end_of_a_row_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_bytes(b"label,text\r\n1,good,\r\n0,bad,,\r\n")
    assert read_sentences(str(file), 2) == (["good", "bad"], [1, 0])


def test_names_that_look_like_numbers(tmp_path):
    """Stars from 1 to 3 are the classes 0 to 2."""
    file = tmp_path / "stars.csv"
    file.write_text("text,label\nfine,2\n")
    assert read_sentences(str(file), 3, ("1", "2", "3"))[1] == [1]
    assert read_sentences(str(file), 3, ("a", "b", "c"))[1] == [2]
    file.write_text("text,label\nfine,0\n")
    with pytest.raises(InputError, match="1, 2, 3"):
        read_sentences(str(file), 3, ("1", "2", "3"))


def test_bad_paths_of_other_data_are_found_before_training(tmp_path):
    data = {"train": (NUMBERS, LABELS), "test": (NUMBERS, LABELS)}
    with pytest.raises(InputError, match=r"study.ood: json:nothing: json has no 'nothing'"):
        small(tmp_path, data=data, ood=["json:nothing"])


@pytest.mark.parametrize("name", ["json", "torch", "Random"])
def test_the_module_of_a_new_study_hides_no_other(tmp_path, name):
    assert write_starter(tmp_path / name)[1].name == f"study_{name.lower()}.py"


def noisy(batch):
    """A shift that uses global random numbers instead of its generator."""
    return batch + torch.randn(batch.shape) + np.random.normal() + random.random()  # noqa: NPY002


def test_shifts_with_global_random_numbers_can_be_repeated():
    clean = TensorData(NUMBERS, LABELS, 2)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (shifted_data(clean, f"{__name__}:noisy", n, 0, "paper").inputs for n in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
