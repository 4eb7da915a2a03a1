"""Train a small Bayesian network on digits with AvUC in a plain torch loop.

python examples/avuc_loss.py
"""

import torch
from torch import nn

import avuc
from avuc import metrics
from avuc.data import load_dataset

digits = load_dataset("mnist5k")
train, held_out = digits.subset(range(0, 4000, 4)), digits.subset(range(1, 4000, 4))
images, labels = train.images.flatten(1).float() / 255, train.labels
held_out_images = held_out.images.flatten(1).float() / 255

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
model = avuc.to_bayesian(network, initial_std=0.05)
avuc_term = avuc.AvUCLoss(beta=1.0, warmup_epochs=3)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)

for _ in range(10):
    for rows in torch.randperm(len(labels)).split(50):
        logits = model(images[rows])
        elbo = avuc.elbo_loss(logits, labels[rows], model.kl(), num_train=len(labels), kl_weight=0.05)
        loss = elbo + avuc_term(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    avuc_term.epoch_end()

print(f"learned threshold: {float(avuc_term.threshold):.3f} nats")
predictions = avuc.predict(model, held_out_images, held_out.labels, samples=32, progress=False)
quadrants = avuc.avuc_quadrants(predictions.probs, predictions.labels, avuc_term.threshold, variant=avuc_term.variant)
print("AC, AU, IC, IU:", ", ".join(f"{value:.1f}" for value in quadrants))
accuracy, ece = (metric(predictions.probs, predictions.labels) for metric in (metrics.accuracy, metrics.ece))
print(f"held-out digits: accuracy {accuracy:.3f}, ECE {ece:.3f}")
