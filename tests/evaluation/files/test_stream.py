"""Files that are read in blocks: the same decisions, the same figures and the same errors as files that are held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.evaluation.files import ScoreFile, ScoreStream, open_scores, read_scores, score_file
from avuc.metrics import blockwise

ROWS, CLASSES = 211, 4


@pytest.fixture
def in_blocks(monkeypatch):
    """Every file counts as large, and a block has 17 rows of 4 classes."""

    def switch() -> None:
        monkeypatch.setattr(blockwise, "LARGE_ROWS", 0)
        monkeypatch.setattr(score_file, "BLOCK", 17 * CLASSES)

    return switch


def made(seed: int = 0, draws: int = 0, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, rows)
    logits = rng.normal(size=(max(draws, 1), rows, CLASSES)).astype(np.float32)
    logits[:, np.arange(rows), labels] += 2
    return (logits if draws else logits[0]), labels


def lists(array: np.ndarray) -> list[Any]:
    return array.transpose(1, 0, 2).tolist() if array.ndim == 3 else array.tolist()


def write(folder: Path, layout: str, seed: int = 0) -> Path:
    draws = 3 if "draws" in layout else 0
    logits, labels = made(seed, draws)
    kind = layout.split()[0]
    path = folder / f"{seed}logits{kind}"
    if kind == ".npy":
        array = np.asfortranarray(logits) if "fortran" in layout else logits
        np.save(path, array.astype(">f8" if "big-endian" in layout else "f4"))
        np.save(folder / f"{seed}labels.npy", labels.astype(np.uint8))
    elif kind == ".npz":
        save = np.savez_compressed if "packed" in layout else np.savez
        save(path, logits=np.asfortranarray(logits) if "fortran" in layout else logits, labels=labels[:, None])
    elif kind == ".safetensors":
        tensor = torch.from_numpy(logits).to(torch.bfloat16 if "bfloat16" in layout else torch.float32)
        safetensors.torch.save_file({"logits": tensor, "labels": torch.from_numpy(labels)}, path)
    elif kind == ".parquet":
        columns: dict[str, Any] = (
            {"logits": lists(logits)}
            if "list" in layout or draws
            else {f"logits_{'abcd'[k]}": logits[:, k] for k in range(CLASSES)}
        )
        columns["label"] = np.array(list("abcd"))[labels] if "names" in layout else labels
        # groups of 50 rows do not match blocks of 17
        pq.write_table(pa.table(columns), path, row_group_size=50)
    elif kind == ".csv":
        rows = [",".join(map(str, [label, *row])) for label, row in zip(labels, logits.tolist(), strict=True)]
        path.write_text("\n".join(["label,logits_0,logits_1,logits_2,logits_3", *rows]) + "\n")
    return path


LAYOUTS = [
    ".npy",
    ".npy fortran",
    ".npy draws",
    ".npy draws fortran",
    ".npy big-endian",
    ".npz",
    ".npz packed",
    ".npz fortran",
    ".npz draws packed",
    ".safetensors",
    ".safetensors bfloat16",
    ".safetensors draws",
    ".parquet",
    ".parquet names",
    ".parquet list",
    ".parquet draws",
    ".csv",
]


def document(*words: str) -> dict[str, Any]:
    out = Path(words[0]).parent / "out.json"
    assert main(["evaluate", *words, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_figures_are_those_of_the_whole_file(tmp_path, in_blocks, layout, capsys):
    path, other = write(tmp_path, layout), write(tmp_path, layout, seed=1)
    words = (str(path), "--ood", str(other), "--replicates", "30")
    expected, said = document(*words), capsys.readouterr().out
    assert (expected["bootstrap"], expected["detection_bootstrap"]) == ("rows", "rows")
    in_blocks()
    if layout != ".csv":
        assert isinstance(open_scores(path), ScoreStream)
    found, said_in_blocks = document(*words), capsys.readouterr().out
    assert (found["bootstrap"], found["detection_bootstrap"]) == ("cells", "cells")
    for table in ("metrics", "detection"):
        assert found[table] == pytest.approx(expected[table], abs=1e-12, nan_ok=True)
    for name in ("n", "num_classes", "samples", "bins", "replicates"):
        assert found[name] == expected[name]
    assert found["threshold"] == pytest.approx(expected["threshold"], abs=1e-12)
    assert set(found["intervals"]) == set(expected["intervals"])
    assert set(found["detection_intervals"]) == set(expected["detection_intervals"])
    # what was found in the file is said in the same words
    assert said.split("Accuracy")[0] == said_in_blocks.split("Accuracy")[0]
    assert "30 bootstrap replicates of the rows" in said
    assert "30 bootstrap replicates of groups of similar rows" in said_in_blocks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_the_rows_in_order(tmp_path, in_blocks, layout):
    path = write(tmp_path, layout)
    whole = read_scores(path)
    in_blocks()
    file = open_scores(path)
    parts = list(file.parts())
    assert len(parts) > 5
    assert torch.equal(torch.cat([part.scores for part in parts], -2), whole.scores)
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
    assert (file.num_rows, file.num_classes, file.samples) == (whole.num_rows, whole.num_classes, whole.samples)
    assert (file.kind, file.dtype, file.class_names, file.notes) == (
        whole.kind,
        whole.dtype,
        whole.class_names,
        whole.notes,
    )


def bad(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    logits, labels = made()
    options: dict[str, Any] = {}
    if name == "nan":
        logits[150, 2] = np.nan
    if name == "label out of range":
        labels[123] = 9
    if name == "not whole":
        labels = labels + np.where(np.arange(ROWS) == 77, 0.5, 0)
    if name == "sums":
        options["kind"] = "probs"
    if name == "too few labels":
        labels = labels[:-1]
    path = folder / "logits.npy"
    np.save(path, logits.T if name == "one dimension" else logits)
    if name == "one dimension":
        np.save(path, logits[:, 0])
    np.save(folder / "labels.npy", labels)
    return path, options


@pytest.mark.parametrize("name", ["nan", "label out of range", "not whole", "sums", "too few labels", "one dimension"])
def test_errors_are_those_of_the_whole_file(tmp_path, in_blocks, name):
    path, options = bad(name, tmp_path)
    with pytest.raises(InputError) as expected:
        read_scores(path, **options)
    in_blocks()
    with pytest.raises(InputError) as found:
        open_scores(path, **options)
    assert str(found.value) == str(expected.value)


def test_no_labels(tmp_path, in_blocks, capsys):
    np.save(tmp_path / "logits.npy", made()[0])
    in_blocks()
    assert main(["evaluate", str(tmp_path / "logits.npy")]) == 2
    assert "contains no labels (no name like 'labels'" in capsys.readouterr().err


def test_ragged_lists_in_a_later_block(tmp_path, in_blocks):
    rows = [[1.0, 2.0, 3.0]] * 60 + [[1.0, 2.0]] * 60
    pq.write_table(pa.table({"logits": rows, "label": [0] * 120}), tmp_path / "a.parquet", row_group_size=60)
    in_blocks()
    with pytest.raises(InputError, match="the lists of column 'logits' have different lengths"):
        open_scores(tmp_path / "a.parquet")


def test_damaged_archive_member(tmp_path, in_blocks):
    """A flipped bit is found by the checksum at the end of the first pass."""
    path = write(tmp_path, ".npz")
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    in_blocks()
    with pytest.raises(InputError, match=r"not a readable \.npz archive"):
        open_scores(path)


def test_file_that_shrinks_while_it_is_read(tmp_path, in_blocks):
    path = write(tmp_path, ".npy")
    in_blocks()
    file = open_scores(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="too early; the file is cut short"):
        list(file.parts())


def test_small_files_are_held(tmp_path):
    assert isinstance(open_scores(write(tmp_path, ".npy")), ScoreFile)


def test_limit_counts_what_is_kept(tmp_path, in_blocks):
    path = write(tmp_path, ".npy")
    in_blocks()
    with pytest.raises(InputError, match=r"logits.npy' has 3.38e-06 GB and needs 0.1 GB of memory, above the limit"):
        open_scores(path, max_gb=0.05)
    # scores of any size pass as long as what is kept of them is small
    assert isinstance(open_scores(path, max_gb=1e-6, memory=lambda rows, classes: rows * classes), ScoreStream)
