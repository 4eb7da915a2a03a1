"""Sentences with a label for each word: shifts that keep word and label together, and a whole study of them."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.tensors import TensorData
from avuc.methods import SVI, Dropout, Objective, Vanilla
from avuc.report.study.page import study_page
from avuc.report.study.results import read_results
from avuc.study import Store, load_recipe, run, run_study
from avuc.study.data.shifted import shifted_data
from avuc.study.data.shifted_text import mixed
from avuc.train import TrainSettings

LENGTH = 6
NAMES, OTHERS = ["rome", "paris", "oslo", "lima"], ["in", "the", "was", "seen", "a"]


def load_words(split):
    """Messages of three to eight words; label 1 for names of towns. Words after the sixth have no place."""
    generator = torch.Generator().manual_seed(["train", "validation", "test"].index(split))
    texts, labels = [], torch.full((60, LENGTH), IGNORE_INDEX)
    for row in range(60):
        count = int(torch.randint(3, 9, (), generator=generator))
        kinds = (torch.rand(count, generator=generator) < 0.3).long()
        chosen = [(OTHERS, NAMES)[kind][int(torch.randint(4, (), generator=generator))] for kind in kinds.tolist()]
        texts.append(" ".join(chosen))
        labels[row, :count] = kinds[:LENGTH]
    return texts, labels


def encode_words(texts, length):
    known = {word: number for number, word in enumerate(NAMES + OTHERS, start=2)}
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    for row, text in enumerate(texts):
        numbers = [known.get(word, 1) for word in text.split()[:length]]
        ids[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return ids


def encode(texts):
    return encode_words(texts, LENGTH)


def word_net(num_classes):
    return nn.Sequential(nn.Embedding(12, 8), nn.GELU(), nn.Linear(8, num_classes))


def words(texts, labels):
    return TensorData(encode(texts), labels, 2, "words", texts=tuple(texts), encode=encode)


def clean_words():
    return words(*load_words("test"))


def shifted(clean, name, severity=5):
    return shifted_data(clean, name, severity, 0, "cifar")


def test_typos_keep_the_labels():
    clean = clean_words()
    found = shifted(clean, "typos")
    assert found.texts != clean.texts
    assert torch.equal(found.labels, clean.labels)
    assert torch.equal(found.inputs, encode(list(found.texts)))


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_dropped_words_take_their_labels_along(severity):
    """The label of a word is known from the word itself, except for words that had no place before."""
    clean = clean_words()
    found = shifted(clean, "word_dropout", severity)
    assert sum(len(text.split()) for text in found.texts) < sum(len(text.split()) for text in clean.texts)
    unknown = 0
    for text, old, labels in zip(found.texts, clean.texts, found.labels.tolist(), strict=True):
        kept = text.split()
        assert len(kept) >= 1
        for place, label in enumerate(labels):
            if place >= len(kept):
                assert label == IGNORE_INDEX
            elif label == IGNORE_INDEX:
                unknown += 1
                assert len(old.split()) > LENGTH
            else:
                assert label == int(kept[place] in NAMES)
    assert unknown or severity < 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from(NAMES + OTHERS), max_size=9), min_size=1, max_size=5), st.integers(1, 5))
def test_any_sentences(sentences, severity):
    labels = torch.full((len(sentences), LENGTH), IGNORE_INDEX)
    for row, sentence in enumerate(sentences):
        known = torch.tensor([int(word in NAMES) for word in sentence[:LENGTH]], dtype=torch.int64)
        labels[row, : len(known)] = known
    clean = words([" ".join(sentence) for sentence in sentences], labels)
    for name in ("typos", "word_dropout"):
        found = shifted(clean, name, severity)
        for text, row in zip(found.texts, found.labels.tolist(), strict=True):
            labelled = [place for place, label in enumerate(row) if label != IGNORE_INDEX]
            assert labelled == list(range(len(labelled)))
            assert len(labelled) <= len(text.split())
            if name == "word_dropout":
                assert [row[place] for place in labelled] == [int(text.split()[place] in NAMES) for place in labelled]


def test_labels_that_are_not_those_of_words(tmp_path):
    texts, labels = load_words("test")
    pieces = words(texts, labels.masked_fill(labels == IGNORE_INDEX, 0))
    (tmp_path / "other.tsv").write_text("text\tlabel\na\t0\n")
    for data, name in ((pieces, "word_dropout"), (pieces, "typos"), (clean_words(), str(tmp_path / "other.tsv"))):
        with pytest.raises(InputError, match=r"need labels \(N, T\), label t for the t-th word"):
            shifted(data, name)


# shifts of the user's own


def upper(texts):
    return [text.upper() for text in texts]


def shorter(texts):
    return [text.split()[0] for text in texts]


def reversed_words(texts, labels, severity, generator, extra="none"):
    assert (severity, extra) == (5, "given")
    turned = labels.clone()
    for row, text in enumerate(texts):
        count = len(text.split())
        turned[row, : min(count, LENGTH)] = torch.tensor([int(word in NAMES) for word in text.split()[::-1][:LENGTH]])
    return [" ".join(text.split()[::-1]) for text in texts], turned


def wrong_labels(texts, labels):
    return texts, labels[:, :-1]


def test_own_shifts_of_words():
    clean = clean_words()
    assert torch.equal(shifted(clean, f"{__name__}:upper").labels, clean.labels)
    found = shifted_data(clean, f"{__name__}:reversed_words", 5, 0, "cifar", options={"extra": "given", "unused": 1})
    assert found.texts[0] == " ".join(clean.texts[0].split()[::-1])
    assert not torch.equal(found.labels, clean.labels)
    with pytest.raises(InputError, match=r"changes the number of words, and each word has a label"):
        shifted(clean, f"{__name__}:shorter")
    with pytest.raises(InputError, match=r"must return labels \(60, 6\), torch.int64, like those that it gets"):
        shifted(clean, f"{__name__}:wrong_labels")
    with pytest.raises(InputError, match="must return as many sentences"):
        shifted(clean, "builtins:len")


@pytest.mark.parametrize("severity", [1, 2, 5])
@pytest.mark.parametrize("labels", [torch.zeros(10).long(), torch.zeros(10, 3).long()])
def test_mixed_domains(severity, labels):
    other = (
        [f"o{n}" for n in range(4)],
        torch.arange(1, 5).view(-1, *[1] * (labels.ndim - 1)).expand(4, *labels.shape[1:]),
    )
    texts, found = mixed(([f"c{n}" for n in range(10)], labels), other, severity, torch.Generator().manual_seed(1))
    assert not labels.any()
    replaced = [row for row, text in enumerate(texts) if text.startswith("o")]
    assert len(replaced) == 2 * severity
    for row, text in enumerate(texts):
        expected = int(text[1:]) + 1 if row in replaced else 0
        assert (found[row] == expected).all()
    used = [texts.count(f"o{n}") for n in range(4)]
    assert max(used) - min(used) <= 1


def test_study_of_words(tmp_path):
    """Clean figures are those of the network; typing errors cost accuracy, and dropped words do not."""
    train = TrainSettings(epochs=6, batch_size=20, learning_rate=2e-2, milestones=(), factors=(), pad=0, flip=False)
    store = run(
        methods={
            "Plain": Vanilla(),
            "TS": {"reuse_model": "Plain", "calibrator": "temperature"},
            "Dropout": Dropout(0.1),
            "MOPED-AvUC": {
                "method": SVI(moped=True, delta=0.1),
                "objective": Objective("avuc", warmup_epochs=1, variant="monotone"),
                "init_from": "Plain",
            },
        },
        data={split: load_words(split) for split in ("train", "validation", "test")},
        encode=encode,
        net=word_net,
        class_dim=-1,
        class_names=["O", "B-town"],
        shifts=["typos", "word_dropout"],
        severities=[5],
        samples=2,
        train=train,
        out=tmp_path,
        device="cpu",
        progress=False,
    )
    found = {row[:5]: row[5] for row in store.rows()}
    for method in ("Plain", "Dropout", "MOPED-AvUC"):
        assert found[method, 0, "clean", 0, "accuracy"] > 0.95
        assert found[method, 0, "word_dropout", 5, "accuracy"] > 0.95
        assert found[method, 0, "typos", 5, "accuracy"] < 0.9
        # every name of a town is an entity of one word, so the F1 is that of class 1, and IoU = F1 / (2 − F1)
        f1, accuracy = (found[method, 0, "typos", 5, metric] for metric in ("entity_f1", "accuracy"))
        assert 0 < f1 < 1
        miou, rows = found[method, 0, "typos", 5, "mean_iou"], words_of("test")
        wrong = round((1 - accuracy) * rows)
        right = wrong * f1 / (2 * (1 - f1))  # of class 1; the other right ones are of class 0
        others = rows - wrong - right
        assert miou == pytest.approx((f1 / (2 - f1) + others / (others + wrong)) / 2)
    assert 'class_names = ["O", "B-town"]' in store.stored_recipe().to_toml()
    page = study_page(read_results(Store(tmp_path, create=False)))
    assert re.search(r"\[O, is B-town\]", page)
    assert "Entity F1" in page
    assert "Entropy on clean and on other words" in page
    assert "clean images" not in page


def words_of(split):
    return int((load_words(split)[1] != IGNORE_INDEX).sum())


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["O"], "label 1"),
        (["O", "O"], "different names"),
    ],
)
def test_class_names_that_do_not_fit(names, problem, tmp_path):
    data = {split: load_words(split) for split in ("train", "test")}
    with pytest.raises(InputError, match=problem):
        run(methods={"Plain": Vanilla()}, data=data, encode=encode, net=word_net, class_names=names, out=tmp_path)


def other_words(split, length):
    assert (split, length) == ("test", LENGTH)
    texts, labels = load_words("test")
    return texts[:30], labels[:30]


def load_with_length(split, length):
    assert length == LENGTH
    return load_words(split)


def test_padding_of_other_data_is_no_word(tmp_path):
    """Out-of-distribution sentences from a function and from a file: one row for each word that has a place."""
    (tmp_path / "file.csv").write_text("text\nin the end\nnothing\n")
    text = f"""
[study]
samples = 1
shifts = []
ood = ["{__name__}:other_words", "{tmp_path / "file.csv"}"]
[data]
source = "{__name__}:load_with_length"
encode = "{__name__}:encode_words"
options = {{ length = {LENGTH} }}
validation = 20
[net]
name = "{__name__}:word_net"
class_dim = -1
[train]
epochs = 1
milestones = []
factors = []
pad = 0
[[methods]]
name = "Plain"
method = "vanilla"
"""
    (tmp_path / "recipe.toml").write_text(text)
    store = run_study(load_recipe(tmp_path / "recipe.toml"), tmp_path / "out", device="cpu", progress=False)
    rows = dict(store.select("SELECT shift, rows FROM cells"))
    texts = load_words("test")[0]
    assert rows["clean"] == sum(min(LENGTH, len(one.split())) for one in texts)
    assert rows["ood:other_words"] == sum(min(LENGTH, len(one.split())) for one in texts[:30])
    assert rows["ood:file"] == 4
    assert {row[2] for row in store.rows() if row[4] == "auroc"} == {"ood:other_words", "ood:file"}
