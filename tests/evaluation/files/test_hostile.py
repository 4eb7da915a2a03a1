"""Files that are no files, lie in their headers, or would take all memory: one line, exit code 2, nothing written."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from avuc.calibration import Calibrator
from avuc.cli import main
from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors
from avuc.evaluation.files import read_scores, write_scores
from avuc.evaluation.files.find import FORMATS

SUFFIXES = list(FORMATS)
GOOD = np.array([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-3.0, 4.0, 0.0]], np.float32)

# a table of two rows with one byte changed in its footer; PyArrow 26 ends the process that looks at its columns
ABORTS = (
    "c-jka3^EjD5Y-XY(Gg_<GT21fWF$BkAix2}`d}}{pn*kHP!LEl0Wk|BObDikiiR>cz@#t@g(-m>&j2zMQxwxs1{gz>MbgKVL4vI~"
    "IU_YUQIw5AluLz4f+HtCJ+q`Z-T=r|MQ{y)%7I+QN(M0&Nf}8SH3k_`E=g5321$etQJ|dIDn=ku<FFyg-;y#wk1>ccG1zFbNvbih"
    "0L8IbV2EVFCPu2*zyh&>u@cGXJ4`ktg)bJP#r`piv8ZtXDFzLNg2bZ2($o^&<bnd-#G<17a)q+gqT<Z_JOv{&Jp(;MNgEjk1_)x9"
    "0<<9jm^1;%mq@D"
)


def one_line(capsys, words: list[str], code: int = 2) -> str:
    assert main(words) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def odd_file(folder: Path, kind: str, name: str) -> str:
    path = folder / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            here = os.getcwd()
            os.chdir(folder)  # the path of a socket must be short
            try:
                one.bind(name)
            finally:
                os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    return str(path)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "loop"])
def test_what_is_no_regular_file_is_refused_everywhere(tmp_path, save, capsys, kind):
    good = str(save(".npz", GOOD, [0, 1, 2]))
    for suffix in SUFFIXES:
        odd = odd_file(tmp_path, kind, f"odd{suffix}")
        out = ["--replicates", "0", "--json", str(tmp_path / "out.json")]
        cal = ["calibrate", good, "--method", "temperature", "--out", str(tmp_path / "cal.json")]
        for words in (
            ["evaluate", odd, *out],
            ["evaluate", good, "--labels", odd, *out],
            ["evaluate", good, "--ood", odd, *out],
            [*cal, "--apply", odd, "--to", str(tmp_path / f"to{suffix}")],
        ):
            assert f"{odd}: " in one_line(capsys, words)
    for name in ("recipe.toml", "study.toml", "cal.json", "a.safetensors"):
        (tmp_path / "more").mkdir(exist_ok=True)
        odd = odd_file(tmp_path / "more", kind, name)
        if name == "recipe.toml":
            one_line(capsys, ["train", odd, "--out", str(tmp_path / "run")])
        elif name == "study.toml":
            one_line(capsys, ["study", odd, "--out", str(tmp_path / "run"), "--dry-run"])
        elif name == "cal.json":
            with pytest.raises(InputError, match=r"cal\.json: "):
                Calibrator.load(odd)
        else:
            with pytest.raises(InputError, match=r"a\.safetensors: "):
                read_tensors(odd)


@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_labels_beside_a_npy_that_are_no_file(tmp_path, capsys, kind):
    np.save(tmp_path / "logits.npy", GOOD)
    odd_file(tmp_path, kind, "labels.npy")
    assert "no labels" in one_line(capsys, ["evaluate", str(tmp_path / "logits.npy"), "--replicates", "0"])


def npy(shape: str, dtype: str = "<f4", data: bytes = b"") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "header",
    [
        npy("(" + "1," * 70 + ")", data=bytes(4)),
        npy("(0, 9223372036854775808)"),
        npy("(0, 9223372036854775807)"),
        npy("(0, 4611686018427387904, 4)"),
        npy(f"(0, {10**40})"),
        npy("(3, 3)", ">f16", bytes(144)),
        npy("(3, 3)", "<f4", bytes(36)).replace(b"'shape'", b"'shape'*9**9**9, 'x'"),
        b"\x93NUMPY\x03\x00" + (9000).to_bytes(4, "little") + b"(" * 9000,
        b"\x93NUMPY\x01\x00" + (3000).to_bytes(2, "little") + b"{" + b"-" * 2999,
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_impossible_npy_headers(tmp_path, refused, suffix, header):
    path = tmp_path / f"logits{suffix}"
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", header)
    else:
        path.write_bytes(header)
    if b">f16" in header:  # torch has no such type; where NumPy has it, the numbers are read
        assert main(["evaluate", str(path), "--replicates", "0"]) == 2
    else:
        refused(path)


def test_npz_with_lzma_damage(tmp_path, refused):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("logits.npy", npy("(300, 3)", data=np.random.default_rng(0).bytes(3600)))
    content = bytearray(path.read_bytes())
    for place in (39, 45, 60, 200, 1500):
        broken = bytearray(content)
        broken[place] ^= 0xFF
        path.write_bytes(broken)
        refused(path)


def test_npz_with_names_that_are_no_text(tmp_path, refused):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("é" * 5 + ".npy", npy("(3, 3)", data=bytes(36)))
    broken = path.read_bytes().replace("é".encode() * 5, b"\xff\xfe\xfd\xfc\xfb\xff\xfe\xfd\xfc\xfb")
    path.write_bytes(broken)
    refused(path)


def test_npz_with_a_nameless_member(tmp_path, refused):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", npy("(3, 3)", data=bytes(36)))
        archive.writestr("logits.npy", npy("(3, 3)", data=bytes(36)))
    broken = bytearray(path.read_bytes())
    for name in (b"PK\x01\x02", b"PK\x03\x04"):
        place = broken.index(name) + (46 if name == b"PK\x01\x02" else 30)
        assert broken[place : place + 1] == b"x"
        broken[place] = 0  # zipfile cuts a name at a zero byte
    path.write_bytes(broken)
    refused(path)


@pytest.mark.parametrize("where", ["scores", "labels", "elsewhere"])
def test_parquet_map_columns(tmp_path, where, capsys):
    pairs = pa.array([[("a", 1.0)], [("b", 2.0)]], pa.map_(pa.string(), pa.float32()))
    plain = {"logits_0": [1.0, 2.0], "logits_1": [2.0, 1.0], "label": [0, 1]}
    table = {
        "scores": {"logits": pairs, "label": [0, 1]},
        "labels": plain | {"label": pairs},
        "elsewhere": plain | {"more": pairs},
    }[where]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(table), path)
    if where == "elsewhere":
        assert main(["evaluate", str(path), "--replicates", "0"]) == 0
    else:
        assert "not numbers" in one_line(capsys, ["evaluate", str(path), "--replicates", "0"])


@pytest.mark.parametrize("name", ["more", "logits_0.x", "a.b.c"])
def test_texts_that_repeat_are_not_unpacked(tmp_path, name, fresh_python):
    """A file of some kB whose texts would take 3 GB: read and rewritten with 400 MB of address space to spare."""
    rows = 30_000
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 100_000]))
    labels = np.arange(rows) % 2
    table = pa.table({name: words, "logits_0": labels * 1.0, "logits_1": -1.0 * labels, "label": labels})
    plain = pa.schema([(one.name, pa.string() if one.name == name else one.type) for one in table.schema])
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
    assert pq.read_schema(path).types == plain.types
    assert path.stat().st_size < 200_000
    code = f"""
