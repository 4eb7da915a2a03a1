"""Multi-label tables as pandas writes them: true and false, and empty cells."""

from __future__ import annotations

import numpy as np
import pytest

from avuc.core.errors import InputError
from avuc.evaluation.files.multilabel import read_multilabel
from avuc.evaluation.files.read import read_scores


def write(path, first: str, second: str) -> str:
    rows = ["prob_cat,prob_dog,cat,dog", f"0.9,0.2,{first},{second}", "0.3,0.8,False,1", "0.6,0.1,TRUE,0"]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_true_and_false_are_decisions(tmp_path):
    file = read_multilabel(write(tmp_path / "a.csv", "True", "0"))
    assert file.labels.tolist() == [[1, 0], [0, 1], [1, 0]]


def test_unknown_decisions_beside_true_and_false(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prob_cat,cat\n0.9,True\n0.3,-100\n0.2,False\n")
    assert read_multilabel(path).labels.tolist() == [[1], [-100], [0]]
    path.write_text("prob_cat,cat\n0.9,True\n0.3,\n0.2,False\n")
    with pytest.raises(InputError, match="column 'cat' contains '' beside true and false; write -100 into the empty"):
        read_multilabel(path)


def test_true_and_false_in_a_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {"prob_cat": [0.9, 0.3], "prob_dog": [0.2, 0.8], "cat": [True, False], "dog": [False, True]}
    )
    table.to_parquet(tmp_path / "a.parquet")
    assert read_multilabel(tmp_path / "a.parquet").labels.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("value", ["", "yes"])
def test_other_cells_get_a_line(tmp_path, value):
    remedy = "write -100 into the empty cells of unknown decisions" if not value else "contains 'yes', not a number"
    with pytest.raises(InputError, match=remedy):
        read_multilabel(write(tmp_path / "a.csv", "True", value))


def test_empty_scores_get_a_remedy(tmp_path):
    (tmp_path / "a.csv").write_text("prob_0,prob_1,label\n0.5,0.5,1\n,0.5,1\n")
    with pytest.raises(InputError, match=r"contains '', not a number\); fill the empty cells, or remove these rows"):
        read_scores(tmp_path / "a.csv")


def test_many_rows_keep_their_order(tmp_path):
    truth = np.random.default_rng(0).random(500) < 0.5
    lines = [f"0.{10 + number % 90},{value}" for number, value in enumerate(truth)]
    (tmp_path / "a.csv").write_text("prob_cat,cat\n" + "\n".join(lines) + "\n")
    assert read_multilabel(tmp_path / "a.csv").labels[:, 0].bool().tolist() == truth.tolist()
