"""Dropout: moments against closed form and against masks of each sample's own; draws are functions of the image."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.fingerprint import fingerprint
from avuc.deploy import as_module
from avuc.methods import Dropout, LLDropout
from avuc.methods.dropout import DropoutHook, DropoutPosterior
from avuc.nets import mlp, resnet20, small_cnn
from avuc.posterior import sample_generator
from avuc.prediction import predict
from avuc.uncertainty import mutual_information


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hooked(model: nn.Module) -> list[str]:
    return [
        name
        for name, layer in model.named_modules()
        if any(isinstance(hook, DropoutHook) for hook in layer._forward_pre_hooks.values())
    ]


def test_where_it_drops() -> None:
    net = resnet20()
    everywhere = hooked(Dropout().build(net))
    assert len(everywhere) == 20
    assert hooked(Dropout(drop_input=False).build(net)) == everywhere[1:]
    assert everywhere[0] == "conv1"
    assert hooked(LLDropout().build(net)) == ["linear"]


def test_names_of_the_weights_stay() -> None:
    net = resnet20()
    model = Dropout().build(net)
    assert list(model.state_dict()) == list(net.state_dict())
    net.load_state_dict(model.state_dict())
    assert type(model) is type(net)


def test_without_a_draw_evaluation_is_the_plain_net() -> None:
    net = small_cnn(generator=generator(0)).eval()
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(Dropout(0.5).build(net).eval()(x), net(x))


@pytest.mark.parametrize("training", [True, False])
def test_moments_of_a_linear_layer(training: bool) -> None:
    # logits = W (x ∘ m)/(1 − q), m ~ Bernoulli(1 − q): mean W x, covariance W diag(x²) Wᵀ q/(1 − q)
    rate, count = 0.3, 20_000
    net = nn.Linear(5, 3)
    weight, x = torch.randn(3, 5, generator=generator(0)), torch.randn(5, generator=generator(1))
    with torch.no_grad():
        net.weight.copy_(weight)
        net.bias.zero_()
    model = Dropout(rate).build(net, generator=generator(2))
    with torch.no_grad():
        if training:
            logits = model.train()(x.expand(count, 5))
        else:
            posterior = DropoutPosterior(model)
            logits = torch.cat([posterior.draw(generator(s))(x[None]) for s in range(count // 10)])
    mean = weight @ x
    covariance = weight @ torch.diag(x**2) @ weight.T * rate / (1 - rate)
    deviation = covariance.diagonal().sqrt()
    standard_error = deviation / len(logits) ** 0.5
    assert ((logits.mean(0) - mean).abs() < 5 * standard_error).all()
    torch.testing.assert_close(logits.T.cov(), covariance, rtol=0, atol=0.15 * float(deviation.max() ** 2))


def by_hand(net: nn.Module, x: Tensor, rate: float) -> Tensor:
    """The small CNN with torch's own dropout before each layer, masks for every sample."""
    out = F.relu(net.bn1(net.conv1(F.dropout(x, rate))))
    out = F.relu(net.bn2(net.conv2(F.dropout(out, rate))))
    out = F.relu(net.bn3(net.conv3(F.dropout(out, rate))))
    return net.linear(F.dropout(out.mean((2, 3)), rate))


def test_thinned_networks_predict_like_masks_of_each_samples_own() -> None:
    rate, count = 0.2, 1500
    net = small_cnn(4, (8, 8, 1), width=4, generator=generator(0)).eval()
    images = torch.rand(3, 1, 8, 8, generator=generator(1))
    posterior = DropoutPosterior(Dropout(rate).build(net))
    torch.manual_seed(0)
    with torch.no_grad():
        thinned = torch.stack([posterior.draw(generator(s))(images).softmax(-1) for s in range(count)])
        own = by_hand(net, images.repeat(count, 1, 1, 1), rate).softmax(-1).view(count, 3, 4)
    error = (thinned.var(0) / count + own.var(0) / count).sqrt()
    assert ((thinned.mean(0) - own.mean(0)).abs() < 4.5 * error).all()
    # and as widely: standard deviations agree to a few per cent
    torch.testing.assert_close(thinned.std(0), own.std(0), rtol=0.12, atol=1e-3)


