"""What decides silently which label belongs to which score: the order of named columns, ids, and options to copy."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.evaluation.files.read import open_scores, read_scores

ROWS = 60


def good_model(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, ROWS)
    probs = rng.dirichlet(np.ones(classes), ROWS) * 0.4
    probs[np.arange(ROWS), labels] += 0.6
    return probs, labels


def write(path, columns: dict[str, object]) -> str:
    names = list(columns)
    lines = [",".join(names), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def accuracy(file) -> float:
    return float((file.scores.argmax(-1) == file.labels).float().mean())


def test_two_columns_in_reverse_order_are_refused(tmp_path):
    probs, labels = good_model(2)
    path = write(tmp_path / "a.csv", {"prob_yes": probs[:, 1], "prob_no": probs[:, 0], "label": labels})
    with pytest.raises(InputError, match=r"unclear which number is which column.*--columns prob_no,prob_yes or --col"):
        read_scores(path)
    assert accuracy(read_scores(path, columns="prob_no,prob_yes")) == 1
    assert accuracy(read_scores(path, columns="prob_yes,prob_no")) == 0  # the user says so


def test_columns_that_are_not_in_alphabetical_order_are_refused(tmp_path):
    probs, labels = good_model(3)  # labels numbered alphabetically, as LabelEncoder does: cat, dog, fox
    columns = {"prob_fox": probs[:, 2], "prob_cat": probs[:, 0], "prob_dog": probs[:, 1], "label": labels}
    path = write(tmp_path / "a.csv", columns)
    with pytest.raises(InputError, match=r"alphabetical order; name .*--columns prob_cat,prob_dog,prob_fox or"):
        read_scores(path)
    assert accuracy(read_scores(path, columns="prob_cat,prob_dog,prob_fox")) == 1


@pytest.mark.parametrize("names", [["zebra", "ant", "cow"], ["ant", "cow", "zebra"]])
def test_numbers_in_the_order_of_the_columns_are_read_as_before(tmp_path, names):
    probs, labels = good_model(3)
    columns = {f"prob_{name}": probs[:, index] for index, name in enumerate(names)}
    file = read_scores(write(tmp_path / "a.csv", {**columns, "label": labels}))
    assert accuracy(file) == 1
    assert "labels are numbers, read in the order of the columns" in file.notes[-1]


@pytest.mark.parametrize(("rows", "wrong"), [(400, 220), (8, 8), (10_000, 5_400)])
def test_a_weak_classifier_is_no_evidence_of_another_order(tmp_path, rows, wrong):
    """45 % right on 400 rows, or a handful of rows: the file is read, with the note on the order."""
    labels = np.arange(rows) % 2
    right = np.where(np.arange(rows) < wrong, 1 - labels, labels)
    columns = {"prob_no": 0.8 - 0.6 * right, "prob_yes": 0.2 + 0.6 * right, "label": labels}
    file = read_scores(write(tmp_path / "a.csv", columns))
    assert accuracy(file) == pytest.approx(1 - wrong / rows)
    assert "labels are numbers, read in the order of the columns" in file.notes[-1]


def test_more_rows_are_clear_evidence(tmp_path):
    labels = np.arange(400) % 2
    right = np.where(np.arange(400) < 240, 1 - labels, labels)
    columns = {"prob_no": 0.8 - 0.6 * right, "prob_yes": 0.2 + 0.6 * right, "label": labels}
    with pytest.raises(InputError, match=r"40 % of the rows are right in the order of the columns, 60 % in"):
        read_scores(write(tmp_path / "a.csv", columns))


def test_a_large_table_is_checked_too(tmp_path):
    pandas = pytest.importorskip("pandas")
    probs, labels = good_model(2)
    table = pandas.DataFrame({"prob_yes": probs[:, 1], "prob_no": probs[:, 0], "label": labels})
    table.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="unclear which number is which column"):
        open_scores(tmp_path / "a.parquet", most_scores=10)


def test_labels_from_1(tmp_path):
    probs, labels = good_model(2)
    path = write(tmp_path / "a.csv", {"prob_yes": probs[:, 1], "prob_no": probs[:, 0], "label": labels + 1})
    with pytest.raises(InputError, match="unclear which number is which column"):
        read_scores(path, first_label=1)


def test_a_second_file_follows_the_first(tmp_path):
    probs, labels = good_model(2)
    first = read_scores(write(tmp_path / "a.csv", {"p_yes": probs[:, 0], "p_no": probs[:, 1], "label": labels}))
    drifted = write(tmp_path / "b.csv", {"p_yes": probs[:, 1], "p_no": probs[:, 0], "label": labels})
    assert accuracy(read_scores(drifted, like=first)) == 0


def test_ids_whose_names_differ_in_case(tmp_path):
    probs, labels = good_model(3)
    scores = write(tmp_path / "s.csv", {"Id": range(ROWS), **{f"prob_{k}": probs[:, k] for k in range(3)}})
    order = np.random.default_rng(1).permutation(ROWS)
    truth = write(tmp_path / "l.csv", {"id": order, "label": labels[order]})
    file = read_scores(scores, labels=truth)
    assert accuracy(file) == 1
    assert "labels were matched to the scores by column 'id'" in file.notes


def test_a_label_with_a_space_can_be_copied_into_the_shell(tmp_path):
    probs, labels = good_model(2)
    words = np.array(["no finding", "malignant"])[labels]
    path = write(tmp_path / "a.csv", {"prob": probs[:, 1], "label": words})
    with pytest.raises(InputError, match="pass --positive 'no finding' or --positive malignant"):
        read_scores(path)


def test_packed_and_other_encodings_get_a_remedy_that_helps(tmp_path, capsys):
    probs, labels = good_model(2)
    path = tmp_path / "a.csv"
    write(path, {"prob_0": probs[:, 0], "prob_1": probs[:, 1], "label": labels})
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["evaluate", str(packed)]) == 2
    assert "gunzip -c a.csv.gz | avuc … - --format csv" in capsys.readouterr().err
    path.write_bytes(path.read_text().encode("utf-16"))
    assert main(["evaluate", str(path)]) == 2
    assert "(it is not UTF-8 text); save it as UTF-8" in capsys.readouterr().err
    (tmp_path / "a.pt").write_bytes(b"x")
    assert main(["evaluate", str(tmp_path / "a.pt")]) == 2
    assert "numpy.savez" in capsys.readouterr().err


def label_files(tmp_path, own: str, other: str, prefix: str = "", **more):
    probs, labels = good_model(3)
    names = [f"{number}.png" for number in range(ROWS)]
    more = {name: ["a"] * ROWS for name in more}
    scores = write(tmp_path / "s.csv", {own: names, **more, **{f"prob_{k}": probs[:, k] for k in range(3)}})
    order = np.random.default_rng(1).permutation(ROWS)
    columns = {other: [prefix + names[row] for row in order], **more, "label": labels[order]}
    return scores, write(tmp_path / "l.csv", columns)


def test_the_same_ids_under_another_name(tmp_path):
    scores, truth = label_files(tmp_path, "image", "filename")
    file = read_scores(scores, labels=truth)
    assert accuracy(file) == 1
    assert "labels were matched to the scores by column 'filename'" in file.notes


def test_an_id_with_two_labels_under_another_name(tmp_path):
    scores, truth = label_files(tmp_path, "image", "filename")
    with open(truth, "a") as table:
        table.write("0.png,2\n")
    with pytest.raises(InputError, match=f"{ROWS} rows of scores but {ROWS + 1} labels"):
        read_scores(scores, labels=truth)


def test_a_note_if_the_tables_share_a_column_that_is_no_id(tmp_path):
    scores, truth = label_files(tmp_path, "image", "filename", prefix="folder/", fold=True)
    file = read_scores(scores, labels=truth)
    assert "labels were matched to the scores by position; column 'filename' was not used" in file.notes


def test_labels_that_are_counted_from_1_are_no_other_order(tmp_path):
    probs, labels = good_model(3)
    columns = {f"prob_{name}": probs[:, index] for index, name in enumerate(["fox", "cat", "dog"])}
    kept = labels < 2
    columns = {name: values[kept] for name, values in columns.items()}
    path = write(tmp_path / "a.csv", {**columns, "label": labels[kept] + 1})
    with pytest.raises(InputError, match="may start at 0 or at 1"):
        read_scores(path)
    assert accuracy(read_scores(path, first_label=1)) == 1


@pytest.mark.parametrize("names", [["0", "1", "2"], ["cat", "dog", "fox"]])
def test_the_scores_of_two_models_are_not_chosen_between(tmp_path, names):
    probs, labels = good_model(3)
    columns = {f"{model}_prob_{name}": probs[:, k] for model in "ba" for k, name in enumerate(names)}
    path = write(tmp_path / "a.csv", {**columns, "label": np.array(names)[labels]})
    with pytest.raises(InputError, match=r"may be the scores of 2 models: .* --scores-key b_prob_"):
        read_scores(path)
    assert accuracy(read_scores(path, scores_key="a_prob_")) == 1


def test_probabilities_are_chosen_beside_counts(tmp_path):
    probs, labels = good_model(2)
    columns = {"n_cat": labels + 3, "n_dog": labels + 2, "p_cat": probs[:, 0], "p_dog": probs[:, 1]}
    path = write(tmp_path / "a.csv", {**columns, "label": np.array(["cat", "dog"])[labels]})
    assert accuracy(read_scores(path)) == 1
