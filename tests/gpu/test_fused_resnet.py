"""FusedResNetBackend: which samples it supports, and that its results are those of the generic backend.

A class in plain torch replaces the kernel, so that the tests run on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from avuc.bayes import to_bayesian
from avuc.data.arrays import as_input
from avuc.gpu import fused_resnet
from avuc.gpu.fused_resnet import FusedResNetBackend
from avuc.gpu.kernels.build import KernelError
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import resnet20, resnet32, small_cnn
from avuc.nets.fold import fold
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor


class PlainKernel:
    """ResNetForward's interface in plain torch, float32."""

    launches: ClassVar[list[tuple[int, int]]] = []
    against: ClassVar[str | None] = None
    packs: ClassVar[int] = 0

    @classmethod
    def unsupported_reason(cls, net: nn.Module, device: torch.device) -> str | None:
        return cls.against

    def __init__(self, net: nn.Module) -> None:
        self.net = fold(net).module
        self.shapes = {name: value.shape for name, value in self.net.named_parameters()}

    def pack(self, weights: Mapping[str, Tensor]) -> Tensor:
        PlainKernel.packs += 1
        return torch.cat([weights[name].reshape(-1) for name in self.shapes])

    def logits(self, images: Tensor, packed: Tensor) -> Tensor:
        if len(images) > 1 or images.any():
            PlainKernel.launches.append((len(packed), len(images)))
        x = as_input(images) if images.dtype == torch.uint8 else images
        sizes = [shape.numel() for shape in self.shapes.values()]
        found = []
        for row in packed:
            named = zip(self.shapes.items(), row.split(sizes), strict=True)
            weights = {name: part.view(shape) for (name, shape), part in named}
            found.append(functional_call(self.net, weights, (x,)))
        return torch.stack(found)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[PlainKernel]:
    monkeypatch.setattr(fused_resnet, "kernel", lambda: PlainKernel)
    monkeypatch.setattr(PlainKernel, "launches", [])
    monkeypatch.setattr(PlainKernel, "against", None)
    monkeypatch.setattr(PlainKernel, "packs", 0)
    return PlainKernel


def pictures(rows: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (rows, 32, 32, 3), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (rows,), generator=generator)


def net(seed: int = 0, make: Callable[..., nn.Module] = resnet20, **options: object) -> nn.Module:
    made = make(10, generator=torch.Generator().manual_seed(seed), **options)
    made.train()(as_input(pictures(16, seed=8)[0]))
    return made


def low(posterior: Posterior, **options: object) -> Predictor:
    return Predictor(posterior, dtype=torch.bfloat16, **options)


@pytest.mark.parametrize("kind", ["svi", "net", "ensemble", "mixture"])
@pytest.mark.parametrize("memory", [1 << 30, 3_000_000, 0])
def test_equals_the_generic_backend(kind: str, memory: int, kernel: type[PlainKernel]) -> None:
    made = {
        "svi": lambda: to_bayesian(net(), initial_std=0.05),
        "net": lambda: DeterministicPosterior(net()),
        "ensemble": lambda: EnsemblePosterior([DeterministicPosterior(net(seed)) for seed in range(2)]),
        "mixture": lambda: EnsemblePosterior([to_bayesian(net(seed), initial_std=0.05) for seed in range(2)]),
    }
    posterior = made[kind]()
    predictor = low(posterior, samples=4, seed=2, batch_size=3, memory=memory)
    for seed in (0, 1):
        images, labels = pictures(seed=seed)
        found = predictor(images, labels)
        plain = predict(posterior, images, labels, samples=4, seed=2)
        torch.testing.assert_close(found.probs, plain.probs, rtol=0, atol=2e-6)
        torch.testing.assert_close(found.expected_entropy, plain.expected_entropy, rtol=0, atol=1e-5)
        assert found.samples == plain.samples
    draws = found.samples
    assert kernel.launches == [(draws, 3), (draws, 2)] * 2
    assert kernel.packs == (draws if memory >= draws * 1_100_000 else 2 * draws)


