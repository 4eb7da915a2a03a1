"""The network of the SST-2 study: a small transformer encoder, trained from scratch.

Run the study with `python reproduction/run_study.py sst2 --data FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from data import LENGTH, VOCABULARY

sys.path.append(str(Path(__file__).parents[2]))
from text_net import TextEncoder


def make_net(num_classes: int, width: int = 64, layers: int = 2) -> TextEncoder:
    """Return the network; see `TextEncoder`."""
    return TextEncoder(num_classes, VOCABULARY, LENGTH, width, layers)
