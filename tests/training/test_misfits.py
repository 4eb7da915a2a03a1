"""Data and networks that do not fit: one line instead of a traceback. Networks that return an object with logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc import predict, to_bayesian
from avuc.core.errors import InputError
from avuc.methods import SVI, SWAG, Dropout, Ensemble, Method, Objective, Vanilla
from avuc.train import TrainSettings, fit

X = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 3
SETTINGS = TrainSettings(epochs=2, batch_size=8, milestones=(), factors=())


class Returns(nn.Module):
    """Returns its logits in another form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(5, 3), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layer(x), x)


def train(net: Any, inputs: Any = X, labels: Tensor = LABELS, method: Method | None = None) -> Any:
    objective = Objective("avuc", warmup_epochs=1)
    method = Vanilla() if method is None else method
    return fit(method, net, (inputs, labels), objective=objective, settings=SETTINGS, progress=False)


@pytest.mark.parametrize(
    ("net", "inputs", "labels", "message"),
    [
        (
            nn.Linear(5, 3),
            X.double(),
            LABELS,
            r"inputs \(20, 5\) torch.float64 .*convert .* with .to\(torch.float32\)$",
        ),
        (nn.Linear(5, 3), X.double().numpy(), LABELS, r"convert the inputs with .to\(torch.float32\)$"),
        (nn.Linear(5, 3).double(), X, LABELS, r"its weights are torch.float64: .*\.to\(torch.float64\)$"),
        (nn.Linear(5, 3), (10 * X).long(), LABELS, r"torch.int64 .*\.to\(torch.float32\)$"),
        (nn.Linear(4, 3), X, LABELS, "shapes cannot be multiplied.*give the inputs in the shape and type"),
        (nn.Linear(5, 3), {"x": X}, LABELS, "unexpected keyword argument 'x'.*named like the network's arguments"),
        (nn.Linear(5, 1), X, LABELS % 2, r"one logit for each row, \(8, 1\).*give it two outputs"),
        (nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), X, LABELS % 2, r"one logit for each row, \(8,\)"),
        (
            Returns(lambda z, x: (z, x)),
            X,
            LABELS,
            r"tuple with the tensors \(8, 3\), \(8, 5\).*return the logits alone",
        ),
        (nn.Linear(5, 3), X, nn.functional.one_hot(LABELS).float(), r"of shape \(20, 3\); use labels.argmax\(-1\)"),
        (nn.Linear(5, 3), X, LABELS.float(), r"found torch.float32; convert them with .long\(\)"),
    ],
)
@pytest.mark.parametrize("method", [Vanilla(), SVI()], ids=lambda method: method.name)
def test_one_line(net: nn.Module, inputs: Any, labels: Tensor, message: str, method: Method) -> None:
    with pytest.raises(InputError, match=message) as caught:
        train(net, inputs, labels, method)
    assert "\n" not in str(caught.value)


