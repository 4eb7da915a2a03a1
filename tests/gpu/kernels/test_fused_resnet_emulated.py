"""Predictor with the source of the real kernel on an emulated GPU: packing, chunks of samples and sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.gpu import fused_resnet
from avuc.gpu.kernels.resnet_forward import SOURCE, ResNetForward
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets.resnet_cifar import CifarResNet
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor


def net(seed: int) -> CifarResNet:
    generator = torch.Generator().manual_seed(seed)
    made = CifarResNet(1, 10, mean=(0.5, 0.4, 0.5), std=(0.2, 0.3, 0.2), generator=generator)
    made.train()(torch.rand(8, 3, 32, 32, generator=generator))
    return made


MADE: dict[str, Callable[[], Posterior]] = {
    "svi": lambda: to_bayesian(net(0), initial_std=0.05),
    "ensemble": lambda: EnsemblePosterior([DeterministicPosterior(net(seed)) for seed in range(2)]),
}


@pytest.mark.parametrize("kind", MADE)
def test_predictor(kind: str, emulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    class Emulated(ResNetForward):
        @staticmethod
        def unsupported_reason(net: nn.Module, device: torch.device) -> str | None:
            reason = ResNetForward.unsupported_reason(net, device)
            return None if reason == "cpu is no CUDA device" else reason

        def logits(self, images: Tensor, packed: Tensor) -> Tensor:
            launches.append((len(packed), len(images)))
            return self.launch(emulated(SOURCE, self.defines), images, packed)

    monkeypatch.setattr(fused_resnet, "kernel", lambda: Emulated)
    posterior = MADE[kind]()
    images = torch.randint(256, (2, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([1, 2])
    predictor = Predictor(posterior, samples=2, dtype=torch.bfloat16, batch_size=1)
    found = predictor(images, labels)
    assert launches == [(1, 1), (2, 1), (2, 1)]  # the first is a trial
    exact = predict(posterior, images, labels, samples=2, progress=False)
    torch.testing.assert_close(found.probs, exact.probs, rtol=0, atol=0.03)
    torch.testing.assert_close(found.expected_entropy, exact.expected_entropy, rtol=0, atol=0.05)
