"""Two lines add AvUC to any training loop in plain PyTorch.

`AvUCLoss` is added to the cross-entropy, and `epoch_end` tells it that an epoch is over. In the warm-up epochs it
learns which entropy separates right from wrong training predictions; then it pushes right ones below and wrong ones
above it. The picture shows one seed, and the test metrics hardly differ: it is a recipe, not evidence that the loss
helps.

Topic: Train
Picture: Histograms of the entropies of right and wrong test predictions, trained without and with AvUC.
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
pixels += 0.3 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(1))  # hard enough for mistakes
train, test = slice(0, 600), slice(600, None)

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.8), sharey=True)
for ax, beta in zip(axes, (0.0, 3.0), strict=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    avuc_term = avuc.AvUCLoss(beta=beta, variant="monotone", warmup_epochs=5)  # the first line
    for _ in range(25):
        for rows in torch.randperm(600).split(50):
            logits = net(pixels[train][rows])
            loss = nn.functional.cross_entropy(logits, labels[train][rows]) + avuc_term(logits, labels[train][rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        avuc_term.epoch_end()  # the second line
    predictions = Predictions.from_logits(net(pixels[test]).detach(), labels[test])
    avuc.plot.entropy_histogram(predictions, ax=ax)
    ax.set_title(f"cross-entropy + {beta:g} · AvUC" if beta else "cross-entropy")
    values = metrics.evaluate(predictions)
    figures = ", ".join(f"{name} {values[name]:.3f}" for name in ("accuracy", "nll", "ece", "uce", "avu_auc"))
    print(f"beta {beta:g}: {figures}")
figure.savefig("avuc_torch.svg")
