"""Segmentation, token classification, binary networks: predict gives each kept position its row, and streams."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from avuc import metrics
from avuc.bayes import to_bayesian
from avuc.calibration import MultiLabelCalibrator, TemperatureScaling
from avuc.core.errors import InputError
from avuc.metrics import StreamingMetrics
from avuc.posterior import sample_generator
from avuc.prediction import Predictor, predict
from avuc.predictions import MultiLabelPredictions, Predictions

N, C, H, W = 5, 3, 4, 6


class Segmentation(nn.Module):
    """1×1 convolution; the classes in dimension 1, or in the last one."""

    def __init__(self, classes: int = C, last: bool = False) -> None:
        super().__init__()
        self.last = last
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(2, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.conv(x)
        return logits.movedim(1, -1) if self.last else logits


def data(ignored: bool = True, classes: int = C) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 2, H, W, generator=generator)
    labels = torch.randint(classes, (N, H, W), generator=generator)
    if ignored:
        labels[torch.rand(N, H, W, generator=generator) < 0.3] = -100
    return x, labels


def by_loops(samples: list[Tensor], labels: Tensor, ignore: int = -100) -> tuple[list[Any], list[float], list[int]]:
    """Mean probabilities and entropies of each kept pixel, by plain loops over samples (N, C, H, W) in float64."""
    probs, entropies, answers = [], [], []
    for n in range(N):
        for i in range(H):
            for j in range(W):
                if int(labels[n, i, j]) == ignore:
                    continue
                each = []
                for logits in samples:
                    raised = [math.exp(float(z)) for z in logits[n, :, i, j].double()]
                    each.append([value / sum(raised) for value in raised])
                probs.append([sum(p[c] for p in each) / len(each) for c in range(len(each[0]))])
                entropies.append(sum(-sum(value * math.log(value) for value in p) for p in each) / len(each))
                answers.append(int(labels[n, i, j]))
    return probs, entropies, answers


def check(found: Predictions, samples: list[Tensor], labels: Tensor) -> None:
    probs, entropies, answers = by_loops(samples, labels)
    np.testing.assert_allclose(found.probs, probs, atol=2e-6)
    np.testing.assert_allclose(found.expected_entropy, entropies, atol=1e-5)
    assert found.labels.tolist() == answers
    assert found.shape == (N, H, W)
    where = found.to_map(found.confidence)
    assert torch.equal(where.isnan(), labels == -100)
    assert torch.equal(where[labels != -100], found.confidence)


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("loaded", [True, False])
def test_each_kept_pixel_is_a_row(ignored: bool, last: bool, loaded: bool) -> None:
    x, labels = data(ignored)
    net = Segmentation(last=last)
    posterior = to_bayesian(net, initial_std=0.3)
    predictor = Predictor(posterior, samples=3, class_dim=-1 if last else None, batch_size=2)
    found = predictor(DataLoader(TensorDataset(x, labels), batch_size=3)) if loaded else predictor(x, labels)
    with torch.no_grad():
        each = [posterior.draw(sample_generator(0, s))(x) for s in range(3)]
    check(found, [logits.movedim(-1, 1) if last else logits for logits in each], labels)


@pytest.mark.parametrize("squeezed", [True, False])
def test_binary_segmentation(squeezed: bool) -> None:
    x, labels = data(classes=2)
    net = Segmentation(1)
    with torch.no_grad():
        z = net(x)
    found = predict(net, x, labels if squeezed else labels[:, None])
    check(found, [torch.cat([torch.zeros_like(z), z], 1)], labels)


def test_tokens_of_language_models() -> None:
    logits = torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(9, (4, 7), generator=torch.Generator().manual_seed(1))
    labels[:, 5:] = -100
    found = predict(nn.Identity(), logits, labels, class_dim=-1)
    torch.testing.assert_close(found.probs, logits[:, :5].softmax(-1).flatten(0, 1))
    assert found.shape == (4, 7)
    with pytest.raises(InputError, match="class_dim=-1"):
        predict(nn.Identity(), logits, labels)
    with pytest.raises(InputError, match=r"without labels.*class_dim=1 .*class_dim=-1"):
        predict(nn.Identity(), logits)
    assert predict(nn.Identity(), logits, class_dim=-1).probs.shape == (28, 9)
    assert predict(nn.Identity(), logits, class_dim=1).probs.shape == (36, 7)


def test_logits_of_any_place_for_calibrators() -> None:
    x, labels = data()
    best = predict(Segmentation(), x).predicted.reshape(N, H, W)
    labels[:, :3] = torch.where(labels == -100, labels, best)[:, :3]  # most answers are right
    predictor = Predictor(to_bayesian(Segmentation(), initial_std=0.3), samples=4)
    logits, answers = predictor.labelled_logits(DataLoader(TensorDataset(x, labels), batch_size=2))
    assert logits.shape == (4, int((labels != -100).sum()), C)
    assert torch.equal(answers, labels[labels != -100])
    calibrator = TemperatureScaling().fit(logits, answers)
    found = predictor(x, labels, calibrator=calibrator)
    expected = Predictions.from_samples(logits, answers, calibrator=calibrator)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-6)


def test_ignore_index() -> None:
    x, labels = data(ignored=False)
    labels[:, 0] = 255
    found = predict(Segmentation(), x, labels, ignore_index=255)
    assert len(found) == N * (H - 1) * W
    with pytest.raises(InputError, match="labels must be in 0…2"):
        predict(Segmentation(), x, labels)
    with pytest.raises(InputError, match="every label is ignore_index"):
        predict(Segmentation(), x, torch.full_like(labels, -100))
    # a batch without a single label is no problem
    labels[labels == 255] = -100
    labels[2:4] = -100
    pairs = DataLoader(TensorDataset(x, labels), batch_size=2)
    same = predict(Segmentation(), x, labels)
    found = predict(Segmentation(), pairs)
    assert torch.equal(found.probs, same.probs)
    assert torch.equal(found.positions, same.positions)
    plain = predict(nn.Linear(2, 3), torch.randn(4, 2), [0, -100, 2, -1])
    assert plain.labels.tolist() == [0, 2, -1]


def test_labels_in_bytes_have_no_label_of_minus_100() -> None:
    """−100 wraps around to 156, which is the number of a class here."""
    logits, labels = torch.eye(200) - 1, torch.arange(200, dtype=torch.uint8)
    found = predict(nn.Identity(), logits, labels, batch_size=64)
    assert found.labels.tolist() == list(range(200))


def test_images_of_different_sizes() -> None:
    net, sizes = Segmentation(), [(4, 6), (3, 3)]
    batches = [(torch.randn(2, 2, *size), torch.randint(C, (2, *size))) for size in sizes]
    loader = DataLoader(batches, batch_size=None)
    found = predict(net, loader)
    with torch.no_grad():
        rows = [net(x).movedim(1, -1).flatten(0, 2).softmax(-1) for x, _ in batches]
    torch.testing.assert_close(found.probs, torch.cat(rows), rtol=0, atol=1e-6)
    assert torch.equal(found.labels, torch.cat([y.flatten() for _, y in batches]))
    # one shape, the largest, so that images stay apart in intervals and guarantees
    assert found.shape == (4, 4, 6)
    at = found.to_map(found.labels.double())
    assert torch.equal(at[:2].long(), batches[0][1])
    assert torch.equal(at[2:, :3, :3].long(), batches[1][1])
    assert at[2:, 3:].isnan().all()
    assert at[2:, :, 3:].isnan().all()


def test_tokens_of_unequal_sentences_are_counted_by_sentence() -> None:
    lengths = [3, 5, 2, 4]
    logits = torch.randn(4, 5, C)
    labels = torch.randint(C, (4, 5))
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    batches = [(logits[a : a + 2, :most], labels[a : a + 2, :most]) for a, most in ((0, 5), (2, 4))]  # padded by batch
    found = predict(nn.Identity(), DataLoader(batches, batch_size=None), class_dim=-1)
    whole = predict(nn.Identity(), logits, labels, class_dim=-1)
    assert found.shape == whole.shape == (4, 5)
    assert torch.equal(found.positions, whole.positions)
    assert torch.equal(found.probs, whole.probs)


@settings(max_examples=20)
@given(
    spatial=st.lists(st.integers(1, 3), min_size=0, max_size=3),
    classes=st.integers(1, 3),
    batch=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_layout_equals_predictions_from_logits(spatial: list[int], classes: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, classes, *spatial, generator=generator)
    labels = torch.randint(max(classes, 2), (4, *spatial), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    labels.view(-1)[0] = 0
    found = predict(nn.Identity(), logits, labels, batch_size=batch)
    expected = Predictions.from_logits(logits, labels)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-6)
    assert torch.equal(found.labels, expected.labels)
    assert found.shape == expected.shape
    assert (found.positions is None) == (expected.positions is None)
    if found.positions is not None:
        assert torch.equal(found.positions, expected.positions)


class Scenes(IterableDataset):
    """Batches of segmentation data that are made when they are asked for; nobody keeps them."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(self.batches):
            generator = torch.Generator().manual_seed(number)
            labels = torch.randint(4, (2, 32, 32), generator=generator)
            labels[:, :4] = -100
            yield torch.randn(2, 2, 32, 32, generator=generator), labels


