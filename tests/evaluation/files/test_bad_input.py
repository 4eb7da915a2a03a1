"""Bad files end in one line that names the file and the remedy, whatever the format."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from avuc.evaluation.files.find import FORMATS

SUFFIXES = list(FORMATS)
KEYED = [".npz", ".safetensors", ".parquet", ".csv"]
GOOD = np.array([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-3.0, 4.0, 0.0]], np.float32)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_good_file_for_comparison(save, suffix, capsys):
    from avuc.cli import main

    assert main(["evaluate", str(save(suffix, GOOD, [0, 1, 2])), "--replicates", "0"]) == 0
    assert "3 × 3 logits" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_file(tmp_path, refused, suffix):
    assert "No such file" in refused(tmp_path / f"nothing{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_file(tmp_path, refused, suffix):
    path = tmp_path / f"empty{suffix}"
    path.touch()
    assert "is empty" in refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_folder(tmp_path, refused, suffix):
    path = tmp_path / f"folder{suffix}"
    path.mkdir()
    assert "is a folder" in refused(path)


def test_not_a_regular_file(tmp_path, refused):
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    assert "not a regular file" in refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_permission(save, refused, suffix):
    path = save(suffix, GOOD, [0, 1, 2])
    path.chmod(0)
    root = os.geteuid() == 0
    if root:  # root reads everything; become nobody for a moment, who may look but not read
        folder = path.parent
        while folder != Path(folder.anchor):
            folder.chmod(folder.stat().st_mode | 0o055)
            folder = folder.parent
        path.parent.chmod(0o777)
        os.seteuid(65534)
    try:
        assert "Permission denied" in refused(path)
    finally:
        if root:
            os.seteuid(0)


def test_unknown_suffix(tmp_path, refused):
    path = tmp_path / "scores.pkl"
    path.write_bytes(pickle.dumps([1]))
    assert "unknown format '.pkl'; save it as one of .npz, .npy" in refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", SUFFIXES)
def test_wrong_suffix(save, tmp_path, refused, suffix, content):
    if suffix == content or {suffix, content} == {".csv", ".tsv"}:  # the delimiter is found in the header
        return
    path = save(content, GOOD, [0, 1, 2]).rename(tmp_path / f"wrong{suffix}")
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_cut_short(save, refused, suffix, share):
    path = save(suffix, np.random.default_rng(0).normal(size=(500, 5)), np.zeros(500, int))
    whole = path.read_bytes()
    # a table in text may end anywhere between lines; inside a line it is short of cells
    end = int(len(whole) * share)
    path.write_bytes(whole[: end if suffix != ".csv" else whole.rindex(b",", 0, end)])
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_noise_is_no_file(tmp_path, refused, suffix):
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(np.random.default_rng(3).bytes(5000))
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", range(12))
def test_damaged_bytes_never_crash(save, capsys, suffix, seed):
    """Flip bytes anywhere: the command either reads numbers or refuses in one line; it never shows a traceback."""
    from avuc.cli import main

    path = save(suffix, GOOD, [0, 1, 2])
    rng = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), 1 + seed):
        content[place] = rng.integers(0, 256)
    path.write_bytes(content)
    code = main(["evaluate", str(path), "--replicates", "0"])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) in ((0, 0), (2, 1)), err


@pytest.mark.parametrize("suffix", KEYED)
def test_missing_scores(save, refused, suffix):
    path = save(suffix, GOOD, [0, 1, 2], name="scores", label="labels")
    assert "'weird'" in refused(path, "--scores-key", "weird")
    if suffix in (".npz", ".safetensors"):
        path = save(suffix, GOOD, [0, 1, 2], name="arr_0")
        line = refused(path)
        assert "contains no array named" in line
        assert "'arr_0'" in line
        assert "--scores-key" in line


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table_without_score_columns(tmp_path, refused, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text("label,id\n1,2\n")
    else:
        pq.write_table(pa.table({"label": [1], "id": [2]}), path)
    assert "no score columns" in refused(path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            'label,logits\n0,"[1.5, -0.2]"\n',
            "'logits' contains lists as text, '[1.5, -0.2]'); save one column per class",
        ),
        (
            "image,true,predicted,confidence\na.png,cat,dog,0.9\n",
            "'confidence' alone is not enough, because it says nothing",
        ),
    ],
)
def test_what_pipelines_write_and_why_it_is_not_enough(tmp_path, refused, table, message):
    """A list in one cell, as pandas writes it, and the predicted class with its confidence."""
    (tmp_path / "a.csv").write_text(table)
    assert message in refused(tmp_path / "a.csv")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_labels(save, refused, suffix):
    path = save(suffix, GOOD)
    assert "no labels" in refused(path)
    if suffix != ".npy":
        assert "'truth'" in refused(path, "--labels-key", "truth")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
@pytest.mark.parametrize(
    ("scores", "labels", "says"),
    [
        (GOOD, [0, 1], "3 rows of scores but 2 labels"),
        (GOOD[0], [0, 1, 2], "one number per row, a binary score; save one column per class, (N, C)"),
        (np.ones((3, 1), np.float32), [0, 0, 0], "which may be the predicted class"),
        (GOOD[None, None], [0, 1, 2], "expected (N, C) or (S, N, C)"),
        (np.zeros((0, 3), np.float32), np.zeros(0, int), "is empty"),
        (np.zeros((3, 0), np.float32), [0, 1, 2], "is empty"),
        (GOOD > 0, [0, 1, 2], "not scores"),
        (GOOD, [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "argmax"),
        (GOOD, [[[0]], [[1]], [[2]]], "one label per row"),
        (np.zeros((3, 5, 2), np.float32), [0, 1, 1], "put the samples first"),
        (GOOD, [True, False, True], "bool"),
    ],
)
def test_shapes_and_types(save, refused, suffix, scores, labels, says):
    assert says in refused(save(suffix, scores, np.asarray(labels)))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 3], "out of range: 3 at row 2; 3 score columns allow 0 … 2"),
        ([0, -1, 2], "out of range: -1 at row 1"),
        ([1, 2, 3], "subtract 1"),
        ([0.0, 0.5, 2.0], "not integers: 0.5 at row 1"),
        ([0.0, float("nan"), 2.0], "not integers: nan at row 1"),
        ([0.0, float("inf"), 2.0], "not integers: inf at row 1"),
    ],
)
def test_bad_labels(save, refused, suffix, labels, says):
    assert says in refused(save(suffix, GOOD, labels))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_not_finite(save, refused, suffix, value):
    scores = GOOD.astype(np.float64)
    scores[1, 2] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = save(suffix, scores, [0, 1, 2])
    line = refused(path)
    assert "at row 1, class 2" in line
    assert "finite" in line


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_that_do_not_sum_to_one(save, refused, suffix):
    probs = np.array([[0.5, 0.5, 0.0], [0.7, 0.7, 0.0], [0.2, 0.3, 0.5]])
    line = refused(save(suffix, probs, [0, 1, 2], name="scores"), "--kind", "probs")
    assert "row 1 sums to 1.4, not 1; pass --kind logits" in line


def test_negative_probability(save, refused):
    probs = np.array([[0.5, 0.5, 0.0], [0.7, 0.5, -0.2]])
    assert "row 1 contains a negative number, -0.2" in refused(save(".npz", probs, [0, 1], name="probs"))


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("part", ["scores", "labels"])
def test_pickle_is_never_opened(tmp_path, refused, suffix, part):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    trap = np.array([Bomb(), 1, 2], dtype=object)
    scores, labels = (trap, np.arange(3)) if part == "scores" else (GOOD, trap)
    path = tmp_path / f"logits{suffix}"
    if suffix == ".npz":
        np.savez(path, logits=scores, labels=labels)
    else:
        np.save(path, scores, allow_pickle=True)
        np.save(tmp_path / "labels.npy", labels, allow_pickle=True)
    where = tmp_path / "labels.npy" if part == "labels" and suffix == ".npy" else None
    assert "a pickle" in refused(path, where=where)
    assert not (tmp_path / "executed").exists()


def npy_header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


CLAIMS = ["(1000000000, 10)", "(10**18, 10)", "(9223372036854775807, 9223372036854775807)", "(-3, 3)", "(3,)", "'x'"]


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_header_that_claims_too_much(tmp_path, refused, suffix, claim, monkeypatch):
    # any allocation of more than a few bytes would be seen here
    real = np.empty
    monkeypatch.setattr(np, "empty", lambda shape, *rest, **more: real(min(int(np.prod(shape)), 10**6), *rest, **more))
    content = npy_header(claim) + bytes(36)
    path = tmp_path / f"logits{suffix}"
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", content)
    else:
        path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize(
    "dtype", ["V10000000000", "<U1000000000", "|O", "<c8", "<M8[s]", "[('a','<f4')]", "<f4'+'", "S4"]
)
def test_header_with_a_strange_type(tmp_path, refused, dtype):
    path = tmp_path / "logits.npy"
    path.write_bytes(npy_header("(3, 3)", dtype) + bytes(36))
    refused(path)


def test_header_too_long(tmp_path, refused):
    text = b"{" + b" " * 60000 + b"}\n"
    path = tmp_path / "logits.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    assert "not a .npy array" in refused(path)


@pytest.mark.parametrize("claim", [[10**9, 10], [2**62, 2**62], [-3, 3], [3.5, 3], "x"])
def test_safetensors_header_that_claims_too_much(tmp_path, refused, claim):
    entry = {"dtype": "F32", "shape": claim, "data_offsets": [0, 36]}
    header = json.dumps({"logits": entry}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(36))
    refused(path)


@pytest.mark.parametrize("length", [2**63, 10**10, 100])
def test_safetensors_header_longer_than_the_file(tmp_path, refused, length):
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    refused(path)


def bomb(path: Path, rows: int) -> None:
    """Zeros that pack a thousandfold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", npy_header(f"({rows}, 10)") + bytes(rows * 40))
        labels = io.BytesIO()
        np.save(labels, np.zeros(rows, np.int64))
        archive.writestr("labels.npy", labels.getvalue())


