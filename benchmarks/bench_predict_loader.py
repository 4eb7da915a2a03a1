"""`predict` over a DataLoader against a plain evaluation loop with the same number of forward passes.

The loop is what people write: evaluation mode, `torch.no_grad`, softmax, mean over the members, one `torch.cat`. It
keeps probabilities only; `predict` also returns expected entropies and the Monte Carlo error, and checks its input.

    python benchmarks/bench_predict_loader.py            about half a minute
    python benchmarks/bench_predict_loader.py --help
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import avuc


def convolutions(seed: int) -> nn.Module:
    """Return a network of another library's kind: nothing in it comes from avuc."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def transformer(seed: int) -> nn.Module:
    """Return a small transformer on 16 patches of the image: no batch normalisation that could be folded."""
    torch.manual_seed(seed)

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 64, 8, stride=8)
            block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
            self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.blocks(self.embed(x).flatten(2).mT).mean(1))
            return logits

    return Patches()


@torch.no_grad()
def loop(nets: list[nn.Module], loader: DataLoader) -> tuple[Tensor, Tensor]:
    """The plain evaluation loop; an ensemble is one loop over its members inside."""
    for net in nets:
        net.eval()
    probs, labels = [], []
    for x, y in loader:
        probs.append(torch.stack([net(x).softmax(-1) for net in nets]).mean(0))
        labels.append(y)
    return torch.cat(probs), torch.cat(labels)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()  # of this process: other programs on the machine do not count
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8_192, help="number of 32×32 colour images (default 8192)")
    parser.add_argument("--batch", type=int, default=128, help="batch size of the loader (default 128)")
    parser.add_argument("--members", type=int, default=4, help="members of the ensemble (default 4)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest is printed (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1: the least noise)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.images, 3, 32, 32, generator=generator)
    y = torch.randint(10, (options.images,), generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_size=options.batch)
    print(f"{options.images} float images, batches of {options.batch}, {torch.get_num_threads()} threads")
    print("network        forward passes    loop s    predict s    predict / loop (target: at most 1.1)")
    for name, make in (("convolutions", convolutions), ("transformer", transformer)):
        for members in (1, options.members):
            nets = [make(seed) for seed in range(members)]
            found = avuc.predict(nets, loader, progress=False)
            expected, labels = loop(nets, loader)
            torch.testing.assert_close(found.probs, expected, rtol=0, atol=1e-5)
            assert torch.equal(found.labels, labels)
            times: dict[str, list[float]] = {"loop": [], "predict": []}
            for _ in range(options.repeats):  # in turns, so that both meet the same machine
                times["loop"].append(seconds(lambda: loop(nets, loader)))  # noqa: B023
                times["predict"].append(seconds(lambda: avuc.predict(nets, loader, progress=False)))  # noqa: B023
            a, b = min(times["loop"]), min(times["predict"])  # noise only adds
            print(f"{name:14} {members:3} × {options.images:<10} {a:8.2f} {b:12.2f} {b / a:12.2f}×")


if __name__ == "__main__":
    main()
