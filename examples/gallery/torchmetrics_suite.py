"""Watch calibration during training: accuracy settles early, but the calibration of noisy digits keeps getting worse.

`CalibrationSuite` is one torchmetrics metric with fifteen values, and is updated batch by batch like any other.
Accuracy on noisy digits stops improving after a few epochs, but the network becomes surer with each epoch, so NLL and
ECE rise. Early stopping on accuracy would miss this. One run with one seed is shown.

Topic: Measure
Picture: Accuracy, NLL and ECE by epoch on clean and on noisy digits; ECE of noisy digits rises while accuracy stays.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from avuc.torchmetrics import CalibrationSuite

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
pixels, labels = torch.tensor(pixels / 16).float(), torch.tensor(labels)
noisy = pixels + 0.5 * torch.randn(pixels.shape)
train = DataLoader(TensorDataset(pixels[:1000], labels[:1000]), batch_size=50, shuffle=True)
sets = {"clean": pixels, "noisy": noisy}
loaders = {name: DataLoader(TensorDataset(x[1000:], labels[1000:]), 200) for name, x in sets.items()}

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
suite = CalibrationSuite(num_classes=10)
history = {name: [] for name in loaders}
for _ in range(20):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, loader in loaders.items():
        suite.reset()
        for x, y in loader:
            suite.update(model(x).detach(), y)
        history[name].append({key: float(value) for key, value in suite.compute().items()})

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for ax, key in zip(axes, ("accuracy", "nll", "ece"), strict=True):
    for name, epochs in history.items():
        ax.plot(range(1, 21), [values[key] for values in epochs], label=name)
        print(f"{key:8} {name}: epoch 5 {epochs[4][key]:.3f}, epoch 20 {epochs[-1][key]:.3f}")
    ax.set(title=key, xlabel="epoch", ylim=(0, None))
axes[0].legend()
figure.savefig("torchmetrics_suite.svg")
