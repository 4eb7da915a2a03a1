"""predict for models and data of other libraries: the figures of a plain loop, or one line that says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods.dropout import DropoutPosterior
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import mlp
from avuc.prediction import Predictor, predict
from avuc.predictions import Predictions

ROWS = 11


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def net(seed: int = 0) -> nn.Module:
    """A network in training mode: batch normalisation and dropout would change its outputs and itself."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        made(torch.randn(32, 4))
    return made


class Tokens(nn.Module):
    """Takes tokens and their mask by keyword, and returns an object, as in Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool = True) -> Any:
        mask = attention_mask[..., None].float()
        logits = self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1))
        return SimpleNamespace(logits=logits, hidden=2 * logits) if return_dict else (logits,)


def tokens(rows: int = ROWS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(5) < torch.randint(1, 6, (rows, 1), generator=generator)).long()
    return {"input_ids": torch.randint(20, (rows, 5), generator=generator), "attention_mask": mask}


def same(found: Predictions, expected: Predictions, atol: float = 1e-6) -> None:
    for name in ("probs", "expected_entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=atol)
    assert torch.equal(found.labels, expected.labels)
    assert (found.samples, found.shape) == (expected.samples, expected.shape)
    assert found.monte_carlo_error == pytest.approx(expected.monte_carlo_error, rel=1e-5, abs=1e-8)


class Words(TorchDataset):
    """A map-style dataset of dictionaries."""

    def __init__(self, key: str = "labels") -> None:
        self.key = key

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in tokens().items()} | {self.key: data()[1][index]}


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*data(), strict=True)


X, Y = data()
NUMBERED: dict[str, Callable[[], Any]] = {
    "a loader of pairs": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "a loader of batches of one": lambda: DataLoader(TensorDataset(X, Y)),
    "a loader with a worker process": lambda: DataLoader(TensorDataset(X, Y), batch_size=4, num_workers=1),
    "a loader of an iterable": lambda: DataLoader(Endless(), batch_size=4),
    "a tensor dataset": lambda: TensorDataset(X, Y),
    "a dataset": lambda: torch.utils.data.Subset(TensorDataset(X, Y), range(ROWS)),
    "an iterable dataset": Endless,
    "a list of pairs in a loader": lambda: DataLoader(list(zip(X, Y, strict=True)), batch_size=3),
    "arrays in a loader": lambda: DataLoader(
        list(zip(X.numpy(), Y.numpy(), strict=True)),
        batch_size=3,
        collate_fn=lambda rows: tuple(map(np.stack, zip(*rows, strict=True))),
    ),
}


@pytest.mark.parametrize("case", NUMBERED)
@pytest.mark.parametrize("model", ["net", "list", "bayesian"])
def test_every_source_gives_the_same(case: str, model: str) -> None:
    made: Any = {"net": net, "list": lambda: [net(0), net(1)], "bayesian": lambda: to_bayesian(net())}[model]()
    expected = predict(made, X, Y, samples=5)
    same(predict(made, NUMBERED[case](), samples=5), expected)


def test_a_plain_network_is_evaluated_and_left_as_it_is() -> None:
    module = net()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    found = predict(module, X, Y)
    assert all(layer.training for layer in module.modules())
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert [hook for layer in module.modules() for hook in layer._forward_hooks] == []
    with torch.no_grad():
        expected = module.eval()(X).softmax(-1)
    torch.testing.assert_close(found.probs, expected, rtol=0, atol=1e-6)
    assert (found.samples, found.monte_carlo_error) == (1, 0.0)
    same(found, predict(DeterministicPosterior(module), X, Y))


def test_a_list_is_an_ensemble() -> None:
    nets = [net(seed) for seed in range(3)]
    expected = predict(EnsemblePosterior([DeterministicPosterior(each) for each in nets]), X, Y)
    for given_nets in (nets, tuple(nets), [nets[0], DeterministicPosterior(nets[1]), nets[2]]):
        same(predict(given_nets, X, Y), expected)
    with torch.no_grad():
        mean = torch.stack([each.eval()(X).softmax(-1) for each in nets]).mean(0)
    torch.testing.assert_close(expected.probs, mean, rtol=0, atol=1e-6)


def test_the_network_changes_between_calls() -> None:
    """A `Predictor` that shares the weights of a plain network still sees a change of its modes and layers."""
    module = net()
    predictor = Predictor(module)
    before = predictor(X).probs
    with torch.no_grad():
        module[4].bias += torch.tensor([1.0, 0.0, 0.0])
    assert (predictor(X).probs - before).abs().max() > 0.01
    module[4] = nn.Linear(8, 3)
    same(predictor(X), predict(module, X))


MAPPINGS: dict[str, Callable[[], Any]] = {
    "a mapping": lambda: tokens() | {"labels": Y},
    "a mapping of arrays": lambda: {name: value.numpy() for name, value in tokens().items()} | {"label": Y.numpy()},
    "a dataset of dictionaries": Words,
    "a loader of dictionaries": lambda: DataLoader(Words("label"), batch_size=4),
    "a loader of pairs of a dictionary and labels": lambda: DataLoader(
        [({name: value[i] for name, value in tokens().items()}, Y[i]) for i in range(ROWS)], batch_size=4
    ),
}


@pytest.mark.parametrize("case", MAPPINGS)
@pytest.mark.parametrize("bayesian", [False, True])
def test_mappings_are_keyword_arguments(case: str, bayesian: bool) -> None:
    module = Tokens()
    model = to_bayesian(module, initial_std=0.3) if bayesian else module
    expected = predict(model, tokens(), Y, samples=4, batch_size=3)
    same(predict(model, MAPPINGS[case](), samples=4), expected)
    if not bayesian:
        with torch.no_grad():
            logits = module(**tokens()).logits
        torch.testing.assert_close(expected.probs, logits.softmax(-1), rtol=0, atol=1e-6)


def test_inputs_and_logits_functions() -> None:
    module, x = Tokens(), tokens()
    expected = predict(module, x, Y)

    def inputs(batch: Any) -> tuple[Any, Any]:
        ids, mask, answers = batch
        return (ids, mask, False), answers

    loader = DataLoader(TensorDataset(*x.values(), Y), batch_size=4)
    same(predict(module, loader, inputs=inputs), expected)
    same(
        predict(module, loader, inputs=lambda batch: ({"input_ids": batch[0], "attention_mask": batch[1]}, batch[2])),
        expected,
    )
    found = predict(module, x, Y, logits=lambda output: output.hidden)
    torch.testing.assert_close(found.probs, (2 * expected.probs.log()).softmax(-1), rtol=0, atol=1e-5)
    last = to_bayesian(
        net(), layers="last", initial_std=0.5
    )  # the backend of the last layer must not skip the function
    doubled = predict(last, X, Y, samples=3, logits=lambda z: 2 * z)
    assert (doubled.probs - predict(last, X, Y, samples=3).probs).abs().max() > 1e-3


def test_inputs_is_called_once_for_each_batch() -> None:
    seen: list[int] = []

    def inputs(batch: Tensor) -> tuple[Tensor, None]:
        seen.append(len(batch))
        return batch, None

    found = predict(to_bayesian(net()), X, Y, samples=7, inputs=inputs, batch_size=4)
    assert seen == [4, 4, 3]
    same(found, predict(to_bayesian(net()), X, Y, samples=7))


def test_rows_of_a_graph_need_not_be_examples() -> None:
    """With `inputs=` the labels say how many examples a batch has."""

    class Graphs(nn.Module):
        def forward(self, nodes: Tensor, owner: Tensor) -> Tensor:
            return torch.zeros(int(owner.max()) + 1, 4).index_add(0, owner, nodes)

    nodes, owner = torch.randn(9, 4), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    found = predict(
        Graphs(),
        DataLoader([0], collate_fn=lambda _: (nodes, owner, torch.tensor([1, 2, 3]))),
        inputs=lambda batch: (batch[:2], batch[2]),
    )
    expected = Graphs()(nodes, owner).softmax(-1)
    torch.testing.assert_close(found.probs, expected, rtol=0, atol=1e-6)


class Counting(IterableDataset):
    """Counts how often each row is loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for row in range(ROWS):
            self.loaded.append(row)
            yield X[row], Y[row]


