"""A conformal guarantee is lost when the data shift, and the check says so.

The sets are fitted on clean digits for a coverage of 90 %. On new clean digits the coverage lies inside its 95 %
interval (grey). With less contrast it falls far below the interval: pale digits are not like those of the fit. Under
shift, the guarantee holds only after a new fit on rows like the new ones. Contrast was chosen because it shows the
effect: with `gaussian_noise` the coverage fell only to 0.86.

Topic: Select and guarantee
Picture: Coverage of conformal sets by loss of contrast, falling below the grey interval of the guarantee.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from avuc.conformal import ConformalClassifier
from avuc.shifts import corrupt

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = torch.tensor(digits.images * 255 / 16).round().to(torch.uint8)[order, :, :, None]  # (N, H, W, C)
labels = torch.tensor(digits.target)[order]


def flat(some: torch.Tensor) -> torch.Tensor:
    return some.flatten(1).float() / 255


model = LogisticRegression(max_iter=1000).fit(flat(images[:400]), labels[:400])
conformal = ConformalClassifier("threshold", coverage=0.9)
conformal.fit(model.predict_proba(flat(images[400:1000])), labels[400:1000])

checks = []
for severity in range(6):
    shifted = corrupt(images[1000:], "contrast", severity, seed=0) if severity else images[1000:]
    checks.append(conformal.check(model.predict_proba(flat(shifted)), labels[1000:]))
    print(f"severity {severity}: coverage {checks[-1].coverage:.3f}, drift {checks[-1].drift}")

figure, ax = plt.subplots()
ax.axhspan(checks[0].low, checks[0].high, color="C4", alpha=0.15, label="95 % interval without drift")
ax.axhline(0.9, color="C4", linestyle=":")
ax.plot([check.coverage for check in checks], "o-", label="coverage")
ax.set(xlabel="severity of contrast (0: clean)", ylabel="share of sets with the true digit", ylim=(0, 1))
ax.legend()
figure.savefig("conformal_shift.svg")
