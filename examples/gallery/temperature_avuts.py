"""Temperature scaling and AvU temperature scaling calibrate different things.

Temperature scaling takes the T of the largest likelihood. AvUTS adds the AvUC loss, which looks at the entropy, so use
it if you read uncertainties (UCE). Each line is one of eight networks, trained on 50 to 400 digits for 20 or
200 steps; both calibrators are fitted on 400 digits and judged on 997 others. Look at the spread: neither wins
everywhere. We first tried one network, on which temperature scaling was better in both.

Topic: Calibrate
Picture: ECE and UCE of eight networks as trained, after temperature scaling and after AvUTS, one line per network.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc import Predictions, metrics

pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
pixels, labels = torch.tensor(pixels / 16).float()[order], torch.tensor(labels)[order]
held_out, test = slice(400, 800), slice(800, None)


def logits_of_network(rows: int, steps: int) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(pixels[:rows]), labels[:rows]).backward()
        optimizer.step()
    return net(pixels).detach()


calibrators = {"as trained": None, "temperature": avuc.TemperatureScaling(), "AvUTS": avuc.AvUTemperatureScaling()}
found = np.zeros((8, 3, 2))  # networks, calibrators, ECE and UCE
for network, (rows, steps) in enumerate((rows, steps) for rows in (50, 100, 200, 400) for steps in (20, 200)):
    logits = logits_of_network(rows, steps)
    for place, calibrator in enumerate(calibrators.values()):
        if calibrator:
            calibrator.fit(logits[held_out], labels[held_out])
        p = Predictions.from_logits(logits[test], labels[test], calibrator=calibrator)
        found[network, place] = metrics.ece(p.probs, p.labels), metrics.uce(p.probs, p.labels)

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.8), layout="constrained")
for ax, name, values in zip(axes, ("ECE", "UCE"), found.transpose(2, 1, 0), strict=True):
    ax.plot(list(calibrators), values, "o-", color="C0", alpha=0.4, linewidth=1)
    ax.plot(list(calibrators), values.mean(1), "s-", color="C1", linewidth=2.5, label="mean of the eight")
    ax.set(ylabel=name, ylim=(0, None))
    print(name, {key: round(float(mean), 3) for key, mean in zip(calibrators, values.mean(1), strict=True)}, end=" ")
    print(f"AvUTS is lower than temperature scaling on {(values[2] < values[1]).sum()} of 8 networks")
axes[0].legend()
figure.savefig("temperature_avuts.svg")
