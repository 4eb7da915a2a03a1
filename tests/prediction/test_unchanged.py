"""`predict` leaves the user's network as it was: its weights and buffers, modes, hooks and attributes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

from avuc.methods import SWAG, Dropout, Method, Vanilla
from avuc.methods.dropout import DropoutPosterior
from avuc.posterior import Posterior
from avuc.prediction import Predictor, predict

TOKENS = torch.arange(40).reshape(10, 4) % 7
X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    def __init__(self, embedding: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.embedding, self.last = embedding, nn.Linear(5, 3)
        with torch.no_grad():
            for weight in embedding.parameters():
                weight.mul_(4)
        if tied:
            self.out = nn.Linear(5, 7, bias=False)
            self.out.weight = embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens)
        vectors = vectors.mean(1) if vectors.ndim == 3 else vectors
        if hasattr(self, "out"):
            vectors = vectors + self.out(vectors).sum(-1, keepdim=True)
        logits: Tensor = self.last(vectors)
        return logits


class Counts(nn.Module):
    """Changes a buffer in place in every pass, and replaces another one."""

    seen: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), [0]
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.calls[0] += 1
        logits: Tensor = self.layer(x)
        return logits


def plain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def hooked() -> nn.Module:
    net = plain(nn.ReLU())
    net[0].register_forward_hook(lambda layer, inputs, output: output + 1)
    return net


def partly_training() -> nn.Module:
    net = plain(nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    net[1].train()
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "embedding": (lambda: Tokens(nn.Embedding(7, 5, max_norm=1.0)), TOKENS),
    "embedding bag": (lambda: Tokens(nn.EmbeddingBag(7, 5, max_norm=1.0)), TOKENS),
    "frozen embedding": (lambda: Tokens(nn.Embedding(7, 5, max_norm=1.0).requires_grad_(False)), TOKENS),
    "tied embedding": (lambda: Tokens(nn.Embedding(7, 5, max_norm=1.0), tied=True), TOKENS),
    "buffers in place": (Counts, X),
    "batch norm": (lambda: plain(nn.BatchNorm1d(6)), X),
    "instance norm": (lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten()), X),
    "statistics": (lambda: plain(nn.BatchNorm1d(6, momentum=None)), X),
    "spectral norm": (lambda: plain(parametrizations.spectral_norm(nn.Linear(6, 6))), X),
    "old spectral norm": (lambda: plain(nn.utils.spectral_norm(nn.Linear(6, 6))), X),
    "weight norm": (lambda: plain(parametrizations.weight_norm(nn.Linear(6, 6))), X),
    "old weight norm": (lambda: plain(weight_norm(nn.Linear(6, 6))), X),
    "pruned": (lambda: plain(prune.random_unstructured(nn.Linear(6, 6), "weight", amount=0.5)), X),
    "in place": (lambda: plain(nn.ReLU(inplace=True)), X),
    "hooks": (hooked, X),
    "modes": (partly_training, X),
    "observer": (lambda: plain(torch.ao.quantization.MovingAverageMinMaxObserver()), X),
}


def state(net: nn.Module) -> dict[str, object]:
    """All tensors as bytes with their versions, and everything else that a user could see."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    found: dict[str, object] = {
        name: (id(tensor), tensor._version, tensor.detach().numpy().tobytes()) for name, tensor in tensors.items()
    }
    for name, layer in net.named_modules():
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        found[f"{name}: layer"] = (id(layer), layer.training, repr(layer), [list(kind.items()) for kind in hooks])
        found[f"{name}: attributes"] = {key: repr(value) for key, value in vars(layer).items() if key[0] != "_"}
    return found


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", ["network", "list", "swag", "dropout", "own layers"])
def test_the_network_is_unchanged(name: str, kind: str) -> None:
    make, data = NETS[name]
    torch.manual_seed(0)
    net = make()
    if kind == "own layers":
        net = nn.Sequential(net, nn.Dropout(0.5))
    model: nn.Module | list[nn.Module] | Posterior
    if kind in ("swag", "dropout"):
        method: Method = SWAG() if kind == "swag" else Dropout()
        if kind == "dropout" and not any(isinstance(layer, nn.Linear) for layer in net.modules()):
            pytest.skip("no weights to drop before")
        if kind == "swag" and not list(net.parameters()):
            pytest.skip("no weights to sample")
        net = method.build(net)
        for epoch in range(8):
            with torch.no_grad():
                list(net.parameters())[-1].add_(0.1 * torch.rand(()))
            method.epoch_end(net, epoch, 8)
        model = method.posterior([net])
    elif kind == "own layers":
        model = DropoutPosterior.of_own_layers(net)
    else:
        model = [net, net] if kind == "list" else net
    before = state(net)
    predictor = Predictor(model, samples=3)
    first = predictor(data).probs
    assert state(net) == before
    assert torch.equal(predictor(data).probs, first)
    predictor.logits(data)
    predict(model, data, samples=3, batch_size=4, progress=False)
    assert state(net) == before


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm_has_its_effect(kind: Callable[..., nn.Module]) -> None:
    net = Tokens(kind(7, 5, max_norm=1.0)).eval()
    ours = predict(Vanilla().posterior([net]), TOKENS, progress=False).probs
    torch.testing.assert_close(ours.float(), net(TOKENS).softmax(-1).detach())
