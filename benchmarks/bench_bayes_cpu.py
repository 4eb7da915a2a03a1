"""A variational ResNet-20 on two CPU cores, compared with bayesian-torch 0.5.0: time of a training step, memory.

    pip install --no-deps bayesian-torch==0.5.0
    python benchmarks/bench_bayes_cpu.py [--threads 2] [--batch 32] [--repeats 9]

Both train the same network on the same batch: cross-entropy + KL / 50,000, forward, backward, Adam. The two take turns
step by step, and the median of the ratios of neighbouring steps is what counts: other load on the machine meets both.
On a busy machine trust the processor time of all threads, which other programs disturb less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from avuc.bayes import Normal, to_bayesian
from avuc.nets import resnet20

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
except ImportError:
    sys.exit("this benchmark measures against bayesian-torch: pip install --no-deps bayesian-torch==0.5.0")

NUM_TRAIN = 50_000
PEER_KIND = {"weight": "Reparameterization", "flipout": "Flipout"}


def ours(net: nn.Module, estimator: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    bayesian = to_bayesian(net, estimator=estimator, prior=Normal(0.0, 1.0))
    return bayesian, bayesian.kl


def peer(net: nn.Module, estimator: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    converted = copy.deepcopy(net)
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(converted, {**settings, "type": PEER_KIND[estimator], "moped_enable": True, "moped_delta": 0.5})
    return converted, lambda: get_kl_loss(converted)


def stepper(module: nn.Module, kl: Callable[[], Tensor], x: Tensor, y: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)

    def step() -> None:
        optimiser.zero_grad()
        (cross_entropy(module(x), y) + kl() / NUM_TRAIN).backward()
        optimiser.step()

    return step


def seconds(step: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - processor


def bytes_kept(module: nn.Module) -> int:
    """Parameters and buffers, also those that are not saved."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    net, x, y = resnet20(), torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))

    print(f"ResNet-20, batch {options.batch}, {options.threads} threads, torch {torch.__version__}")
    print(f"{'':28}{'avuc':>10}{'peer':>10}{'ratio':>8}")
    for estimator in ("weight", "flipout"):
        steps = [stepper(*build(net, estimator), x, y) for build in (ours, peer)]
        for step in steps:
            step()
        seen: tuple[list[tuple[float, float]], ...] = ([], [])
        for repeat in range(options.repeats):
            for index in (0, 1) if repeat % 2 == 0 else (1, 0):
                seen[index].append(seconds(steps[index]))
        for clock, title in enumerate(("wall", "processor")):
            pairs = [(mine[clock], theirs[clock]) for mine, theirs in zip(*seen, strict=True)]
            mine, theirs = (1e3 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
            label = f"{estimator} step, {title} ms"
            print(f"{label:28}{mine:10.1f}{theirs:10.1f}{ratio:8.2f}   (at most 1: {ratio <= 1})")
    for name, prior in (("N(0, 1)", Normal()), ("MOPED", "moped")):
        mine = bytes_kept(to_bayesian(net, prior=prior))
        theirs = bytes_kept(peer(net, "weight")[0])
        label = f"memory, prior {name}, MB"
        print(f"{label:28}{mine / 1e6:10.2f}{theirs / 1e6:10.2f}{mine / theirs:8.2f}")


if __name__ == "__main__":
    main()