def test_zip_bomb(tmp_path, refused, monkeypatch):
    path = tmp_path / "bomb.npz"
    bomb(path, 100_000)
    assert path.stat().st_size < 20_000
    line = refused(path, "--max-gb", "0.003")
    assert "needs 0.004 GB, above the limit of 0.003 GB" in line
    assert "--max-gb" in line
    monkeypatch.setenv("AVUC_MAX_GB", "0.003")
    assert "above the limit" in refused(path)
    monkeypatch.setenv("AVUC_MAX_GB", "lots")
    from avuc.core.errors import InputError
    from avuc.evaluation.files import read_scores

    with pytest.raises(InputError, match="AVUC_MAX_GB='lots' is not a positive number"):
        read_scores(path)


@pytest.mark.parametrize("place", ["central", "both"])
def test_zip_that_lies_about_its_size(tmp_path, refused, place):
    path = tmp_path / "lie.npz"
    bomb(path, 1000)
    content = bytearray(path.read_bytes())
    claim = struct.pack("<I", 2_000_000_000)
    spot = content.index(b"PK\x01\x02")
    content[spot + 24 : spot + 28] = claim
    if place == "both":
        content[22:26] = claim
    path.write_bytes(content)
    assert "more bytes than its compressed data can hold" in refused(path)


