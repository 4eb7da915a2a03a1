"""Data whose order or contents differ from what their parts suggest: no row gets the label of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from avuc.bayes import to_bayesian
from avuc.calibration import MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.core.errors import InputError
from avuc.methods.dropout import DropoutPosterior
from avuc.methods.ll_dropout import LLDropout
from avuc.posterior import sample_generator
from avuc.prediction import Predictor, predict
from avuc.predictions import MultiLabelPredictions, Predictions

G = torch.Generator().manual_seed(0)
X = torch.randn(12, 4, generator=G)
Y = torch.arange(12) % 3


def net(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


class Backwards(torch.utils.data.Sampler[list[int]]):
    """Batches in reverse order; beside it torch stores a sequential sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([4 * batch + row for row in range(4)] for batch in (2, 1, 0))

    def __len__(self) -> int:
        return 3


REORDERED = {
    "shuffled": {"shuffle": True},
    "a sampler": {"sampler": RandomSampler(X)},
    "a batch sampler": {"batch_sampler": Backwards()},
    "batches of a random sampler": {"batch_sampler": BatchSampler(RandomSampler(X), 4, False)},
    "not in order": {"batch_size": 4, "in_order": False},
}


@pytest.mark.parametrize("case", REORDERED)
def test_labels_beside_a_loader_that_may_reorder(case: str) -> None:
    with pytest.raises(InputError, match="order of the data"):
        predict(net(), DataLoader(TensorDataset(X), **REORDERED[case]), Y, progress=False)


@pytest.mark.parametrize(
    "options", [{"batch_size": 5}, {"batch_sampler": BatchSampler(SequentialSampler(X), 5, False)}]
)
def test_labels_beside_a_sequential_loader(options: dict[str, Any]) -> None:
    found = predict(net(), DataLoader(TensorDataset(X), **options), Y, progress=False)
    torch.testing.assert_close(found.probs, predict(net(), X, progress=False).probs)
    assert torch.equal(found.labels, Y)


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_inside_a_loader_follow_their_rows(workers: int) -> None:
    x, y = torch.randn(40, 4, generator=G), torch.arange(40) % 3
    posterior = to_bayesian(net())
    whole = predict(posterior, x, y, samples=4, progress=False)
    loader = DataLoader(TensorDataset(x, torch.arange(40)), batch_size=7, shuffle=True, num_workers=workers)
    seen: list[int] = []

    def inputs(batch: Any) -> Any:
        seen.extend(batch[1].tolist())
        return batch[0], y[batch[1]]

    found = predict(posterior, loader, samples=4, inputs=inputs, progress=False)
    assert sorted(seen) == list(range(40)) != seen
    torch.testing.assert_close(found.probs, whole.probs[seen])
    assert torch.equal(found.labels, y[seen])


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return 2 * x, y


def test_a_dataset_of_tensors_that_changes_them() -> None:
    found = predict(net(), Doubled(X, Y), progress=False)
    torch.testing.assert_close(found.probs, predict(net(), 2 * X, progress=False).probs)
    assert torch.equal(found.labels, Y)


class Graphs(nn.Module):
    """The mean over the nodes of each graph."""

    def forward(self, nodes: Tensor, graph: Tensor) -> Tensor:
        one = nn.functional.one_hot(graph).to(nodes)
        return (one.T @ nodes) / one.sum(0)[:, None]


def test_later_batches_may_be_larger_than_the_first() -> None:
    nodes = torch.randn(30, 3, generator=G)
    sizes = [[2, 3], [4, 1, 5, 2], [6, 7]]
    batches, start = [], 0
    for group in sizes:
        graph = torch.repeat_interleave(torch.arange(len(group)), torch.tensor(group))
        batches.append(((nodes[start : start + len(graph)], graph), torch.zeros(len(group), dtype=torch.int64)))
        start += len(graph)
    loader = DataLoader(batches, batch_size=None)
    found = predict(Graphs(), loader, inputs=lambda batch: (tuple(batch[0]), batch[1]), progress=False)
    alone = [Graphs()(*inputs).softmax(-1) for inputs, _ in batches]
    torch.testing.assert_close(found.probs, torch.cat(alone))


def test_calibrators_of_classes_and_of_labels_are_not_mixed_up() -> None:
    logits = 4 * torch.randn(90, 3, generator=G)
    of_labels = MultiLabelCalibrator().fit(logits, torch.rand(90, 3, generator=G) < (logits / 3).sigmoid())
    of_classes = TemperatureScaling().fit(logits, (logits + 4 * torch.randn(90, 3, generator=G)).argmax(-1))
    with pytest.raises(InputError, match="independent labels; a multiclass or binary model"):
        predict(net(), X, calibrator=of_labels, progress=False)
    with pytest.raises(InputError, match="needs a MultiLabelCalibrator"):
        predict(net(), X, calibrator=of_classes, task="multilabel", progress=False)
    with pytest.raises(InputError, match="independent labels"):
        Predictions.from_logits(logits, calibrator=of_labels)
    with pytest.raises(InputError, match="needs a MultiLabelCalibrator"):
        MultiLabelPredictions.from_logits(logits, calibrator=of_classes)

    class Own:
        def transform(self, logits: Tensor) -> Tensor:
            return logits / 2

    found = predict(net(), X, calibrator=Own(), task="multilabel", progress=False)
    torch.testing.assert_close(found.probs, (net()(X) / 2).sigmoid().detach(), check_dtype=False)


