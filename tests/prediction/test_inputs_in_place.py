"""Networks that change their input in place: the data stay as they are, and every sample gets them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import avuc
from avuc.data.tensors import TensorData
from avuc.deploy import as_module
from avuc.methods import SVI, SWAG, Dropout, LLDropout, Vanilla
from avuc.methods.batch_norm import PerDrawBatchNorm
from avuc.posterior import seeded_generator
from avuc.train import TrainSettings, fit


class Normalises(nn.Module):
    """Subtracts the mean in place before its layers, as many networks do."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(1).mul_(2) if self.in_place else (x - 1) * 2
        return self.layers(x)


def posterior(kind: str, in_place: bool) -> Any:
    net = Normalises(in_place)
    if kind == "net":
        return net
    if kind == "ensemble":
        return [net, net, net]
    if kind in ("dropout", "ll_dropout"):
        method = Dropout(0.3) if kind == "dropout" else LLDropout(0.3)
        return method.posterior([method.build(net)])
    return avuc.to_bayesian(net, layers="last" if kind == "last" else "all")


KINDS = ["net", "ensemble", "bayes", "last", "dropout", "ll_dropout"]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_a_network_that_copies(kind: str, size: int | None, inference: bool) -> None:
    x = torch.rand(10, 4, generator=torch.Generator().manual_seed(0))
    expected = avuc.predict(posterior(kind, False), x.clone(), samples=4, batch_size=size, progress=False)
    predictor = avuc.Predictor(posterior(kind, True), samples=4, batch_size=size)
    given, array = x.clone(), x.clone().numpy()
    with torch.inference_mode(inference):
        for data in (given, given, array, {"x": given}, DataLoader(TensorDataset(given), batch_size=3)):
            torch.testing.assert_close(predictor(data).probs, expected.probs)
            assert torch.equal(given, x)
            assert (array == x.numpy()).all()


def test_validation_data_stay() -> None:
    x, y = torch.rand(20, 4), torch.arange(20) % 3
    before = x.clone()
    settings = TrainSettings(epochs=3, batch_size=10, milestones=(), factors=())
    fitted = fit(Vanilla(), Normalises(True), (x, y), validation=(x, y), settings=settings, progress=False)
    same = fit(Vanilla(), Normalises(False), (x, y), validation=(x, y), settings=settings, progress=False)
    assert torch.equal(x, before)
    for one, other in zip(fitted.history, same.history, strict=True):
        assert one["validation_nll"] == pytest.approx(other["validation_nll"], rel=1e-5)


@pytest.mark.parametrize("kind", ["ensemble", "bayes"])
def test_a_deployed_module_gives_each_sample_the_same_input(kind: str) -> None:
    x = torch.rand(5, 4)
    expected = as_module(posterior(kind, False), samples=3)(x.clone())
    torch.testing.assert_close(as_module(posterior(kind, True), samples=3)(x.clone()), expected)


class Batched(Normalises):
    """The same with batch normalisation, whose statistics are measured again for each sample."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(in_place)
        self.layers.insert(1, nn.BatchNorm1d(6))


@pytest.mark.parametrize("kind", ["bayes", "swag"])
def test_images_for_statistics_stay(kind: str) -> None:
    """Each sample measured on images that the one before it had changed, and these were the user's."""
    x, outputs = torch.rand(20, 4), []
    before = x.clone()
    for in_place in (False, True):
        torch.manual_seed(0)
        if kind == "bayes":
            statistics: Any = PerDrawBatchNorm(avuc.to_bayesian(Batched(in_place)), x)
        else:
            method = SWAG(start=0.0)
            model = method.build(Batched(in_place))
            for epoch in range(2):
                method.epoch_end(model, epoch, 2)
            statistics = method.posterior([model], images=x)
        samples = [statistics.draw(seeded_generator(0, index)) for index in (0, 1, 0)]
        outputs.append([sample(before[:3].clone()) for sample in samples])
    torch.testing.assert_close(outputs[1], outputs[0])
    assert torch.equal(x, before)


def test_training_data_stay() -> None:
    data = TensorData(torch.rand(20, 4), torch.arange(20) % 3, 3)
    before = data.inputs.clone()
    settings = TrainSettings(epochs=1, batch_size=32, milestones=(), factors=())
    fit(SVI(), lambda _: Batched(True), data, settings=settings, progress=False)
    assert torch.equal(data.inputs, before)


def test_samples_of_one_call_get_the_same_input() -> None:
    x, outputs = torch.rand(5, 4), []
    for in_place in (False, True):
        bayesian = posterior("bayes", in_place).eval()
        with torch.no_grad():
            outputs.append(bayesian(x.clone(), samples=3, generator=seeded_generator(0)))
    torch.testing.assert_close(outputs[1], outputs[0])