def test_a_segmentation_set_larger_than_memory_streams() -> None:
    """What is alive at any time is bounded, while all predictions together are many times larger."""
    bound = 3 * 2 * 28 * 32 * 4 * 4  # three batches: 2 × 28 × 32 pixels, 4 classes, float32
    scenes = DataLoader(Scenes(40), batch_size=None)
    predictor = Predictor(to_bayesian(Segmentation(4), initial_std=0.3), samples=3)
    stream, alive, total, most = StreamingMetrics(4), list[weakref.ref[Tensor]](), 0, 0
    for part in predictor.stream(scenes):
        stream.update(part.probs, part.labels)
        alive.append(weakref.ref(part.probs))
        total += part.probs.nbytes
        most = max(most, sum(probs.nbytes for probs in (ref() for ref in alive) if probs is not None))
    assert total > 13 * bound
    assert most <= bound
    whole = predictor(scenes)  # small enough for a test to compare with
    exact = metrics.evaluate(whole)
    for name in ("accuracy", "nll", "brier", "ece"):
        assert stream.compute()[name] == pytest.approx(exact[name], abs=1e-6)


def test_stream_of_data_in_memory() -> None:
    x, labels = data()
    predictor = Predictor(Segmentation(), batch_size=2)
    parts, whole = list(predictor.stream(x, labels)), predictor(x, labels)
    assert [part.shape for part in parts] == [(2, H, W), (2, H, W), (1, H, W)]
    assert torch.equal(torch.cat([part.probs for part in parts]), whole.probs)
    assert [len(part) for part in Predictor(nn.Linear(2, 3)).stream(torch.rand(130, 2))] == [64, 64, 2]


