"""Every format gives the same scores and labels, and says what it found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.evaluation.files import describe, read_scores
from avuc.evaluation.files.find import FORMATS
from avuc.evaluation.files.names import SCORE_NAMES, label_file_name
from avuc.predictions import Predictions

SUFFIXES = list(FORMATS)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 11)).astype(np.float32), rng.integers(0, 11, 40)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same(save, data, suffix):
    logits, labels = data
    file = read_scores(save(suffix, logits, labels))
    assert file.kind == "logits"
    assert file.scores.dtype == torch.float32
    # float32 survives its decimal form in a .csv exactly
    assert torch.equal(file.scores, torch.from_numpy(logits))
    assert torch.equal(file.labels, torch.from_numpy(labels))
    assert file.labels.dtype == torch.int64
    assert describe(file).startswith("40 × 11 logits from ")
    assert (file.num_rows, file.num_classes, file.samples) == (40, 11, 1)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_draws(save, data, suffix):
    logits, labels = data
    draws = np.stack([logits, logits * 2, logits - 1])
    file = read_scores(save(suffix, draws, labels))
    assert file.samples == 3
    assert describe(file).startswith("3 samples of 40 × 11 logits")
    expected = Predictions.from_samples(torch.from_numpy(draws), torch.from_numpy(labels))
    assert torch.equal(file.predictions().probs, expected.probs)
    probs = read_scores(save(suffix, softmax(draws), labels, name="probs")).predictions()
    torch.testing.assert_close(probs.probs, expected.probs)
    torch.testing.assert_close(probs.expected_entropy, expected.expected_entropy)
    assert probs.samples == 3


def test_draws_in_parquet_lists(tmp_path, data):
    logits, labels = data
    draws = np.stack([logits, logits + 1])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"logits": draws.transpose(1, 0, 2).tolist(), "y": labels}), path)
    assert torch.equal(read_scores(path).scores, torch.from_numpy(draws))


@pytest.mark.parametrize("kind", ["list", "fixed", "float64"])
def test_parquet_list_column(tmp_path, data, kind):
    logits, labels = data
    element = pa.float64() if kind == "float64" else pa.float32()
    wide = pa.list_(element, 11) if kind == "fixed" else pa.list_(element)
    pq.write_table(
        pa.table({"probs": pa.array(softmax(logits).tolist(), wide), "target": labels}), tmp_path / "a.parquet"
    )
    file = read_scores(tmp_path / "a.parquet")
    assert file.kind == "probs"
    assert describe(file) == "40 × 11 probabilities from column 'probs', labels from column 'target'"
    np.testing.assert_allclose(file.scores.numpy(), softmax(logits), rtol=1e-5)


@pytest.mark.parametrize("name", SCORE_NAMES)
@pytest.mark.parametrize("values", ["logits", "probs"])
def test_kind_by_name_then_by_values(save, data, name, values):
    logits, labels = data
    path = save(".npz", logits if values == "logits" else softmax(logits), labels, name=name)
    if name == "probs" and values == "logits":
        with pytest.raises(InputError, match=r"should contain probabilities, but row .* pass --kind logits"):
            read_scores(path)
        return
    if name == "logits" and values == "probs":
        with pytest.raises(InputError, match=r"every row sums to 1, .*; pass --kind probs, or --kind logits"):
            read_scores(path)
        return
    file = read_scores(path)
    assert file.kind == (name if name in ("logits", "probs") else values)
    assert not file.notes


def test_kind_as_asked(save, data):
    logits, labels = data
    path = save(".npz", softmax(logits), labels, name="scores")
    assert read_scores(path).kind == "probs"
    assert read_scores(path, kind="logits").kind == "logits"
    with pytest.raises(InputError, match="unknown kind 'odds'"):
        read_scores(path, kind="odds")


def test_names_other_than_the_usual(save, data, tmp_path):
    logits, labels = data
    np.savez(tmp_path / "a.npz", out=logits, truth=labels, probs=softmax(logits))
    file = read_scores(tmp_path / "a.npz", scores_key="out", labels_key="truth")
    assert describe(file) == "40 × 11 logits from key 'out', labels from 'truth'"
    assert not file.notes


def test_two_candidates_are_said(tmp_path, data):
    logits, labels = data
    np.savez(tmp_path / "a.npz", probs=softmax(logits), logits=logits, y=labels)
    file = read_scores(tmp_path / "a.npz")
    assert file.kind == "logits"
    assert file.notes == ("the file also contains 'probs'; --scores-key chooses the scores",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_labels_from_another_file(save, data, tmp_path, suffix):
    logits, labels = data
    where = tmp_path / "truth"
    where.mkdir()
    scores = save(suffix, logits)
    other = {".npz": ".csv", ".npy": ".npz", ".safetensors": ".parquet", ".parquet": ".tsv", ".csv": ".npy"}
    other[".tsv"] = ".safetensors"
    if other[suffix] == ".npy":
        beside = where / "anything.npy"
        np.save(beside, labels[:, None])
    else:
        beside = save(other[suffix], np.zeros((40, 2)), labels, label="targets")
        beside = beside.rename(where / beside.name)
    file = read_scores(scores, labels=beside)
    assert torch.equal(file.labels, torch.from_numpy(labels))
    assert beside.name in (file.labels_from or "")
    assert read_scores(scores).labels is None


@pytest.mark.parametrize(
    ("stem", "there", "word", "found"),
    [
        ("logits", {"labels"}, "logits", "labels"),
        ("test_logits", {"test_y", "labels"}, "logits", "test_y"),
        ("probs-cifar10", {"targets-cifar10"}, "probs", "targets-cifar10"),
        ("test_logits", {"labels"}, "logits", None),
        ("model7", {"labels"}, None, None),
        ("prologitsx", {"prolabelsx"}, None, None),
    ],
)
def test_the_labels_beside_a_npy(stem, there, word, found):
    assert label_file_name(stem, there.__contains__) == (word, found)


def test_numbered_columns_are_sorted_by_number(tmp_path):
    head = ["label", *(f"logits_{i}" for i in sorted(range(12), key=str))]
    row = ["3", *(str(i) for i in sorted(range(12), key=str))]
    (tmp_path / "a.csv").write_text(",".join(head) + "\n" + ",".join(row) + "\n")
    assert read_scores(tmp_path / "a.csv").scores.tolist() == [[float(i) for i in range(12)]]


def test_class_names_as_labels(tmp_path):
    (tmp_path / "a.csv").write_text('label,prob_cat,prob_dog,"prob_cow, big"\ndog,.2,.3,.5\n"cow, big",.1,.1,.8\n')
    file = read_scores(tmp_path / "a.csv")
    assert file.class_names == ("cat", "dog", "cow, big")
    assert file.labels.tolist() == [1, 2]
    table = pa.table({"cat": [1.0, 2.0], "dog": [0.5, -1.0], "label": ["dog", "cat"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_scores(tmp_path / "a.parquet").labels.tolist() == [1, 0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_csv_dialects(tmp_path, mark, bom):
    lines = ["id,y,a,b", "7,b,0.5,-2", "", '8,a,"1.5",3e0']
    (tmp_path / "a.csv").write_text(bom + "\r\n".join(lines).replace(",", mark) + "\r\n", encoding="utf-8")
    file = read_scores(tmp_path / "a.csv")
    assert file.scores.tolist() == [[0.5, -2.0], [1.5, 3.0]]
    assert file.labels.tolist() == [1, 0]
    assert "'id' was ignored" in file.notes[0]


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4", "<f4", "<i4", "<i8", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_types_and_orders(tmp_path, dtype, order):
    values = np.array([[1, 2, 3], [4, 5, 7]], dtype=dtype, order=order)
    np.savez(tmp_path / "a.npz", logits=values, labels=np.array([[0], [2]], dtype=">i2"))
    file = read_scores(tmp_path / "a.npz")
    assert file.scores.tolist() == [[1, 2, 3], [4, 5, 7]]
    assert file.labels.tolist() == [0, 2]


def test_rounded_probabilities_are_renormalised_and_said(save):
    file = read_scores(save(".csv", [[0.333, 0.333, 0.333], [0.5, 0.25, 0.25]], [0, 1], name="probs"))
    assert "each row was divided by its sum" in file.notes[0]
    torch.testing.assert_close(file.scores.sum(1), torch.ones(2))


def test_zero_probabilities_have_finite_logits(save):
    file = read_scores(save(".npz", np.array([[1, 0, 0], [0, 1, 0]], np.float32), [0, 2], name="probs"))
    logits = file.logits()
    assert bool(torch.isfinite(logits).all())
    torch.testing.assert_close(logits.softmax(1), file.scores)
    assert file.entropy().tolist() == [0, 0]


def test_entropy_needs_no_labels(save, data):
    logits, _ = data
    uniform = read_scores(save(".npz", np.zeros((3, 8))))
    assert uniform.labels is None
    np.testing.assert_allclose(uniform.entropy(), math.log(8), rtol=1e-6)
    with pytest.raises(InputError, match=r"saved.npz: contains no labels.*--labels FILE"):
        uniform.predictions()
    table = uniform.path.with_name("patients.csv")
    table.write_text("patient,prob_ill,prob_well,diagnosis\nP1,0.2,0.8,well\n")
    with pytest.raises(InputError, match=r"give their name with --label \('patient', 'diagnosis'\)"):
        read_scores(table).predictions()
    table.write_text("prob_ill,prob_well,diagnosis\n0.2,0.8,well\n0.4,0.6,\n")
    with pytest.raises(InputError, match="some rows have no label; label every row, or remove these rows"):
        read_scores(table, labels_key="diagnosis")
    probs = read_scores(save(".npz", softmax(logits), name="probs"))
    again = read_scores(save(".npz", logits))
    torch.testing.assert_close(probs.entropy(), again.entropy())


@given(st.lists(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=5), min_size=1, max_size=8))
def test_csv_reads_back_what_any_number_prints(tmp_path_factory, rows):
    rows = [row[: min(map(len, rows))] for row in rows]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    head = ",".join(f"logit_{i}" for i in range(len(rows[0])))
    Path(path).write_text(head + "\n" + "\n".join(",".join(map(repr, row)) for row in rows) + "\n")
    assert read_scores(path).scores.tolist() == rows
