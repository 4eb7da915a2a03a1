"""Names in the order that people expect."""

from __future__ import annotations

import random

import pytest

from avuc.core.natural_order import natural_order


@pytest.mark.parametrize(
    "names",
    [
        ["1", "2", "10"],
        ["-10", "-0.5", ".5", "+3", "1e3", "2000", "nan", ""],
        ["site-9", "site-10", "Site-11"],
        ["lr 0.25", "lr 0.5", "lr 10"],
        ["v1.9.0", "v1.10.2", "v1.10.10"],
        ["v1.9", "v1.10"],
        ["192.168.9.1", "192.168.10.1"],
        ["(-1.5, 0.0]", "(0.0, 10.5]", "(10.5, 20.0]"],
        ["<18", "18-25", "26-40", "65+", "100+"],
        ["0-9", "10-19", "100-199"],
        ["2023-12-31", "2024-1-5", "2024-01-10"],
        ["2023-12-31 23:00:00", "2024-01-01 09:00:00", "2024-01-01 10:00:00"],
        ["12/31/2023", "01/05/2024"],
        ["31/12/2023", "05/01/2024", ""],
        ["31.12.2023", "05.01.2024"],
        ["12-31-2023", "01-02-2024"],
        ["9 %", "10 %", "a", "B", "b", "é"],
        ["2", "9" * 400],
        [],
    ],
)
def test_every_order_of_the_names_gives_the_same(names):
    for seed in range(20):
        assert natural_order(random.Random(seed).sample(names, len(names))) == names
