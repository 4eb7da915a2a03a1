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

from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores
from avuc.evaluation.files.columns.choose import choose_columns, expand_columns
from avuc.evaluation.files.columns.columns import binary_column
from avuc.evaluation.files.names import ReadOptions

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
        # nothing says that an age is no logit, nor that two columns of numbers are the scores: no example to copy
        unknown = stray == "age" or (stray, labelled) == ("ID", "numbers")
        guess = "NAME,NAME,…" if unknown else "cat,dog"
        assert options(line) == ["--columns", guess, "--label", "label"]
        file = read_scores(path, columns="cat,dog", labels_key="label")
    assert file.num_classes == 2
    assert accuracy(file) == want > 0.9
    assert file.kind == kind


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("score", ["y_prob", "probability", "score", "prob_1", "churn_probability", "y_pred_proba"])
@pytest.mark.parametrize("strays", [("y_pred",), ("prediction", "fold"), ("SampleId",), ("y_pred", "PassengerId")])
def test_one_binary_score_beside_the_predicted_class(tmp_path, suffix, score, strays):
    """The columns y_true, y_pred and y_prob: a class of whole numbers is no second score."""
    logits, labels = model()
    positive = softmax(logits)[:, 1]
    extra = {name: np.arange(300) if name.endswith("Id") else logits.argmax(1) for name in strays}
    file = read_scores(write(tmp_path / f"a{suffix}", {"y_true": labels, **extra, score: positive}))
    assert file.num_classes == 2
    assert accuracy(file) == float((logits.argmax(1) == labels).mean())
    np.testing.assert_allclose(file.scores[:, 1], positive, atol=1e-6)
    assert any(re.search("not (a score|scores)", note) and all(name in note for name in strays) for note in file.notes)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("probability_yes", ("probs", "yes")),
        ("predicted_probability", ("probs", "")),
        ("y_pred_prob", ("probs", "")),
        ("Proba", ("probs", "")),
        ("log_prob", None),
        ("prob_max", None),
        ("problem", None),
        ("probable", None),
    ],
)
def test_names_of_binary_scores(name, meant):
    assert binary_column(name) == meant


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("names", [["1", "2", "3+"], ["0-9", "10-19", "20"]])
def test_some_class_names_may_be_numbers(tmp_path, suffix, names):
    logits, labels = model(3)
    columns = {f"prob_{name}": values for name, values in zip(names, softmax(logits).T, strict=True)}
    file = read_scores(write(tmp_path / f"a{suffix}", columns | {"label": np.array(names)[labels]}))
    assert file.class_names == tuple(names)
    assert accuracy(file) == float((logits.argmax(1) == labels).mean())


@pytest.mark.parametrize("suffix", TABLES)
def test_one_score_beside_other_numbers_is_refused(tmp_path, refused, suffix):
    logits, labels = model()
    positive = softmax(logits)[:, 1]
    table = {"age": 20 + labels, "score": positive, "y": labels}
    line = refused(write(tmp_path / f"age{suffix}", table))
    assert "or also 'age'; name the score columns, for example: --columns score --label y" in line
    assert accuracy(read_scores(tmp_path / f"age{suffix}", columns="score")) > 0.9
    confidences = {"y_true": labels, "y_pred": logits.argmax(1), "score": softmax(logits).max(1)}
    assert "may contain confidences" in refused(write(tmp_path / f"confidences{suffix}", confidences))
    three = {"y_true": np.arange(300) % 3, "y_pred": np.arange(300) % 3, "score": positive}
    assert "save one column per class" in refused(write(tmp_path / f"three{suffix}", three))


@pytest.mark.parametrize("suffix", TABLES)
def test_probabilities_beside_a_known_word_are_clear_and_said(tmp_path, suffix):
    logits, labels = model()
    probs = softmax(logits)
    table = {"cat": probs[:, 0], "dog": probs[:, 1], "confidence": probs.max(1), "label": labels}
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert file.class_names == ("cat", "dog")
    assert any(note == "column 'confidence' is not a score" for note in file.notes)


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
        ({"x": p, "z": q, "u": r, "fold": labels, "y": labels}, ("x", "z", "u")),
        ({"x": p, "z": q, "u": r, "age": 20 + labels, "y": labels}, ("x", "z", "u")),
        ({"class2": c, "class0": a, "class1": b, "fold": labels, "y": labels}, ("0", "1", "2")),
        ({"2": c, "0": a, "1": b, "seed": labels, "y": labels}, ("0", "1", "2")),
        ({"path": names, "x": p, "z": q, "u": r, "target": labels}, ("x", "z", "u")),
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
        ({"a": a, "b": b, "c": c, "d": a, "y": labels}, "--columns NAME,NAME,… --label y"),  # 4 columns, 3 classes
        ({"a": a, "b": b, "c": c, "TARGET": labels}, "--columns NAME,NAME,… --label TARGET"),  # may be measurements
        ({"a": a, "b": b, "c": c, "label": labels, "target": labels[::-1]}, "--label"),  # two label columns
        ({"a": a, "b": b, "c": c}, "--columns NAME,NAME,… --label NAME"),  # logits by no name, without labels
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
    assert "'horse' is neither a number nor a class name ('cat', 'dog')" in refused(path)