class Tokens(nn.Module):
    """Takes four tokens; `options` are those of the embedding."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 5, **options), nn.Linear(5, 3)
        self.position = nn.Parameter(torch.zeros(4, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last((self.embedding(tokens) + self.position).mean(1))


def test_tokens_of_another_length_are_not_to_be_converted() -> None:
    """The size is wrong; that tokens are whole numbers is right."""
    tokens = torch.randint(7, (20, 6))
    with pytest.raises(InputError, match=r"must match the size of tensor.*the shape and type that the network takes"):
        train(Tokens(), tokens)
    with pytest.raises(InputError, match=r"must match the size of tensor") as caught:
        predict(Tokens(), tokens, progress=False)
    assert "convert" not in str(caught.value)


def test_sparse_gradients() -> None:
    with pytest.raises(InputError, match=r"sparse gradients, such as nn.Embedding.*use sparse=False"):
        train(Tokens(sparse=True), torch.randint(7, (20, 4)))


def test_swag_refuses_complex_weights() -> None:
    """Noise for complex numbers has half the variance in each part, so real weights had too little spread."""
    net = nn.Sequential(nn.Linear(5, 3))
    net.register_parameter("phase", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    with pytest.raises(InputError, match=r"swag: 'phase' is complex"):
        SWAG().build(net)


def test_errors_of_the_network_stay_what_they_are() -> None:
    def fails(z: Tensor, x: Tensor) -> Tensor:
        raise RuntimeError("the network's own")

    with pytest.raises(RuntimeError, match="the network's own"):
        train(Returns(fails))


@pytest.mark.parametrize("method", [Vanilla(), SVI(), SVI(train_draws=2)], ids=["vanilla", "svi", "two samples"])
def test_an_object_with_logits(method: Method) -> None:
    """As in Hugging Face; the same training as with the logits alone."""
    torch.manual_seed(0)
    objects = Returns(lambda z, x: {"logits": z, "hidden_states": x})
    plain = Returns(lambda z, x: z)
    plain.load_state_dict(objects.state_dict())
    one, other = train(objects, method=method), train(plain, method=method)
    for found, expected in zip(one.models[0].parameters(), other.models[0].parameters(), strict=True):
        assert torch.equal(found, expected)
    assert one.history[-1]["nll"] == other.history[-1]["nll"]
    assert len(predict(one.posterior, X, LABELS, samples=2, progress=False)) == 20


class Wide(nn.Linear):
    """A class where a network is expected: it would take the generator for its width."""

    def __init__(self, width: int = 5) -> None:
        super().__init__(width, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "svi"}, r"method must be an instance, such as avuc.methods.SVI\(\); found 'svi'"),
        ({"method": SVI}, r"such as avuc.methods.SVI\(\); found the class SVI"),
        ({"objective": "avuc"}, r"objective must be an instance, such as .*Objective\(\"avuc\"\); found 'avuc'"),
        ({"settings": {"epochs": 1}}, r"settings must be an instance, .*; found \{'epochs': 1\}"),
        ({"net": None}, "net must be a network, or a function that makes one; found NoneType"),
        ({"net": lambda: nn.Linear(5, 3)}, "cannot be called with a torch.Generator.*lambda generator: MyNet"),
        ({"net": nn.Linear}, "cannot be called with a torch.Generator.*out_features"),
        (
            {"net": Wide},
            "the first argument of the class Wide is width=5; pass a network, or a function",
        ),
        ({"net": lambda outputs: nn.Linear(5, outputs)}, "net, called with a torch.Generator: .*; pass a network, or"),
        ({"net": lambda generator: None}, r"net must return a network \(nn.Module\), found NoneType"),
    ],
)
def test_arguments_of_another_type(arguments: dict[str, Any], message: str) -> None:
    """What people write first: a name, a class, a dict."""
    given: dict[str, Any] = {"method": SVI(), "net": nn.Linear(5, 3), "settings": SETTINGS} | arguments
    with pytest.raises(InputError, match=message):
        fit(given.pop("method"), given.pop("net"), (X, LABELS), progress=False, **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="torch finds no CUDA device here"):
        fit(SVI(), nn.Linear(5, 3), (X, LABELS), settings=SETTINGS, device="cuda", progress=False)


def test_the_inside_of_a_posterior() -> None:
    posterior = to_bayesian(nn.Linear(5, 3))
    with pytest.raises(InputError, match=r"has no weight.*pass the posterior itself, not its \.module"):
        predict(posterior.module, X, progress=False)


@pytest.mark.parametrize(("value", "found"), [(None, "NoneType"), (nn.Linear, "the class Linear")])
def test_no_network(value: Any, found: str) -> None:
    with pytest.raises(InputError, match=rf"to_bayesian: module must be a network \(nn.Module\), found {found}"):
        to_bayesian(value)


class OnlyWhenEvaluated(nn.Module):
    """Gives logits in training and probabilities in evaluation mode, as some networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits if self.training else logits.softmax(-1)


SEVERAL = SVI(train_draws=2)


@pytest.mark.parametrize("method", [Vanilla(), SVI(), Dropout(), Ensemble(2), SEVERAL, Ensemble(2, SEVERAL)], ids=repr)
def test_a_network_that_ends_in_a_softmax_is_refused_before_training(method: Method) -> None:
    def net(generator: torch.Generator) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1))

    with pytest.raises(InputError, match=r"look like probabilities.*but fit needs logits: remove .* softmax") as caught:
        train(net, method=method)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "last",
    [nn.Identity(), nn.LogSoftmax(-1), nn.ReLU(), nn.Sigmoid(), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_other_last_layers_are_trained(last: nn.Module) -> None:
    if isinstance(last, nn.Linear):  # a start at 0
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    assert train(nn.Sequential(nn.Linear(5, 3), last)).epochs == 2
    assert train(OnlyWhenEvaluated()).epochs == 2


def test_the_check_of_the_first_batch_leaves_no_trace() -> None:
    """Statistics of batch normalisation, torch's random numbers and attributes of the network."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer, self.calls = nn.BatchNorm1d(5), nn.Linear(5, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            logits: Tensor = self.layer(nn.functional.dropout(self.norm(x), 0.3, self.training))
            return logits

    model = train(Own()).models[0]
    assert model.calls == 6  # 2 epochs of 3 batches
    assert int(model.norm.num_batches_tracked) == 6
