"""Nineteen corruptions at five severities show how a model fails before it is deployed.

`corrupt` makes the corruptions of Hendrycks & Dietterich for a batch of any size, with the same random numbers for the
same seed. Look at the pictures first: a person should still recognise them. If the model fails where you do not, the
shift is a fair test of it.

Topic: Shifts
Picture: A photograph of a flower, and the same photograph under each of nineteen corruptions such as noise, blur, fog
and snow.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from avuc.shifts import SHIFTS, corrupt

photograph = torch.tensor(load_sample_image("flower.jpg"))[60:380:3, 150:470:3]  # (107, 107, 3), uint8
shown = {"the photograph": photograph}
for name in SHIFTS:
    shown[name] = corrupt(photograph[None], name, 4, seed=0, profile="imagenet")[0]  # a batch of one

figure, axes = plt.subplots(4, 5, figsize=(8.5, 7.2), layout="constrained")
for ax, (name, image) in zip(axes.flat, shown.items(), strict=True):
    ax.imshow(image)
    ax.set_title(name.replace("_", " "), fontsize=9)
    ax.set_axis_off()
    change = (image.float() - photograph.float()).abs().mean()
    print(f"{name:18} mean change of a pixel {change:5.1f} of 255")
figure.savefig("shifts_gallery.svg")