import resource, torch, pyarrow.parquet
from avuc.evaluation.files import read_scores, write_scores
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000,) * 2)
file = read_scores({str(path)!r}, columns="logits_0,logits_1")
assert file.num_classes == 2
write_scores(file, file.scores + 1, {str(tmp_path / "b.parquet")!r})
"""
    done = fresh_python(code, env=environment())
    assert done.returncode == 0, done.stderr
    again = pq.ParquetFile(tmp_path / "b.parquet", read_dictionary=[name])
    assert again.schema_arrow.names == table.schema.names
    assert again.read(columns=["logits_0"]).column(0).to_pylist()[:2] == [1.0, 2.0]


def environment() -> dict[str, str]:
    """This process's modules in a child, with one thread: each takes address space."""
    path = os.pathsep.join(sys.path)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


@pytest.mark.parametrize("name", ["logits", "a.b", "logits.list.element"])
def test_the_limit_counts_every_column_that_is_read(tmp_path, refused, name):
    rows = 20_000
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 50, np.float32)), 50)
    pq.write_table(pa.table({name: column, "label": np.arange(rows) % 50}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    assert "above the limit of 0.004 GB" in refused(tmp_path / "a.parquet", "--max-gb", "0.004", "--scores-key", name)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".npy", ".safetensors", ".parquet"])
