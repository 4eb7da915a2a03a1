"""Saved predictions in every format, and the test that the command refuses a file properly."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save(suffix, scores, labels=None, name="logits") writes a file as a user would; returns its path."""

    def write(suffix: str, scores: Any, labels: Any = None, name: str = "logits", label: str = "labels") -> Path:
        path = tmp_path / f"{name if suffix == '.npy' else 'saved'}{suffix}"
        scores = np.asarray(scores)
        arrays = {name: scores} | ({} if labels is None else {label: np.asarray(labels)})
        if suffix == ".npz":
            np.savez(path, **arrays)
        elif suffix == ".npy":
            np.save(path, scores)
            if labels is not None:
                np.save(tmp_path / f"{label}.npy", labels)
        elif suffix == ".safetensors":
            safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
        elif suffix == ".parquet":
            columns: dict[str, Any] = {f"{name}_{i}": scores[:, i] for i in range(scores.shape[1])}
            pq.write_table(pa.table(columns | ({} if labels is None else {label: np.asarray(labels)})), path)
        elif suffix in (".csv", ".tsv"):
            with path.open("w", newline="") as file:
                writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t")
                head = [f"{name}_{i}" for i in range(scores.shape[1])]
                writer.writerow(head if labels is None else [label, *head])
                for i, row in enumerate(scores.tolist()):
                    writer.writerow(row if labels is None else [labels[i], *row])
        return path

    return write


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run `avuc evaluate` on a bad file: one line on standard error, exit code 2, nothing left behind.

    Returns the line, which begins `avuc: FILE: problem; remedy`.
    """

    def run(path: Path, *options: str, where: Path | None = None) -> str:
        before = {p.name for p in tmp_path.iterdir()}
        code = main(["evaluate", str(path), *options, "--json", str(tmp_path / "out.json")])
        out, err = capsys.readouterr()
        assert code == 2, out + err
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        assert err.startswith(f"avuc: {where or path}: ")
        assert "; " in err
        assert "Traceback" not in err
        assert {p.name for p in tmp_path.iterdir()} == before
        return err

    return run


@pytest.fixture
def raises() -> Callable[..., None]:
    """The library says the same as the command."""

    def check(path: Path, match: str, **options: Any) -> None:
        with pytest.raises(InputError, match=match):
            read_scores(path, **options)

    return check
