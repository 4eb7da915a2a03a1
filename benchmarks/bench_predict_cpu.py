"""`predict` on a CPU against one pass over all images at once, which is the plain loop, and against bayesian-torch.

    pip install --no-deps bayesian-torch==0.5.0          # optional: its column is empty without it
    python benchmarks/bench_predict_cpu.py               # one minute
    python benchmarks/bench_predict_cpu.py --help

`predict` chooses the size of its batches. On a CPU they are small, so that the activations of a convolution stay in the
cache; a network without convolutions has nothing to win. The plain loop is `net(images).softmax(-1)` in evaluation mode
without gradients. The posterior of avuc and that of bayesian-torch are made from the same network, take the same number
of samples, and each sample is one pass over all images in bayesian-torch. Times are of the process, not of the clock.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

import avuc
from avuc.nets import resnet20

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn
except ImportError:
    dnn_to_bnn = None


def small_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10))


NETS: dict[str, Callable[[], nn.Module]] = {"small CNN": small_cnn, "ResNet-20": resnet20, "MLP": mlp}


@torch.no_grad()
def at_once(net: nn.Module, images: Tensor, samples: int = 1) -> Tensor:
    """The plain loop: each pass takes all images."""
    total = torch.zeros(())
    for _ in range(samples):
        total = total + net(images).softmax(-1)
    return total / samples


def peer(net: nn.Module) -> nn.Module:
    """Return the network as bayesian-torch converts it, in evaluation mode."""
    converted = copy.deepcopy(net)
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(converted, {**settings, "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.5})
    return converted.eval()


def fastest(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the processor seconds of the fastest run of each; they take turns, so that all meet the same machine."""
    seconds = {name: float("inf") for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - start)
    return seconds


def line(name: str, seconds: dict[str, float]) -> str:
    ours = seconds["avuc"]
    columns = [f"{seconds[key]:8.2f} {seconds[key] / ours:6.2f}×" if key in seconds else " " * 16 for key in OTHERS]
    return f"{name:26}{ours:8.2f}  {'  '.join(columns)}"


OTHERS = ("at once", "peer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2_000, help="number of 32×32 colour images (default 2000)")
    parser.add_argument("--samples", type=int, default=4, help="posterior samples (default 4)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest is printed (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1: the least noise)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.randn(options.images, 3, 32, 32)

    print(f"{options.images} float images, {options.threads} threads, torch {torch.__version__}; seconds, × predict")
    print(f"{'':26}{'predict':>8}  {'all at once':>16}  {'bayesian-torch':>16}")
    for name, make in NETS.items():
        net = make().eval()
        found = avuc.predict(net, images, progress=False).probs
        torch.testing.assert_close(found, at_once(net, images), rtol=0, atol=1e-5)
        works: dict[str, Callable[[], object]] = {
            "avuc": lambda: avuc.predict(net, images, progress=False),  # noqa: B023
            "at once": lambda: at_once(net, images),  # noqa: B023
        }
        print(line(f"{name}, plain", fastest(works, options.repeats)), flush=True)
        posterior = avuc.to_bayesian(net).eval()
        works = {
            "avuc": lambda: avuc.predict(posterior, images, samples=options.samples, progress=False),  # noqa: B023
            "at once": lambda: at_once(posterior, images, options.samples),  # noqa: B023
        }
        if dnn_to_bnn is not None:
            converted = peer(net)
            works["peer"] = lambda: at_once(converted, images, options.samples)  # noqa: B023
        print(line(f"{name}, {options.samples} samples", fastest(works, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
