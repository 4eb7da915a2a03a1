"""SWAG against stored iterates: moments, the covariance of draws, and batch normalisation measured by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.methods import SWAG, Ensemble
from avuc.methods.batch_norm import measure_statistics
from avuc.methods.swag import SWAGModel, SWAGPosterior
from avuc.nets import small_cnn


def walk(steps: int, rank: int = 20, seed: int = 0) -> tuple[SWAGModel, np.ndarray]:
    """A model collected along a random walk, and every iterate."""
    generator = torch.Generator().manual_seed(seed)
    model = SWAGModel(nn.Linear(2, 3), rank)
    iterates = []
    for _ in range(steps):
        theta = 5 + 0.1 * torch.randn(9, generator=generator)
        vector_to_parameters(theta, model.net.parameters())
        model.collect()
        iterates.append(theta.double().numpy())
    return model, np.stack(iterates)


@pytest.mark.parametrize(("steps", "rank"), [(2, 20), (7, 20), (20, 20), (33, 4)])
def test_moments_equal_those_of_the_stored_iterates(steps: int, rank: int) -> None:
    model, iterates = walk(steps, rank)
    assert int(model.count) == steps
    np.testing.assert_allclose(model.mean, iterates.mean(0), rtol=1e-6)
    variance = (iterates**2).mean(0) - iterates.mean(0) ** 2
    np.testing.assert_allclose(model.squares / steps, variance, rtol=1e-4)
    expected = [iterates[i] - iterates[: i + 1].mean(0) for i in range(steps)][-rank:]
    found = sorted(model.deviations[: min(steps, rank)].tolist())
    np.testing.assert_allclose(found, sorted(np.array(expected).tolist()), atol=2e-6)


def test_draws_have_the_published_mean_and_covariance() -> None:
    model, iterates = walk(8, rank=5)
    names = [name for name, _ in model.net.named_parameters()]
    draws = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(4_000):
        drawn = model.draw(generator)
        draws.append(torch.cat([drawn[name].flatten() for name in names]))
    theta = torch.stack(draws).double().numpy()
    deviations = np.array([iterates[i] - iterates[: i + 1].mean(0) for i in range(3, 8)])
    covariance = 0.5 * np.diag(iterates.var(0)) + deviations.T @ deviations / (2 * (5 - 1))
    scale = np.sqrt(np.diag(covariance))
    error = scale / np.sqrt(len(theta))
    assert (np.abs(theta.mean(0) - iterates.mean(0)) < 5 * error + 1e-6).all()
    np.testing.assert_allclose(np.cov(theta.T), covariance, atol=0.1 * scale.max() ** 2)


def test_collects_after_start_only() -> None:
    method = SWAG(start=0.75, rank=3)
    model = method.build(nn.Linear(2, 2))
    counts = []
    for epoch in range(8):
        method.epoch_end(model, epoch, 8)
        counts.append(int(model.count))
    assert counts == [0, 0, 0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("start", [0.0, 0.1, 0.3, 1 / 3, 0.5, 0.7, 0.75, 0.9, 0.95])
def test_too_few_epochs_to_collect(start: float) -> None:
    """Exactly the numbers of epochs that collect fewer than two sets are refused, with the smallest one that is not."""
    method, refused = SWAG(start=start), []
    for epochs in range(1, 60):
        collected = sum(epoch >= start * epochs for epoch in range(epochs))
        try:
            Ensemble(2, method).check_epochs(epochs)
        except InputError as error:
            refused.append(str(error))
            assert collected < 2
        else:
            assert collected >= 2
    fewest = len(refused) + 1
    assert all(f"train for at least {fewest} epochs" in line for line in refused)
    assert [line for line in refused if "smaller start" not in line] == refused[:1]  # no start helps one epoch


def images(rows: int = 300) -> Tensor:
    return torch.randint(256, (rows, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def cnn_model() -> SWAGModel:
    model = SWAGModel(small_cnn(3, (8, 8, 1), width=4, generator=torch.Generator().manual_seed(0)), rank=3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.net.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        model.net.train()(as_input(images(64)))
        model.collect()
    return model


def test_statistics_are_averaged_without_images() -> None:
    model = SWAGModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), rank=2)
    seen = []
    for value in (1.0, 2.0, 6.0):
        model.net[1].running_mean.fill_(value)
        model.net[1].running_var.fill_(10 * value)
        model.collect()
        seen.append(value)
    drawn = SWAGPosterior(model).draw(torch.Generator().manual_seed(0)).weights
    assert drawn["1.running_mean"].tolist() == pytest.approx([3.0, 3.0])
    assert drawn["1.running_var"].tolist() == pytest.approx([30.0, 30.0])
    assert "1.num_batches_tracked" not in drawn


def test_statistics_measured_again_by_hand() -> None:
    model = cnn_model()
    weights = model.draw(torch.Generator().manual_seed(5))
    found = measure_statistics(model.net, weights, images(300))
    # the first layer's input does not depend on any statistics: its mean over two batches by hand
    x = as_input(images(300))
    with torch.no_grad():
        out = nn.functional.conv2d(x, weights["conv1.weight"], padding=1)
    parts = [out[0::2], out[1::2]]  # at most 256 in each, spread over all images
    mean = sum(part.mean((0, 2, 3)) for part in parts) / 2
    variance = sum(part.transpose(0, 1).flatten(1).var(1) for part in parts) / 2
    torch.testing.assert_close(found["bn1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["bn1.running_var"], variance, rtol=1e-4, atol=1e-5)
    assert len(found) == 6


def test_measuring_changes_nothing_else() -> None:
    model = cnn_model()
    before = copy.deepcopy(model.state_dict())
    posterior = SWAG(bn_images=50).posterior([model], images=images(300))
    assert len(posterior.images) == 50
    draw = posterior.draw(torch.Generator().manual_seed(0))
    x = as_input(images(5))
    assert torch.equal(draw(x), posterior.draw(torch.Generator().manual_seed(0))(x))
    assert not torch.allclose(draw(x), SWAGPosterior(model).draw(torch.Generator().manual_seed(0))(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "images" not in posterior.state_dict()


@pytest.mark.parametrize(("rows", "wanted", "kept"), [(300, 50, 50), (300, 0, 0), (30, 50, 30), (99, 50, 50)])
def test_how_many_images_are_kept(rows: int, wanted: int, kept: int) -> None:
    posterior = SWAG(bn_images=wanted).posterior([cnn_model()], images=images(rows))
    assert (0 if posterior.images is None else len(posterior.images)) == kept


def test_without_batch_normalisation_there_is_nothing_to_measure() -> None:
    model, _ = walk(3)
    assert measure_statistics(model.net, model.draw(torch.Generator()), torch.rand(4, 2)) == {}


def test_channels_last_and_float64_weights() -> None:
    made = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = small_cnn(3, (8, 8, 1), width=4, generator=torch.Generator().manual_seed(0)).to(memory_format=layout)
        model = SWAGModel(net.double().to(memory_format=layout), rank=3)
        for shift in (0.0, 0.1, 0.3):
            with torch.no_grad():
                net.conv2.weight.add_(shift)
            model.collect()
        made.append(model)
    drawn = [model.draw(torch.Generator().manual_seed(1)) for model in made]
    assert drawn[0]["conv2.weight"].dtype == torch.float64
    for name, value in drawn[0].items():
        torch.testing.assert_close(drawn[1][name], value)
