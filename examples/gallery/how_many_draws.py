"""The prediction tells you itself whether it has enough posterior samples.

More samples bring the mean closer to its limit, with an error that falls as one over the square root of their number.
`predictions.monte_carlo_error` estimates this error from the samples alone, for the most uncertain class of each
digit. The dashed line is the distance from 1,000 other samples. Stop when the error is small compared with the
differences that you care about.

Topic: Posteriors
Picture: Estimated and true Monte Carlo error of the probabilities by number of samples, both falling along the same
line.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc import metrics

pixels, labels = load_digits(return_X_y=True)
pixels, labels = torch.tensor(pixels / 16).float(), torch.tensor(labels)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(pixels[:1000]), labels[:1000]).backward()
    optimizer.step()
posterior = avuc.to_bayesian(net, prior=avuc.Moped(0.3))


def predict(samples: int, seed: int) -> avuc.Predictions:
    return avuc.predict(posterior, pixels[1000:], labels[1000:], samples=samples, seed=seed, progress=False)


reference = predict(1000, seed=1)
numbers = [2, 4, 8, 16, 32, 64, 128, 256]
estimated, distance = [], []
for samples in numbers:
    p = predict(samples, seed=0)
    estimated.append(p.monte_carlo_error)
    distance.append(float((p.probs - reference.probs).square().amax(-1).mean().sqrt()))
    nll = metrics.nll(p.probs, p.labels)
    print(f"{samples:4} samples: estimated error {estimated[-1]:.4f}, distance {distance[-1]:.4f}, NLL {nll:.3f}")

figure, ax = plt.subplots()
ax.loglog(numbers, estimated, "o-", label="estimated: monte_carlo_error")
ax.loglog(numbers, distance, "s--", label="distance from 1,000 other samples")
ax.set(xlabel="posterior samples", ylabel="error of the probabilities")
ax.legend()
figure.savefig("how_many_draws.svg")
