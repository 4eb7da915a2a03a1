"""A trained network becomes a posterior in one call, and its samples disagree where the data change.

`to_bayesian` puts Gaussian noise on every weight, here 15 % of its size (the MOPED prior), without any training.
Averaging 64 samples changes little on clean digits; on noisy digits the samples disagree, and their mean is less sure
than the single network. It is still far too sure: a posterior alone does not repair a strong shift.

Topic: Posteriors
Picture: Mean confidence and accuracy by noise level, for the network and for the posterior around it.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc import metrics

pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
pixels, labels = torch.tensor(pixels / 16).float()[order], torch.tensor(labels)[order]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(pixels[:1000]), labels[:1000]).backward()
    optimizer.step()

posterior = avuc.to_bayesian(net, prior=avuc.Moped(0.15))
models = {"network": (net, "-"), "posterior": (posterior, "--")}
levels, generator = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], torch.Generator().manual_seed(1)
noise = torch.randn(797, 64, generator=generator)

figure, ax = plt.subplots()
for name, (model, line) in models.items():
    results = [
        avuc.predict(model, pixels[1000:] + level * noise, labels[1000:], samples=64, progress=False)
        for level in levels
    ]
    ax.plot(levels, [float(p.confidence.mean()) for p in results], f"C0{line}", label=f"{name}, mean confidence")
    ax.plot(levels, [metrics.accuracy(p.probs, p.labels) for p in results], f"C1{line}", label=f"{name}, accuracy")
    errors = ", ".join(f"{metrics.ece(p.probs, p.labels):.3f}" for p in results)
    print(f"{name:9} ECE at noise {levels}: {errors}")
ax.set(xlabel="standard deviation of the noise (ink is 0 to 1)", ylim=(0, 1.03))
ax.legend()
figure.savefig("posterior_around_net.svg")
