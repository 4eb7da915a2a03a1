"""My shift: a grey smudge on part of each image, larger for a higher severity (1 to 5)."""

import torch


def smudge(images, severity, generator):
    count, height, width, _ = images.shape
    side = 1 + severity
    tops = torch.randint(height - side + 1, (count,), generator=generator).tolist()
    lefts = torch.randint(width - side + 1, (count,), generator=generator).tolist()
    for image, top, left in zip(images, tops, lefts, strict=True):
        image[top : top + side, left : left + side] = 128
    return images
