"""The network of this study: a small transformer encoder, trained from scratch."""

from __future__ import annotations

from text_net import TextEncoder  # `data` has said where this module is

from data import LENGTH, VOCABULARY


def make_net(num_classes: int, width: int = 64, layers: int = 2) -> TextEncoder:
    """Return the network; see `TextEncoder`."""
    return TextEncoder(num_classes, VOCABULARY, LENGTH, width, layers, each_word=True)
