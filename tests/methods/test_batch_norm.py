"""PerDrawBatchNorm: each sample has its own statistics of batch normalisation."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced, measure_statistics
from avuc.nets import resnet20
from avuc.posterior import NetDraw, sample_generator, seeded_generator
from avuc.prediction import predict


def images(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 32, 32, 3), generator=generator, dtype=torch.uint8)


def small(initial_std: float = 0.3) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 900, 5))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return to_bayesian(net, initial_std=initial_std)


def test_by_hand() -> None:
    """The convolution's own output over the images, draw by draw."""
    bayesian, some = small(), images(300)
    posterior = PerDrawBatchNorm(bayesian, some)
    for index in range(3):
        drawn = posterior.draw(sample_generator(0, index))
        plain = bayesian.draw(sample_generator(0, index))
        assert isinstance(drawn, NetDraw)
        weights = bayesian.layout.by_name(plain.weights)
        assert torch.equal(drawn.weights["0.weight"], weights["0.weight"])
        means, variances = [], []
        for batch in (some[0::2], some[1::2]):  # at most 256 in each, spread over all images
            x = batch.permute(0, 3, 1, 2).double() / 255
            out = torch.nn.functional.conv2d(x, weights["0.weight"].double(), weights["0.bias"].double())
            means.append(out.mean((0, 2, 3)))
            variances.append(out.transpose(0, 1).flatten(1).var(1))
        torch.testing.assert_close(
            drawn.weights["1.running_mean"].double(), torch.stack(means).mean(0), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            drawn.weights["1.running_var"].double(), torch.stack(variances).mean(0), rtol=1e-4, atol=1e-5
        )


def test_a_draw_is_normalised_as_in_training() -> None:
    """On the very images it was measured on (one batch), evaluation is the training mode of the same weights."""
    bayesian, some = small(), images(64)
    drawn = PerDrawBatchNorm(bayesian, some).draw(seeded_generator(3))
    x = some.permute(0, 3, 1, 2).float() / 255
    net = bayesian.mean_module()
    state = {name: value.clone() for name, value in drawn.weights.items()}
    net.load_state_dict(state, strict=False)
    net.train()
    # evaluation divides by the unbiased variance, training by the biased one: 57,600 numbers a channel
    torch.testing.assert_close(drawn(x), net(x), rtol=1e-3, atol=1e-3)


def test_with_no_spread_and_true_averages_nothing_changes() -> None:
    bayesian, some = small(initial_std=1e-7), images(256)
    bayesian.module[1].momentum = None
    bayesian.train().takes_bytes = True
    bayesian(some.permute(0, 3, 1, 2).float() / 255)
    bayesian.eval()
    usual = predict(bayesian, images(8, 1), samples=2, progress=False)
    own = predict(PerDrawBatchNorm(bayesian, some), images(8, 1), samples=2, progress=False)
    torch.testing.assert_close(own.probs, usual.probs, rtol=1e-4, atol=1e-5)


def test_later_training_is_seen() -> None:
    bayesian, some = small(), images(64)
    posterior = PerDrawBatchNorm(bayesian, some)
    with torch.no_grad():
        bayesian.module[1].weight.fill_(2.0)
    assert torch.equal(posterior.draw(seeded_generator(0)).weights["1.weight"], torch.full((4,), 2.0))


def test_resnet_through_predict() -> None:
    """Samples are folded like any others: predict returns the mean of the samples."""
    bayesian, some = to_bayesian(resnet20(generator=torch.Generator().manual_seed(0))), images(64)
    posterior = PerDrawBatchNorm(bayesian, some).eval()
    found = predict(posterior, images(5, 2), samples=2, seed=4, progress=False)
    x = images(5, 2).permute(0, 3, 1, 2).float() / 255
    draws = torch.stack([posterior.draw(sample_generator(4, s))(x).softmax(-1) for s in range(2)])
    torch.testing.assert_close(found.probs.float(), draws.mean(0), rtol=1e-3, atol=1e-4)


def test_what_it_needs() -> None:
    with pytest.raises(InputError, match="posterior over the weights"):
        PerDrawBatchNorm(nn.Linear(2, 2), images(4))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="found none"):
        PerDrawBatchNorm(small(), images(0))


def test_spread_out() -> None:
    assert evenly_spaced(torch.arange(10), 3).tolist() == [0, 3, 6]
    assert evenly_spaced(torch.arange(10), 30).tolist() == list(range(10))


@pytest.mark.parametrize("total", [2048, 2049, 4000, 4095, 5000, 45_000])
def test_every_class_of_a_sorted_dataset_is_represented(total: int) -> None:
    classes = torch.arange(total) * 100 // total
    counts = evenly_spaced(classes, 2048).bincount(minlength=100)
    assert counts.sum() == 2048
    assert counts.min() >= 19
    assert counts.max() <= 22


def test_sorted_images_give_the_variance_of_all() -> None:
    """In batches of neighbours, each of one class, only the variance inside the classes would be left."""
    torch.manual_seed(0)
    means = 4.0 * torch.arange(4).repeat_interleave(300)
    inputs = means[:, None] + torch.randn(1200, 3)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    for order in (torch.arange(1200), torch.randperm(1200)):
        statistics = measure_statistics(net, {}, inputs[order])
        torch.testing.assert_close(statistics["0.running_mean"], inputs.mean(0), rtol=0.02, atol=0.02)
        torch.testing.assert_close(statistics["0.running_var"], inputs.var(0), rtol=0.03, atol=0.03)


def test_a_pickled_posterior_gives_the_same_samples() -> None:
    """Torch's transformers hold functions, which stood in what the posterior keeps of the structure."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.BatchNorm1d(3), layer, nn.Flatten(), nn.Linear(12, 2))
    posterior, x = PerDrawBatchNorm(to_bayesian(net), torch.randn(40, 3, 4)), torch.randn(5, 3, 4)
    expected = predict(posterior, x, samples=3, progress=False).probs
    for same in (pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior)):
        assert torch.equal(predict(same, x, samples=3, progress=False).probs, expected)


def test_instance_normalisation_with_running_statistics() -> None:
    """Means over batches, and of a layer that is called twice over its calls; torch would leave 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = 2 + torch.randn(300, 3, 5, 5, generator=generator)
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    for net, calls in ((nn.Sequential(norm), 1), (Twice(norm), 2)):
        statistics = measure_statistics(net, {}, inputs)
        means, variances = [], []
        for batch in (inputs[0::2], inputs[1::2]):
            for factor in (1, 3)[:calls]:
                each = (factor * batch).double().flatten(2)
                means.append(each.mean(2).mean(0))
                variances.append(each.var(2).mean(0))
        name = "0" if calls == 1 else "norm"
        for kind, expected in (("mean", means), ("var", variances)):
            found = statistics[f"{name}.running_{kind}"].double()
            torch.testing.assert_close(found, torch.stack(expected).mean(0), rtol=1e-5, atol=1e-5)
    assert norm.momentum == 0.1
    assert bool((norm.running_mean == 0).all())


class Twice(nn.Module):
    """Calls its normalisation twice."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.norm(3 * x)


class Frozen(nn.Sequential):
    """Keeps its first layer in evaluation mode, as is usual for pretrained normalisation."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


def test_layers_that_train_leaves_in_evaluation_mode_keep_their_statistics() -> None:
    net = Frozen(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    statistics = measure_statistics(net, {}, 2 + torch.randn(300, 3))
    assert list(statistics) == ["2.running_mean", "2.running_var"]
    assert not net.training
