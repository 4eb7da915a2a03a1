"""`calibrate` fits what the calibrator would fit on the module's logits, and leaves the module alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import avuc
from avuc.calibration import CALIBRATORS, TemperatureScaling
from avuc.core.errors import InputError, MissingExtra
from avuc.lightning import calibrate


def digits(rows: slice) -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[rows] / 16).float(), torch.from_numpy(labels[rows]).long()


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(64, 10)
        self.net = nn.Sequential(layer, nn.Dropout(0.5))
        x, y = digits(slice(300, 600))
        means = torch.stack([x[y == k].mean(dim=0) for k in range(10)])
        with torch.no_grad():  # the nearest mean image, with too much confidence
            layer.weight.copy_(8 * means)
            layer.bias.copy_(-4 * means.square().sum(dim=1))

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.net(x)}


def data(labelled: bool = True) -> DataLoader:
    x, y = digits(slice(300))
    return DataLoader(TensorDataset(x, y) if labelled else TensorDataset(x), batch_size=70)


@pytest.mark.parametrize("method", ["temperature", "vector", "auavuts"])
def test_it_is_the_calibrator_of_the_logits(method: str) -> None:
    module, loader = Module(), data()
    module.train()
    found = calibrate(module, loader, method)
    assert module.training
    x, y = loader.dataset.tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = module.net.eval()(x)
    expected = CALIBRATORS[method]().fit(logits, y)
    torch.testing.assert_close(found.transform(logits), expected.transform(logits), rtol=1e-4, atol=1e-4)


def test_it_lowers_the_loss_in_predict() -> None:
    module, loader = Module(), data()
    calibrator = calibrate(module, loader)
    before, after = (avuc.predict(module, loader, calibrator=c, progress=False) for c in (None, calibrator))
    nll = [avuc.metrics.nll(predictions.probs, predictions.labels) for predictions in (before, after)]
    assert nll[1] < nll[0]


def test_a_bayesian_part_is_sampled() -> None:
    class Bayesian(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = avuc.to_bayesian(Module().net, initial_std=0.3)

    module, loader = Bayesian(), data()
    found = calibrate(module.net, loader, samples=4, seed=3)
    draws = avuc.Predictor(module.net, samples=4, seed=3).logits(loader)
    assert draws.shape == (4, 300, 10)
    expected = TemperatureScaling().fit(draws, loader.dataset.tensors[1])  # type: ignore[attr-defined]
    assert isinstance(found, TemperatureScaling)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    # the module itself would draw new weights for each batch
    with pytest.raises(InputError, match=r"Bayesian has a posterior inside, 'net', .*: pass model\.net"):
        calibrate(module, loader)


def test_other_batches_and_outputs_by_functions() -> None:
    module = Module()
    options: dict[str, Any] = {"inputs": lambda batch: (batch[0], batch[1]), "logits": lambda output: output["logits"]}
    found, expected = calibrate(module, data(), **options), calibrate(module, data())
    assert found.temperature_ == expected.temperature_  # type: ignore[attr-defined]


def test_what_cannot_be_calibrated_is_named() -> None:
    with pytest.raises(
        InputError, match="temperature, cautious, avuts, auavuts, vector, smoothed, ets, isotonic, histogram, matrix"
    ):
        calibrate(Module(), data(), "platt")
    with pytest.raises(InputError, match="label"):
        calibrate(Module(), data(labelled=False))


def test_without_lightning_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("avuc.lightning")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingExtra, match=r"pip install 'avuc\[lightning\]'") as caught:
        __import__("avuc.lightning")
    assert "\n" not in str(caught.value)