@pytest.mark.parametrize("suffix", TABLES)
def test_columns_from_1_and_labels_without_the_last(tmp_path, suffix):
    logits, labels = model(4)
    keep = labels < 3
    table = {f"p{i + 1}": logits[keep, i] for i in range(4)} | {"y": labels[keep] + 1}
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert file.labels.tolist() == labels[keep].tolist()
    assert any("starting at 1" in note for note in file.notes)


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
        ("a,a", "twice"),
        ("c:a", "comes after"),
        ("q*", "no column matches 'q*'"),
        ("", "no column"),
        ("", "--columns lists no column"),
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
    names = np.array(["x", "z", "u"])[labels]
    first = write(tmp_path / "a.csv", {"x": logits[:, 0], "z": logits[:, 1], "u": logits[:, 2], "y": names})
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
        choose_columns(Path("a.csv"), head, ReadOptions())
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


def share_table(classes: int = 4, **more: Any) -> dict[str, Any]:
    logits, labels = model(classes)
    probs = softmax(logits.astype(np.float64))
    return {name: probs[:, k] for k, name in enumerate("abcdefgh"[:classes])} | more | {"label": labels}


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lr", np.full(300, 0.001)),
        ("noise", 0.008 * np.random.default_rng(0).random(300)),
        ("iou", np.random.default_rng(0).random(300)),
        ("age", np.arange(300) % 60),
        ("x", np.random.default_rng(0).normal(size=300)),
    ],
)
@pytest.mark.parametrize("digits", [2, 4, 12])
def test_columns_that_break_the_sums_are_left_out(tmp_path, suffix, name, values, digits):
    table = {key: np.round(column, digits) for key, column in share_table().items()}
    table = {name: values} | table
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert file.class_names == ("a", "b", "c", "d")
    assert f"column '{name}' is not a score" in file.notes
    assert accuracy(file) > 0.9


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    "values",
    [np.zeros(300), np.arange(300) >= 290, np.where(np.arange(300) == 299, 0.5, 0.0), np.full(300, 1e-6)],
    ids=["never", "late", "rare", "tiny"],
)
def test_columns_that_the_sums_say_nothing_about(tmp_path, refused, suffix, values):
    table = {"flag": np.asarray(values) * 1.0} | share_table()
    assert options(refused(write(tmp_path / f"a{suffix}", table))) == ["--columns", "NAME,NAME,…", "--label", "label"]


def test_two_sets_that_sum_to_one_are_not_clear(tmp_path, refused):
    table = share_table(3)
    table |= {"d": table["a"]}  # a, b, c and b, c, d
    assert "NAME,NAME" in refused(write(tmp_path / "a.csv", table))


@pytest.mark.parametrize("suffix", TABLES)
def test_measurements_are_no_classes(tmp_path, refused, suffix):
    _, labels = model(2)
    rng = np.random.default_rng(2)
    age, height = rng.integers(18, 90, 300), rng.normal(170, 9, 300)
    for i, (table, example) in enumerate(
        [
            ({"age": age, "height": height, "label": labels}, "NAME,NAME,…"),
            ({"age": age, "p": rng.random(300), "label": labels}, "p"),  # may be the score of class 1
            ({"z": rng.normal(size=300), "w": rng.normal(size=300), "label": labels}, "NAME,NAME,…"),
            ({"age": age, "height": height, "fold": age % 5, "label": labels}, "NAME,NAME,…"),
        ]
    ):
        assert f"--columns {example} --label label" in refused(write(tmp_path / f"a{i}{suffix}", table))