def test_the_limit_holds_for_every_format(save, refused, suffix):
    scores, labels = np.zeros((5000, 8)), np.arange(5000) % 8
    assert "above the limit" in refused(save(suffix, scores, labels), "--max-gb", "0.0001")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_the_limit_counts_the_copy_in_float32(save, refused, suffix):
    """320 kB of float64 take 480 kB while they are read."""
    path = save(suffix, np.zeros((5000, 8)), np.arange(5000) % 8)
    assert "needs 0.00048 GB, above the limit of 0.0004 GB" in refused(path, "--max-gb", "0.0004")
    assert read_scores(path, max_gb=0.0005).num_rows == 5000


def test_the_limit_counts_members_that_are_only_copied(tmp_path, capsys):
    np.savez_compressed(tmp_path / "a.npz", logits=GOOD, labels=[0, 1, 2], more=np.zeros(10**6))
    words = ["calibrate", str(tmp_path / "a.npz"), "--method", "temperature", "--out", str(tmp_path / "cal.json")]
    words += ["--apply", str(tmp_path / "a.npz"), "--to", str(tmp_path / "b.npz"), "--replicates", "0"]
    assert "the archive needs 0.008 GB" in one_line(capsys, [*words, "--max-gb", "0.004"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz"]
    assert main(words) == 0


def test_a_label_column_of_short_lines_is_counted(tmp_path, refused):
    path = tmp_path / "a.csv"
    path.write_text("label,a,b\n" + "".join(f"{i},,\n" for i in range(20_000)))
    assert "above the limit" in refused(path, "--max-gb", "0.0005")


def test_one_endless_line(tmp_path, refused):
    path = tmp_path / "a.csv"
    path.write_text("label,a,b\n" + "1," * 5_000_000)
    assert "line 2 has 5000001 cells, but the header has 3" in refused(path)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".parquet"])
def test_out_of_memory_is_one_line(tmp_path, save, suffix, fresh_python):
    """5 million numbers with 10 MB of address space to spare.

    Not for .parquet: with so little left, PyArrow's own C++ code may end the process before Python hears of it.
    """
    rows = 250_000
    path = save(suffix, np.zeros((rows, 20), np.float32), np.zeros(rows, np.int64))
    code = f"""
import resource, sys, numpy, torch, avuc.evaluation.files, avuc.evaluation.evaluate, pyarrow.parquet
from avuc.cli import main
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 10_000_000,) * 2)
sys.exit(main(["evaluate", {str(path)!r}, "--replicates", "0"]))
"""
    done = fresh_python(code)
    assert done.returncode in (1, 2), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr


