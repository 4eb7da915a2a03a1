"""Dense and binary `Predictions`: the same figures as for rows made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc import Predictions
from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors


def segmentation(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 4, 3, 5, generator=generator)
    labels = torch.randint(0, 4, (2, 3, 5), generator=generator)
    labels[0, 1, :3] = -100
    return logits, labels


def by_hand(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [
        (logits[n, :, i, j], labels[n, i, j])
        for n in range(2)
        for i in range(3)
        for j in range(5)
        if labels[n, i, j] != -100
    ]
    return torch.stack([row for row, _ in rows]), torch.stack([label for _, label in rows])


@pytest.mark.parametrize("kind", ["tensor", "array", "last"])
def test_dense(kind: str) -> None:
    logits, labels = segmentation()
    rows, targets = by_hand(logits, labels)
    given = {"tensor": logits, "array": logits.numpy(), "last": logits.movedim(1, -1)}[kind]
    dim = -1 if kind == "last" else None
    p = Predictions.from_logits(given, labels, class_dim=dim)
    assert len(p) == 27
    assert p.num_classes == 4
    assert p.shape == (2, 3, 5)
    torch.testing.assert_close(p.probs, rows.softmax(1))
    assert torch.equal(p.labels, targets)
    q = Predictions(
        np.asarray(given.softmax(1) if kind == "tensor" else torch.as_tensor(given).softmax(dim or 1)),
        labels,
        class_dim=dim,
    )
    torch.testing.assert_close(q.probs, p.probs)
    assert torch.equal(q.labels, p.labels)
    assert q.positions is not None


def test_draws_and_calibrator_act_on_rows() -> None:
    class Halve:
        def transform(self, logits: torch.Tensor) -> torch.Tensor:
            assert logits.ndim == 3
            assert logits.shape[-1] == 4
            return logits / 2

    logits, labels = segmentation()
    draws = torch.stack([logits, -logits, logits / 3])
    p = Predictions.from_samples(draws, labels, calibrator=Halve())
    each = torch.stack([by_hand(z, labels)[0] for z in draws]) / 2
    torch.testing.assert_close(p.probs, each.softmax(-1).mean(0))
    assert p.samples == 3
    assert p.shape == (2, 3, 5)
    flat = Predictions.from_samples(each, by_hand(logits, labels)[1])
    torch.testing.assert_close(p.mutual_information, flat.mutual_information)


def test_maps() -> None:
    logits, labels = segmentation()
    p = Predictions.from_logits(logits, labels)
    entropy = p.to_map(p.entropy)
    assert entropy.shape == (2, 3, 5)
    assert torch.equal(entropy.isnan(), labels == -100)
    expected = torch.distributions.Categorical(logits=logits.movedim(1, -1)).entropy()
    torch.testing.assert_close(entropy[~entropy.isnan()], expected[~entropy.isnan()])
    assert torch.equal(p.to_map(p.labels, fill=-100), labels)
    assert p.to_map(p.probs).shape == (2, 3, 5, 4)
    array = p.to_map(p.entropy.numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, entropy.numpy())
    assert p.to_map(p.correct).dtype == torch.float32
    whole = Predictions.from_logits(logits)
    assert whole.positions is None
    np.testing.assert_array_equal(whole.to_map(whole.predicted.numpy()), logits.argmax(1).numpy(), strict=True)
    assert torch.equal(whole.to_map(whole.predicted), logits.argmax(1))
    assert whole.labels.tolist() == [-1] * 30
    with pytest.raises(InputError, match="each of 27 rows"):
        p.to_map(torch.zeros(30))


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_binary(shape: tuple[int, ...]) -> None:
    z = torch.linspace(-3, 3, 8, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0, 1, 1, 0, 1])
    p = Predictions.from_logits(z.reshape(shape), labels)
    torch.testing.assert_close(p.probs[:, 1], z.sigmoid())
    torch.testing.assert_close(Predictions(z.sigmoid().reshape(shape), labels.bool()).probs, p.probs)
    assert p.shape == (8,)
    assert p.num_classes == 2
    assert torch.equal(p.predicted, (z > 0).long())
    draws = Predictions.from_samples(torch.stack([z, z / 2]).reshape(2, *shape), labels)
    torch.testing.assert_close(draws.probs[:, 1], (z.sigmoid() + (z / 2).sigmoid()) / 2)


def test_binary_logits_that_are_probabilities() -> None:
    p = torch.linspace(0.01, 0.99, 20)
    with pytest.raises(InputError, match="look like probabilities"):
        Predictions.from_logits(p, torch.zeros(20))
    assert len(Predictions.from_logits(p, torch.zeros(20), check=False)) == 20
    assert len(Predictions.from_logits(p[:15], torch.zeros(15))) == 15


def test_ignored_rows_and_their_entropies() -> None:
    probs, labels = torch.full((4, 2), 0.5), torch.tensor([0, -100, 1, -1])
    p = Predictions(probs, labels, torch.tensor([0.1, 0.2, 0.3, 0.4]), samples=2)
    assert p.labels.tolist() == [0, 1, -1]
    assert p.shape == (4,)
    torch.testing.assert_close(p.expected_entropy, torch.tensor([0.1, 0.3, 0.4]))
    assert p.positions is not None
    assert p.positions.tolist() == [0, 2, 3]
    with pytest.raises(InputError, match="−1 for none"):
        Predictions(probs, labels, ignore_index=None)
    assert len(Predictions(probs, torch.tensor([0, -1, 1, -1]), ignore_index=-1)) == 2
    dense = Predictions(torch.full((2, 2, 3), 0.5), torch.zeros(2, 3), torch.zeros(2, 3), samples=2)
    assert dense.expected_entropy.shape == (6,)


def test_everything_ignored() -> None:
    p = Predictions.from_logits(torch.randn(1, 3, 2, 2), torch.full((1, 2, 2), -100))
    assert len(p) == 0
    assert p.to_map(p.entropy).isnan().all()


def test_save_load_copy(tmp_path: Path) -> None:
    logits, labels = segmentation()
    p = Predictions.from_logits(logits, labels)
    p.save(tmp_path / "p.safetensors")
    for q in (Predictions.load(tmp_path / "p.safetensors"), p.to("cpu"), replace(p, samples=1)):
        assert q.shape == p.shape
        assert torch.equal(q.to_map(q.labels, -100), labels)
        assert torch.equal(q.probs, p.probs)
    flat = Predictions(p.probs, p.labels)
    flat.save(tmp_path / "flat.safetensors")
    tensors, metadata = read_tensors(tmp_path / "flat.safetensors")
    assert set(tensors) == {"probs", "labels", "expected_entropy"}
    assert "shape" not in metadata
    assert len(replace(flat, probs=p.probs[:3], labels=p.labels[:3], expected_entropy=p.entropy[:3])) == 3


@pytest.mark.parametrize(("shape", "positions"), [("3,3", None), ("x", None), ("27", [99] * 27), ("2,3,5", None)])
def test_damaged_files(tmp_path: Path, shape: str, positions: list[int] | None) -> None:
    logits, labels = segmentation()
    Predictions.from_logits(logits, labels).save(tmp_path / "p.safetensors")
    tensors, metadata = read_tensors(tmp_path / "p.safetensors")
    del tensors["positions"]
    if positions is not None:
        tensors["positions"] = torch.tensor(positions)
    write_tensors(tmp_path / "p.safetensors", tensors, metadata | {"shape": shape})
    with pytest.raises(InputError, match=r"p\.safetensors"):
        Predictions.load(tmp_path / "p.safetensors")


def test_regression_is_refused() -> None:
    with pytest.raises(InputError, match="regression"):
        Predictions(torch.tensor([0.1, 0.7]), torch.tensor([0.13, 2.7]))
