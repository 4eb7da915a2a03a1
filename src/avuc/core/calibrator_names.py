"""The names of the calibrators, for code that must not import torch. A test compares them with `CALIBRATORS`."""

from __future__ import annotations

CALIBRATOR_NAMES = (
    "temperature",
    "cautious",
    "avuts",
    "auavuts",
    "vector",
    "smoothed",
    "ets",
    "isotonic",
    "histogram",
    "matrix",
    "structured-vector",
    "dirichlet",
    "venn-abers",
)