def test_maps_of_several_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"needs logits \(N, L\)"):
        predict(nn.Conv2d(2, 3, 1), torch.rand(4, 2, 5, 5), torch.ones(4, 3, 5, 5), task="multilabel", progress=False)


@pytest.mark.parametrize("class_dim", [0, -2])
def test_the_dimension_of_the_examples_has_no_classes(class_dim: int) -> None:
    with pytest.raises(InputError, match="the examples, not classes"):
        predict(net(), X[:3], Y[:3], class_dim=class_dim, progress=False)


@pytest.mark.parametrize("scaler", [TemperatureScaling, VectorScaling])
def test_binary_calibrators_act_on_one_logit(scaler: Any) -> None:
    logits = 4 * torch.randn(200, generator=G)
    calibrator = scaler().fit(logits, torch.rand(200, generator=G) < (logits / 3).sigmoid())
    one = net(1)
    found = predict(one, X, Y % 2, calibrator=calibrator, progress=False)
    expected = calibrator.transform(one(X).detach()[:, 0]).sigmoid()
    torch.testing.assert_close(found.probs[:, 1], expected)
    direct = Predictions.from_logits(one(X), Y % 2, calibrator=calibrator)
    torch.testing.assert_close(found.probs, direct.probs)


def test_members_may_differ_in_architecture() -> None:
    members = [net(), nn.Linear(4, 3), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))]
    for data in (X, DataLoader(TensorDataset(X, Y), batch_size=5)):
        found = predict(members, data, samples=7, progress=False)
        assert found.samples == 3
        expected = torch.stack([member.eval()(X).softmax(-1) for member in members]).mean(0)
        torch.testing.assert_close(found.probs, expected)
    assert Predictor(members).posterior.num_draws == 3


class Masked(nn.Module):
    """A mask, if there is one, acts between the convolution and its batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.norm, self.head = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.norm.running_mean -= 1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.conv(x)
        if mask is not None:
            hidden = hidden * mask[:, None]
        logits: Tensor = self.head(self.norm(hidden).relu().mean(-1))
        return logits


@pytest.mark.parametrize("last_layer", [False, True])
def test_optional_arguments_are_not_folded_away(last_layer: bool) -> None:
    network, x, mask = Masked(), torch.randn(10, 4, 7, generator=G), (torch.rand(10, 7, generator=G) < 0.5).float()
    model: Any = LLDropout().posterior([LLDropout().build(network)]) if last_layer else network
    predictor = Predictor(model, samples=3)
    exact = Predictor(model, samples=3, fold_batch_norm=False)
    for data in (x, {"x": x, "mask": mask}, x, DataLoader([{"x": x, "mask": mask}], batch_size=None)):
        torch.testing.assert_close(predictor(data).probs, exact(data).probs)
    if not last_layer:
        expected = network.eval()(x, mask).softmax(-1)
        torch.testing.assert_close(predictor({"x": x, "mask": mask}).probs, expected)


@pytest.mark.parametrize("outputs", [(3, 2), (3, 1), (1, 3)])
def test_members_with_other_classes_are_refused(outputs: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="the same classes"):
        predict([net(size) for size in outputs], X, progress=False)
    if outputs == (3, 1):
        with pytest.raises(InputError, match="the same classes"):
            predict([net(size) for size in outputs], X, task="multilabel", progress=False)


class DroppedGraphs(Graphs):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, nodes: Tensor, graph: Tensor) -> Tensor:
        return super().forward(self.drop(nodes), graph[0])  # the graph of each node, in the first of two rows


def test_dropout_over_graphs() -> None:
    nodes, graph = torch.randn(9, 3, generator=G), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2]).expand(2, 9)
    batch = ((nodes, graph), torch.tensor([0, 1, 2]))
    posterior = DropoutPosterior.of_own_layers(DroppedGraphs())
    loader = DataLoader([batch, batch], batch_size=None)
    found = predict(posterior, loader, samples=5, inputs=lambda batch: (tuple(batch[0]), batch[1]), progress=False)
    draws = [posterior.draw(sample_generator(0, sample)) for sample in range(5)]
    expected = torch.stack([draw(nodes, graph).softmax(-1) for draw in draws]).mean(0)
    torch.testing.assert_close(found.probs, expected.repeat(2, 1))
