"""The same on a CUDA device: draws equal to the CPU's, captured steps, recurrent layers, autocast."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from avuc.bayes import to_bayesian
from avuc.nets import resnet20

pytestmark = pytest.mark.gpu


def test_a_cpu_generator_gives_the_same_function_on_both_devices() -> None:
    # float64: in float32 a GPU's convolutions round to ten bits, which 20 layers of noise make visible
    bayesian, x = to_bayesian(resnet20().double()), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    expected = bayesian.draw(torch.Generator().manual_seed(3))(x)
    bayesian.cuda()
    found = bayesian.draw(torch.Generator().manual_seed(3))(x.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)
    twice = [bayesian.draw(torch.Generator("cuda").manual_seed(3)).weights for _ in range(2)]
    assert torch.equal(*twice)


@pytest.mark.parametrize("posterior", ["mean_field", "radial"])
@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_a_captured_step_draws_anew_at_every_replay(posterior: str, estimator: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).cuda()
    bayesian = to_bayesian(net, posterior=posterior, estimator=estimator)
    x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.randint(0, 3, (8,), device="cuda")
    optimiser = torch.optim.Adam(bayesian.parameters(), 1e-2, capturable=True)

    def step() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(bayesian(x), y) + bayesian.kl() / 1000
        loss.backward()
        optimiser.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(60):
        graph.replay()
        losses.append(loss.item())
    assert len(set(losses)) > 50
    assert sum(losses[-10:]) < sum(losses[:10])


def test_a_registered_generator_is_captured() -> None:
    bayesian, x = to_bayesian(nn.Linear(4, 3).cuda()), torch.ones(2, 4, device="cuda")
    bayesian.generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        bayesian(x)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(bayesian.generator)
        with torch.cuda.graph(graph):
            output = bayesian(x)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(output.clone())
    assert not torch.equal(*seen)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_gradients_equal_the_cpu(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    bayesian, x = to_bayesian(nn.Sequential(kind(5, 4, 2, batch_first=True))), torch.randn(3, 6, 5)
    grads = {}
    torch.backends.cudnn.allow_tf32 = False  # ten bits of mantissa would be most of the difference
    for device in ("cpu", "cuda"):
        bayesian.to(device).zero_grad()
        output = bayesian(x.to(device), generator=torch.Generator().manual_seed(1))[0]
        output.square().sum().backward()
        grads[device] = bayesian.mu.grad.cpu().clone(), bayesian.rho.grad.cpu().clone()
    torch.testing.assert_close(grads["cuda"], grads["cpu"], rtol=1e-3, atol=1e-4)
    plain = bayesian.mean_module()
    torch.testing.assert_close(plain(x.cuda())[0], bayesian.run(bayesian.mu, x.cuda())[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_compiled_under_autocast_and_channels_last(estimator: str) -> None:
    net = resnet20().cuda().to(memory_format=torch.channels_last)
    bayesian = to_bayesian(net, estimator=estimator)
    x = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = torch.compile(bayesian)(x)
    (output.float().square().mean() + bayesian.kl() / 1e5).backward()
    assert bayesian.mu.grad.dtype == torch.float32
    assert bayesian.mu.grad.isfinite().all()
    assert bayesian.rho.grad.abs().sum() > 0


def test_kl_on_the_device_equals_the_cpu() -> None:
    bayesian = to_bayesian(resnet20(), prior="moped")
    expected = bayesian.kl().item()
    assert bayesian.cuda().kl().item() == pytest.approx(expected, rel=1e-6)
