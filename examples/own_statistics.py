"""Batch normalisation and sampled weights: accuracy with running averages, and with statistics of each sample.

python examples/own_statistics.py
"""

import torch
from torch import nn

from avuc import metrics
from avuc.data import load_dataset
from avuc.methods import SVI, Objective
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced
from avuc.prediction import predict
from avuc.train import TrainSettings, fit


def net(generator: torch.Generator) -> nn.Module:
    """Two convolutions, each with batch normalisation."""
    made = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 25, 10),
    )
    for parameter in made.parameters():
        if parameter.dim() > 1:
            fan_in = parameter[0].numel()
            nn.init.normal_(parameter, std=(2 / fan_in) ** 0.5, generator=generator)
    return made


digits = load_dataset("mnist5k")
train, held_out = digits.subset(range(0, 4000, 4)), digits.subset(range(1, 4000, 4))
settings = TrainSettings(
    epochs=8, batch_size=50, learning_rate=3e-3, milestones=(6,), factors=(0.1,), pad=0, flip=False
)
fitted = fit(SVI(initial_std=0.05), net, train, objective=Objective(), settings=settings, progress=False)
print(f"in training, one sample per batch: accuracy {fitted.history[-1]['accuracy']:.3f}")
readings = {
    "running averages": fitted.posterior,
    "statistics of each sample": PerDrawBatchNorm(fitted.posterior, evenly_spaced(train.images, 500)),
}
for name, posterior in readings.items():
    for samples in (1, 32):
        predictions = predict(posterior, held_out.images, held_out.labels, samples=samples, progress=False)
        accuracy = metrics.accuracy(predictions.probs, predictions.labels)
        ece = metrics.ece(predictions.probs, predictions.labels)
        nll = metrics.nll(predictions.probs, predictions.labels)
        print(f"{name}, held-out digits, samples {samples}: accuracy {accuracy:.3f}, ECE {ece:.3f}, NLL {nll:.3f}")