def test_file_names_that_are_no_utf8(tmp_path, capfdbinary):
    name = os.fsdecode(b"lo\xff\x1b[31mgits.npz")
    path = tmp_path / name
    np.savez(tmp_path / "x.npz", logits=GOOD, labels=[0, 1, 2])
    (tmp_path / "x.npz").rename(path)
    report, out = tmp_path / os.fsdecode(b"r\xfe.html"), tmp_path / os.fsdecode(b"o\xfd.json")
    assert main(["evaluate", str(path), "--replicates", "0", "--json", str(out), "--report", str(report)]) == 0
    said, _ = capfdbinary.readouterr()
    assert rb"lo\udcff\x1b[31mgits.npz" in said.replace(b"\n", b"")
    assert b"\x1b[31m" not in said
    said.decode("utf-8")
    json.loads(out.read_text(encoding="utf-8"))
    page = report.read_text(encoding="utf-8")
    assert "\x1b" not in page
    assert main(["evaluate", str(tmp_path / os.fsdecode(b"no\xff.npz"))]) == 2
    _, err = capfdbinary.readouterr()
    assert rb"no\udcff.npz: cannot be read" in err
    assert err.count(b"\n") == 1


def test_headers_do_not_reach_the_terminal(tmp_path, capfdbinary):
    path = tmp_path / "a.csv"
    path.write_text('label,"\x1b]0;owned\x07","=1+1"\n0,0.9,0.1\n1,0.2,0.8\n', encoding="utf-8")
    assert main(["evaluate", str(path), "--replicates", "0", "--report", str(tmp_path / "r.html")]) == 0
    path.write_text('label,"\x1b]0;owned\x07","<img src=x>",c\n0,1,2,5\n1,2,1,5\n', encoding="utf-8")
    assert main(["evaluate", str(path), "--replicates", "0"]) == 2
    said, err = capfdbinary.readouterr()
    assert b"\x1b" not in said + err
    assert b"\x07" not in said + err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "\x1b" not in page
    assert "<img src=x>" not in page


def test_a_rewrite_takes_no_more_memory_than_the_limit_says(tmp_path, save):
    path = save(".csv", np.zeros((2000, 3)), np.zeros(2000, np.int64))
    file = read_scores(path, max_gb=0.001)
    write_scores(file, file.scores, tmp_path / "b.csv")
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 2001


def test_a_parquet_that_ends_its_reader(save, refused, monkeypatch):
    """The library aborts on some damaged files: that must happen in another process."""
    path = save(".parquet", GOOD, [0, 1, 2])
    monkeypatch.setattr("avuc.evaluation.files.formats.arrow.PROBE_CODE", "import os; os.abort()")
    assert "reading it kills the process with signal 6" in refused(path)
    monkeypatch.setattr("avuc.evaluation.files.formats.arrow.PROBE_CODE", "import os; os._exit(3)")
    assert "it needs more memory than the limit" in refused(path)
    monkeypatch.setattr("avuc.evaluation.files.formats.arrow.PROBE_CODE", "import time; time.sleep(60)")
    monkeypatch.setattr("avuc.evaluation.files.formats.arrow.PROBE_SECONDS", 0.2)
    assert "takes more than 0.2 s" in refused(path)
    monkeypatch.undo()
    assert read_scores(path).num_rows == 3


def test_a_parquet_with_a_damaged_footer(save, refused):
    path = save(".parquet", GOOD, [0, 1, 2])
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    for claim in (0, 1, length - 1, length + 1, 2**31, 2**32 - 1):
        path.write_bytes(content[:-8] + claim.to_bytes(4, "little") + content[-4:])
        refused(path)
    path.write_bytes(content[: -8 - length] + bytes(length) + content[-8:])
    refused(path)


def test_a_parquet_that_aborted_the_command(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode(ABORTS)))
    command = [sys.executable, "-m", "avuc", "evaluate", str(path), "--replicates", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode in (0, 2), done.stderr  # another PyArrow may read it
    assert done.stderr.count("\n") == (done.returncode == 2), done.stderr
    if done.returncode == 2:
        assert f"avuc: {path}: not a readable .parquet table (" in done.stderr
