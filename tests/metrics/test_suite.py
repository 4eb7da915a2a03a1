"""The list of metrics is complete, `evaluate` is its functions, and extreme cases have the values they should."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import avuc.metrics
from avuc.core.errors import InputError
from avuc.metrics import METRICS, MORE_METRICS, evaluate
from avuc.predictions import Predictions

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def test_every_metric_is_listed_and_exported() -> None:
    found = set()
    for info in pkgutil.iter_modules(avuc.metrics.__path__):
        module = importlib.import_module(f"avuc.metrics.{info.name}")
        for name, thing in vars(module).items():
            if inspect.isfunction(thing) and list(inspect.signature(thing).parameters)[:2] == ["probs", "labels"]:
                assert getattr(avuc.metrics, name, thing) is thing
                if inspect.signature(thing).return_annotation == "float":
                    found.add(name)
    assert found - {"auto_threshold"} == {*METRICS, *MORE_METRICS}
    assert all(getattr(avuc.metrics, name) is metric for name, metric in METRICS.items())
    assert all(hasattr(avuc.metrics, name) for name in avuc.metrics.__all__)


@given(
    st.integers(1, 40), st.integers(2, 6), st.integers(0, 99), st.sampled_from(["auto", 0.3]), st.sampled_from([3, 15])
)
def test_evaluate_is_its_functions(n: int, c: int, seed: int, threshold: float, bins: int) -> None:
    rng = np.random.default_rng(seed)
    probs = torch.from_numpy(rng.dirichlet(np.ones(c), n))
    labels = torch.from_numpy(rng.integers(0, c, n))
    suite = evaluate(Predictions(probs, labels), threshold=threshold, bins=bins)
    assert list(suite) == list(METRICS)
    for name, metric in METRICS.items():
        options = {"threshold": threshold, "bins": bins}
        known = {k: v for k, v in options.items() if k in inspect.signature(metric).parameters}
        assert suite[name] == pytest.approx(metric(probs, labels, **known), abs=1e-13, nan_ok=True), name


def suite_of(probs: list[list[float]], labels: list[int]) -> dict[str, float]:
    return evaluate(Predictions(torch.tensor(probs, dtype=torch.float64), torch.tensor(labels)))


def test_all_right_and_sure() -> None:
    out = suite_of([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    ones = {"accuracy", "avu", "avu_auc", "p_accurate_given_certain"}
    for name, value in out.items():
        if name == "p_uncertain_given_inaccurate":
            assert math.isnan(value)
        else:
            assert value == (1 if name in ones else 0), name


def test_all_wrong_and_sure() -> None:
    out = suite_of([[1.0, 0.0], [0.0, 1.0]], [1, 0])
    assert out["nll"] == pytest.approx(-math.log(1e-12))
    want = {"accuracy": 0, "brier": 2, "ece": 1, "mce": 1, "uce": 1, "debiased_ece": 1, "adaptive_ece": 1, "aurc": 1}
    want |= {"classwise_ece": 1, "avu": 0, "p_accurate_given_certain": 0, "p_uncertain_given_inaccurate": 0}
    assert {name: out[name] for name in want} == pytest.approx(want)


@pytest.mark.parametrize("c", [2, 1000])
def test_one_sample(c: int) -> None:
    out = evaluate(Predictions(torch.full((1, c), 1 / c, dtype=torch.float64), torch.tensor([0])))
    assert out["accuracy"] == 1
    assert out["nll"] == pytest.approx(math.log(c))
    assert out["ece"] == out["adaptive_ece"] == out["mce"] == pytest.approx(1 - 1 / c)
    assert out["uce"] == pytest.approx(1)
    assert out["avu"] == out["avu_auc"] == 1
    assert all(math.isfinite(v) for k, v in out.items() if k != "p_uncertain_given_inaccurate")


def test_order_of_rows_does_not_matter(awkward: World) -> None:
    probs, labels = awkward(200, 6)
    shuffled = np.random.default_rng(5).permutation(200)
    for name, metric in METRICS.items():
        assert metric(probs[shuffled], labels[shuffled]) == pytest.approx(metric(probs, labels), abs=1e-12), name


def test_rows_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="found -1"):
        evaluate(Predictions(torch.full((2, 2), 0.5), torch.tensor([-1, -1])))


def test_evaluate_takes_arrays_of_every_layout(awkward: World) -> None:
    probs, labels = awkward(60, 4)
    expected = evaluate(Predictions(probs, labels))
    for pair in ((probs, labels), (torch.tensor(probs), torch.tensor(labels)), (probs.tolist(), labels.tolist())):
        assert evaluate(*pair) == pytest.approx(expected, nan_ok=True)
    dense, map_of = probs.reshape(5, 12, 4), labels.reshape(5, 12)
    assert evaluate(np.moveaxis(dense, -1, 1), map_of) == pytest.approx(expected, nan_ok=True)
    assert evaluate(dense, map_of, class_dim=-1) == pytest.approx(expected, nan_ok=True)
    most = evaluate(probs[labels != 0], labels[labels != 0])
    assert evaluate(probs, labels, ignore_index=0) == pytest.approx(most, nan_ok=True)
    for wrong in ((probs,), (Predictions(probs, labels), labels)):
        with pytest.raises(InputError, match="probabilities and labels"):
            evaluate(*wrong)
