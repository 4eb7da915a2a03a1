"""Add a shift: rows of the sensor that deliver no signal.

Run it: python examples/custom_shift.py
"""

import torch

from avuc.shifts import SHIFTS, corrupt, streams


def dead_rows(images: torch.Tensor, severity: int, generator: torch.Generator) -> torch.Tensor:
    """Set `severity` rows of each image (N, H, W, C) to 0, from a random row on; fewer at the bottom edge."""
    # numbers from `streams` belong to an image, so the result does not depend on the batch
    start = (streams(images, generator).uniform(1, 1, 1) * images.shape[1]).floor()
    row = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    return images.masked_fill((row >= start) & (row < start + severity), 0)


SHIFTS["dead_rows"] = dead_rows

if __name__ == "__main__":
    images = torch.full((4, 32, 32, 3), 200, dtype=torch.uint8)
    for severity in (1, 3, 5):
        shifted = corrupt(images, "dead_rows", severity, seed=0)
        dead = (shifted == 0).all(dim=(2, 3)).sum(dim=1)
        print(f"severity {severity}: dead rows per image {dead.tolist()}")
