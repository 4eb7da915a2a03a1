"""Two lines add AvUC to any training loop in plain PyTorch.

`AvUCLoss` is added to the cross-entropy, and `epoch_end` tells it that an epoch is over. In the warm-up epochs it
learns which entropy separates right from wrong training predictions; then it pushes right ones below it and wrong ones
above. Whether that helps depends on the data, so compare pairs of seeds: on these noisy digits NLL falls a little, and
UCE rises a little. We tried five settings, and the effect was small in all of them.

Topic: Train
Picture: NLL, ECE and UCE of five seeds without and with AvUC, one line per seed; NLL falls slightly, UCE rises.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc import metrics

pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
pixels, labels = pixels[order].float() / 16, labels[order]
pixels += 0.3 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(1))  # hard enough for mistakes
x, y = pixels[:600], labels[:600]


def evaluate_network(beta: float, seed: int) -> list[float]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    avuc_term = avuc.AvUCLoss(beta=beta, variant="monotone", warmup_epochs=5)  # the first line
    for _ in range(20):
        for rows in torch.randperm(600).split(100):
            logits = net(x[rows])
            loss = nn.functional.cross_entropy(logits, y[rows]) + avuc_term(logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        avuc_term.epoch_end()  # the second line
    values = metrics.evaluate(net(pixels[600:]).softmax(-1).detach(), labels[600:])
    return [values[name] for name in ("nll", "ece", "uce")]


found = np.array([[evaluate_network(beta, seed) for beta in (0.0, 3.0)] for seed in range(5)])  # seeds, beta, metrics
figure, axes = plt.subplots(1, 3, figsize=(8.5, 3.4), layout="constrained")
for ax, name, values in zip(axes, ("NLL", "ECE", "UCE"), found.transpose(2, 1, 0), strict=True):
    ax.plot(["without", "with AvUC"], values, "o-", color="C0", alpha=0.6)
    ax.set(title=name, ylim=(0, None), xlim=(-0.3, 1.3))
    change = values[1] - values[0]
    half = 2.776 * change.std(ddof=1) / 5**0.5  # Student's t, five pairs
    print(f"{name}: {values[0].mean():.3f} without, {values[1].mean():.3f} with AvUC, ", end="")
    print(f"change {change.mean():+.3f}, 95 % interval {change.mean() - half:+.3f} to {change.mean() + half:+.3f}")
figure.savefig("avuc_torch.svg")
