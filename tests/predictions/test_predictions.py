from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import avuc.predictions.rows
from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.predictions import Predictions
from avuc.uncertainty import expected_entropy, mutual_information


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(n: int, c: int) -> torch.Tensor:
    return torch.arange(n) % c


class Halve:
    def transform(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / 2


def test_from_logits() -> None:
    z = logits(20, 5)
    p = Predictions.from_logits(z, labels(20, 5))
    assert torch.allclose(p.probs, z.softmax(1))
    assert (p.samples, len(p), p.num_classes) == (1, 20, 5)
    assert torch.equal(p.predicted, z.argmax(1))
    assert torch.equal(p.correct, z.argmax(1) == labels(20, 5))
    assert torch.allclose(p.confidence, z.softmax(1).max(1).values)
    assert torch.allclose(p.entropy, torch.distributions.Categorical(logits=z).entropy(), atol=1e-6)
    assert (p.mutual_information.abs() < 1e-6).all()
    assert p.entropy is p.entropy


@given(st.integers(1, 5), st.integers(1, 9), st.integers(2, 6), st.integers(0, 50))
def test_from_samples_against_the_formulas(s: int, n: int, c: int, seed: int) -> None:
    z = logits(s, n, c, seed=seed).double()
    p = Predictions.from_samples(z, labels(n, c))
    assert torch.allclose(p.probs, z.softmax(-1).mean(0))
    assert torch.allclose(p.expected_entropy, expected_entropy(z.softmax(-1)))
    assert torch.allclose(p.mutual_information, mutual_information(z.softmax(-1)), atol=1e-12)
    assert p.samples == s


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    z = logits(3, 17, 4)
    whole = Predictions.from_samples(z, labels(17, 4))
    probs = Predictions(z[0].softmax(-1), labels(17, 4))
    monkeypatch.setattr(avuc.predictions.rows, "CPU_BLOCK", 24)
    assert torch.equal(Predictions.from_samples(z, labels(17, 4)).probs, whole.probs)
    again = Predictions(z[0].softmax(-1), labels(17, 4))
    assert torch.equal(again.expected_entropy, probs.expected_entropy)
    assert torch.equal(again.entropy, probs.entropy)


def test_the_calibrator_acts_on_every_draw_before_the_mean() -> None:
    z = logits(4, 10, 3)
    p = Predictions.from_samples(z, labels(10, 3), calibrator=Halve())
    assert torch.allclose(p.probs, (z / 2).softmax(-1).mean(0))
    one = Predictions.from_logits(z[0], labels(10, 3), calibrator=Halve())
    assert torch.allclose(one.probs, (z[0] / 2).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision(dtype: torch.dtype) -> None:
    p = Predictions.from_logits(logits(5, 3).to(dtype), labels(5, 3))
    assert p.probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(p.probs.sum(1), torch.ones(5, dtype=p.probs.dtype), atol=1e-6)


def test_extreme_logits() -> None:
    p = Predictions.from_logits(torch.tensor([[1e4, -1e4], [float("-inf"), 0.0]]), torch.tensor([0, 1]))
    assert p.probs.tolist() == [[1, 0], [0, 1]]
    assert p.entropy.tolist() == p.expected_entropy.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_are_an_error(bad: float) -> None:
    z = logits(4, 3)
    z[2, 1] = bad
    with pytest.raises(InputError, match="NaN or"):
        Predictions.from_logits(z, labels(4, 3))


def test_rows_without_labels() -> None:
    p = Predictions.from_logits(logits(4, 3))
    assert p.labels.tolist() == [-1] * 4
    assert not p.correct.any()


@pytest.mark.parametrize(
    ("probs", "targets", "message"),
    [
        (torch.tensor(1.0), torch.zeros(3, dtype=torch.int64), r"\(N, C\)"),
        (torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), r"give binary probabilities as \(N,\)"),
        (torch.ones(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), r"floating-point"),
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.int64), r"shape \(3,\)"),
        (torch.ones(3, 2), torch.tensor([0, 1, 2]), r"0…1"),
        (torch.ones(3, 2), torch.tensor([0, 1, -2]), r"−1 for none"),
        (torch.ones(3, 2), torch.tensor([0.0, 1.0, 0.5]), r"class numbers"),
    ],
)
def test_bad_arguments(probs: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Predictions(probs, targets)


def test_more_bad_arguments() -> None:
    good, y = torch.full((3, 2), 0.5), labels(3, 2)
    with pytest.raises(InputError, match="expected_entropy is needed"):
        Predictions(good, y, samples=3)
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        Predictions(good, y, torch.zeros(2))
    with pytest.raises(InputError, match="at least 1"):
        Predictions(good, y, samples=0)
    with pytest.raises(InputError, match="from_samples"):
        Predictions.from_logits(logits(2, 3, 2), y)
    with pytest.raises(InputError, match=r"\(S, N, C\)"):
        Predictions.from_samples(logits(3, 2), y)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Predictions(good, y).samples = 2  # type: ignore[misc]


def test_save_and_load(tmp_path: Path) -> None:
    p = Predictions.from_samples(logits(3, 6, 4).double(), labels(6, 4))
    p.save(tmp_path / "p.safetensors")
    q = Predictions.load(tmp_path / "p.safetensors")
    for name in ("probs", "labels", "expected_entropy", "mutual_information"):
        assert torch.equal(getattr(p, name), getattr(q, name))
    assert q.samples == 3
    # the public package reads it too
    assert torch.equal(load_file(tmp_path / "p.safetensors")["probs"], p.probs)


def test_loading_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"probs": torch.ones(2, 2)})
    with pytest.raises(InputError, match=r"x\.safetensors.*not a file of Predictions"):
        Predictions.load(path)
    about = {"format": "avuc.predictions.v1", "samples": "1"}
    write_tensors(path, {"probs": torch.ones(2, 2)}, about)
    with pytest.raises(InputError, match="'expected_entropy' is missing"):
        Predictions.load(path)
    tensors = {"probs": torch.ones(2, 2), "labels": torch.tensor([0, 7]), "expected_entropy": torch.ones(2)}
    write_tensors(path, tensors, about)
    with pytest.raises(InputError, match=r"x\.safetensors: labels"):
        Predictions.load(path)


