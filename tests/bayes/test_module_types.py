"""Every kind of module, converted, drawn, trained and saved; docs/reference/bayes.md has the table of what passed."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from avuc.bayes import BayesianModule, to_bayesian
from avuc.nets import resnet20

DOC = Path(__file__).parents[2] / "docs" / "reference" / "bayes.md"
BEGIN, END = "<!-- module types: begin -->", "<!-- module types: end -->"


def image(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(4, *shape, generator=torch.Generator().manual_seed(5))


def tokens() -> Tensor:
    return torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(5))


class First(nn.Module):
    """Calls a module that returns a tuple and keeps its first output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[0]


class Flattening(nn.Module):
    """Calls flatten_parameters in its forward pass, as many recurrent networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        self.lstm.flatten_parameters()
        return self.lstm(x)[0][:, -1]


class Unrolled(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Tied(nn.Module):
    """A language model's head that is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


class Shared(nn.Module):
    """One layer under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Raw(nn.Module):
    """Parameters of its own, in a list, in a dict, used by plain tensor algebra."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(5))
        self.matrices = nn.ParameterList([torch.randn(5, 5), torch.randn(5, 3)])
        self.named = nn.ParameterDict({"shift": torch.randn(3)})

    def forward(self, x: Tensor) -> Tensor:
        for matrix in self.matrices:
            x = torch.tanh((x + self.token) @ matrix) if matrix.shape[1] == 5 else x @ matrix
        return x + self.named["shift"]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(5, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bilinear(x, x)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def parametrised() -> nn.Module:
    parametrizations = nn.utils.parametrizations
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), parametrizations.spectral_norm(nn.Linear(4, 3))
    )


def channels_last() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    return net.to(memory_format=torch.channels_last)


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear (MLP)": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), image(5)),
    "Bilinear": (Pair, image(5)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), image(3, 9)),
    "Conv2d, groups, stride, dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Conv2d(6, 6, 3, dilation=2, padding=2, groups=6)
        ),
        image(4, 9, 9),
    ),
    "Conv2d, padding modes": (
        lambda: nn.Sequential(
            *(
                nn.Conv2d(3, 3, 3, padding=1, padding_mode=mode)
                for mode in ("circular", "reflect", "replicate", "zeros")
            ),
            nn.Conv2d(3, 2, 3, padding="same"),
        ),
        image(3, 6, 6),
    ),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1), image(2, 4, 4, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), image(4, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), image(3, 4, 4)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2), image(2, 3, 3, 3)),
    "ResNet-20 (BatchNorm)": (resnet20, image(3, 16, 16)),
    "LayerNorm net": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)), image(5)),
    "GroupNorm, InstanceNorm, PReLU": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, affine=True)
        ),
        image(3, 6, 6),
    ),
    "LSTM": (lambda: First(nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)), image(6, 5)),
    "LSTM with flatten_parameters": (Flattening, image(6, 5)),
    "GRU": (lambda: First(nn.GRU(5, 4, batch_first=True)), image(6, 5)),
    "RNN": (lambda: First(nn.RNN(5, 4, batch_first=True)), image(6, 5)),
    "LSTMCell": (lambda: Unrolled(nn.LSTMCell(5, 4)), image(6, 5)),
    "GRUCell": (lambda: Unrolled(nn.GRUCell(5, 4)), image(6, 5)),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(11, 5), nn.Linear(5, 3)), tokens),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(11, 5), tokens),
    "MultiheadAttention": (Attention, image(6, 8)),
    "TransformerEncoder": (encoder, image(6, 8)),
    "tied weights": (Tied, tokens),
    "a layer under two names": (Shared, image(5)),
    "Parameter, ParameterList, ParameterDict": (Raw, image(5)),
    "parametrised (weight_norm, spectral_norm)": (parametrised, image(5)),
    "float64": (lambda: nn.Linear(5, 3).double(), lambda: image(5)().double()),
    "channels_last": (channels_last, lambda: image(3, 8, 8)().to(memory_format=torch.channels_last)),
}


def build(name: str, **options: object) -> tuple[nn.Module, BayesianModule, Tensor]:
    factory, data = ZOO[name]
    torch.manual_seed(3)
    module = factory()
    return module, to_bayesian(module, **options), data()


def plain_copy(bayesian: BayesianModule, weights: Tensor) -> nn.Module:
    """The oracle: an ordinary module whose parameters hold the drawn weights."""
    module = bayesian.mean_module().eval()
    named = dict(module.named_parameters())
    with torch.no_grad():
        for slot, view in zip(bayesian.layout.slots, bayesian.layout.views(weights), strict=True):
            named[slot.name].copy_(view)
    return module


