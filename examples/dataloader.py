"""Uncertainty of networks that avuc did not train: a DataLoader of normalised images, any nn.Module, an ensemble."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import avuc
from avuc.calibration import TemperatureScaling

# What a timm pipeline gives: float images (N, C, H, W), normalised by mean and standard deviation, in a DataLoader.
digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images, labels = torch.tensor(digits.images, dtype=torch.float32)[order, None], torch.tensor(digits.target)[order]
images = (images - images[:900].mean()) / images[:900].std()
train, held_out, test = (
    TensorDataset(images[part], labels[part]) for part in (slice(900), slice(900, 1300), slice(1300, None))
)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 36, 10)
    )


def trained(seed: int) -> nn.Module:
    net = network(seed)
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(4):
        for x, y in DataLoader(train, batch_size=64, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
    return net


nets = [trained(seed) for seed in range(3)]
loader = DataLoader(test, batch_size=128)

one = avuc.predict(nets[0], loader)  # a plain network; the labels come from the loader
many = avuc.predict(nets, loader)  # a list of networks is an ensemble

# A calibrator is fitted on the logits of held-out data, and acts on each member.
predictor = avuc.Predictor(nets)
calibrator = TemperatureScaling().fit(*predictor.labelled_logits(DataLoader(held_out, batch_size=128)))
calibrated = predictor(loader, calibrator=calibrator)

for name, predictions in (("one network", one), ("ensemble", many), ("calibrated ensemble", calibrated)):
    figures = avuc.metrics.evaluate(predictions)
    print(f"{name:20} accuracy {figures['accuracy']:.3f}  nll {figures['nll']:.3f}  ece {figures['ece']:.3f}")
wrong = ~many.correct
print(f"entropy: right {many.entropy[~wrong].mean():.3f}, wrong {many.entropy[wrong].mean():.3f} nats")