@pytest.mark.parametrize("suffix", TABLES)
def test_exam_results_are_no_scores_of_classes(tmp_path, suffix):
    logits, labels = model(2)
    probs, rng = softmax(logits.astype(np.float64)), np.random.default_rng(3)
    exams = {"score_math": rng.integers(20, 99, 300), "score_reading": rng.integers(20, 99, 300)}
    for i, truth in enumerate((labels, np.array(["fail", "pass"])[labels])):
        file = read_scores(
            write(tmp_path / f"a{i}{suffix}", exams | {"fail": probs[:, 0], "pass": probs[:, 1], "label": truth})
        )
        assert file.class_names == ("fail", "pass")
        assert accuracy(file) > 0.9


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("prefix", ["prob_class_", "prob_c", "logits_class "])
@pytest.mark.parametrize("first", [0, 1])
def test_numbers_at_the_end_give_the_order(tmp_path, suffix, prefix, first):
    logits, labels = model(12)
    scores = softmax(logits.astype(np.float64)) if prefix.startswith("prob") else logits
    order = sorted(range(12), key=lambda k: str(k + first))
    want = float((logits.argmax(1) == labels).mean())
    for i, places in enumerate((order, range(12))):
        table = {f"{prefix}{k + first}": scores[:, k] for k in places} | {"label": labels + first}
        assert accuracy(read_scores(write(tmp_path / f"a{i}{suffix}", table))) == want
        named = table | {"label": np.array([f"{prefix.split('_', 1)[1]}{k + first}" for k in labels])}
        assert accuracy(read_scores(write(tmp_path / f"b{i}{suffix}", named))) == want


def test_class_names_that_end_in_numbers(tmp_path, refused):
    logits, labels = model(2)
    names = np.array(["boeing747", "boeing737"])
    table = {f"logits_{name}": logits[:, k] for k, name in enumerate(names)}
    assert accuracy(read_scores(write(tmp_path / "a.csv", table | {"label": names[labels]}))) > 0.9
    assert "--columns" in refused(write(tmp_path / "b.csv", table | {"label": labels}))


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    ("models", "ends"), [("ab", "012"), (["resnet_", "vgg_"], ["cat", "dog", "cow"]), (["a_", "b_"], "012")]
)
def test_two_models_in_one_table(tmp_path, refused, suffix, models, ends):
    logits, labels = model(3)
    table = {f"logits_{m}{end}": logits[:, k] * (1 - 2 * i) for i, m in enumerate(models) for k, end in enumerate(ends)}
    path = write(tmp_path / f"a{suffix}", table | {"label": labels})
    line = refused(path)
    assert f"choose one with --scores-key logits_{models[0]}" in line
    file = read_scores(path, scores_key=f"logits_{models[0]}")
    assert file.num_classes == 3
    assert accuracy(file) > 0.9
    assert file.raw.name == "logits"


def test_names_of_two_parts_are_one_model_where_the_labels_say_so(tmp_path):
    logits, labels = model(4)
    names = np.array(["red_car", "red_bus", "blue_car", "blue_bus"])
    table = {f"logits_{name}": logits[:, k] for k, name in enumerate(names)} | {"label": names[labels]}
    assert read_scores(write(tmp_path / "a.csv", table)).num_classes == 4
    probs = softmax(logits.astype(np.float64))
    table = {f"prob_{name}": probs[:, k] for k, name in enumerate(names)} | {"label": labels}
    assert read_scores(write(tmp_path / "b.csv", table)).num_classes == 4


def test_names_that_pandas_made(tmp_path, refused):
    probs = softmax(model(3)[0].astype(np.float64))
    labels = model(3)[1]
    table = {"prob.2": probs[:, 2], "prob": probs[:, 0], "prob.1": probs[:, 1], "label": labels}
    file = read_scores(write(tmp_path / "a.csv", table))
    assert file.raw.keys == ("prob", "prob.1", "prob.2")
    assert accuracy(file) > 0.9
    table = {"prob": probs.max(1), "prob_1": probs[:, 0], "prob_2": probs[:, 1], "prob_3": probs[:, 2], "label": labels}
    assert options(refused(write(tmp_path / "b.csv", table)))[1] == "prob_1,prob_2,prob_3"


@pytest.mark.parametrize("suffix", TABLES)
def test_listed_columns_with_a_common_beginning(tmp_path, suffix):
    logits, labels = model(4)
    keep, names = labels < 2, np.array(["cat", "dog", "cow", "hen"])
    table = {f"p_{name}": logits[keep, k] for k, name in enumerate(names)} | {"label": names[labels[keep]]}
    file = read_scores(write(tmp_path / f"a{suffix}", table), columns="p_*")
    assert file.class_names == tuple(names)
    assert accuracy(file) > 0.9


