"""Dropout samples as a network with masks: the same function, where that is possible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.nets import resnet20, small_cnn
from avuc.nets.fold import conv_bn_pairs
from avuc.posterior import sample_generator, seeded_generator
from avuc.prediction import predict
from avuc.prediction.backends.dropout_masks import mask_shapes, masked_net, masks_of, runs
from avuc.predictions import Predictions


def net(kind: str) -> DropoutPosterior:
    generator = torch.Generator().manual_seed(0)
    if kind == "own layers":
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(), nn.Dropout(0.3), nn.Linear(784, 3)]
        return DropoutPosterior.of_own_layers(nn.Sequential(*layers))
    made = small_cnn(3, (16, 16, 3), generator=generator) if kind == "small_cnn" else resnet20(3, generator=generator)
    made.train()(torch.rand(8, 3, 16, 16, generator=generator))
    return DropoutPosterior(Dropout(rate=0.3).build(made))


@pytest.mark.parametrize("kind", ["small_cnn", "resnet20", "own layers"])
def test_the_same_function(kind: str) -> None:
    posterior = net(kind)
    x = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    masked = masked_net(posterior.net)
    first = posterior.draw(seeded_generator(0))
    shapes = mask_shapes(first, x[:1])
    with torch.no_grad():
        for draw in (first, *(posterior.draw(seeded_generator(seed)) for seed in range(1, 4))):
            masks = masks_of(draw, shapes, x.device)
            assert torch.equal(functional_call(masked, masks, (x,)), draw(x))
            assert all(set(mask.unique().tolist()) - {0.0} for mask in masks.values())


def test_normalisation_still_folds() -> None:
    posterior = net("small_cnn")
    assert conv_bn_pairs(masked_net(posterior.net)) == [(f"conv{i}.layer", f"bn{i}") for i in (1, 2, 3)]
    assert conv_bn_pairs(small_cnn()) == [(f"conv{i}", f"bn{i}") for i in (1, 2, 3)]


def test_the_net_is_left_alone() -> None:
    posterior = net("small_cnn")
    before = repr(posterior.net)
    masked_net(posterior.net)
    assert repr(posterior.net) == before
    assert len(posterior.net.conv1._forward_pre_hooks) == 1


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.middle(self.middle(x))))


class Shared(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.again = self.middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.again(x)))


@pytest.mark.parametrize("kind", [Twice, Shared, lambda: nn.Linear(4, 3)])
@pytest.mark.parametrize("extra", [False, True])
def test_what_cannot_be_rewritten_runs_as_it_is(kind: type[nn.Module], extra: bool) -> None:
    torch.manual_seed(0)
    model = Dropout(rate=0.3).build(kind())
    if extra:
        layer = model if isinstance(model, nn.Linear) else model.last
        layer.register_forward_hook(lambda module, inputs, output: output + 1)
    posterior = DropoutPosterior(model)
    x = torch.rand(6, 4)
    with torch.no_grad():
        logits = torch.stack([posterior.draw(sample_generator(0, s))(x) for s in range(4)])
    found = predict(posterior, x, samples=4, progress=False)
    expected = Predictions.from_samples(logits)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-6)
    assert (masked_net(model) is None) == (extra or not isinstance(model, Twice) or type(model) is Shared)


def test_one_trace_serves_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real tracer with a backend that compiles nothing; a second trace would be an error."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", dynamic=False))
    monkeypatch.setattr("avuc.nets.runner._SHARED", {})
    posterior = net("small_cnn")
    x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = predict(posterior, x, samples=4, compiled=True, batch_size=3, progress=False)
    finally:
        torch._dynamo.reset()
    expected = predict(posterior, x, samples=4, fold_batch_norm=False, progress=False)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=2e-6)


class ReadsItsLayer(nn.Module):
    """A network that reads attributes of a layer, as those of Hugging Face do."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.first, self.last = name, nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert getattr(self.last, self.name) is not None
        out: Tensor = self.last(self.first(x.to(self.first.weight.dtype)).relu())
        return out


@pytest.mark.parametrize("name", ["weight", "bias", "in_features"])
def test_a_network_that_reads_attributes_of_its_layers(name: str) -> None:
    torch.manual_seed(0)
    posterior = DropoutPosterior(Dropout(rate=0.3).build(ReadsItsLayer(name)))
    x = torch.rand(6, 4)
    with torch.no_grad():
        logits = torch.stack([posterior.draw(sample_generator(0, s))(x) for s in range(4)])
    found = predict(posterior, x, samples=4, progress=False)
    torch.testing.assert_close(found.probs, Predictions.from_samples(logits).probs, rtol=0, atol=1e-6)
    masked = masked_net(posterior.net)
    assert masked is not None
    assert runs(masked, x) == (name != "in_features")
