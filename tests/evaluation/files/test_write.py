"""Transformed scores go back into a file of the same format, under the same name; everything else stays."""

from __future__ import annotations

import csv
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from avuc.calibration import TemperatureScaling
from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores, write_scores
from avuc.evaluation.files.find import FORMATS

SUFFIXES = list(FORMATS)


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(30, 4)).astype(np.float32) * 3
    # right for most rows, so that the best temperature is an ordinary one
    return logits, np.where(rng.random(30) < 0.7, logits.argmax(1), rng.integers(0, 4, 30))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_round_trip(save, data, tmp_path, suffix, kind):
    logits, labels = data
    scores = logits if kind == "logits" else torch.from_numpy(logits).softmax(1).numpy()
    file = read_scores(save(suffix, scores, labels, name=kind))
    scaler = TemperatureScaling().fit(file.logits(), file.labels)
    out = tmp_path / f"{kind}_out{suffix}"
    write_scores(file, file.calibrated(scaler), out)
    again = read_scores(out, labels=tmp_path / "labels.npy" if suffix == ".npy" else None)
    assert again.kind == kind
    assert torch.equal(again.labels, file.labels)
    expected = torch.from_numpy(logits) / scaler.temperature_
    if kind == "logits":
        torch.testing.assert_close(again.scores, expected)
    else:
        torch.testing.assert_close(again.scores, expected.softmax(1))
    assert again.scores_from.replace("_out", "") == file.scores_from


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_npz_keeps_types_and_other_members(tmp_path, data, dtype):
    logits, labels = data
    names = np.array(["a", "b"])
    np.savez_compressed(tmp_path / "a.npz", scores=logits.astype(dtype), y=labels.astype(np.uint8), names=names)
    file = read_scores(tmp_path / "a.npz")
    write_scores(file, file.scores / 2, tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as saved:
        assert sorted(saved) == ["names", "scores", "y"]
        assert saved["scores"].dtype == ("float32" if dtype == "int32" else dtype)
        np.testing.assert_allclose(saved["scores"], logits.astype(dtype).astype("f4") / 2, rtol=1e-3)
        assert saved["y"].dtype == np.uint8
        assert (saved["names"] == names).all()


def test_safetensors_keeps_bfloat16_metadata_and_the_rest(tmp_path, data):
    logits, labels = data
    held = {"logits": torch.from_numpy(logits).bfloat16(), "y": torch.from_numpy(labels), "more": torch.ones(3)}
    safetensors.torch.save_file(held, tmp_path / "a.safetensors", {"made by": "a test"})
    file = read_scores(tmp_path / "a.safetensors")
    write_scores(file, file.scores * 2, tmp_path / "b.safetensors")
    again = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert torch.equal(again["logits"], held["logits"] * 2)
    assert torch.equal(again["more"], held["more"])
    with safetensors.safe_open(tmp_path / "b.safetensors", "pt") as opened:
        assert opened.metadata() == {"made by": "a test"}


@pytest.mark.parametrize("kind", ["list", "fixed", "draws"])
def test_parquet_keeps_types_and_other_columns(tmp_path, data, kind):
    logits, labels = data
    one = {
        "list": pa.list_(pa.float64()),
        "fixed": pa.list_(pa.float32(), 4),
        "draws": pa.list_(pa.list_(pa.float32())),
    }
    values = np.stack([logits, logits], 1) if kind == "draws" else logits
    table = pa.table({"id": [str(i) for i in range(30)], "logits": pa.array(values.tolist(), one[kind]), "y": labels})
    pq.write_table(table, tmp_path / "a.parquet")
    file = read_scores(tmp_path / "a.parquet")
    write_scores(file, file.scores + 1, tmp_path / "b.parquet")
    again = pq.read_table(tmp_path / "b.parquet")
    assert again.schema.types == table.schema.types
    assert again.column_names == table.column_names
    assert again["id"] == table["id"]
    assert torch.equal(read_scores(tmp_path / "b.parquet").scores, file.scores + 1)


def test_csv_keeps_other_cells_and_the_order_of_columns(tmp_path):
    (tmp_path / "a.csv").write_text('name,logits_1,label,logits_0\n"Bob, Jr.",1,0,2\nAnn,3,1,4\n')
    file = read_scores(tmp_path / "a.csv")
    assert file.scores.tolist() == [[2, 1], [4, 3]]
    write_scores(file, file.scores * 10, tmp_path / "b.csv")
    with (tmp_path / "b.csv").open(newline="") as lines:
        assert list(csv.reader(lines)) == [
            ["name", "logits_1", "label", "logits_0"],
            ["Bob, Jr.", "10", "0", "20"],
            ["Ann", "30", "1", "40"],
        ]


def test_wrong_shape_writes_nothing(save, data, tmp_path):
    file = read_scores(save(".npz", *data))
    with pytest.raises(InputError, match="keep the shape"):
        write_scores(file, file.scores[:5], tmp_path / "b.npz")
    assert not (tmp_path / "b.npz").exists()


def test_zero_probabilities_stay_finite_and_normalised(save, tmp_path):
    probs = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]], np.float32)
    file = read_scores(save(".npz", probs, [0, 1, 0], name="probs"))

    class Halve:
        def transform(self, logits):
            return logits / 2

    out = file.calibrated(Halve())
    assert bool(torch.isfinite(out).all())
    torch.testing.assert_close(out.sum(1), torch.ones(3))
    write_scores(file, out, tmp_path / "b.npz")
    torch.testing.assert_close(read_scores(tmp_path / "b.npz").scores, out)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 300), pa.list_(pa.float64())])
def test_list_columns_of_many_classes_need_little_memory(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("avuc.evaluation.files.formats.parquet.BATCH_NUMBERS", 1 << 14)
    scores = np.random.default_rng(0).normal(size=(3000, 300)).astype(np.float32)
    path = tmp_path / "a.parquet"
    column = pa.FixedSizeListArray.from_arrays(pa.array(scores.reshape(-1)), 300).cast(kind)
    pq.write_table(pa.table({"logits": column, "label": np.arange(3000) % 300}), path, use_dictionary=False)
    del column
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        file = read_scores(path)
    finally:
        pa.set_memory_pool(usual)
    assert np.array_equal(file.logits().float().numpy(), scores)
    assert pool.max_memory() < scores.nbytes  # the column is never in Arrow's memory as a whole
    tracemalloc.start()
    try:
        write_scores(file, file.logits() + 1, tmp_path / "b.parquet")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * scores.nbytes  # no Python objects for the numbers
    table = pq.read_table(tmp_path / "b.parquet")
    assert table.schema.field("logits").type == kind
    written = table.column("logits").combine_chunks().flatten().to_numpy().reshape(scores.shape)
    np.testing.assert_allclose(written, scores + 1, rtol=0, atol=1e-5)
