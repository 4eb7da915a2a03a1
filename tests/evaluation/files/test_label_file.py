"""Labels from a second table: by the ids of the rows and the names of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.evaluation.files.test_columns import accuracy, model, write

from avuc.evaluation.files import read_scores

LOGITS, LABELS = model(3)
ORDER = np.random.default_rng(8).permutation(300)
NAMES = np.array(["cat", "dog", "cow"])
TABLES = [".csv", ".parquet"]


def scores(path: Path, **more: Any) -> Path:
    return write(path, more | {f"logits_{name}": LOGITS[:, k] for k, name in enumerate(NAMES)})


@pytest.mark.parametrize("first", TABLES)
@pytest.mark.parametrize("second", TABLES)
@pytest.mark.parametrize("name", ["id", "Unnamed: 0", "sample_id", "image"])
def test_rows_are_matched_by_their_ids(tmp_path, first, second, name):
    ids = np.arange(300) * 7 if name != "image" else np.array([f"{i}.png" for i in range(300)])
    path = scores(tmp_path / f"a{first}", **{name: ids})
    other = write(tmp_path / f"b{second}", {"label": LABELS[ORDER], name: ids[ORDER]})
    file = read_scores(path, labels=other)
    assert file.labels.tolist() == LABELS.tolist()
    assert any(f"by column {name!r}" in note for note in file.notes)
    same = write(tmp_path / f"c{second}", {"label": LABELS, name: ids})
    assert read_scores(path, labels=same).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("suffix", [*TABLES, ".npz"])
@pytest.mark.parametrize("name", ["id", "sample_id", "image"])
def test_ids_that_are_not_used_are_mentioned(tmp_path, suffix, name):
    """The file of the scores calls its ids by another name, so rows are matched by position."""
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez(path, logits=LOGITS, number=np.arange(300))
    else:
        scores(path, number=np.arange(300))
    other = write(tmp_path / "b.csv", {"label": LABELS, name: np.arange(300)})
    assert any(f"by position; column {name!r} was not used" in note for note in read_scores(path, labels=other).notes)
    counted = write(tmp_path / "c.csv", {"label": LABELS, "index": np.arange(300)})
    assert not any("by position" in note for note in read_scores(path, labels=counted).notes)


@pytest.mark.parametrize("first", TABLES)
@pytest.mark.parametrize("second", TABLES)
@pytest.mark.parametrize("name", ["image_id", "tweet"])
@pytest.mark.parametrize("kind", ["19 digits", "zeros in front", "text"])
def test_ids_are_compared_exactly(tmp_path, first, second, name, kind):
    ids = np.arange(300) + 1_800_000_000_000_000_000  # as floats, all of them are equal
    if kind != "19 digits":
        ids = np.array([f"{i:05}" if kind == "zeros in front" else f"{i}e1" for i in range(300)])
    path = scores(tmp_path / f"a{first}", **{name: ids})
    other = write(tmp_path / f"b{second}", {"label": LABELS[ORDER], name: ids[ORDER]})
    assert read_scores(path, labels=other).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("ids", ["others", "twice"])
def test_other_ids_are_refused(tmp_path, refused, suffix, ids):
    path = scores(tmp_path / f"a{suffix}", id=np.arange(300))
    theirs = np.arange(300) + 5 if ids == "others" else np.arange(300) // 2
    other = write(tmp_path / f"b{suffix}", {"label": LABELS, "id": theirs})
    assert "column 'id' does not contain the same ids" in refused(path, "--labels", str(other), where=other)


@pytest.mark.parametrize("first", TABLES)
@pytest.mark.parametrize("second", TABLES)
def test_an_index_with_repeats_does_not_hide_the_ids(tmp_path, refused, first, second):
    """The index of pandas after `concat`, with and without a column of ids."""
    index = np.arange(300) % 150
    parts = {f"logits_{name}": LOGITS[:, k] for k, name in enumerate(NAMES)}

    def saved(name, columns, rows):
        frame = pd.DataFrame(columns, index=index).iloc[rows]
        frame.to_csv(tmp_path / name) if name.endswith(".csv") else frame.to_parquet(tmp_path / name)
        return tmp_path / name

    path = saved(f"a{first}", parts | {"sample_id": np.arange(300)}, slice(None))
    other = saved(f"b{second}", {"label": LABELS, "sample_id": np.arange(300)}, ORDER)
    assert read_scores(path, labels=other).labels.tolist() == LABELS.tolist()
    path, other = saved(f"c{first}", parts, slice(None)), saved(f"d{second}", {"label": LABELS}, ORDER)
    if first == second:  # else the index has two names
        assert "does not contain the same ids" in refused(path, "--labels", str(other), where=other)


def test_ids_that_disagree_are_refused(tmp_path, refused):
    path = scores(tmp_path / "a.csv", id=np.arange(300), key=np.arange(300))
    other = write(tmp_path / "b.csv", {"label": LABELS, "id": np.arange(300), "key": ORDER})
    assert "differently" in refused(path, "--labels", str(other), where=other)


def test_empty_ids_are_refused(tmp_path, refused):
    path = scores(tmp_path / "a.parquet", id=np.arange(300))
    other = tmp_path / "b.parquet"
    pq.write_table(pa.table({"label": LABELS, "id": pa.array([None, *range(1, 300)])}), other)
    assert "column 'id'" in refused(path, "--labels", str(other), where=other)


def test_other_columns_of_both_tables_say_nothing(tmp_path):
    path = scores(tmp_path / "a.csv", fold=np.arange(300) % 5, patient_id=np.arange(300) // 3, p=np.arange(300) / 7)
    table = {"label": LABELS, "fold": np.arange(300) % 4, "patient_id": np.arange(300) // 3, "p": np.arange(300) / 9}
    assert read_scores(path, labels=write(tmp_path / "b.csv", table)).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("suffix", TABLES)
def test_labels_in_words_are_looked_up_among_the_classes(tmp_path, refused, suffix):
    path = scores(tmp_path / f"a{suffix}")
    other = write(tmp_path / f"b{suffix}", {"label": NAMES[LABELS]})
    file = read_scores(path, labels=other)
    assert file.labels.tolist() == LABELS.tolist()
    assert accuracy(file) > 0.9
    few = np.where(LABELS == 0, 2, LABELS)  # no row of the first class
    assert (
        read_scores(path, labels=write(tmp_path / f"c{suffix}", {"label": NAMES[few]})).labels.tolist() == few.tolist()
    )
    other = write(tmp_path / f"d{suffix}", {"label": np.array(["horse"] * 300)})
    assert "'horse' is neither a number nor a class name ('cat', 'dog', 'cow')" in refused(
        path, "--labels", str(other), where=other
    )


def test_labels_in_words_for_scores_without_names(tmp_path, refused):
    np.save(tmp_path / "logits.npy", LOGITS)
    other = write(tmp_path / "b.csv", {"label": NAMES[LABELS]})
    line = refused(tmp_path / "logits.npy", "--labels", str(other))
    assert "not in alphabetical order" in line
    assert line.endswith("name the classes in the order of the scores with --classes NAME,NAME,…\n")
    file = read_scores(tmp_path / "logits.npy", labels=other, classes=NAMES.tolist())
    assert file.labels.tolist() == LABELS.tolist()


def test_labels_without_a_header(tmp_path, refused):
    other = tmp_path / "b.csv"
    other.write_text("\n".join(str(k) for k in LABELS))
    assert "no header line" in refused(scores(tmp_path / "a.csv"), "--labels", str(other), where=other)


@pytest.mark.parametrize("first", TABLES)
@pytest.mark.parametrize("second", TABLES)
@pytest.mark.parametrize("kind", ["other numbers", "counted again", "same order"])
def test_an_index_of_its_own_in_each_table_does_not_hide_the_ids(tmp_path, first, second, kind):
    """Each index is unique, as after `reset_index` of a sorted table or a slice of a larger one."""
    order = np.arange(300) if kind == "same order" else ORDER
    start = 0 if kind == "counted again" else 1000
    parts = {f"logits_{name}": LOGITS[:, k] for k, name in enumerate(NAMES)}
    ids = np.array([f"case {i}" for i in range(300)])

    def saved(name, columns, start):
        frame = pd.DataFrame(columns, index=np.arange(300) + start)
        frame.to_csv(tmp_path / name) if name.endswith(".csv") else frame.reset_index().to_parquet(tmp_path / name)
        return tmp_path / name

    path = saved(f"a{first}", parts | {"sample_id": ids}, 0)
    other = saved(f"b{second}", {"label": LABELS[order], "sample_id": ids[order]}, start)
    read = read_scores(path, labels=other)
    assert read.labels.tolist() == LABELS.tolist()
    if first == second:  # else the index has two names
        numbers = "the row numbers" if first == ".csv" else "the row numbers 'index'"
        said = f"by column 'sample_id'; {numbers} say otherwise and were not used"
        assert any(said in note for note in read.notes), read.notes


def test_an_index_that_names_the_rows_must_agree_with_the_ids(tmp_path, refused):
    """Both tables were reordered, and their index says from where: it is no count of their rows."""
    path = scores(tmp_path / "a.csv", index=ORDER, sample_id=np.arange(300))
    other = write(tmp_path / "b.csv", {"label": LABELS, "index": np.arange(300), "sample_id": np.arange(300)})
    assert "differently" in refused(path, "--labels", str(other), where=other)


def test_another_index_alone_is_refused(tmp_path, refused):
    path = scores(tmp_path / "a.csv", index=np.arange(300))
    other = write(tmp_path / "b.csv", {"label": LABELS, "index": np.arange(300) + 1000})
    assert "column 'index' does not contain the same ids" in refused(path, "--labels", str(other), where=other)
