"""Losses that make a classifier certain where it is right and uncertain where it is wrong, and the negative ELBO."""

from avuc.losses.area import area_loss as area_loss
from avuc.losses.elbo import elbo_loss
from avuc.losses.functional import auavuc_loss, avuc_loss, confidence_penalty
from avuc.losses.linear.function import LinearAvUC, linear_avuc
from avuc.losses.module import AvUCLoss
from avuc.losses.quadrants import Cells, Quadrants, avuc_cells, avuc_quadrants  # noqa: F401  # names of 0.1.0

__all__ = [
    "AvUCLoss",
    "LinearAvUC",
    "Quadrants",
    "auavuc_loss",
    "avuc_loss",
    "avuc_quadrants",
    "confidence_penalty",
    "elbo_loss",
    "linear_avuc",
]
