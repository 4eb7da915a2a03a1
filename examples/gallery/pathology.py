"""The AvUC loss as printed rewards a mistake for becoming surer.

One wrong and certain prediction adds (1 − p)(1 − tanh u) to the printed loss (Eq. 4 of the paper). Read the curve from
left to right: as the model becomes surer of its mistake, the term first grows and then falls to 0. Beyond the peak,
gradient descent makes the mistake more confident. The variant `monotone` weighs it by p and has no such peak.

Topic: Train
Picture: Weight of a confident mistake by its confidence; the printed one falls near 1, the repaired one rises.
"""

import matplotlib.pyplot as plt
import torch

import avuc

CLASSES, THRESHOLD = 10, 2.4  # every prediction with an entropy below 2.4 nats, here all of them, is certain
confidence = torch.linspace(0.15, 0.999, 400)

figure, ax = plt.subplots()
for variant in ("paper", "monotone"):
    inaccurate_certain = []
    for p in confidence:
        probs = torch.full((1, CLASSES), (1 - float(p)) / (CLASSES - 1))
        probs[0, 0] = p
        quadrants = avuc.avuc_quadrants(probs, torch.tensor([1]), THRESHOLD, variant=variant)  # the label is class 1
        inaccurate_certain.append(float(quadrants.ic))
    values = torch.tensor(inaccurate_certain)
    peak = int(values.argmax())
    ax.plot(confidence, values / values.max(), label=variant)
    print(f"{variant:9} largest at confidence {confidence[peak]:.3f}; at {confidence[-1]:.3f} it is {values[-1]:.3f}")
ax.set(xlabel="confidence p of a wrong prediction", ylabel="its weight / largest weight", ylim=(0, None))
ax.legend()
figure.savefig("pathology.svg")