def test_a_draw_is_a_function() -> None:
    posterior = DropoutPosterior(Dropout(0.4).build(small_cnn(generator=generator(0))))
    x = torch.rand(7, 1, 28, 28, generator=generator(1))
    with torch.no_grad():
        draw = posterior.draw(generator(3))
        whole = draw(x)
        torch.testing.assert_close(torch.cat([draw(part) for part in x.split(2)]), whole, rtol=0, atol=1e-5)
        assert torch.equal(posterior.draw(generator(3))(x), whole)
        assert not torch.allclose(posterior.draw(generator(4))(x), whole)
        # another size of image in between makes masks of its own and spoils none
        draw(torch.rand(2, 1, 12, 12))
        assert torch.equal(draw(x), whole)


def test_training_masks_differ_between_samples() -> None:
    model = Dropout(0.5).build(mlp(3, (4, 4, 1), generator=generator(0)), generator=generator(1)).train()
    logits = model(torch.ones(2, 1, 4, 4))
    assert not torch.equal(logits[0], logits[1])


def test_a_layer_called_twice_has_two_masks() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(50, 50, bias=False)
            nn.init.eye_(self.layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    posterior = DropoutPosterior(Dropout(0.5).build(Twice()))
    draw = posterior.draw(generator(0))
    with torch.no_grad():
        first, second = draw(torch.ones(2, 50))
    assert torch.equal(first, second)
    # two masks of one half each leave a quarter, at 4
    assert set(first.unique().tolist()) == {0.0, 4.0}
    assert 3 <= int((first > 0).sum()) <= 22


def test_rate_zero_is_the_net() -> None:
    net = small_cnn(generator=generator(0)).eval()
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(DropoutPosterior(Dropout(0.0).build(net)).draw(generator(0))(x), net(x))


def test_a_copy_has_hooks_of_its_own() -> None:
    model = Dropout(0.5).build(small_cnn(generator=generator(0)), generator=generator(1))
    twin = copy.deepcopy(model)
    assert hooked(twin) == hooked(model)
    masks = {id(DropoutPosterior(one).masks) for one in (model, twin)}
    assert len(masks) == 2
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        found = [DropoutPosterior(one).draw(generator(5))(x) for one in (model, twin)]
    assert torch.equal(*found)


def test_an_error_in_the_net_ends_the_draw() -> None:
    model = Dropout(0.5).build(nn.Linear(3, 2))
    posterior = DropoutPosterior(model)
    with pytest.raises(RuntimeError):
        posterior.draw(generator(0))(torch.ones(1, 4))
    assert posterior.masks.draw is None


def test_half_precision_activations() -> None:
    model = Dropout(0.5).build(nn.Linear(8, 2)).to(torch.bfloat16)
    assert DropoutPosterior(model).draw(generator(0))(torch.ones(3, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_net_with_dropout_layers_of_its_own() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 40, 3), nn.Dropout2d(0.25), nn.Flatten(), nn.Dropout(0.5), nn.Linear(160, 2))
    x = torch.rand(3, 1, 4, 4)
    plain = net.eval()(x)
    posterior = DropoutPosterior.of_own_layers(net)
    again = DropoutPosterior.of_own_layers(net)  # finds the hooks already there
    with torch.no_grad():
        draw = posterior.draw(generator(0))
        assert torch.equal(draw(x), again.draw(generator(0))(x))
        torch.testing.assert_close(draw(x)[:1], draw(x[:1]))
        assert not torch.allclose(draw(x), plain)
        assert torch.equal(net(x), plain)
        seen = []
        handle = net[2].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
        draw(x)
        handle.remove()
        # whole channels, the same ones for every image
        kept = (seen[0] != 0).flatten(2).float().mean(2)
        assert set(kept.unique().tolist()) == {0.0, 1.0}
        assert (kept == kept[0]).all()
        many = torch.stack([posterior.draw(generator(s))(x).softmax(-1) for s in range(600)])
        torch.manual_seed(1)
        own = torch.stack([net.train()(x).softmax(-1) for _ in range(600)])
    error = (many.var(0) / 600 + own.var(0) / 600).sqrt()
    assert ((many.mean(0) - own.mean(0)).abs() < 4.5 * error).all()


def test_own_layers_at_the_extremes() -> None:
    x = torch.rand(2, 4)
    with torch.no_grad():
        everything = nn.Sequential(nn.Dropout(1.0), nn.Linear(4, 3))
        gone = DropoutPosterior.of_own_layers(everything).draw(generator(0))(x)
        torch.testing.assert_close(gone, everything[1].bias.expand(2, 3))
    with pytest.raises(InputError, match=r"no nn\.Dropout layers"):
        DropoutPosterior.of_own_layers(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_of_a_network_is_not_ignored(kind: type[nn.AlphaDropout | nn.FeatureAlphaDropout]) -> None:
    """Its samples would drop at the other layers only, though the network was trained with this one as well."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.SELU(), kind(0.5), nn.Linear(6, 3))
    with pytest.raises(InputError, match=rf"'3' is an nn\.{kind.__name__}, which .* ignore; use nn\.Dropout"):
        DropoutPosterior.of_own_layers(net)
    with pytest.raises(InputError, match=rf"'3' is an nn\.{kind.__name__}"):
        Dropout(0.5, own_layers=True).build(net)
    net[3].p = 0.0  # drops nothing in training either; as a mark of where to drop it would be ignored
    assert DropoutPosterior.of_own_layers(net).draw(generator(0))(torch.rand(2, 4)).shape == (2, 3)
    with pytest.raises(InputError, match=rf"'3' is an nn\.{kind.__name__}"):
        Dropout(0.5, own_layers=True).build(net)


class Places(nn.Module):
    """Dropout layers of rate 0 mark places: one of channels, one of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.channels = nn.Conv2d(3, 6, 1), nn.Dropout2d(0.0)
        self.elements, self.classify = nn.Dropout(0.0), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.elements(self.channels(self.conv(x))))


def test_own_layers_mark_the_places() -> None:
    net, x = Places(), torch.rand(5, 3, 4, 4)
    model = Dropout(0.5, own_layers=True).build(net, generator=generator(0))
    assert hooked(model) == ["channels", "elements"]
    assert list(model.state_dict()) == list(net.state_dict())
    assert torch.equal(model.eval()(x), net(x))
    seen: dict[str, Tensor] = {}
    for name in ("channels", "elements"):
        model.get_submodule(name).register_forward_hook(lambda _, i, o, name=name: seen.update({name: o / net.conv(x)}))
    with torch.no_grad():
        model.train()(x)
        # whole channels are dropped or doubled, for each image its own
        per_channel = seen["channels"].round(decimals=4)
        assert torch.equal(per_channel, per_channel[:, :, :1, :1].expand_as(per_channel))
        assert set(per_channel.unique().tolist()) == {0.0, 2.0}
        assert len(per_channel[:, :, 0, 0].unique(dim=0)) > 1
        assert set(seen["elements"].round(decimals=3).unique().tolist()) == {0.0, 4.0}
        model = Dropout(0.5, own_layers=True).build(net)
        draw = DropoutPosterior(model).draw(generator(1))
        assert torch.allclose(draw(x)[:2], draw(x[:2]))  # the batch does not matter
        assert not torch.allclose(draw(x), DropoutPosterior(model).draw(generator(2))(x))


def test_own_layers_share_the_moments_of_the_net() -> None:
    """Over many samples, the mean of dropped channels is the plain network's: the last layer is linear."""
    net, x = Places(), torch.rand(1, 3, 1, 1)
    posterior = DropoutPosterior(Dropout(0.2, own_layers=True).build(net).eval())
    with torch.no_grad():
        mean = torch.stack([posterior.draw(generator(seed))(x) for seed in range(3000)]).mean(0)
        assert torch.allclose(mean, net(x), atol=0.05)


def test_own_layers_are_needed_and_old_checkpoints_are_known() -> None:
    with pytest.raises(InputError, match=r"has no nn\.Dropout layers"):
        Dropout(own_layers=True).build(nn.Linear(2, 2))
    with pytest.raises(InputError, match="own_layers is for the method dropout"):
        LLDropout(own_layers=True)
    assert repr(Dropout(0.1)) == "Dropout(rate=0.1, drop_input=True)"
    assert repr(LLDropout(0.1)) == "LLDropout(rate=0.1, drop_input=True)"
    assert repr(Dropout(0.1, own_layers=True)) != repr(Dropout(0.1))
    assert Dropout(0.1, own_layers=True) != Dropout(0.1)


def identity(features: int = 400) -> nn.Linear:
    layer = nn.Linear(features, features, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def kept_in_samples(posterior: DropoutPosterior) -> float:
    """The share of inputs that pass a network of identities."""
    x = torch.ones(1, 400)
    return float(torch.stack([(posterior.draw(generator(seed))(x) != 0).float().mean() for seed in range(20)]).mean())


@pytest.mark.parametrize("own_layers", [False, True])
def test_a_built_network_can_be_built_again(own_layers: bool) -> None:
    """Training goes on from a model of `fit`: its dropout is replaced, not doubled."""
    net = nn.Sequential(nn.Dropout(0.0), identity()) if own_layers else nn.Sequential(identity())
    again = Dropout(0.5, own_layers=own_layers).build(Dropout(0.2, own_layers=own_layers).build(net))
    assert len(hooked(again)) == 1
    assert float((again.train()(torch.ones(20, 400)) != 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert kept_in_samples(DropoutPosterior(again)) == pytest.approx(0.5, abs=0.03)


def test_dropout_of_different_origin_acts_in_a_sample() -> None:
    """A layer that was added later, a built part, and two built parts: each drops half of what comes."""
    later = nn.Sequential(identity(), nn.Dropout(0.5))
    DropoutPosterior.of_own_layers(later)
    later.append(nn.Dropout(0.5))
    built = Dropout(0.5).build(nn.Sequential(nn.Dropout(0.5), identity()))
    two = nn.Sequential(Dropout(0.5).build(identity()), Dropout(0.5).build(identity()))
    posteriors = [
        DropoutPosterior.of_own_layers(later),
        DropoutPosterior.of_own_layers(built),
        DropoutPosterior(two),
    ]
    for posterior in posteriors:
        assert kept_in_samples(posterior) == pytest.approx(0.25, abs=0.03)
    first, second = posteriors[2].draw(generator(0)), posteriors[2].draw(generator(1))
    assert not torch.equal(first(torch.ones(1, 400)), second(torch.ones(1, 400)))


class Encoder(nn.Module):
    """A transformer of torch, whose fast path in evaluation mode does not call the layers inside."""

    def __init__(self, rate: float, head_rate: float, padded: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=rate, batch_first=True)
        layer.self_attn.dropout = 0.0  # of the attention's own function, which has no layer
        self.encoder, self.drop, self.head = nn.TransformerEncoder(layer, 2), nn.Dropout(head_rate), nn.Linear(8, 3)
        self.padded = padded

    def forward(self, x: Tensor) -> Tensor:
        padding = (torch.arange(x.shape[1]) >= 2).expand(x.shape[:2]) if self.padded else None
        logits: Tensor = self.head(self.drop(self.encoder(x, src_key_padding_mask=padding)[:, 0]))
        return logits


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("head_rate", [0.0, 0.3])
@pytest.mark.parametrize("make", ["of_own_layers", "own_layers", "before weights"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_dropout_inside_a_transformer_of_torch_counts_in_predictions(make: str, head_rate: float, padded: bool) -> None:
    torch.manual_seed(0)
    net, x = Encoder(0.3, head_rate, padded), torch.randn(4, 3, 8)
    if make == "of_own_layers":
        posterior = DropoutPosterior.of_own_layers(copy.deepcopy(net))
    else:
        posterior = DropoutPosterior(Dropout(rate=0.3, own_layers=make == "own_layers").build(net))
    predictions = predict(posterior, x, samples=300, progress=False)
    with torch.no_grad():
        samples = torch.stack([posterior.draw(sample_generator(0, s))(x).softmax(-1) for s in range(300)])
        assert torch.allclose(predictions.probs, samples.mean(0), atol=1e-5)
        exported = as_module(posterior, samples=300, example=x[:1])(x)[0] if make != "before weights" else None
        if exported is not None:
            assert torch.allclose(exported, predictions.probs, atol=1e-5)
        if make == "of_own_layers" and not padded:  # torch's own dropout, with masks for each row
            net.train()
            usual = torch.stack([net(x).softmax(-1) for _ in range(2000)])
            assert float(predictions.mutual_information.mean()) == pytest.approx(
                float(mutual_information(usual).mean()), rel=0.3
            )


@pytest.mark.parametrize("own_layers", [True, False])
def test_a_compiled_network_has_the_samples_of_the_network(own_layers: bool) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)), torch.randn(5, 4)
    nets = net, torch.compile(copy.deepcopy(net), backend="eager")
    method = Dropout(rate=0.5)
    posteriors = [DropoutPosterior.of_own_layers(n) if own_layers else DropoutPosterior(method.build(n)) for n in nets]
    plain, compiled = (predict(posterior, x, samples=6, progress=False).probs for posterior in posteriors)
    assert torch.allclose(plain, compiled, atol=1e-6)


class TimeFirst(nn.Module):
    """A transformer that gets (time, batch, features), the default of torch, or (batch, time, features)."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=batch_first)
        layer.self_attn.dropout = 0.0
        self.batch_first, self.head = batch_first, nn.Linear(16, 3)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        logits: Tensor = self.head(self.encoder(x).mean(1 if self.batch_first else 0))
        return logits


@pytest.mark.parametrize("before_weights", [False, True])
def test_time_steps_have_masks_of_their_own_and_examples_share_them(before_weights: bool) -> None:
    torch.manual_seed(0)
    nets = [TimeFirst(batch_first) for batch_first in (True, False)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(12, 12, 16)  # as many examples as time steps: the shape alone does not show which is which
    spread = []
    for net in nets:
        posterior = (
            DropoutPosterior(Dropout(rate=0.3).build(net))
            if before_weights
            else DropoutPosterior.of_own_layers(copy.deepcopy(net))
        )
        whole = predict(posterior, x, samples=300, progress=False)
        for size in (1, 5):
            parts = predict(posterior, x, samples=300, batch_size=size, progress=False)
            assert torch.allclose(parts.probs, whole.probs, atol=1e-5), size
        spread.append(float(whole.mutual_information.mean()))
    # one mask for all time steps would have several times the mutual information
    assert spread[1] == pytest.approx(spread[0], rel=0.25)


def test_rows_that_the_network_splits_are_no_time_steps() -> None:
    class Split(nn.Module):  # two sensors in each row, which one layer reads one by one
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.conv, self.head = nn.Dropout(0.5), nn.Conv1d(1, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            features = self.conv(self.drop(x.flatten(0, 1)[:, None])).mean(2)
            logits: Tensor = self.head(features.view(len(x), 2, 4).mean(1))
            return logits

    posterior, x = DropoutPosterior.of_own_layers(Split()), torch.randn(6, 2, 9)
    whole = predict(posterior, x, samples=5, progress=False).probs
    assert torch.allclose(predict(posterior, x, samples=5, batch_size=1, progress=False).probs, whole, atol=1e-6)


class Inside(nn.Module):
    """A layer of torch with dropout= of its own, which no hook reaches, and a dropout layer."""

    def __init__(self, layer: nn.Module, rate: float = 0.1) -> None:
        super().__init__()
        self.layer, self.drop, self.head = layer, nn.Dropout(rate), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        logits: Tensor = self.head(self.drop(out[0][:, -1]))
        return logits


INSIDE = {
    "LSTM": lambda rate: nn.LSTM(8, 8, 2, dropout=rate, batch_first=True),
    "GRU": lambda rate: nn.GRU(8, 8, 2, dropout=rate, batch_first=True),
    "RNN": lambda rate: nn.RNN(8, 8, 2, dropout=rate, batch_first=True),
    "MultiheadAttention": lambda rate: nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_dropout_inside_a_layer_of_torch_is_named_where_samples_leave_it_out(kind: str) -> None:
    message = rf"samples do not drop inside 'layer' \(nn\.{kind}, 0\.5\), whose dropout= acts in training only"
    with pytest.warns(UserWarning, match=message):
        DropoutPosterior.of_own_layers(Inside(INSIDE[kind](0.5)))
    with pytest.warns(UserWarning, match=message):
        Dropout(own_layers=True).build(Inside(INSIDE[kind](0.5)))
    # without a warning, which would be an error here
    DropoutPosterior.of_own_layers(Inside(INSIDE[kind](0.0)))
    Dropout(own_layers=True).build(Inside(INSIDE[kind](0.0)))
    with pytest.raises(InputError, match=rf"has no nn\.Dropout layers \(that of nn\.{kind}, 0\.5 cannot be sampled\)"):
        DropoutPosterior.of_own_layers(INSIDE[kind](0.5))


def test_many_layers_with_dropout_inside_are_listed_in_short() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 5)
    with pytest.warns(UserWarning, match=r"'layers\.0\.self_attn' \(nn\.MultiheadAttention.* and 2 more, whose"):
        DropoutPosterior.of_own_layers(encoder)


@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last")
def test_a_recurrent_layer_drops_between_its_layers_only() -> None:
    DropoutPosterior.of_own_layers(Inside(nn.LSTM(8, 8, 1, dropout=0.5, batch_first=True)))


class Unused(nn.Module):
    """Reads the rate of one of its dropout layers, as attention in Hugging Face Transformers, and calls the other."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.attention, self.drop, self.head = nn.Dropout(rate), nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(x, self.attention.p, self.training)
        logits: Tensor = self.head(self.drop(x))
        return logits


def test_a_dropout_layer_that_prediction_does_not_call_is_named_once() -> None:
    x = torch.randn(5, 8)
    posterior = DropoutPosterior.of_own_layers(Unused(0.3))
    before = fingerprint(posterior)
    with pytest.warns(UserWarning, match="Unused: prediction does not call the dropout layers 'attention', so samples"):
        predict(posterior, x, samples=3, progress=False)
    assert fingerprint(posterior) == before  # a Predictor does not take it for a change
    predict(posterior, x, samples=3, progress=False)
    predict(DropoutPosterior.of_own_layers(Unused(0.0)), x, samples=3, progress=False)


@pytest.mark.parametrize("own", [False, True])
def test_a_layer_that_is_called_with_keywords_only_is_named(own: bool) -> None:
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(5, 3), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(input=self.layer(x)) if own else self.layer(input=x)

    method = Dropout(0.3, own_layers=own)
    model = method.build(Keywords())
    with pytest.raises(InputError, match=r"with keyword arguments only.*layer\(x\)"):
        model(torch.rand(2, 5))
    with pytest.raises(InputError, match=r"with keyword arguments only.*layer\(x\)"):
        predict(method.posterior([model]), torch.rand(2, 5), samples=2, progress=False)


class SharedDropout(nn.Module):
    """Three blocks with dropout, by one layer that all share or by one each."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        layer = nn.Dropout(0.9)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"linear": nn.Linear(6, 6), "drop": layer if shared else nn.Dropout(0.9)}) for _ in range(3)
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block["drop"](torch.relu(block["linear"](x)))
        return self.last(x)


def test_a_dropout_layer_that_blocks_share_drops_in_all_of_them() -> None:
    torch.manual_seed(0)
    shared, separate = SharedDropout(True), SharedDropout(False)
    separate.load_state_dict(shared.state_dict())
    method, x = Dropout(0.5, own_layers=True), torch.randn(500, 6)
    information = []
    for net in (shared, separate):
        model = method.build(net)
        assert not any(isinstance(layer, nn.Dropout) for layer in model.modules())
        predictions = predict(method.posterior([model]), x, samples=128, progress=False)
        information.append(float(predictions.mutual_information.mean()))
    assert abs(information[0] / information[1] - 1) < 0.2
    rebuilt = Dropout(0.5).build(method.build(shared))
    assert {type(block["drop"]) for block in rebuilt.blocks} == {nn.Dropout}