def test_binary_networks() -> None:
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(2, 1)
    with torch.no_grad():
        p = net(x)[:, 0].sigmoid()
    for labels in (torch.arange(9) % 2, (torch.arange(9) % 2).bool(), (torch.arange(9) % 2).float()[:, None]):
        for module in (net, nn.Sequential(net, nn.Flatten(0))):
            for task in (None, "binary"):
                found = predict(module, DataLoader(TensorDataset(x, labels), batch_size=4), task=task)
                torch.testing.assert_close(found.probs, torch.stack([1 - p, p], 1), rtol=0, atol=1e-6)
                assert torch.equal(found.labels, torch.arange(9) % 2)
    with pytest.raises(InputError, match="task='multiclass' needs logits with at least two classes"):
        predict(net, x, task="multiclass")
    with pytest.raises(InputError, match="task='binary' needs logits with one number for each row"):
        predict(nn.Linear(2, 2), x, task="binary")
    with pytest.raises(InputError, match="labels 0 and 1"):
        predict(net, x, torch.arange(9))


def test_outputs_of_a_sigmoid_are_warned_about() -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    ends = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
    nn.init.constant_(ends[0].weight, 0.01)
    nn.init.constant_(ends[0].bias, 0.5)  # the logits are from 0 to 1, too
    with pytest.warns(UserWarning, match="like probabilities of a sigmoid"):
        predict(ends, x)
    with pytest.warns(UserWarning, match="like probabilities of a sigmoid"):
        plain = predict(ends[0], x)
    with pytest.warns(UserWarning, match="like probabilities of a sigmoid"):
        predict(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid()), x, task="multilabel")
    torch.testing.assert_close(predict(ends, x, logits=torch.logit).probs, plain.probs)  # no warning: it was chosen
    predict(ends, x[:3])  # too few to tell


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("per_label", [None, True])
def test_multilabel_networks(loaded: bool, per_label: bool | None) -> None:
    """Each label is a decision of its own: the mean of the samples' sigmoids, and of their entropies."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    net = nn.Linear(4, 3)
    nn.init.normal_(net.weight, std=2.0, generator=generator)
    nn.init.zeros_(net.bias)
    posterior = to_bayesian(net, initial_std=0.4)
    predictor = Predictor(posterior, samples=5, task="multilabel", batch_size=7)
    with torch.no_grad():
        logits = torch.stack([posterior.draw(sample_generator(0, s))(x) for s in range(5)])
    labels = (logits.mean(0) + 4 * torch.randn(60, 3, generator=generator) > 0).long()
    labels[3, 1] = -100
    data = (DataLoader(TensorDataset(x, labels), batch_size=16),) if loaded else (x, labels)
    found_logits, found_labels = predictor.labelled_logits(*data)
    torch.testing.assert_close(found_logits, logits, rtol=0, atol=1e-6)
    assert torch.equal(found_labels, labels)
    calibrator = MultiLabelCalibrator().fit(logits, labels) if per_label else None
    found: Any = predictor(*data, calibrator=calibrator)
    expected = MultiLabelPredictions.from_samples(logits, labels, calibrator=calibrator)
    assert isinstance(found, MultiLabelPredictions)
    assert found.samples == 5
    for name in ("probs", "expected_entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-6)
    assert torch.equal(found.labels, expected.labels)
    unlabelled: Any = predict(posterior, x, samples=2, task="multilabel")
    assert unlabelled.probs.shape == (60, 3)
    with pytest.raises(InputError, match=r"multi-label labels must have shape \(.*, 3\)"):
        predict(posterior, x, labels[:, 0], task="multilabel", samples=2)
    with pytest.raises(InputError, match="leave class_dim out"):
        predict(posterior, x, labels, task="multilabel", class_dim=1)
