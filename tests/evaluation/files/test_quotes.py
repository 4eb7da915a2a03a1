"""Texts with double quotes in tables that do not quote: rows are read right or refused with their line."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from avuc.cli import main
from avuc.evaluation.files import read_scores
from avuc.evaluation.files.group_column import read_groups

TEXTS = ['12" pipe', '"quoted', 'a"b"c', '"', 'x" y"', "plain", 'end"', '"x" y', "b"]
DELIMITERS = {".tsv": "\t", ".csv": ","}


def table(path, seed, rows=40):
    """Write a table without quoting, and return its texts, labels and scores."""
    rng = np.random.default_rng(seed)
    texts, labels = [TEXTS[k] for k in rng.integers(len(TEXTS), size=rows)], rng.integers(2, size=rows)
    scores = np.round(rng.normal(size=(rows, 2)) + 4 * np.eye(2)[labels], 3)
    cells = [["text", "label", "logits_0", "logits_1"], *zip(texts, labels, *scores.T, strict=True)]
    if seed % 2:
        cells = [row[1:] + row[:1] for row in map(list, cells)]
    lines = [DELIMITERS[path.suffix].join(map(str, row)) for row in cells]
    path.write_text("\n".join(lines) + "\n")
    return texts, labels, scores


@pytest.mark.parametrize("suffix", DELIMITERS)
@pytest.mark.parametrize("seed", range(12))
def test_every_line_is_a_row(tmp_path, suffix, seed):
    path = tmp_path / f"a{suffix}"
    texts, labels, scores = table(path, seed)
    file = read_scores(path)
    assert file.labels.tolist() == labels.tolist()
    np.testing.assert_allclose(file.scores.numpy(), scores, rtol=1e-6)
    assert read_groups(path, "text", 40).tolist() == texts


@pytest.mark.parametrize("suffix", DELIMITERS)
def test_the_copy_has_the_same_texts(tmp_path, suffix):
    path, cal, to = tmp_path / f"a{suffix}", tmp_path / "cal.json", tmp_path / f"to{suffix}"
    texts, labels, scores = table(path, 3)
    words = ["calibrate", str(path), "--method", "temperature", "--replicates", "0", "--quiet", "--out", str(cal)]
    assert main([*words, "--apply", str(path), "--to", str(to)]) == 0
    file = read_scores(to)
    assert file.labels.tolist() == labels.tolist()
    ratio = scores / file.scores.numpy()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-5)
    assert read_groups(to, "text", 40).tolist() == texts


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("suffix", DELIMITERS)
def test_quoted_texts_with_line_breaks_are_one_cell(tmp_path, suffix, quoting):
    texts = ['12" pipe', "two\nlines", 'a, "b"\n\nc, d', "x,y,z\n1,2,3", "a\tb", '"', ""]
    labels, path = [0, 1, 1, 0, 1, 0, 1], tmp_path / f"a{suffix}"
    with path.open("w", newline="") as out:
        writer = csv.writer(out, delimiter=DELIMITERS[suffix], quoting=quoting)
        writer.writerow(["text", "label", "logits_0", "logits_1"])
        writer.writerows([text, label, 1.5 - label, label] for text, label in zip(texts, labels, strict=True))
    file = read_scores(path)
    assert file.labels.tolist() == labels
    assert file.scores[:, 1].tolist() == labels
    assert read_groups(path, "text", 7).tolist() == [text.strip() for text in texts]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"b,1,0.5,2\nc",0,2,1', "line 3: a double quote opens a cell that goes on to line 4, over whole rows"),
        ('"b" c,1,0.5,2', "line 3: a double quote opens a cell that does not end as it should"),
        ('"b,1,0.5,2', "line 3: a double quote opens a cell that does not end as it should"),
    ],
)
def test_tables_with_both_are_refused(tmp_path, capsys, line, says):
    """A comma inside quotes and a stray quote: lines are not rows, and neither are quoted cells."""
    path = tmp_path / "a.csv"
    path.write_text(f'text,label,logits_0,logits_1\n"a, b",0,1,0.5\n{line}\n')
    assert main(["evaluate", str(path), "--replicates", "0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert says in error
