"""A temperature for each label is not always better than one for all.

A network answers four yes-or-no questions about each digit: is it even, large, prime, does it have a loop? Calibration
lowers the NLL of every label. Here the four temperatures are close to each other, so one shared temperature does as
well. Labels that nobody gave are −100 and are left out everywhere. One network, one seed.

Topic: Calibrate
Picture: NLL of four labels as trained, with one shared temperature, and with a temperature for each label.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from avuc import MultiLabelPredictions
from avuc.calibration import MultiLabelCalibrator
from avuc.evaluation import evaluate

NAMES = {"even": {0, 2, 4, 6, 8}, "large": {5, 6, 7, 8, 9}, "prime": {2, 3, 5, 7}, "loop": {0, 6, 8, 9}}
x, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(digits))
x = torch.tensor(x[order] / 16).float()
y = torch.tensor([[int(digit in kind) for kind in NAMES.values()] for digit in digits[order]])
y[torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.1] = -100  # nobody said

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, len(NAMES)))
optimizer, known = torch.optim.Adam(net.parameters(), lr=1e-2), y[:300] != -100
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(net(x[:300])[known], y[:300][known].float()).backward()
    optimizer.step()
logits = net(x).detach()

calibrators = {
    "as trained": None,
    "one temperature": MultiLabelCalibrator(shared=True).fit(logits[300:1000], y[300:1000]),
    "one for each label": MultiLabelCalibrator().fit(logits[300:1000], y[300:1000]),
}
figure, ax = plt.subplots(layout="constrained")
for place, (name, one) in enumerate(calibrators.items()):
    predictions = MultiLabelPredictions.from_logits(logits[1000:], y[1000:], calibrator=one, names=list(NAMES))
    result = evaluate(predictions, replicates=0)
    ax.bar(np.arange(len(NAMES)) + 0.25 * place, result.per_label["nll"], 0.22, label=name)
    print(f"{name:19} mean over labels: NLL {result.macro['nll']:.3f}, ECE {result.macro['ece']:.3f}", end="")
    print("" if one is None else f", T {np.round(one.temperature_, 2)}")
ax.set_xticks(np.arange(len(NAMES)) + 0.25, list(NAMES))
ax.set_ylabel("NLL of the label")
figure.legend(loc="outside upper center", ncols=3)
figure.savefig("multilabel.svg")
