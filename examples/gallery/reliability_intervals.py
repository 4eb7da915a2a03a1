"""A reliability diagram without intervals shows noise as if it were a fact.

The same network is judged on 80 and on 1,297 digits. On 80 digits the points jump, and the bands say why: each bin has
few rows. On 1,297 digits the bands are narrow. Read a bin only if its band leaves the diagonal.

Topic: Measure
Picture: Two reliability diagrams of one network; with 80 digits the bands are wide, with 1,297 they are narrow.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc import Predictions, metrics

pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
pixels, labels = torch.tensor(pixels / 16).float()[order], torch.tensor(labels)[order]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(30):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(pixels[:500]), labels[:500]).backward()
    optimizer.step()

with torch.no_grad():
    many = Predictions.from_logits(net(pixels[500:]), labels[500:])
few = Predictions(many.probs[:80], many.labels[:80])

figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained", sharey=True)
for ax, predictions in zip(axes, (few, many), strict=True):
    avuc.plot.reliability(predictions, ax=ax)
    ece = metrics.intervals(predictions, ["ece"])["ece"]
    ax.set_title(f"{len(predictions):,} digits")
    print(f"{len(predictions):5,} digits: ECE {ece.value:.3f}, 95 % interval {ece.low:.3f} to {ece.high:.3f}")
figure.savefig("reliability_intervals.svg")
