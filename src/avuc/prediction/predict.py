"""`predict`: from a posterior and images to `Predictions`, in one call."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from avuc.posterior import Posterior
from avuc.prediction.predictor import Predictor
from avuc.predictions import HasTransform, Predictions


def predict(
    posterior: Posterior,
    images: Tensor | np.ndarray,
    labels: Tensor | np.ndarray | None = None,
    *,
    samples: int | Literal["auto"] = 128,
    calibrator: HasTransform | None = None,
    seed: int = 0,
    tolerance: float = 0.005,
    max_samples: int = 1024,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    compiled: bool | str | None = None,
    fold_batch_norm: bool = True,
    progress: bool = True,
) -> Predictions:
    """Return the mean prediction over samples of a posterior, and the quantities that measure its uncertainty.

    With p_s = softmax(f_s(x)) for sample s of S, the result has the

        mean  p̄ = 1/S Σ p_s,        expected entropy  1/S Σ H[p_s],        Monte Carlo error of p̄ (from Σ p_s²).

    Only these sums are kept, so memory does not grow with the number of samples. Sample s uses a generator seeded by
    (seed, s): every dataset is predicted with the same samples, so two datasets differ only by their images.

    Args:
        posterior: what a method returns, or any object with `draw` and `num_draws` (see `Posterior`).
        images: uint8 (N, H, W, C), which is scaled to [0, 1] and changed to (N, C, H, W) on the device; or float
            images in the shape that the network takes, which are used as they are. They are moved to the device once
            if they fit there, else batch by batch.
        labels: (N,) class indices, −1 for an image without a label; None if no image has one.
        samples: number of samples, at most as many as the posterior has. "auto" uses at least 8 and stops when the
            Monte Carlo error of the mean probabilities is at most `tolerance`, or at `max_samples`.
        calibrator: its `transform` is applied to the logits of each sample, before the mean.
        seed: seed of the samples.
        tolerance: for `samples="auto"`.
        max_samples: for `samples="auto"`.
        batch_size: images per batch; the default depends on the device and the size of an image.
        device: default: where the posterior is. If another device is given, the posterior is moved there.
        dtype: torch.bfloat16 or torch.float16 runs the network under autocast. Softmax and sums always use float32
            and float64.
        compiled: None selects what is fastest: on a GPU with bfloat16 a kernel for CIFAR ResNets, else torch.compile
            if there is enough work to pay for compiling. True compiles, False does not; a string is a mode of
            torch.compile.
        fold_batch_norm: whether to fold batch normalisation into the convolution before it, which is exact up to
            rounding.
        progress: whether to show a progress bar.

    To predict many datasets, use a `Predictor`, which prepares the samples once.

    >>> from avuc.methods.vanilla import DeterministicPosterior
    >>> from avuc.nets import mlp
    >>> images = torch.randint(256, (5, 8, 8, 1), dtype=torch.uint8)
    >>> predict(DeterministicPosterior(mlp(3, (8, 8, 1))), images, torch.tensor([0, 1, 2, 0, 1])).probs.shape
    torch.Size([5, 3])
    """
    predictor = Predictor(
        posterior,
        samples=samples,
        seed=seed,
        tolerance=tolerance,
        max_samples=max_samples,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        compiled=compiled,
        fold_batch_norm=fold_batch_norm,
        memory=0,
    )
    return predictor(images, labels, calibrator=calibrator, progress=progress)