def test_sparse_giant_is_refused_before_it_is_read(tmp_path, refused):
    path = tmp_path / "logits.npy"
    with path.open("wb") as file:
        file.write(npy_header("(2500000000, 10)"))
        file.truncate(file.tell() + 2_500_000_000 * 40)
    assert "has 100 GB" in refused(path)


def test_parquet_bomb(tmp_path, refused):
    path = tmp_path / "a.parquet"
    zeros = np.zeros(300_000, np.float32)
    pq.write_table(pa.table({"logits_0": zeros, "logits_1": zeros, "y": zeros.astype(int)}), path)
    assert path.stat().st_size < 20_000
    assert "above the limit" in refused(path, "--max-gb", "0.005")


def test_doubled_names(tmp_path, refused):
    path = tmp_path / "a.npz"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("logits.npy", npy_header("(3, 3)") + bytes(36))
    assert "several entries have the same name: 'logits'" in refused(path)
    path = tmp_path / "a.csv"
    path.write_text("y,a,a\n0,1,2\n")
    assert "several entries have the same name: 'a'" in refused(path)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([0.0])] * 2, names=["logits_0", "logits_0"]), path)
    refused(path)
    path = tmp_path / "a.safetensors"
    entry = b'"logits":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    text = b"{" + entry + b"," + entry + b"}"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert "twice" in refused(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("label,logits_0,logits_1\n0,1\n", "line 2 has 2 cells, but the header has 3"),
        ("label,logits_0,logits_1\n0,1,2,3\n", "line 2 has 4 cells, but the header has 3"),
        ("label,logits_0,logits_1\n0,1,abc\n", "'abc'"),
        ("label,logits_0,logits_1\n0,1,\n", "not a readable .csv"),
        ("label,logits_0,logits_1\n", "is empty"),
        ("label,logits_0,logits_2\n0,1,2\n", "gaps or duplicates"),
        ("label,logits_0,logits_00\n0,1,2\n", "gaps or duplicates"),
        ("label,a,b\nfish,1,2\n", "'fish' is neither a number nor a class name ('a', 'b')"),
        ("label,a,b\n,1,2\n", "some rows have no label"),
        ("\nlabel,a,b\n0,1,2\n", "first line is empty"),
        ("0,1,1\n0,1,2\n", "no header line"),
        ('label,a,b\n0,1,"2\n', "column 'b' contains text"),
        ("label,a,b\n0,\x00,2\n", "not a readable .csv"),
        ("label,name,b\n0,Bob,2\n", "'Bob'"),
        ("label;a;b\n0;0,5;2\n", "unclear whether 'a', 'b' are the scores"),
        ("label;logits_0;logits_1\n0;0,5;2.5\n", "'2.5'"),
        ("label;logits_0;logits_1\n0;1.000,5;2\n", "without thousands separators"),
        ("label;logits_0;logits_1\n0;1,500;2,500\n", "without thousands separators"),
    ],
)
def test_bad_tables(tmp_path, refused, text, says):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert says in refused(path)


