"""Which columns of a table are the scores: what is clear is read, the rest is refused with the options that help."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from avuc.errors import InputError
from avuc.scores import read_scores
from avuc.scores.columns import expand_columns, pick_columns
from avuc.scores.names import Wanted

TABLES = [".csv", ".parquet"]


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def model(classes: int = 2, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Right for about 97 % of the rows."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)).astype(np.float32)
    logits[np.arange(rows), labels] += 3
    return logits, labels


def write(path: Path, columns: dict[str, Any]) -> Path:
    columns = {name: np.asarray(values).tolist() for name, values in columns.items()}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def accuracy(file) -> float:
    return float((file.scores.argmax(-1) == file.labels).double().mean())


def options(line: str) -> list[str]:
    """The options that a refusal says to pass."""
    return shlex.split(line[line.index("--columns") :].strip())


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("stray", ["fold", "confidence", "predicted", "ID", "age", "entropy"])
@pytest.mark.parametrize("labelled", ["numbers", "names"])
def test_stray_numbers_are_no_classes(tmp_path, refused, suffix, kind, stray, labelled):
    logits, labels = model()
    scores = logits if kind == "logits" else softmax(logits)
    extra = {
        "fold": np.arange(300) % 5,
        "confidence": softmax(logits).max(1),
        "predicted": logits.argmax(1),
        "ID": np.arange(300),
        "age": 20 + np.arange(300) % 50,
        "entropy": -(softmax(logits) * np.log(softmax(logits))).sum(1),
    }[stray]
    truth = labels if labelled == "numbers" else np.array(["cat", "dog"])[labels]
    path = write(tmp_path / f"a{suffix}", {"cat": scores[:, 0], "dog": scores[:, 1], stray: extra, "label": truth})
    want = float((logits.argmax(1) == labels).mean())
    try:
        file = read_scores(path)
    except InputError:
        line = refused(path)
        # nothing says that an age is no logit
        guess = "cat,dog,age" if (stray, labelled) == ("age", "numbers") else "cat,dog"
        assert options(line) == ["--columns", guess, "--label", "label"]
        file = read_scores(path, columns="cat,dog", labels_key="label")
    assert file.num_classes == 2
    assert accuracy(file) == want > 0.9
    assert file.kind == kind


@pytest.mark.parametrize("suffix", TABLES)
def test_probabilities_beside_a_known_word_are_clear_and_said(tmp_path, suffix):
    logits, labels = model()
    probs = softmax(logits)
    table = {"cat": probs[:, 0], "dog": probs[:, 1], "confidence": probs.max(1), "label": labels}
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert file.class_names == ("cat", "dog")
    assert any("'confidence'" in note and "not scores" in note for note in file.notes)


@pytest.mark.parametrize("suffix", TABLES)
def test_clear_tables(tmp_path, suffix):
    logits, labels = model(3)
    probs = softmax(logits)
    names = np.array(["cat", "dog", "cow"])[labels]
    a, b, c = logits.T
    p, q, r = probs.T
    clear: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"p_cat": a, "p_dog": b, "p_cow": c, "fold": labels, "class": names}, ("cat", "dog", "cow")),
        ({"cat": a, "dog": b, "cow": c, "Label": names}, ("cat", "dog", "cow")),
        ({"cow": c, "dog": b, "y_true": names, "cat": a}, ("cow", "dog", "cat")),
        ({"x": a, "z": b, "u": c, "TARGET": labels}, ("x", "z", "u")),
        ({"x": p, "z": q, "u": r, "fold": labels, "y": labels}, ("x", "z", "u")),
        ({"x": p, "z": q, "u": r, "age": 20 + labels, "y": labels}, ("x", "z", "u")),
        ({"class2": c, "class0": a, "class1": b, "fold": labels, "y": labels}, ("0", "1", "2")),
        ({"2": c, "0": a, "1": b, "seed": labels, "y": labels}, ("0", "1", "2")),
        ({"path": names, "x": a, "z": b, "u": c, "target": labels}, ("x", "z", "u")),
        ({"Prob_cat": p, "Prob_dog": q, "Prob_cow": r, "age": labels, "y": labels}, ("cat", "dog", "cow")),
        ({"score": probs.max(1), "prob_0": p, "prob_1": q, "prob_2": r, "y": labels}, ("0", "1", "2")),
    ]
    want = float((logits.argmax(1) == labels).mean())
    for i, (table, classes) in enumerate(clear):
        file = read_scores(write(tmp_path / f"a{i}{suffix}", table))
        assert file.class_names == classes, table.keys()
        assert accuracy(file) == want, table.keys()


@pytest.mark.parametrize("suffix", TABLES)
def test_unclear_tables(tmp_path, refused, suffix):
    logits, labels = model(3)
    a, b, c = logits.T
    unclear: list[tuple[dict[str, Any], str]] = [
        (
            {"x1": labels, "x2": labels, "cat": a, "dog": b, "cow": c, "y": labels},
            "--columns",
        ),  # features
        (
            {"logits_0": a, "logits_1": b, "logits_2": c, "logits_max": logits.max(1), "y": labels},
            "logits_0,logits_1,logits_2",
        ),
        ({"a": a, "b": b, "c": c, "d": a, "y": labels}, "--columns a,b,c,d --label y"),  # four columns, three classes
        ({"a": a, "b": b, "c": c, "label": labels, "target": labels[::-1]}, "--label"),  # two label columns
        ({"a": a, "b": b, "c": c}, "--columns a,b,c"),  # logits by no name, without labels
    ]
    for i, (table, says) in enumerate(unclear):
        assert says in refused(write(tmp_path / f"a{i}{suffix}", table))


@pytest.mark.parametrize("suffix", TABLES)
def test_labels_are_looked_up_by_name_whatever_the_order(tmp_path, suffix):
    logits, labels = model(3)
    names = np.array(["zebra", "ant", "mouse"])
    table = {f"logits_{name}": logits[:, i] for i, name in enumerate(names)} | {"label": names[labels]}
    assert accuracy(read_scores(write(tmp_path / f"a{suffix}", table))) > 0.9
    odd = np.array([7, 3, 5])  # classes numbered with gaps, in another order
    table = {str(odd[i]): logits[:, i] for i in range(3)} | {"label": odd[labels]}
    file = read_scores(write(tmp_path / f"b{suffix}", table))
    assert accuracy(file) > 0.9


@pytest.mark.parametrize("suffix", TABLES)
def test_label_that_is_no_column(tmp_path, refused, suffix):
    logits, labels = model(2)
    names = np.array(["cat", "horse"])[labels]
    path = write(
        tmp_path / f"a{suffix}", {"prob_cat": softmax(logits)[:, 0], "prob_dog": softmax(logits)[:, 1], "label": names}
    )
    assert "'horse' is neither a number nor the name of a class ('cat', 'dog')" in refused(path)


@pytest.mark.parametrize("suffix", TABLES)
def test_columns_from_1_and_labels_without_the_last(tmp_path, suffix):
    logits, labels = model(4)
    keep = labels < 3
    table = {f"p{i + 1}": logits[keep, i] for i in range(4)} | {"y": labels[keep] + 1}
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert file.labels.tolist() == labels[keep].tolist()
    assert any("counted from 1" in note for note in file.notes)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("b,a", ["b", "a"]),
        ("a:c", ["a", "b", "c"]),
        ("p_*", ["p_1", "p_2", "p_10"]),
        ('"x,y",a', ["x,y", "a"]),
        ("a:b,p_1", ["a", "b", "p_1"]),
    ],
)
def test_columns_option(given, names):
    head = ["a", "b", "c", "p_10", "p_2", "p_1", "x,y"]
    assert list(expand_columns(Path("a.csv"), head, given)) == names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a,nothing", "no column 'nothing'"),
        ("a,a", "more than once"),
        ("c:a", "comes after"),
        ("q*", "no column fits 'q*'"),
        ("", "no column"),
        ("a", "two columns or more"),
    ],
)
def test_columns_option_refused(given, says):
    with pytest.raises(InputError, match=re.escape(says)):
        expand_columns(Path("a.csv"), ["a", "b", "c"], given)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_columns_are_for_tables(save, refused, suffix):
    logits, labels = model()
    assert "--columns" in refused(save(suffix, logits, labels), "--columns", "a,b")


def test_the_command_takes_the_options(tmp_path, capsys):
    from avuc.cli import main

    logits, labels = model(2)
    path = write(tmp_path / "a.csv", {"cat": logits[:, 0], "dog": logits[:, 1], "fold": labels, "truthful": labels})
    words = ["evaluate", str(path), "--replicates", "0", "--columns", "cat,dog", "--label", "truthful"]
    assert main(words) == 0
    assert (
        "300 × 2 logits from columns 'cat' … 'dog', labels from column 'truthful'"
        in capsys.readouterr().out.replace("\n", " ")
    )


def test_the_second_file_has_the_columns_of_the_first(tmp_path, capsys):
    from avuc.cli import main

    logits, labels = model(3)
    first = write(tmp_path / "a.csv", {"x": logits[:, 0], "z": logits[:, 1], "u": logits[:, 2], "y": labels})
    second = write(tmp_path / "b.csv", {"u": logits[:, 2], "fold": labels, "x": logits[:, 0], "z": logits[:, 1]})
    assert main(["evaluate", str(first), "--ood", str(second), "--replicates", "0"]) == 0, capsys.readouterr().err
    assert "3 logits from columns 'x' … 'u', no labels" in capsys.readouterr().out.replace("\n", " ")


def test_many_names_take_linear_work():
    """Names are compared by hash: each is touched a fixed number of times."""

    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

    def work(count: int) -> int:
        Counted.compared = 0
        head = [Counted(f"logits_{i}") for i in range(count)] + [Counted("label")]
        pick_columns(Path("a.csv"), head, Wanted())
        return Counted.compared

    small, large = work(200), work(2000)
    assert large <= 20 * small + 2000


def test_other_scripts_stay_different_classes(tmp_path):
    logits, labels = model(2)
    names = np.array(["方法一", "方法二"])
    file = read_scores(
        write(tmp_path / "a.csv", {"方法一": logits[:, 0], "方法二": logits[:, 1], "label": names[labels]})
    )
    assert file.class_names == ("方法一", "方法二")
    assert torch.equal(file.labels, torch.from_numpy(labels))
