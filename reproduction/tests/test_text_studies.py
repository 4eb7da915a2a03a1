"""The text studies: words as numbers, the network, the files of each study, and its recipe in small on made-up text."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_net import TextEncoder
from text_words import FEATURES, PADDING, UNKNOWN, encode_words, table_rows, vocabulary_of, words_of

from avuc.core.tasks import IGNORE_INDEX
from avuc.study import load_recipe, run_study
from avuc.study.data.own import forget

STUDIES = Path(__file__).parents[1] / "studies"
GOOD, BAD, REST = ["good", "fine", "great"], ["bad", "poor", "awful"], ["the", "film", "is", "a", "plot", "and", "so"]
TOPICS = [["war", "election"], ["goal", "match"], ["profit", "shares"], ["software", "space"]]
METHODS = 7
SETS = 2 + 3  # validation, clean, and three shifts at one severity


# words and network


def test_vocabulary_is_of_frequent_training_words():
    found = vocabulary_of([["The", "film", "the"], ["film", "rare", "THE"]], 4)
    assert found == {"the": 2, "film": 3}
    assert vocabulary_of([["a", "a", "b", "b"]], 3) == {"a": 2}
    assert words_of("It's a film, so-so.") == ["It", "'", "s", "a", "film", ",", "so", "-", "so", "."]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20).map(str.split), min_size=1, max_size=4), st.integers(1, 5))
def test_any_words(sentences, length):
    """A slow version: each word alone."""
    known = vocabulary_of(sentences * 2, 50)
    found = encode_words(sentences, known, 50, length)
    assert found.shape == (len(sentences), length, FEATURES)
    assert 0 <= int(found.min()) <= int(found.max()) < table_rows(50)
    for row, sentence in zip(found, sentences, strict=True):
        words = sentence[:length] or [""]
        for place, features in enumerate(row.tolist()):
            if place >= len(words):
                assert features == [PADDING] * FEATURES
            else:
                assert features == encode_words([[words[place]]], known, 50, 1)[0, 0].tolist()
                assert features[0] == known.get(words[place].lower(), UNKNOWN)
                assert features[1] < 50 + 2048 <= features[2] < 50 + 4096 <= features[3]


def test_an_unknown_word_keeps_beginning_ending_and_shape():
    known = {"running": 2}
    one, other, third = encode_words([["running", "runzing", "Running"]], known, 10, 3)[0].tolist()
    assert one[1:] == other[1:]
    assert (one[0], other[0]) == (2, UNKNOWN)
    assert one[:3] == third[:3]
    assert one[3] != third[3]


@pytest.mark.parametrize("each_word", [False, True])
def test_a_sentence_does_not_depend_on_its_batch(each_word):
    torch.manual_seed(0)
    net = TextEncoder(3, 20, 6, width=16, heads=2, each_word=each_word).double().eval()
    batch = encode_words([["a", "b"], [], ["c"] * 9, ["d"]], {"a": 2, "b": 3, "c": 4}, 20, 6)
    whole = net(batch)
    assert whole.shape == ((4, 6, 3) if each_word else (4, 3))
    assert whole.isfinite().all()
    torch.testing.assert_close(net(batch[:1]), whole[:1])


def test_padding_changes_nothing():
    """The same sentence with more room after it."""
    torch.manual_seed(0)
    net = TextEncoder(3, 20, 8, width=16, heads=2).double().eval()
    short = TextEncoder(3, 20, 3, width=16, heads=2).double().eval()
    state = net.state_dict()
    short.load_state_dict({**state, "position": state["position"][:3]})
    given = [["a", "b", "c"]], {"a": 2, "b": 3}, 20
    torch.testing.assert_close(net(encode_words(*given, 8)), short(encode_words(*given, 3)))


# the studies


def sentence(random_words: random.Random, mood: list[str]) -> str:
    words = [*random_words.choices(REST, k=4), random_words.choice(mood), *random_words.choices(REST, k=2)]
    random_words.shuffle(words)
    return " ".join(words)


def write_sst2(folder: Path) -> None:
    made = random.Random(0)

    def some(count: int) -> list[tuple[str, int]]:
        return [(sentence(made, (BAD, GOOD)[label]), label) for label in made.choices((0, 1), k=count)]

    test = some(50)
    phrases = {"train.tsv": [*some(160), (test[0][0], 1 - test[0][1])], "dev.tsv": some(40)}
    for name, rows in phrases.items():
        (folder / name).write_text("sentence\tlabel\n" + "".join(f"{text} \t{label}\n" for text, label in rows))
    for name, rows in {"stsa.binary.dev": some(40), "stsa.binary.test": test, "mpqa.all": some(20)}.items():
        (folder / name).write_text("".join(f"{label} {text}\n" for text, label in rows))


def write_ag_news(folder: Path) -> None:
    made = random.Random(0)

    def some(count: int) -> list[tuple[str, int]]:
        return [
            (f"{n} {sentence(made, TOPICS[label])}", label) for n, label in enumerate(made.choices(range(4), k=count))
        ]

    names, test = ("World", "Sports", "Business", "Sci/Tech"), some(60)
    shared = [*some(200), test[0], test[1]]
    (folder / "alps-dev.tsv").write_text("".join(f"{text}\t{names[label]}\n" for text, label in shared))
    for name, rows in {"dev.csv": [*some(60), *shared[:5]], "test.csv": test}.items():
        (folder / name).write_text("label,content\n" + "".join(f'{label + 1},"{text}"\n' for text, label in rows))
    for name, label in {"business": 2, "sport": 1, "tech": 3}.items():
        (folder / "bbc" / name).mkdir(parents=True)
        for number in range(3):
            text = f"Title\n\n{sentence(made, TOPICS[label])}\n\nMore.\n"
            (folder / "bbc" / name / f"{number:03}.txt").write_text(text)


def write_wnut17(folder: Path) -> None:
    made = random.Random(0)

    def some(count: int, name: str = "B-person", before: str = "") -> str:
        blocks = []
        for _ in range(count):
            words = made.choices([("Anna", name), ("Otto", name), *((word, "O") for word in REST)], k=8)
            blocks.append("".join(f"{before}{word}\t{tag}\n" for word, tag in words))
        return "\n".join(blocks) + "\n\t\n"

    for name, count in {"wnut17train.conll": 120, "emerging.dev.conll": 40, "emerging.test.annotated": 40}.items():
        (folder / name).write_text(some(count))
    (folder / "wikiann-en-test").write_text(some(20, "B-PER", "en:") + "en:Siemens\tB-ORG\nen:is\tO\n")


WRITE = {"sst2": write_sst2, "ag-news": write_ag_news, "wnut17": write_wnut17}


@pytest.fixture(params=list(WRITE))
def study(request, tmp_path, monkeypatch):
    """The name of a study; its modules are the ones that are imported, and its data are in the folder `data`."""
    (tmp_path / "data").mkdir()
    WRITE[request.param](tmp_path / "data")
    monkeypatch.chdir(STUDIES / request.param)
    monkeypatch.syspath_prepend(str(STUDIES / request.param))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield request.param
    for name in ("data", "nets"):
        sys.modules.pop(name, None)
    forget()


def test_study(study, tmp_path):
    """Every method on every set; what is learned is better than chance, and typing errors cost accuracy."""
    root = str(tmp_path / "data")
    data = importlib.import_module("data")
    texts, labels = data.load("train", root)
    check = {"sst2": check_sst2, "ag-news": check_ag_news, "wnut17": check_wnut17}[study]
    check(data, texts, labels, root)
    changes = [
        f"data.root={root}",
        "data.validation=40",  # in place of 2,000; only AG News holds training data out
        "study.seeds=[0]",
        "study.severities=[5]",
        "study.samples=2",
        "net.options={width=16, layers=1}",
        "train.epochs=2",
        "train.milestones=[]",
        "train.factors=[]",
        "train.batch_size=40",
        "train.learning_rate=2e-2",
        "train.validate_every=2",
    ]
    for name in ("MOPED-SVI", "MOPED-AvUC, printed", "MOPED-AvUC, monotone"):
        changes += [f"methods.{name}.train.epochs=2", f"methods.{name}.train.milestones=[1]"]
    store = run_study(load_recipe("recipe.toml", changes), tmp_path / "out", device="cpu", progress=False)
    found = {row[:5]: row[5] for row in store.rows()}
    assert len(store.done()) == METHODS * SETS
    store.close()
    often = {"sst2": 0.5, "ag-news": 0.25, "wnut17": 7 / 9}[study]
    for name in ("Plain", "TS", "MOPED-SVI", "MOPED-AvUC, monotone"):
        assert found[name, 0, "clean", 0, "accuracy"] > (1 + often) / 2
    assert found["Plain", 0, "typos", 5, "nll"] > found["Plain", 0, "clean", 0, "nll"]


def check_sst2(data, texts, labels, root):
    assert len(texts) == len(labels) == 200  # the phrase that is a test sentence is left out
    assert len(data.load("validation", root)[0]) == 40
    known = data._vocabulary(root)
    assert set(GOOD) <= set(known)


def check_ag_news(data, texts, labels, root):
    assert len(texts) == len(set(texts)) == len(labels)
    test = data.load("test", root)[0]
    assert len(test) == 60
    assert not set(texts) & set(test)
    mixed, classes = data.bbc_news(test, data.load("test", root)[1], 5, torch.Generator(), root)
    assert set(classes.tolist()) == {1, 2, 3}
    assert all(any(word in text.split() for word in TOPICS[label]) for text, label in zip(mixed, classes, strict=True))


def check_wnut17(data, texts, labels, root):
    person = data.TAGS.index("B-person")
    assert len(data.TAGS) == 13
    for text, row in zip(texts, labels.tolist(), strict=True):
        expected = [person if word in ("Anna", "Otto") else 0 for word in text.split()]
        assert row[: len(expected)] == expected
        assert set(row[len(expected) :]) == {IGNORE_INDEX}
    test, tags = data.load("test", root)
    mixed, tags = data.wikipedia(test, tags, 5, torch.Generator(), root)
    assert any(text.startswith("Siemens") for text in mixed)
    for text, row in zip(mixed, tags.tolist(), strict=True):
        kinds = {"Anna": person, "Otto": person, "Siemens": IGNORE_INDEX}
        assert row[: len(text.split())] == [kinds.get(word, 0) for word in text.split()]
