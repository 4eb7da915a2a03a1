"""Forward and backward pass of the AvUC loss, compared with cross-entropy and with other implementations of AvUC.

    python benchmarks/bench_losses.py [--device cuda] [--threads 1]

All four on the same logits in one run, taking turns, median of the repeats. "vectorised" is Eq. 3–4 written in plain
torch operations under autograd; "loop" visits the samples one by one, as the authors' released code does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import avuc.losses


def vectorised(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    probs = F.softmax(logits, dim=-1)
    confidence, predicted = probs.max(dim=-1)
    u = -(probs * torch.log(probs + 1e-10)).sum(dim=-1)
    right, certain, scaled = predicted == labels, u <= threshold, torch.tanh(u)
    ac = (confidence * (1 - scaled))[right & certain].sum()
    au = (confidence * scaled)[right & ~certain].sum()
    ic = ((1 - confidence) * (1 - scaled))[~right & certain].sum()
    iu = ((1 - confidence) * scaled)[~right & ~certain].sum()
    return torch.log(1 + (au + ic) / (ac + iu + 1e-10))


def loop(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    probs = F.softmax(logits, dim=-1)
    confidence, predicted = probs.max(dim=-1)
    u = -(probs * torch.log(probs + 1e-10)).sum(dim=-1)
    ac = au = ic = iu = torch.zeros((), device=logits.device)
    for i in range(len(labels)):
        if predicted[i] == labels[i]:
            if u[i] <= threshold:
                ac = ac + confidence[i] * (1 - torch.tanh(u[i]))
            else:
                au = au + confidence[i] * torch.tanh(u[i])
        elif u[i] <= threshold:
            ic = ic + (1 - confidence[i]) * (1 - torch.tanh(u[i]))
        else:
            iu = iu + (1 - confidence[i]) * torch.tanh(u[i])
    return torch.log(1 + (au + ic) / (ac + iu + 1e-10))


def ours(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    return avuc.losses.avuc_loss(logits, labels, threshold, variant="paper")


def cross_entropy(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    return F.cross_entropy(logits, labels)


def once(loss: Callable[[Tensor, Tensor, float], Tensor], logits: Tensor, labels: Tensor, threshold: float) -> float:
    logits.grad = None
    if logits.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    loss(logits, labels, threshold).backward()
    if logits.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(rows: int, classes: int, device: str, seconds: float) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    # half of the answers right, as in the middle of training
    labels = torch.where(torch.rand(rows, generator=generator) < 0.5, logits.argmax(-1), torch.arange(rows) % classes)
    logits, labels = logits.to(device).requires_grad_(), labels.to(device)
    with torch.no_grad():
        probs = logits.softmax(-1)
        u = torch.special.entr(probs).sum(-1)
        threshold = float(u.mean())
        values = {f.__name__: float(f(logits, labels, threshold)) for f in (ours, vectorised, loop)}
    assert max(values.values()) - min(values.values()) < 1e-4, values
    contestants = (cross_entropy, ours, vectorised, loop)
    times: dict[str, list[float]] = {f.__name__: [] for f in contestants}
    for f in contestants:
        once(f, logits, labels, threshold)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["loop"]) < 3:
        for f in contestants:
            for _ in range(1 if f is loop else 10):
                times[f.__name__].append(once(f, logits, labels, threshold))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=15.0, help="per shape")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"forward + backward, {args.device}, torch {torch.__version__}, {args.threads} threads, median ms")
    for rows, classes in ((128, 10), (4096, 1000)):
        ms = {name: 1e3 * value for name, value in compare(rows, classes, args.device, args.seconds).items()}
        print(
            f"({rows}, {classes}): cross-entropy {ms['cross_entropy']:.3f}  avuc_loss {ms['ours']:.3f}  "
            f"vectorised {ms['vectorised']:.3f}  loop {ms['loop']:.1f}  |  avuc_loss is "
            f"{ms['ours'] / ms['cross_entropy']:.2f}x cross-entropy, {ms['vectorised'] / ms['ours']:.1f}x faster than "
            f"vectorised, {ms['loop'] / ms['ours']:.0f}x faster than the loop"
        )


if __name__ == "__main__":
    main()