def test_text_that_is_not_utf8(tmp_path, refused):
    path = tmp_path / "a.csv"
    path.write_bytes("label,größe,b\n0,1,2\n".encode("latin-1"))
    assert "not UTF-8" in refused(path)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"logits": [[1.0, 2.0], [1.0]], "y": [0, 1]}, "have different lengths"),
        ({"logits": [[1.0, 2.0], None], "y": [0, 1]}, "empty cells"),
        ({"logits": [[1.0, None], [1.0, 2.0]], "y": [0, 1]}, "empty cells"),
        ({"logits_0": [1.0, None], "logits_1": [1.0, 2.0], "y": [0, 1]}, "empty cells"),
        ({"logits_0": ["a", "b"], "logits_1": [1.0, 2.0], "y": [0, 1]}, "type string, not numbers"),
        ({"logits_0": [1.0, 2.0], "logits_1": [1.0, 2.0], "y": [None, 1]}, "empty cells"),
        ({"logits_0": [1.0, 2.0], "logits_1": [1.0, 2.0], "y": [None, "1"]}, "empty cells"),
        ({"logits_a": [[1.0, 2.0]] * 2, "logits_b": [[1.0, 2.0]] * 2, "y": [0, 1]}, "several list columns"),
        ({"logits": [{"a": 1.0}] * 2, "y": [0, 1]}, "not numbers"),
        ({"logits": [[[[1.0, 2.0]]]] * 2, "y": [0, 1]}, "not numbers"),
    ],
)
def test_bad_parquet(tmp_path, refused, columns, says):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    assert says in refused(path)


def test_empty_parquet(tmp_path, refused):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"logits": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int64())}), path)
    assert "empty" in refused(path)


def test_encrypted_or_strange_archive(tmp_path, refused):
    path = tmp_path / "a.npz"
    np.savez(path, logits=GOOD, labels=[0, 1, 2])
    content = bytearray(path.read_bytes())
    spot = content.index(b"PK\x01\x02")
    content[spot + 8] |= 1  # the flag of an encrypted member
    path.write_bytes(content)
    assert "not a readable .npz archive" in refused(path)


def test_damaged_member_fails_its_checksum(tmp_path, refused):
    path = tmp_path / "a.npz"
    np.savez(path, logits=GOOD, labels=[0, 1, 2])
    content = bytearray(path.read_bytes())
    spot = content.index(GOOD.tobytes())
    content[spot] ^= 1
    path.write_bytes(content)
    assert "CRC" in refused(path)


def test_a_name_that_would_break_the_line(tmp_path, capsys):
    from avuc.cli import main

    path = tmp_path / "a\nb\x1b[31m.npz"
    path.write_bytes(b"x")
    assert main(["evaluate", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert r"a\nb\x1b[31m.npz" in err


def test_labels_file_is_checked_too(save, tmp_path, refused):
    path = save(".npz", GOOD)
    missing = tmp_path / "nothing.npy"
    assert "No such file" in refused(path, "--labels", str(missing), where=missing)
    other = tmp_path / "truth.npz"
    np.savez(other, a=[0, 1, 2])
    assert "contains no labels (its arrays" in refused(path, "--labels", str(other), where=other)


def test_npy_takes_no_keys(save, refused):
    assert "has no keys" in refused(save(".npy", GOOD, [0, 1, 2]), "--scores-key", "logits")