def test_one_column_of_scores(tmp_path, refused):
    """It was refused before binary scores were read."""
    _, labels = model(2)
    for name in ("prob", "score", "z"):
        path = write(tmp_path / "a.csv", {name: labels * 0.5 + 0.1, "label": labels})
        if name == "z":
            assert "--columns z if it is the score of class 1, else save one column per class" in refused(path)
        file = read_scores(path, columns="z" if name == "z" else None)
        assert file.kind == "probs"
        np.testing.assert_allclose(file.scores[:, 1], labels * 0.5 + 0.1, rtol=1e-6)


def test_lists_in_a_table(tmp_path, refused):
    logits, labels = model(3)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"logits": logits.tolist(), "logits_temperature": [1.5] * 300, "label": labels}), path)
    assert accuracy(read_scores(path)) > 0.9
    assert accuracy(read_scores(path, scores_key="logits")) > 0.9
    pq.write_table(pa.table({"softmax_output": logits.tolist(), "label": labels}), path)
    assert "--scores-key, for example softmax_output" in refused(path)
    assert accuracy(read_scores(path, scores_key="softmax_output")) > 0.9


def test_decimals_are_numbers(tmp_path):
    logits, labels = model(3)
    probs = softmax(logits.astype(np.float64)).round(6)
    cells = {f"prob_{k}": pa.array([f"{p:.6f}" for p in probs[:, k]]).cast(pa.decimal128(9, 6)) for k in range(3)}
    pq.write_table(pa.table(cells | {"label": labels}), tmp_path / "a.parquet")
    file = read_scores(tmp_path / "a.parquet")
    np.testing.assert_allclose(file.scores.numpy(), probs / probs.sum(1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2,-0.31,0.5\n1,0.2,0.4\n", "no header line"),
        ("cat,-0.31,0.5\ndog,0.2,0.4\n", "no header line"),
        ("17,3\n4,5\n", "no header line"),
        ('label,logits_0,logits_1\n0,"0,5","-2,1"\n', "with a decimal point"),
        ("label logits_0 logits_1\n0 0.5 -2\n", "separate them by commas, semicolons or tabs"),
        ("label,cat,dog\n0,20 %,80 %\n", "pass --kind percent"),
        ("label,cat,dog,age,week\n0,20 %,80 %,31,7\n", "column 'cat' contains text, '20 %'); leave out the % signs"),
        (
            "label,prob,week\n0,0.2,1\n1,0.8,1\n",
            "or also 'week'; name the score columns, for example: --columns prob --l",
        ),
        ("label,prob,cat\n0,0.2,0.1\n1,0.8,0.3\n", "the score of class 1, for example: --columns NAME,NAME,… --label"),
    ],
)
def test_text_that_is_nearly_a_table(tmp_path, refused, text, says):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert says in refused(path)


