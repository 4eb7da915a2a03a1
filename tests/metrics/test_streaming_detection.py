from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import detection
from avuc.metrics.detection import DETECTION
from avuc.metrics.streaming import StreamingDetection

# neighbours inside one cell, zeros and ordinary values
entropy = st.sampled_from([0.0, 1e-12, 0.5, 0.50001, 0.50002, 0.7, 0.7, 2.3, 2.3001]) | st.floats(0, 10)
some = st.lists(entropy, min_size=1, max_size=20)


@given(some, some, st.integers(0, 20))
def test_the_exact_value_lies_within_the_bounds(inside: list[float], outside: list[float], cut: int) -> None:
    stream = StreamingDetection().update(inside[:cut]).update(out_entropy=outside)
    stream = StreamingDetection().update(inside[cut:]).merge(stream)
    want, bounds = detection(inside, outside), stream.bounds()
    assert tuple(bounds) == DETECTION
    for name, (low, high) in bounds.items():
        assert low - 1e-12 <= want[name] <= high + 1e-12, name
        assert stream.compute()[name] == (low + high) / 2


def test_the_bounds_are_narrow_on_ordinary_data() -> None:
    rng = np.random.default_rng(0)
    stream = StreamingDetection()
    for _ in range(5):
        stream.update(rng.gamma(0.3, 0.5, 1000), rng.gamma(2, 0.5, 1000))
    assert all(high - low < 0.005 for low, high in stream.bounds().values())


def test_files_and_refusals(tmp_path: Path) -> None:
    stream = StreamingDetection().update([0.1, 0.2], [0.3])
    stream.save(tmp_path / "d")
    assert StreamingDetection().load(tmp_path / "d").compute() == stream.compute()
    again = StreamingDetection()
    again.load_state_dict(stream.state_dict())
    assert again.compute() == stream.compute()
    with pytest.raises(InputError, match="both kinds"):
        StreamingDetection().update([0.1]).compute()
    with pytest.raises(InputError, match="negative"):
        StreamingDetection().update([-0.1])
