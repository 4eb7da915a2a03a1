"""Arrays, tensors and lists of numbers, as users have them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from avuc.core.arrays import as_array, as_tensor
from avuc.core.errors import InputError

VALUES = np.arange(6.0).reshape(2, 3)


class Output(NamedTuple):
    """What `Trainer.predict` of Transformers returns."""

    predictions: np.ndarray
    label_ids: np.ndarray
    metrics: dict[str, float]


def read_only() -> np.ndarray:
    array = VALUES.copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    "given",
    [
        VALUES,
        VALUES.tolist(),
        VALUES.astype(">f4"),
        VALUES.astype(np.longdouble),
        VALUES.astype(np.uint16),
        VALUES[::-1].copy()[::-1],
        read_only(),
        np.ma.masked_array(VALUES),
        torch.from_numpy(VALUES),
    ],
)
def test_every_kind_gives_the_same_numbers(given: object) -> None:
    assert as_tensor(given, "logits").double().tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "logits are missing"),
        (np.ma.masked_array(VALUES, VALUES == 3), "logits hold masked entries"),
        ([[1.0], [1.0, 2.0]], r"logits are a list of 2 parts of unequal length; join them by np\.concatenate"),
        ((np.zeros((4, 2)), np.zeros((4, 3, 2))), r"logits are 2 arrays of different dimensions.*often logits\[0\]"),
        (Output(np.zeros((4, 2)), np.zeros(4), {}), r"give output\.predictions, and output\.label_ids as labels"),
        (VALUES.astype(object), "must be numbers; found dtype object"),
        (np.array([0.5, 1.0], dtype=object), r"found dtype object; convert them with \.astype\(float\)"),
        (pd.Series([True, False, None], dtype="boolean"), "must be numbers; found <NA> in row 2"),
        (np.array([1, None, 0], dtype=object), "must be numbers; found None in row 1"),
        (VALUES.astype(str), "must be numbers"),
        (VALUES.astype(complex), "must be numbers"),
    ],
)
def test_what_holds_no_numbers_is_refused_in_one_line(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        as_tensor(given, "logits")
    assert "\n" not in str(caught.value)


def test_memory_is_shared_where_it_can_be() -> None:
    assert as_tensor(VALUES, "logits").data_ptr() == VALUES.ctypes.data
    assert as_array(VALUES, "logits") is VALUES


@pytest.mark.parametrize("kind", [object, str])
def test_class_names_as_labels_have_a_remedy(kind: type) -> None:
    names = np.array(["cat", "dog"], dtype=kind)
    with pytest.raises(InputError, match=r"labels must be numbers; found 'cat'; .* np\.searchsorted\(model\.classes_"):
        as_tensor(names, "labels")
    with pytest.raises(InputError, match=r"logits must be numbers; found 'cat'$"):
        as_tensor(names, "logits")
