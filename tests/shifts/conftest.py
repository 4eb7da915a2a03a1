"""Real photographs for the shifts, whole and as small pieces."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images


@pytest.fixture(scope="session")
def photographs() -> NDArray[np.uint8]:
    """(2, 224, 224, 3): a temple and a flower."""
    return np.stack([image[100:324, 200:424] for image in load_sample_images().images])


@pytest.fixture(scope="session")
def pieces() -> NDArray[np.uint8]:
    """(96, 32, 32, 3): the two photographs at a quarter and at half their size, cut up."""
    cut = []
    for image in load_sample_images().images:
        for side in (128, 256):
            small = np.asarray(Image.fromarray(image[:424, :424]).resize((side, side), Image.Resampling.LANCZOS))
            cut += [small[y : y + 32, x : x + 32] for y in range(0, side, 32) for x in range(0, side, 32)]
    return np.stack(cut)[np.random.default_rng(0).permutation(len(cut))[:96]]
