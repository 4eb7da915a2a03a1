"""`freeze_trunk`: only the last layer is trained; everything before it stays as it was, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.data import Dataset, as_input
from avuc.methods import LLSVI, SVI, SWAG, Dropout, Objective, Vanilla
from avuc.posterior import NetDraw, seeded_generator
from avuc.train import TrainSettings, fit

SETTINGS = TrainSettings(
    epochs=2, batch_size=16, learning_rate=1e-2, milestones=(), factors=(), pad=0, flip=False, freeze_trunk=True
)


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 3
    images = torch.randint(0, 90, (64, 6, 6, 1), generator=generator) + 80 * labels[:, None, None, None]
    return Dataset(images.to(torch.uint8), labels, 3)


def trained_net() -> nn.Module:
    """A network whose batch-norm statistics are not those of the data."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    return net


def test_the_loop_written_by_hand(data: Dataset) -> None:
    fitted = fit(Vanilla(), trained_net(), data, validation=data, settings=SETTINGS, seed=4, progress=False)
    net, last = trained_net().eval(), nn.Linear(64, 3)
    last.load_state_dict(net[5].state_dict())  # type: ignore[index]
    optimizer = torch.optim.Adam(last.parameters(), lr=1e-2)
    with torch.no_grad():
        features = net[:5](as_input(data.images))  # type: ignore[index]
    for epoch in range(2):
        for rows in torch.randperm(64, generator=seeded_generator(4, 0, 1, epoch)).split(16):
            optimizer.zero_grad()
            F.cross_entropy(last(features[rows]), data.labels[rows]).backward()
            optimizer.step()
    expected = {**trained_net().state_dict(), "5.weight": last.weight, "5.bias": last.bias}
    for name, value in fitted.models[0].state_dict().items():
        torch.testing.assert_close(value, expected[name].detach(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", [LLSVI(moped=True, delta=0.2), SVI(moped=True, delta=0.2)], ids=["last", "all"])
def test_a_posterior_over_the_last_layer(method: SVI, data: Dataset) -> None:
    """SVI gives noise to trained weights only, so with a frozen trunk it is LL-SVI."""
    objective = Objective("avuc", warmup_epochs=1, variant="monotone")
    fitted = fit(method, trained_net(), data, objective=objective, settings=SETTINGS, seed=4, progress=False)
    model, start = fitted.models[0], LLSVI(moped=True, delta=0.2).build(trained_net())
    assert model.mu.shape == (64 * 3 + 3,)
    assert not torch.equal(model.mu, start.mu)
    assert not torch.equal(model.rho, start.rho)
    rest = {name: value for name, value in start.state_dict().items() if not name.startswith(("mu", "rho"))}
    for name, value in rest.items():
        assert torch.equal(model.state_dict()[name], value), name


class Attentive(nn.Module):
    """Drops values in a layer with layers inside, and by a function; its last layer has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True), nn.Linear(6, 3)
        self.head = self.last
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        x = F.dropout(self.attention(x, x, x)[0], 0.5, self.training).mean(1)
        self.features.append(x.detach())
        return self.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", [Vanilla(), LLSVI(moped=True, delta=0.2)], ids=["plain", "posterior"])
def test_nothing_is_dropped_in_the_trunk(method: Vanilla | SVI, data: Dataset) -> None:
    torch.manual_seed(1)
    net, one = Attentive(), Dataset(data.images[:1], data.labels[:1], 3)
    fitted = fit(method, net, one, settings=SETTINGS, seed=4, progress=False).models[0]
    trained = next(module for module in fitted.modules() if isinstance(module, Attentive))
    assert len(trained.features) == SETTINGS.epochs
    net.eval()(as_input(one.images))
    for features in trained.features:
        torch.testing.assert_close(features, net.features[0], rtol=1e-5, atol=1e-6)
    if isinstance(method, Vanilla):
        assert not torch.equal(trained.last.weight, net.last.weight)


def test_samples_of_swag_have_the_statistics_of_the_trunk(data: Dataset) -> None:
    """The last layer was trained on features with these; those of the training data are others."""
    fitted = fit(SWAG(start=0.0), trained_net(), data, settings=SETTINGS, seed=4, progress=False)
    sample = fitted.posterior.draw(torch.Generator().manual_seed(0))
    assert isinstance(sample, NetDraw)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(sample.weights[name], trained_net().state_dict()[name])


def test_dropout_is_refused(data: Dataset) -> None:
    with pytest.raises(InputError, match="freeze_trunk cannot be combined with dropout"):
        fit(Dropout(0.1), trained_net(), data, settings=SETTINGS, progress=False)
