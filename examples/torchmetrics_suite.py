"""All calibration metrics of a validation loop with torchmetrics. Needs avuc[torchmetrics], and scikit-learn's digits.

python examples/torchmetrics_suite.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from avuc.torchmetrics import AURC, ECE, AvU, CalibrationSuite

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
noisy = images + 0.5 * torch.randn(images.shape)  # the model should notice that these are harder
train = DataLoader(TensorDataset(images[:1000], labels[:1000]), batch_size=50, shuffle=True)
sets = {
    name: DataLoader(TensorDataset(x[1000:], labels[1000:]), 64)
    for name, x in {"clean": images, "noisy": noisy}.items()
}

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
suites = {name: CalibrationSuite(num_classes=10) for name in sets}
# single metrics stand beside torchmetrics' own; those of avuc share one pass over each batch
chosen = MetricCollection(
    {"accuracy": MulticlassAccuracy(10, average="micro"), "ece": ECE(10), "avu": AvU(10), "aurc": AURC(10)}
)

epochs = []
for _ in range(8):
    for x, y in train:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    for name, loader in sets.items():
        suites[name].reset()
        for x, y in loader:
            with torch.no_grad():
                suites[name].update(model(x), y)
    epochs.append(suites["noisy"].compute())

for x, y in sets["noisy"]:
    with torch.no_grad():
        chosen.update(model(x), y)
print("single metrics, noisy:", {name: round(float(value), 3) for name, value in chosen.compute().items()})
print(f"{'':30}{'clean':>8}{'noisy':>8}")
clean, shifted = (suite.compute() for suite in suites.values())
for name in clean:
    print(f"{name:30}{float(clean[name]):8.3f}{float(shifted[name]):8.3f}")
print("ECE on noisy digits by epoch:", [round(float(values["ece"]), 3) for values in epochs])
# suites["noisy"].plot(epochs) draws all of them by epoch
