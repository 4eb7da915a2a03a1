"""A warning after training if the running averages of batch normalisation do not fit single samples of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from avuc.data import Dataset, as_input
from avuc.methods import METHODS, SVI, Method, Vanilla
from avuc.methods.batch_norm import PerDrawBatchNorm
from avuc.posterior import seeded_generator
from avuc.training.batch_norm_check import nll_of_one_sample
from avuc.training.fit import fit
from avuc.training.settings import TrainSettings

SETTINGS = TrainSettings(epochs=20, batch_size=64, pad=0, flip=False, learning_rate=3e-3)


def stripes(rows: int = 256) -> Dataset:
    """Bright images with faint horizontal, vertical or diagonal stripes: the mean of a layer's output is large."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 3
    y, x = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    patterns = torch.stack([y % 2, x % 2, (x + y) % 2])[labels] * 30
    images = 200 + patterns + torch.randint(20, (rows, 8, 8), generator=generator)
    return Dataset(images.to(torch.uint8)[..., None], labels, 3)


def make_net(generator: torch.Generator) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (1, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    for parameter in net.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
    return net


def test_a_wide_posterior(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning names the model and both figures. A finished training that is read back does not repeat it."""
    method, data = SVI(moped=True, delta=0.5), stripes()
    fitted = fit(method, make_net, data, settings=SETTINGS, directory=tmp_path / "svi-0", progress=False)
    found = nll_of_one_sample(fitted.posterior, data, 64)
    assert found is not None
    line = next(line for line in capsys.readouterr().err.splitlines() if "running averages" in line)
    assert line.startswith("warning: svi-0: the running averages of batch normalisation do not fit single samples")
    assert f"an NLL of {found[0]:.2f}, and {found[1]:.2f} with statistics of its own" in line
    fit(method, make_net, data, settings=SETTINGS, directory=tmp_path / "svi-0", progress=False)
    assert "running averages" not in capsys.readouterr().err


def test_the_figures_by_hand() -> None:
    model, data = SVI(initial_std=0.3).build(make_net(torch.Generator().manual_seed(0))), stripes()
    found = nll_of_one_sample(model, data, 64)
    rows = torch.arange(64) * 256 // 64
    images, labels = data.images[rows], data.labels[rows]
    draw = PerDrawBatchNorm(model, images).draw(seeded_generator(0))
    own = float(F.cross_entropy(draw(as_input(images)), labels))
    running = float(F.cross_entropy(model.draw(seeded_generator(0))(as_input(images)), labels).detach())
    assert found == pytest.approx((running, own), rel=1e-6)


@pytest.mark.parametrize(
    "method", [SVI(moped=True, delta=1e-3), SVI(initial_std=1e-3), Vanilla(), METHODS["ll_svi"](), METHODS["swag"]()]
)
def test_models_without_the_problem(method: Method, capsys: pytest.CaptureFixture[str]) -> None:
    fit(method, make_net, stripes(), settings=SETTINGS, progress=False)
    assert "running averages" not in capsys.readouterr().err


def test_models_that_cannot_be_asked() -> None:
    """A network without batch normalisation, and outputs that are not one logit for each class and label."""
    plain = SVI().build(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    assert nll_of_one_sample(plain, stripes(), 64) is None
    maps = SVI().build(nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3)))
    assert nll_of_one_sample(maps, stripes(), 64) is None
    one = SVI().build(nn.Sequential(nn.Conv2d(1, 1, 8), nn.BatchNorm2d(1), nn.Flatten()))
    assert nll_of_one_sample(one, stripes(), 64) is None