def converted(name: str) -> str:
    module, bayesian, _ = build(name)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    mean = bayesian.mean_module()
    assert type(mean) is type(module)
    assert list(mean.state_dict()) == list(before)
    for key, value in mean.state_dict().items():
        assert torch.equal(value, before[key])
        assert value.stride() == before[key].stride()
    own = {id(p) for p in module.parameters()}
    assert not own & {id(p) for p in bayesian.parameters()}
    pointers = {p.data_ptr() for p in module.parameters()}
    assert not pointers & {p.data_ptr() for p in [*bayesian.parameters(), *mean.parameters()]}
    # the copy inside keeps no dead weights
    inside = sum(p.numel() for p in bayesian.module.parameters())
    total = sum(p.numel() for p in module.parameters())
    assert bayesian.mu.numel() == bayesian.rho.numel() == total - inside
    return f"{total - inside:,} of {total:,}"


def drawn(name: str) -> str:
    _, bayesian, x = build(name)
    draw = bayesian.draw(torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = draw(x)
        assert torch.equal(output, bayesian.draw(torch.Generator().manual_seed(1))(x))
        assert not torch.equal(output, bayesian.draw(torch.Generator().manual_seed(2))(x))
        torch.testing.assert_close(output, plain_copy(bayesian, draw.weights)(x), rtol=1e-5, atol=1e-6)
        assert torch.equal(output, copy.deepcopy(bayesian).draw(torch.Generator().manual_seed(1))(x))
        assert bayesian.training  # drawing did not leave eval mode behind
        assert bayesian(x, draws=2).shape == (2, *output.shape)
    return "yes"


def trained(name: str, estimator: str = "weight") -> str:
    _, bayesian, x = build(name, estimator=estimator)
    # the gradient through the library equals the chain rule through an ordinary module with the same weights
    bayesian.eval()
    if estimator == "weight":
        noise = bayesian.noise(torch.Generator().manual_seed(1))
        weights = bayesian.weights(noise)
        bayesian.run(weights, x).square().sum().backward()
        oracle = plain_copy(bayesian, weights.detach())
        oracle(x).square().sum().backward()
        named = dict(oracle.named_parameters())
        grads = {slot.name: named[slot.name].grad for slot in bayesian.layout.slots}
        flat = bayesian.layout.flatten({k: torch.zeros_like(named[k]) if g is None else g for k, g in grads.items()})
        torch.testing.assert_close(bayesian.mu.grad, flat, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bayesian.rho.grad, flat * noise * torch.sigmoid(bayesian.rho), rtol=1e-3, atol=1e-4)
    bayesian.train()
    optimiser = torch.optim.Adam(bayesian.parameters(), 0.02)
    generator, losses = torch.Generator().manual_seed(2), []
    for _ in range(25):
        optimiser.zero_grad()
        loss = bayesian(x, generator=generator).square().mean() + 1e-3 * bayesian.kl() / bayesian.mu.numel()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])
    return "yes"


def saved(name: str, folder: Path) -> str:
    _, bayesian, x = build(name, posterior="radial", estimator="flipout", prior="moped")
    with torch.no_grad():
        bayesian.rho += 0.1
        bayesian.mu += 0.1
        bayesian(x)
    path = folder / "posterior.safetensors"
    save_file(bayesian.state_dict(), path)
    _, fresh, _ = build(name)
    fresh.load_state_dict(load_file(path))
    assert (fresh.posterior, fresh.estimator) == ("radial", "flipout")
    for key, value in bayesian.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[key]), key
    with torch.no_grad():
        generators = (torch.Generator().manual_seed(1) for _ in range(2))
        assert torch.equal(bayesian.draw(next(generators))(x), fresh.draw(next(generators))(x))
        torch.testing.assert_close(bayesian.kl(), fresh.kl(), rtol=0, atol=0)
    return "yes"


def flipped(name: str) -> str:
    """Whether two equal samples of a batch see different weights."""
    _, bayesian, x = build(name, estimator="flipout")
    with torch.no_grad():
        output = bayesian.eval()(torch.stack([x[0], x[0]]), generator=torch.Generator().manual_seed(1))
    return "shared draw" if torch.allclose(output[0], output[1], rtol=1e-4, atol=1e-6) else "each sample"


@functools.cache
def row(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        cells = [converted(name), drawn(name), trained(name), saved(name, Path(folder)), flipped(name)]
    trained(name, "flipout")
    return cells


@pytest.mark.parametrize("name", ZOO)
def test_module_type(name: str) -> None:
    assert row(name)[1:4] == ["yes", "yes", "yes"]


def table() -> str:
    head = ["module type", "converted (weights)", "drawn", "trained", "saved", "flipout noise"]
    lines = [head, ["---"] * len(head), *([name, *row(name)] for name in ZOO)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def test_the_documented_table_is_what_was_seen() -> None:
    documented = DOC.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert table() == documented, "run this file as a script for the table as it is now"


if __name__ == "__main__":
    print(table())
