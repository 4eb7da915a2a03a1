"""Several yes-or-no labels for each picture: is this digit even, large, prime, does it have a loop?

python examples/multilabel.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from avuc import MultiLabelPredictions
from avuc.calibration import MultiLabelCalibrator, check_calibrator
from avuc.evaluation import evaluate

NAMES = {"even": {0, 2, 4, 6, 8}, "large": {5, 6, 7, 8, 9}, "prime": {2, 3, 5, 7}, "loop": {0, 6, 8, 9}}

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x = torch.tensor(digits.data[order] / 16).float()
y = torch.tensor([[int(digit in kind) for kind in NAMES.values()] for digit in digits.target[order]])
y[torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < 0.1] = -100  # nobody said; left out everywhere
train, held_out, test = slice(0, 500), slice(500, 1100), slice(1100, None)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, len(NAMES)))
optimiser, known = torch.optim.Adam(net.parameters(), lr=1e-2), y[train] != -100
for _ in range(100):
    optimiser.zero_grad()
    binary_cross_entropy_with_logits(net(x[train])[known], y[train][known].float()).backward()
    optimiser.step()

net.requires_grad_(False)
logits = net(x)
calibrator = MultiLabelCalibrator().fit(logits[held_out], y[held_out])  # a temperature for each label
shared = MultiLabelCalibrator(shared=True).fit(logits[held_out], y[held_out])
print("temperatures", dict(zip(NAMES, calibrator.temperature_.round(2).tolist(), strict=True)))
print(f"shared temperature {shared.temperature_[0]:.2f}")
print("worse than no calibrator:", check_calibrator(calibrator, logits[held_out], y[held_out]).worse)
for name, one in (("as trained", None), ("calibrated", calibrator)):
    predictions = MultiLabelPredictions.from_logits(logits[test], y[test], calibrator=one, names=list(NAMES))
    result = evaluate(predictions, replicates=0)
    print(
        f"{name}: all {result.n} decisions: nll {result.metrics['nll']:.3f}, ece {result.metrics['ece']:.3f}; "
        f"mean over labels: nll {result.macro['nll']:.3f}, ece {result.macro['ece']:.3f}"
    )
    print("   nll of each label", np.round(result.per_label["nll"], 3).tolist())
