"""Segmentation: which digit does each pixel belong to? Pixels at the edge of the ink are unclear and ignored.

python examples/segmentation.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from avuc import Predictions, TemperatureScaling, metrics

IGNORE = -100  # torch's ignore_index, and the default here


def scenes(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures of four digits (count, 1, 16, 16) and labels (count, 16, 16): 0 for paper, d + 1 for digit d."""
    digits = load_digits()
    some = slice(first, first + 4 * count)
    ink, names = torch.tensor(digits.images[some]).float(), torch.tensor(digits.target[some])
    labels = torch.where(ink >= 8, names[:, None, None] + 1, torch.where(ink <= 3, 0, IGNORE))

    def mosaic(tiles: torch.Tensor) -> torch.Tensor:
        return tiles.reshape(count, 2, 2, 8, 8).permute(0, 1, 3, 2, 4).reshape(count, 16, 16)

    return mosaic(ink)[:, None] / 16, mosaic(labels)


torch.manual_seed(0)
torch.set_num_threads(1)  # fast enough, and steady on a busy machine
(x, y), (held_x, held_y), (test_x, test_y) = scenes(0, 40), scenes(800, 60), scenes(1200, 60)
net = nn.Sequential(
    *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()),
    *(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 11, 1)),
)
optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(40):
    for batch in torch.randperm(len(x)).split(10):
        optimiser.zero_grad()
        cross_entropy(net(x[batch]), y[batch], ignore_index=IGNORE).backward()
        optimiser.step()

net.requires_grad_(False)
calibrator = TemperatureScaling().fit(net(held_x), held_y)  # logits (N, C, H, W), labels (N, H, W)
print(
    f"temperature {calibrator.temperature_:.2f}, ignored {float((test_y == IGNORE).float().mean()):.0%} of the pixels"
)
for name, logits in (("as trained", net(test_x)), ("calibrated", calibrator.transform(net(test_x)))):
    predictions = Predictions.from_logits(logits, test_y)
    values = metrics.evaluate(predictions)
    print(f"{name}: " + ", ".join(f"{key} {values[key]:.3f}" for key in ("accuracy", "nll", "ece", "avu")))

entropy = predictions.to_map(predictions.entropy)  # the shape of the labels; ignored pixels are NaN
print(f"entropy map {tuple(entropy.shape)}, mean of the first picture {float(entropy[0].nanmean()):.3f}")

# a set that does not fit into memory: batch by batch, the same figures
stream = metrics.StreamingMetrics(num_classes=11)
for pictures, labels in zip(test_x.split(10), test_y.split(10), strict=True):
    stream.update(calibrator.transform(net(pictures)).softmax(1), labels)
print(f"streamed: ece {stream.compute()['ece']:.3f} of {len(stream)} pixels")
