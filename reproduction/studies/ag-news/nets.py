"""The network of the AG News study: a small transformer encoder, trained from scratch.

Run the study with `python reproduction/run_study.py ag-news --data FOLDER`.
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