def test_chunks(kernel: type[PlainKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = to_bayesian(net(), initial_std=0.05)
    images, labels = pictures(3)
    plain = predict(posterior, images, labels, samples=7)
    monkeypatch.setattr("avuc.prediction.backends.backend.SAMPLES_PER_CHUNK", 3)
    predictor = low(posterior, samples=7)
    for _ in range(2):
        torch.testing.assert_close(predictor(images, labels).probs, plain.probs, rtol=0, atol=2e-6)
    assert kernel.launches == [(3, 3), (3, 3), (1, 3)] * 2
    assert kernel.packs == 7
    # more samples than before: the first ones are kept
    more = predictor.logits(images, 9)
    assert kernel.packs == 9
    torch.testing.assert_close(more.softmax(-1)[:7].mean(0), plain.probs, rtol=0, atol=2e-6)
    # logits of a chunk are bounded too
    monkeypatch.setattr("avuc.prediction.backends.backend.CHUNK_NUMBERS_ELSEWHERE", 2 * 10 * 3)
    kernel.launches.clear()
    low(posterior, samples=4, batch_size=3)(images, labels)
    assert kernel.launches == [(2, 3), (2, 3)]


def test_auto_takes_one_sample_at_a_time(kernel: type[PlainKernel]) -> None:
    posterior = to_bayesian(net(), initial_std=0.05)
    images, labels = pictures(3)
    found = low(posterior, samples="auto", tolerance=0.2)(images, labels)
    assert found.samples == predict(posterior, images, labels, samples="auto", tolerance=0.2).samples
    assert {draws for draws, _ in kernel.launches} == {1}


def test_float_images(kernel: type[PlainKernel]) -> None:
    posterior = DeterministicPosterior(net(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.2)))
    images, labels = pictures()
    found = low(posterior)(as_input(images), labels)
    torch.testing.assert_close(found.probs, predict(posterior, images, labels).probs, rtol=0, atol=2e-6)
    assert kernel.launches == [(1, 5)]


def test_what_it_does_not_support(kernel: type[PlainKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = pictures()
    other = small_cnn(10, (32, 32, 3), generator=torch.Generator().manual_seed(0))
    hooked = net()
    hooked.layer1.register_forward_hook(lambda module, args, output: output * 2)
    patched = net()
    patched.conv1.forward = patched.conv1.forward
    posterior = to_bayesian(net())
    predict(posterior, images, samples=2, progress=False)
    for options in ({"compiled": False}, {"fold_batch_norm": False}):
        low(posterior, samples=2, **options)(images, labels)
    for different in (other, hooked, patched):
        low(DeterministicPosterior(different))(images, labels)
    low(to_bayesian(net(), layers="last"), samples=3)(images, labels)  # which has a faster backend
    small = torch.randint(256, (4, 16, 16, 3), dtype=torch.uint8)
    predictor = low(posterior, samples=2)
    predictor(small)
    assert kernel.launches == []
    predictor(images)
    assert kernel.launches == [(2, 5)]
    monkeypatch.setattr(PlainKernel, "against", "no")
    low(posterior, samples=2)(images, labels)
    assert kernel.launches == [(2, 5)]


def test_members_of_other_architectures_use_the_generic_backend(kernel: type[PlainKernel]) -> None:
    nets = [net(0), net(1, resnet32), net(2)]
    posterior = EnsemblePosterior([DeterministicPosterior(one) for one in nets])
    images, labels = pictures()
    found = low(posterior)(images, labels)
    assert found.samples == 3
    torch.testing.assert_close(found.probs, predict(posterior, images, labels).probs, rtol=0, atol=0.05)
    # other constants before the first layer are another net, too
    nets = [net(0), net(1, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))]
    posterior = EnsemblePosterior([DeterministicPosterior(one) for one in nets])
    torch.testing.assert_close(
        low(posterior)(images, labels).probs, predict(posterior, images, labels).probs, rtol=0, atol=0.05
    )
    assert all(draws == 1 for draws, _ in kernel.launches)


def test_a_kernel_that_does_not_compile(kernel: type[PlainKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PlainKernel, images: Tensor, packed: Tensor) -> Tensor:
        raise KernelError("no such instruction")

    monkeypatch.setattr(PlainKernel, "logits", broken)
    posterior = DeterministicPosterior(net())
    images, labels = pictures()
    with pytest.warns(RuntimeWarning, match="without its kernel: no such instruction"):
        found = low(posterior)(images, labels)
    torch.testing.assert_close(found.probs, predict(posterior, images, labels).probs, rtol=0, atol=0.05)


def test_nothing_of_it_on_a_cpu() -> None:
    predictor = low(DeterministicPosterior(net()))
    predictor(*pictures())
    assert predictor._runner.special is None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["svi", "net"])
def test_on_a_gpu(kind: str) -> None:
    trained = net()
    posterior = (to_bayesian(trained, initial_std=0.02) if kind == "svi" else DeterministicPosterior(trained)).cuda()
    predictor = Predictor(posterior, samples=24, dtype=torch.bfloat16)
    for seed in (0, 1):
        images, labels = pictures(700, seed=seed)
        found = predictor(images, labels)
        assert isinstance(predictor._runner.special, FusedResNetBackend)
        assert not predictor._runner.generic
        exact = predict(posterior, images, labels, samples=24, compiled=False, progress=False)
        assert (found.probs - exact.probs).abs().max() < 0.05
        assert (found.probs - exact.probs).abs().mean() < 0.003
        assert (found.probs.argmax(1) == exact.probs.argmax(1)).float().mean() > 0.98
        torch.testing.assert_close(found.expected_entropy, exact.expected_entropy, rtol=0, atol=0.1)
        again = predict(posterior, images, labels, samples=24, dtype=torch.bfloat16, progress=False)
        assert torch.equal(again.probs, found.probs)


@pytest.mark.gpu
def test_last_layer_on_a_gpu() -> None:
    posterior = to_bayesian(net(), layers="last", initial_std=0.05).cuda()
    images, labels = pictures(300)
    exact = predict(posterior, images, labels, samples=20, progress=False)
    low_found = Predictor(posterior, samples=20, dtype=torch.bfloat16)(images, labels)
    assert (low_found.probs - exact.probs).abs().max() < 0.05