def test_bars_between_cells(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label|logits_0|logits_1\n1|0.5|2\n0|1|-1\n")
    assert read_scores(path).scores.tolist() == [[0.5, 2.0], [1.0, -1.0]]


def test_the_names_of_trainer_predict_are_known(tmp_path):
    logits = np.random.default_rng(0).normal(size=(9, 3))
    np.savez(tmp_path / "a.npz", predictions=logits, label_ids=np.arange(9) % 3)
    file = read_scores(tmp_path / "a.npz")
    assert file.labels.tolist() == [0, 1, 2] * 3
    np.savez(tmp_path / "b.npz", predictions=logits, diagnosis=np.arange(9) % 3)
    with pytest.raises(InputError, match=r"give their name with --label \('diagnosis'\)"):
        read_scores(tmp_path / "b.npz").check_labelled()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_as_labels_of_named_columns_are_in_their_order_and_it_is_said(tmp_path, suffix):
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    table = {"dog": probs[:, 0], "cat": probs[:, 1], "label": np.array([0, 1, 0])}
    said = "labels are numbers, read in the order of the columns: 0 is 'dog', 1 is 'cat'"
    file = read_scores(write(tmp_path / f"a{suffix}", table))
    assert said in file.notes
    assert file.labels.tolist() == [0, 1, 0]
    named = read_scores(write(tmp_path / f"b{suffix}", table | {"label": np.array(["dog", "cat", "dog"])}))
    numbered = read_scores(write(tmp_path / f"c{suffix}", {"0": probs[:, 0], "1": probs[:, 1], "label": [0, 1, 0]}))
    given = read_scores(tmp_path / f"a{suffix}", classes=["hund", "katze"])
    assert not any("order of the columns" in note for one in (named, numbered, given) for note in one.notes)
    many = {name: np.full(3, 1 / 7) for name in "gfedcba"}
    from_one = read_scores(write(tmp_path / f"d{suffix}", many | {"label": [1, 7, 2]}), first_label=1)
    assert any(note.endswith("1 is 'g', 2 is 'f', 3 is 'e', 4 is 'd', 5 is 'c', …") for note in from_one.notes)


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    "words",
    [("0_1", "1_0", "1_1"), ("nan", "inf", "infinity"), ("१", "२", "३"), ("1e", "0x1", "2e"), ("१_१", "１", "२")],
)
def test_names_that_only_python_reads_as_numbers_are_classes(tmp_path, suffix, words):
    """`float` reads 0_1 as 1 and 1_0 as 10, the digits of any alphabet, and the words nan and inf."""
    logits, labels = model(3)
    truth = np.array(words)[labels]
    columns = {word: logits[:, index] for index, word in enumerate(words)}
    for names in (columns, {f"prob_{word}": softmax(logits)[:, index] for index, word in enumerate(words)}):
        file = read_scores(write(tmp_path / f"a{suffix}", {"label": truth, **names}))
        assert file.names == words
        np.testing.assert_array_equal(file.labels.numpy(), labels)


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("words", [("0_0", "0_1"), ("0_1", "1_0"), ("inf", "nan"), ("०", "१"), ("０", "１")])
def test_two_such_names_for_one_score_per_row(tmp_path, suffix, words):
    """0_0 and 0_1 were the labels 0 and 1, so that their names were lost, and --classes gave them others."""
    logits, labels = model()
    prob, truth = softmax(logits)[:, 1], np.array(words)[labels]
    path = write(tmp_path / f"a{suffix}", {"label": truth, "prob": prob})
    file = read_scores(path)
    assert file.names == words
    np.testing.assert_array_equal(file.labels.numpy(), labels)
    np.testing.assert_allclose(file.predictions().probs[:, 1], prob, rtol=1e-5)


@pytest.mark.parametrize("text", ["1_000", "१२", "１", "0x1", "1e", "1d3"])
def test_scores_that_are_no_numbers_of_a_table_are_named(tmp_path, refused, text):
    path = tmp_path / "a.csv"
    path.write_text(f"label,logits_0,logits_1\n0,2.5,-1\n1,{text},3.5\n0,1.5,0\n", encoding="utf-8")
    assert f"line 3: column 'logits_0' contains {text!r}, not a number" in refused(str(path))


@pytest.mark.parametrize("text", ["+1", " 1", "1.", "1e0", "1.0"])
def test_ones_of_spreadsheets_are_numbers(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(f"label,logits_0,logits_1\n0,2.5,{text}\n{text},{text},3.5\n0,1.5,0\n", encoding="utf-8")
    file = read_scores(path)
    assert file.labels.tolist() == [0, 1, 0]
    assert file.scores[:, 1].tolist() == [1.0, 3.5, 0.0]


def test_the_word_nan_does_not_make_a_column_of_texts_a_score(tmp_path):
    """pandas writes nan with na_rep; a column of other texts is no column of numbers for it."""
    logits, labels = model()
    probs = softmax(logits)
    city = np.where(np.arange(300) % 7 == 0, "nan", "Rome")
    for columns in (
        {"cat": probs[:, 0], "dog": probs[:, 1], "city": city, "label": np.array(["cat", "dog"])[labels]},
        {"class_0": logits[:, 0], "class_1": logits[:, 1], "city": city, "label": labels},
    ):
        file = read_scores(write(tmp_path / "a.csv", columns))
        assert file.num_classes == 2
        np.testing.assert_array_equal(file.labels.numpy(), labels)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_line_that_tells_excel_the_separator_is_named(tmp_path, refused, separator):
    path, rows = tmp_path / "a.csv", ["label,prob_a,prob_b", "a,0.9,0.1", "b,0.2,0.8"]
    path.write_text("\n".join([f"sep={separator}", *rows]).replace(",", separator), encoding="utf-8")
    assert "remove this line" in refused(path)
