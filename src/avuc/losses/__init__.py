"""Losses that make a classifier certain where it is right and uncertain where it is wrong, and the negative ELBO."""

from avuc.losses.area import area_loss as area_loss
from avuc.losses.elbo import elbo_loss
from avuc.losses.euc import DirichletHead, EUCLoss, euc_loss
from avuc.losses.functional import auavuc_loss, avuc_loss, confidence_penalty
from avuc.losses.linear.function import LinearAvUC, linear_avuc
from avuc.losses.module import AvUCLoss
from avuc.losses.quadrants import Cells, Quadrants, avuc_cells, avuc_quadrants  # noqa: F401  # names of 0.1.0
from avuc.losses.sb_ece import SBECELoss, sb_ece_loss
from avuc.losses.segmentation import SegmentationAvULoss, segmentation_avu_loss
from avuc.losses.ua_clm import UACLMLoss, ua_clm_loss

__all__ = [
    "AvUCLoss",
    "DirichletHead",
    "EUCLoss",
    "LinearAvUC",
    "Quadrants",
    "SBECELoss",
    "SegmentationAvULoss",
    "UACLMLoss",
    "auavuc_loss",
    "avuc_loss",
    "avuc_quadrants",
    "confidence_penalty",
    "elbo_loss",
    "euc_loss",
    "linear_avuc",
    "sb_ece_loss",
    "segmentation_avu_loss",
    "ua_clm_loss",
]
