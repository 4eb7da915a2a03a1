"""`--group` with missing values: rows without a group are never one large group."""

from __future__ import annotations

import json

import numpy as np
import pytest

from avuc.cli import main

from .conftest import overconfident


def run(*words):
    return main([str(word) for word in words])


@pytest.mark.parametrize("text", ["", "nan", "NaN", "<NA>", "null", "#N/A"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_missing_groups_are_no_group(tmp_path, capsys, suffix, text):
    logits, labels = overconfident(40, 0)
    rows = np.tile(np.arange(40), 4)
    patients = np.where(rows < 20, [f"P{k}" for k in rows], text)
    found = {}
    for name, column in (
        ("text", patients),
        ("own", np.where(patients == text, [f"Q{k:03}" for k in range(160)], patients)),
    ):
        if suffix == "npz":
            np.savez(tmp_path / f"{name}.npz", logits=logits[rows], labels=labels[rows], patient=column)
        else:
            pandas = pytest.importorskip("pandas")
            table = pandas.DataFrame(logits[rows], columns=[f"logit_{k}" for k in range(logits.shape[1])])
            table = table.assign(label=labels[rows], patient=column)
            path = tmp_path / f"{name}.{suffix}"
            table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
        words = ["evaluate", tmp_path / f"{name}.{suffix}", "--group", "patient", "--replicates", 50]
        assert run(*words, "--json", tmp_path / "out.json") == 0
        found[name] = json.loads((tmp_path / "out.json").read_text())
    assert found["text"]["intervals"] == found["own"]["intervals"]
    assert "80 rows have no group in 'patient', and count as independent" in found["text"]["notes"]
    assert {each["name"]: each["rows"] for each in found["text"]["groups"]}[""] == 80
    for command in (["conformal"], ["calibrate", "--method", "temperature", "--out", tmp_path / "c.json"]):
        capsys.readouterr()
        assert run(command[0], tmp_path / f"text.{suffix}", *command[1:], "--group", "patient", "--quiet") == 2
        assert "80 of 160 rows have no group in 'patient'; give every row a group" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values", [np.r_[np.arange(80.0), np.full(80, np.nan)], np.array([b"a", b"b"] * 40 + [b""] * 80)]
)
def test_missing_numbers_and_bytes_are_no_group(tmp_path, values):
    logits, labels = overconfident(160, 0)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, patient=values)
    words = ["evaluate", tmp_path / "a.npz", "--group", "patient", "--replicates", 50]
    assert run(*words, "--json", tmp_path / "out.json", "--quiet") == 0
    groups = json.loads((tmp_path / "out.json").read_text())["groups"]
    assert {each["name"]: each["rows"] for each in groups}[""] == 80


@pytest.mark.parametrize("text", ["NA", "N/A", "n/a", "None"])
@pytest.mark.parametrize(
    "words", [["evaluate"], ["conformal"], ["calibrate", "--method", "temperature", "--out", "c.json"]]
)
def test_names_that_may_be_missing_values_are_refused(tmp_path, capsys, words, text):
    logits, labels = overconfident(40, 0)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, site=np.where(np.arange(40) < 30, "north", text))
    assert run(words[0], tmp_path / "a.npz", *words[1:], "--group", "site", "--quiet") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"column 'site' has {text!r} in 10 rows, which may be a missing value or a name" in error
    assert "leave these cells empty if the rows have no group, or write another name" in error
