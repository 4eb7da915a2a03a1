"""Accelerators for NVIDIA GPUs: hand-written kernels, and CIFAR ResNets that are trained as one network.

Everything works without this folder, only slower. No other code imports it by name: `avuc.core.accelerators` calls the
functions below if the folder is there. Each loads its modules when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from avuc.core.accelerators import AcceleratedLinearTiles, AugmixKernel, TrainingSteps, WeightDrawKernel

if TYPE_CHECKING:
    from avuc.prediction.backends.backend import BackendClass


def prediction_backends() -> Sequence[BackendClass]:
    """Return the backends that `Predictor` tries before its own, fastest first."""
    from avuc.gpu.fused_resnet import FusedResNetBackend

    return (FusedResNetBackend,)


def training_steps() -> TrainingSteps:
    """Return how several CIFAR ResNets are trained as one network with a model axis."""
    from avuc.gpu.stacked.choice import signature, unsupported_reason
    from avuc.gpu.stacked.steps import StackedSteps

    return TrainingSteps(unsupported_reason, signature, StackedSteps)


def augmix_kernel() -> AugmixKernel:
    """Return the kernel that crops, flips and applies AugMix."""
    from avuc.gpu.kernels import augmix

    return augmix


def linear_tiles() -> AcceleratedLinearTiles:
    """Return the two passes of `linear_avuc` with cuBLAS products and Triton kernels."""
    from avuc.gpu import linear

    return linear


def weight_draw_kernel() -> WeightDrawKernel:
    """Return the kernel that draws all weights of a sample."""
    from avuc.gpu.kernels import weight_draw

    return weight_draw