@pytest.mark.parametrize("samples", [6, "auto"])
def test_a_loader_is_iterated_once(samples: Any) -> None:
    source = Counting()
    found = predict(to_bayesian(net(), initial_std=1e-3), DataLoader(source, batch_size=4), samples=samples)
    assert source.loaded == list(range(ROWS))
    assert found.samples == (6 if samples == 6 else 8)


@settings(max_examples=25)
@given(batch=st.integers(1, 12), inner=st.none() | st.integers(1, 12), samples=st.integers(2, 4))
def test_batches_of_any_size(batch: int, inner: int | None, samples: int) -> None:
    posterior = POSTERIOR
    loader = DataLoader(TensorDataset(X, Y), batch_size=batch)
    same(predict(posterior, loader, samples=samples, batch_size=inner), predict(posterior, X, Y, samples=samples))


POSTERIOR = to_bayesian(net(), initial_std=0.2)


def test_a_shuffled_loader_carries_its_labels() -> None:
    model = nn.Linear(4, 3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    found, order = predict(model, loader), predict(model, X, Y)
    rows = [int((order.probs - row).abs().sum(1).argmin()) for row in found.probs]
    assert sorted(rows) == list(range(ROWS))
    assert torch.equal(found.labels, Y[rows])
    with pytest.raises(InputError, match="labels= must be in the order of the data"):
        predict(model, DataLoader(TensorDataset(X), batch_size=4, shuffle=True), Y)
    same(predict(model, DataLoader(TensorDataset(X), batch_size=4), Y), order)
    unlabelled = predict(model, DataLoader(X, batch_size=4))
    assert torch.equal(unlabelled.labels, torch.full((ROWS,), -1))


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_predictor_prepares_its_samples_once_for_a_loader(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, made = to_bayesian(net()), []
    draw = posterior.draw
    monkeypatch.setattr(posterior, "draw", lambda generator: (made.append(1), draw(generator))[1])
    predictor = Predictor(posterior, samples=5, memory=memory)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    for _ in range(2):
        predictor(loader)
    assert len(made) == (5 if memory else 30)


def test_dropout_and_last_layers_over_a_loader() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    for posterior in (DropoutPosterior.of_own_layers(net()), to_bayesian(net(), layers="last", initial_std=0.4)):
        same(predict(posterior, loader, samples=5), predict(posterior, X, Y, samples=5))


def test_uint8_images() -> None:
    images = torch.randint(256, (6, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    own, labels = mlp(3, (8, 8, 1)), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = predict(own, images.permute(0, 3, 1, 2) / 255, labels)
    for found in (
        predict(own, images, labels),
        predict(own, Dataset(images, labels, 3)),
        predict([own], DataLoader(TensorDataset(images, labels), batch_size=4)),
        predict(DeterministicPosterior(nn.Sequential(own)), images.numpy(), labels),
    ):
        same(found, expected)
    foreign = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    for model in (foreign, [foreign], [own, foreign], to_bayesian(foreign)):
        for source in (images, images.numpy(), DataLoader(images, batch_size=4)):
            with pytest.raises(InputError, match=r"not told how to scale them: pass float tensors .* inputs="):
                predict(model, source)
    scaled = predict(foreign, images, labels, inputs=lambda x: (x.permute(0, 3, 1, 2) / 255, None))
    same(scaled, predict(foreign, images.permute(0, 3, 1, 2) / 255, labels))
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))  # of_own_layers read bytes as if / 255
    with pytest.raises(InputError, match="not told how to scale them"):
        predict(DropoutPosterior.of_own_layers(dropping), images, samples=2)
    foreign.takes_bytes = dropping.takes_bytes = True
    same(predict(foreign, images, labels), scaled)
    assert len(predict(DropoutPosterior.of_own_layers(dropping), images, samples=2, progress=False)) == len(images)
    assert predict(nn.Embedding(256, 3), torch.randint(20, (5,)), [0, 1, 2, 0, 1]).probs.shape == (5, 3)


def test_old_names_of_arguments() -> None:
    expected = predict(net(), X, Y)
    for call in (
        lambda: predict(posterior=net(), images=X, labels=Y),  # type: ignore[call-arg]
        lambda: Predictor(posterior=net())(images=X, labels=Y),  # type: ignore[call-arg]
    ):
        with pytest.warns(DeprecationWarning, match=r"(posterior|images)=\) is now (model|data)="):
            same(call(), expected)
    with pytest.raises(TypeError, match="both 'images' and 'data'"):
        predict(net(), data=X, images=X)  # type: ignore[call-arg]


def test_logits_with_the_labels_of_a_loader() -> None:
    predictor = Predictor(POSTERIOR, samples=3)
    logits, labels = predictor.labelled_logits(DataLoader(TensorDataset(X, Y), batch_size=4))
    assert torch.equal(labels, Y)
    torch.testing.assert_close(logits, predictor.logits(X), rtol=0, atol=1e-6)
    assert predictor.labelled_logits(X, samples=2)[1].tolist() == [-1] * ROWS


def test_threads_stream_with_one_predictor() -> None:
    predictor = Predictor(POSTERIOR, samples=3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    expected, found = predictor(loader), {}

    def work(number: int) -> None:
        found[number] = predictor(loader)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        same(found[number], expected)


class Returns(nn.Module):
    def __init__(self, after: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(4, 3), after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.linear(x))


class Locked(nn.Module):
    """A network with an attribute that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lock = nn.Linear(4, 3), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        return logits


def test_wrapped_networks() -> None:
    expected = predict(net(), X, Y)
    module = net().eval()
    for wrapped in (nn.DataParallel(module), torch.fx.symbolic_trace(module), nn.Sequential(module)):
        same(predict(wrapped, DataLoader(TensorDataset(X, Y), batch_size=4)), expected)
    parameters = [parameter.requires_grad for parameter in module.parameters()]
    assert all(parameters)


class Unlabelled(TorchDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return "a path", 1


def loader(*batches: Any) -> DataLoader:
    """A loader that yields these batches as they are."""
    return DataLoader(list(batches), batch_size=None, collate_fn=lambda batch: batch)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a generator": (lambda: predict(net(), (x for x in X)), "data must be a tensor, .* found generator"),
    "a list of paths": (lambda: predict(net(), ["a.png", "b.png"]), r"found list of 2 \(str, str\)"),
    "a list of tensors": (lambda: predict(net(), [X, Y]), r"data must be .* found list of 2 \(Tensor, Tensor\)"),
    "nothing": (lambda: predict(net(), None), "found NoneType"),
    "text": (lambda: predict(net(), "images.npz"), "found str"),
    "an array of text": (lambda: predict(net(), np.array(["a", "b"])), "must be numbers, found an array of dtype <U1"),
    "an empty loader": (lambda: predict(net(), DataLoader([], batch_size=2)), "at least one image, found none"),
    "an empty mapping": (lambda: predict(net(), {}), "found nothing"),
    "a loader of text": (lambda: predict(net(), DataLoader(["a", "b"])), "a batch must be a tensor"),
    "a loader of text with labels": (lambda: predict(net(), Unlabelled()), "the network's input must be a tensor"),
    "a loader of triples": (lambda: predict(net(), loader((X, Y, Y))), r"found tuple of 3 .*pass inputs="),
    "text beside tensors": (
        lambda: predict(net(), loader({"x": X, "name": ["a"]})),
        r"batch\['name'\] must be a tensor",
    ),
    "labels twice": (lambda: predict(net(), loader((X, Y)), Y), "labels= is given too"),
    "labels twice, in memory": (lambda: predict(net(), {"x": X, "labels": Y}, Y), "labels= is given too"),
    "two keys of labels": (lambda: predict(net(), {"x": X, "labels": Y, "label": Y}), "both 'labels' and 'label'"),
    "too few labels": (lambda: predict(net(), DataLoader(X, batch_size=4), Y[:8]), "one per image"),
    "too many labels": (lambda: predict(net(), DataLoader(X, batch_size=4), Y.repeat(2)), "one per image"),
    "unequal lengths": (
        lambda: predict(Tokens(), {"input_ids": X.long(), "attention_mask": X[:3].long()}),
        "same number of rows; found 11 in 'input_ids', 3 in 'attention_mask'",
    ),
    "a sparse tensor": (lambda: predict(net(), X.to_sparse()), "sparse tensor; use .to_dense"),
    "other keywords": (lambda: predict(net(), {"image": X}), "unexpected keyword argument 'image'.*pass inputs="),
    "too many arguments": (lambda: predict(net(), loader(((X, X), Y))), "positional arguments but.*pass inputs="),
    "inputs, no pair": (lambda: predict(net(), X, inputs=lambda x: x), "must return a pair"),
    "inputs, no function": (lambda: predict(net(), X, inputs="x"), "inputs must be a function"),
    "logits, no function": (lambda: predict(net(), X, logits="logits"), "logits must be a function"),
    "logits, no tensor": (lambda: predict(net(), X, logits=lambda z: None), "logits= must return a tensor"),
    "returns nothing": (lambda: predict(Returns(lambda z: None), X), "returns a NoneType"),
    "returns a list": (lambda: predict(Returns(lambda z: [z, z]), X), "a list with the tensors .*pass logits="),
    "returns features and logits": (lambda: predict(Returns(lambda z: (2 * z, z)), X), "pass logits="),
    "returns complex numbers": (
        lambda: predict(Returns(lambda z: z + 0j), X),
        "floating-point logits, found .*complex",
    ),
    "returns NaN": (lambda: predict(Returns(lambda z: z * float("nan")), X), "NaN"),
    "NaN in a later batch": (
        lambda: predict(nn.Linear(4, 3), DataLoader(X.index_fill(0, torch.tensor([9]), float("nan")), batch_size=4)),
        r"sample 0, batch 2 \(images 8…10\)",
    ),
    "returns probabilities": (lambda: predict(Returns(lambda z: z.softmax(-1)), loader((X, Y))), "look like prob"),
    "float64 data": (lambda: predict(net(), DataLoader(X.double(), batch_size=4)), "its weights are float32"),
    "a float64 model": (lambda: predict(net().double(), X), "its weights are float64"),
    "other classes later": (
        lambda: predict(Returns(lambda z: z[:, : len(z)]), loader((X[:3], Y[:3] * 0), (X[:2], Y[:2] * 0))),
        "same number of classes for every batch, found 2, 3",
    ),
    "a lock": (lambda: predict(Locked(), X), "Locked cannot be copied .*lock"),
    "weights without values": (lambda: predict(net().to("meta"), X), "on the meta device"),
    "another task": (lambda: predict(net(), X, task="regression"), "task must be one of multiclass, binary"),
    "regression": (lambda: predict(nn.Linear(4, 1), X, torch.rand(ROWS)), "regression"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_rows_of_a_trainer_are_answered_with_a_loader():
    rows = [{"input_ids": torch.ones(3), "labels": torch.tensor(0)}] * 2
    with pytest.raises(InputError, match=r"pass trainer\.get_test_dataloader\(rows\), or DataLoader\(rows"):
        predict(net(), rows)
