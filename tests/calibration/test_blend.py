"""The mixture of calibrators that `AutoCalibrator` makes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from avuc.calibration import AutoCalibrator, Calibrator
from avuc.calibration.blend import BlendedCalibrator, blend_weights
from avuc.core.errors import InputError


def rows(number: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return logits with labels drawn from softmax(logits/4)."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(number, classes, generator=generator)
    return 4 * logits, torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def test_a_mixture_is_the_weighted_mean_of_its_parts() -> None:
    logits, labels = rows(500)
    auto = AutoCalibrator(blend=True).fit(logits, labels)
    blend = auto.chosen_
    assert isinstance(blend, BlendedCalibrator)
    assert [row.method for row in auto.table_] == ["none", "matrix", "loose-matrix", "blend"]
    table = {row.method: row.nll for row in auto.table_}
    # the weights have the lowest NLL of held-out rows, up to the 5 rows that equal weights count as
    assert table["blend"] < min(table[name] for name in ("none", "matrix", "loose-matrix")) + 5 * math.log(3) / 500
    assert auto.reason_.startswith("blend of ")
    assert f"{100 * max(blend.weights_):.0f} % " in auto.reason_
    each = [part.predict_proba(logits).double() for part in blend.parts_]
    mean = sum(float(w) * p for w, p in zip(blend.weights_, each, strict=True))
    torch.testing.assert_close(auto.predict_proba(logits).double(), mean, atol=1e-6, rtol=1e-5)
    ridges = {part.ridge for part in blend.parts_ if part.name == "matrix"}
    assert ridges <= {1.0, 0.1}
    assert blend.parts_[0].is_identity
    with pytest.raises(InputError, match="AutoCalibrator"):
        BlendedCalibrator().fit(logits, labels)


@pytest.mark.parametrize(
    ("number", "classes", "first"), [(200, 10, "matrix"), (199, 10, "smoothed"), (3000, 33, "smoothed")]
)
def test_parts_of_the_mixture(number: int, classes: int, first: str) -> None:
    auto = AutoCalibrator().fit(*rows(number, classes))
    assert auto.table_[1].method == first
    assert len(auto.table_) == 4


def test_a_broken_mixture_is_refused() -> None:
    text = AutoCalibrator(blend=True).fit(*rows(500)).to_json()
    content = json.loads(text)
    for change in ({"weights": [0.5]}, {"weights": [0.0, 0.5, 0.5]}, {"parts": content["learned"]["parts"][:1]}):
        learned = {**content["learned"], **change}
        with pytest.raises(InputError, match="weights must be a number above 0 for each of parts"):
            Calibrator.from_json(json.dumps({**content, "learned": learned}))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(2, 4), st.integers(0, 999), st.sampled_from([0.0, 1.0, 5.0]))
def test_no_other_weights_are_better(number: int, parts: int, seed: int, prior: float) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.random((number, parts)) + 1e-3

    def value(w: Any) -> float:
        return float(np.log(chosen @ w).sum() + prior / parts * np.log(np.maximum(w, 1e-12)).sum())

    found = blend_weights(chosen, prior)
    assert found.sum() == pytest.approx(1)
    others = rng.dirichlet(np.ones(parts), 50)
    assert value(found) >= max(value(w) for w in others) - 0.05


@pytest.mark.parametrize("worst", [0.0, 1e-12])
def test_no_row_gets_much_worse(worst: float) -> None:
    """A part that changes nothing bounds the loss: −log p rises by at most −log w."""
    logits, labels = rows(300)
    blend = AutoCalibrator(blend=True).fit(logits, labels).chosen_
    assert isinstance(blend, BlendedCalibrator)
    sure = torch.tensor([[1 - worst, worst / 2, worst / 2]]).double().clamp(min=1e-12).log()
    before, after = sure.softmax(-1)[0, 0], blend.predict_proba(sure)[0, 0]
    assert after >= before * blend.weights_[0] - 1e-12
