"""Mutual information can detect strange inputs better than entropy.

Five networks learn digits. Then they see parts of photographs and digits upside down, which are new to them.
Entropy is high if the mean prediction is unsure; mutual information is high if the five networks disagree. Here the
second separates both sets better (AUROC: 0.5 is chance, 1 is perfect). This is one ensemble; on other data measure
both.

Topic: Posteriors
Picture: Histograms of entropy and of mutual information for digits, photographs and digits upside down.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

import avuc
from avuc import metrics

pixels, labels = load_digits(return_X_y=True)
pixels, labels = torch.tensor(pixels / 16).float(), torch.tensor(labels)
photographs = torch.stack([torch.tensor(photo) for photo in load_sample_images().images]).float().mean(-1) / 255
pieces = photographs[:, :400:4, :640:4].unfold(1, 8, 8).unfold(2, 8, 8).reshape(-1, 64)
upside_down = pixels[1000:].view(-1, 8, 8).flip(1, 2).reshape(-1, 64)


def trained(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(pixels[:1000]), labels[:1000]).backward()
        optimizer.step()
    return net


ensemble = [trained(seed) for seed in range(5)]
sets = {"digits": pixels[1000:], "photographs": pieces, "upside down": upside_down}
seen = {name: avuc.predict(ensemble, inputs, progress=False) for name, inputs in sets.items()}
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.8), layout="constrained")
for ax, measure, top in zip(axes, ("entropy", "mutual_information"), (1.8, 0.8), strict=True):
    for name, predictions in seen.items():
        values = getattr(predictions, measure)
        ax.hist(values.numpy(), bins=40, range=(0, top), density=True, histtype="step", linewidth=1.8, label=name)
        if name != "digits":
            auroc = metrics.detection(getattr(seen["digits"], measure), values)["auroc"]
            print(f"{measure:19} digits against {name:12} AUROC {auroc:.3f}")
    ax.set(xlabel=f"{measure.replace('_', ' ')} (nats)", ylabel="density", yscale="log")
axes[0].legend()
figure.savefig("ood_detection.svg")