def test_arrays_and_lists_are_read_like_tensors() -> None:
    z, y = logits(3, 20, 4).double(), labels(20, 4)
    expected = Predictions.from_samples(z, y)
    for values, targets in ((z.numpy(), y.numpy()), (z.tolist(), y.tolist()), (z.numpy()[::-1], y.numpy()[:, None])):
        found = Predictions.from_samples(values, targets)
        torch.testing.assert_close(found.probs, expected.probs)
        assert torch.equal(found.labels, y)
    one = Predictions.from_logits(z[0].numpy().astype(">f8"), y.numpy().astype(">i2"))
    torch.testing.assert_close(one.probs, z[0].softmax(-1))
    again = Predictions(one.probs.numpy(), y.tolist(), one.expected_entropy.numpy())
    assert torch.equal(again.probs, one.probs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.log(), "must sum to 1.*row 0 .*softmax"),
        (lambda p: 100 * p, "must sum to 1.*divide percentages by 100"),
        (lambda p: p.masked_fill(torch.arange(20)[:, None] == 7, float("nan")), r"contain NaN \(row 7\)"),
        (lambda p: p.index_fill(0, torch.tensor(3), float("inf")), r"contain infinity \(row 3\)"),
        (lambda p: p + torch.tensor([0.5, -0.5, 0.0, 0.0]), "negative"),
        (lambda p: p[:, :1], r"one|0…0.*\[1 − p, p\]"),
    ],
)
def test_what_is_not_probabilities_is_refused_at_once(change: Any, message: str) -> None:
    """Before, `.entropy` and `.correct` answered with meaningless numbers."""
    with pytest.raises(InputError, match=message) as caught:
        Predictions(change(logits(20, 4).softmax(-1)), labels(20, 4))
    assert "\n" not in str(caught.value)


def test_a_device_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, rows and entropies are checked by one value read back, as the labels alone were before."""
    read: list[str] = []
    for name in ("__bool__", "__int__", "__float__", "item", "tolist"):
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, name=name, plain=plain: (read.append(name), plain(self))[1]
        )
    Predictions(logits(20, 4).softmax(-1), labels(20, 4), torch.zeros(20), 3)
    assert read == ["__bool__"]


def test_an_expected_entropy_of_nan_is_refused() -> None:
    with pytest.raises(InputError, match="expected_entropy contains NaN"):
        Predictions(torch.full((3, 2), 0.5), labels(3, 2), torch.tensor([0.1, float("nan"), 0.2]), 2)


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("draws", [None, 3])
def test_probabilities_as_logits_are_refused(scale: int, draws: int | None) -> None:
    z = scale * logits(*((20, 4) if draws is None else (draws, 20, 4))).softmax(-1)
    build = Predictions.from_logits if draws is None else Predictions.from_samples
    with pytest.raises(InputError, match=r"look like (probabilities|percentages).*Predictions\(probs"):
        build(z, labels(20, 4))
    mean = z.softmax(-1) if draws is None else z.softmax(-1).mean(0)
    torch.testing.assert_close(build(z, labels(20, 4), check=False).probs, mean)


@pytest.mark.gpu
def test_on_the_gpu(tmp_path: Path) -> None:
    z = logits(3, 50, 10)
    here, there = Predictions.from_samples(z, labels(50, 10)), Predictions.from_samples(z.cuda(), labels(50, 10))
    assert there.labels.is_cuda
    assert torch.allclose(here.probs, there.probs.cpu(), atol=1e-6)
    there.save(tmp_path / "p")
    assert torch.equal(Predictions.load(tmp_path / "p").probs, there.to("cpu").probs)


def test_monte_carlo_error_is_kept(tmp_path) -> None:
    p = Predictions.from_logits(torch.randn(4, 3), torch.arange(4) % 3)
    assert p.monte_carlo_error is None
    p.save(tmp_path / "none")
    assert Predictions.load(tmp_path / "none").monte_carlo_error is None
    known = Predictions(p.probs, p.labels, p.expected_entropy, 8, 0.1 / 3)
    known.to("cpu").save(tmp_path / "known")
    assert Predictions.load(tmp_path / "known").monte_carlo_error == 0.1 / 3
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="monte_carlo_error"):
            Predictions(p.probs, p.labels, p.expected_entropy, 8, bad)
    tensors, metadata = read_tensors(tmp_path / "known")
    write_tensors(tmp_path / "bad", tensors, metadata | {"monte_carlo_error": "much"})
    with pytest.raises(InputError, match="bad: could not convert"):
        Predictions.load(tmp_path / "bad")
