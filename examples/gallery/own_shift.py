"""Your own shift is one function, and everything that tests shifts can use it.

A shift takes a batch of uint8 images (N, H, W, C), a severity from 1 to 5 and a generator, and returns a batch of the
same shape. Random numbers from `streams` belong to an image, so the result does not depend on how the images are
batched. In `SHIFTS` it gets a name for `corrupt`, recipes and studies.

Topic: Extend
Picture: A photograph of a Chinese temple with more and more dead rows of the sensor, from severity 1 to 5.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from avuc.shifts import SHIFTS, corrupt, streams


def dead_rows(images: torch.Tensor, severity: int, generator: torch.Generator) -> torch.Tensor:
    """Set 4 % of the rows, at random, to 0 at severity 1, and 20 % at severity 5."""
    chance = streams(images, generator).uniform(images.shape[1], 1, 1)  # (N, H, 1, 1)
    place = chance.argsort(dim=1).argsort(dim=1)
    return images.masked_fill(place < 0.04 * severity * images.shape[1], 0)


SHIFTS["dead_rows"] = dead_rows

photograph = torch.tensor(load_sample_image("china.jpg"))[None, 20:340:3, 100:420:3]
figure, axes = plt.subplots(1, 5, figsize=(9, 2.2), layout="constrained")
for severity, ax in enumerate(axes, start=1):
    shifted = corrupt(photograph, "dead_rows", severity, seed=0)
    dead = int((shifted == 0).all(dim=(2, 3)).sum())
    print(f"severity {severity}: {dead} of {shifted.shape[1]} rows are dead")
    ax.imshow(shifted[0])
    ax.set_title(f"severity {severity}")
    ax.set_axis_off()
figure.savefig("own_shift.svg")
