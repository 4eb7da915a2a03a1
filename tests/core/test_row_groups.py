"""Groups of rows: a missing group is refused, whatever holds it, and never becomes one large group."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.core.row_groups import group_numbers, images_or_groups
from avuc.evaluation.groups import evaluate_groups
from avuc.predictions import Predictions

MISSING: dict[str, Any] = {
    "None": ["a", None, None],
    "NaN": [1.0, math.nan, math.nan],
    "NaN among texts": ["a", math.nan, math.nan],
    "a tuple with NaN among texts": ("a", math.nan, "b"),
    "a tensor with NaN": torch.tensor([1.0, math.nan, 2.0]),
    "a complex NaN": [1j, complex(math.nan), 2j],
    "NaT": np.array(["2020-01-01", "NaT", "NaT"], dtype="datetime64[D]"),
    "masked numbers": np.ma.array([1, 2, 2], mask=[False, True, True]),
    "masked texts": np.ma.array(["a", "b", "b"], mask=[False, True, True]),
    "texts of missing values": np.array(["a", None, None], dtype=object).astype(str),
    "texts of NaN": np.array(["a", "nan", "nan"]),
    "empty texts": ["a", "", ""],
    "empty bytes": np.array([b"a", b"", b""]),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_groups_are_refused(name: str) -> None:
    for read in (group_numbers, lambda groups: images_or_groups((3,), None, 3, groups)):
        with pytest.raises(InputError, match=r"^groups: some are .*give every row a group"):
            read(MISSING[name])


def test_the_message_has_the_argument() -> None:
    with pytest.raises(InputError, match=r"^outside_groups: some are missing"):
        images_or_groups((3,), None, 3, ["a", math.nan, "b"], name="outside_groups")


def test_pandas_and_pyarrow() -> None:
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    texts = pandas.Series(["a", None, None])
    dates = pandas.to_datetime(pandas.Series(["2020-01-01", None, None]))
    columns = [
        texts,
        *(texts.astype(kind) for kind in ("string", "category", "string[pyarrow]")),
        texts.astype("string").astype(object).astype(str).to_numpy(),
        *(pandas.Series([1, None, None], dtype=kind) for kind in ("Int64", "Float64", "boolean")),
        dates,
        dates.dt.tz_localize("UTC"),
        pyarrow.array(["a", None, None]),
        pyarrow.chunked_array([[1, None, None]]),
    ]
    for column in columns:
        with pytest.raises(InputError, match=r"^groups: some are"):
            images_or_groups((3,), None, 3, column)


def test_names_that_are_no_missing_values() -> None:
    for names in (["NA", "SA", "NA"], ["none", "some", "none"], ["Nan", "Anna", "Nan"], [b"x", b"a", b"x"]):
        assert group_numbers(names).tolist() in ([0, 1, 0], [1, 0, 1])
    assert group_numbers(np.ma.array([3, 1, 3])).tolist() == [1, 0, 1]
    assert group_numbers([["b", "a"], ["a", "b"]]).tolist() == [[1, 0], [0, 1]]


def test_figures_of_groups_refuse_missing_ones() -> None:
    predictions = Predictions([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]], [0, 1, 0])
    for groups in ([1.0, math.nan, math.nan], ["a", math.nan, math.nan], ["a", None, None]):
        with pytest.raises(InputError, match="groups: some are missing"):
            evaluate_groups(predictions, groups, replicates=0)
