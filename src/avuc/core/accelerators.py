"""Optional accelerators: what the folder `avuc/gpu` offers, or nothing where that folder is missing.

This is the only place that knows the folder exists. Code that can use an accelerator asks here and has its own slower
code for the answer "none", so everything keeps working when `avuc/gpu` is deleted. The folder's `__init__.py` has one
function for each function of this module.

If the folder exists but fails to load, a warning says why, once, and everything runs without accelerators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from torch import Tensor

FOLDER = "avuc.gpu"


class TrainingSteps(NamedTuple):
    """Training several models as one network.

    Attributes:
        unsupported_reason: (model trainer, dataset) → why this model cannot be trained this way, None if it can.
        signature: (model trainer) → a key; models with equal keys can be trained together.
        steps: (model trainers, dataset, function that prints a line) → an object with the protocol
            `avuc.training.steps.Steps`, and with `release()`, which frees its GPU memory.
    """

    unsupported_reason: Callable[[Any, Any], str | None]
    signature: Callable[[Any], Hashable]
    steps: Callable[[Sequence[Any], Any, Callable[[str], None]], Any]


class AugmixKernel(Protocol):
    """Crop, flip and AugMix in one kernel launch."""

    def usable(self, images: Tensor, pad: int, flip: bool) -> bool:
        """Return whether the kernel runs for these images (N, H, W, C) on their device."""

    def augmix_images(
        self,
        images: Tensor,
        indices: Tensor,
        drawn: Tensor,
        *,
        pad: int,
        flip: bool,
        strengths: tuple[float, float],
    ) -> Tensor:
        """Return the augmented `images[indices]`, uint8 (B, H, W, C)."""


class WeightDrawKernel(Protocol):
    """All weights of a sample in one kernel launch."""

    def usable(self, mean: Tensor, parts: Sequence[tuple[int, Tensor]]) -> bool:
        """Return whether the kernel draws these weights on their device."""

    def draw_weights(self, mean: Tensor, spread: Tensor, seed: int, parts: Sequence[tuple[int, Tensor]]) -> None:
        """Write mean + spread · z to the parts, each with the number of its first weight; z as from torch.randn."""


class LinearTiles(Protocol):
    """The two passes of `avuc.losses.linear.tiles`, whose functions these are."""

    def forward_tiles(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Any) -> Any:
        """Return the online softmax of the logits, a `Partial`."""

    def backward_tiles(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        predicted: Tensor,
        coefficients: Any,
        options: Any,
        needed: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients in hidden, weight and bias."""


class AcceleratedLinearTiles(LinearTiles, Protocol):
    """The same passes, for some inputs only, and the loss between them (`avuc.losses.linear.fused`)."""

    def unsupported_reason(self, hidden: Tensor, weight: Tensor) -> str | None:
        """Return why these tensors cannot take this path, None if they can."""

    def token_sums(self, part: Any, labels: Tensor, rule: Any) -> tuple[Tensor, Any]:
        """Return the sums over tokens and the statistics of each, `Rows`."""

    def loss_of_sums(self, sums: Tensor, rule: Any, nll_weight: float, beta: float) -> tuple[Any, Tensor]:
        """Return the loss of the sums, `Figures`, and the slopes of loss, nll and avuc in the sums, (3, 8)."""

    def token_coefficients(self, part: Any, labels: Tensor, in_sums: Tensor, rule: Any) -> Any:
        """Return the gradient in the logits, `Coefficients`."""


def prediction_backends() -> Sequence[Any]:
    """Return backend classes for `Predictor` (`avuc.prediction.backends.backend.BackendClass`), fastest first."""
    backends: Sequence[Any] = _offered("prediction_backends") or ()
    return backends


def training_steps() -> TrainingSteps | None:
    """Return how several models are trained as one network; None without accelerators."""
    steps: TrainingSteps | None = _offered("training_steps")
    return steps


def augmix_kernel() -> AugmixKernel | None:
    """Return the AugMix kernel; None without accelerators."""
    kernel: AugmixKernel | None = _offered("augmix_kernel")
    return kernel


def weight_draw_kernel() -> WeightDrawKernel | None:
    """Return the kernel that draws all weights of a sample; None without accelerators."""
    kernel: WeightDrawKernel | None = _offered("weight_draw_kernel")
    return kernel


def linear_tiles() -> AcceleratedLinearTiles | None:
    """Return the passes of `linear_avuc` for GPUs; None without accelerators."""
    passes: AcceleratedLinearTiles | None = _offered("linear_tiles")
    return passes


@cache
def _offered(name: str) -> Any:
    """Call the function `name` of the accelerators' folder; None if the folder is missing or fails to load."""
    if not _folder_exists():
        return None
    try:
        return getattr(import_module(FOLDER), name)()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(
            f"running without {FOLDER} ({name}), which failed to load: {reason}", RuntimeWarning, stacklevel=3
        )
        return None


def _folder_exists() -> bool:
    try:
        spec = find_spec(FOLDER)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None  # a folder without __init__.py has no origin
