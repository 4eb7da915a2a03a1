"""`Posterior`, what every method yields, and `predict`, which turns one into `Predictions`.

A draw s is a function of the image, f_s(x) = logits. With p_s = softmax(f_s(x)), `predict` keeps running sums only,

    mean  p̄ = 1/S Σ p_s        expected entropy  1/S Σ H[p_s]        Σ p_s² for the Monte Carlo error,

so memory does not grow with the number of draws. Draw s comes from a generator seeded by (seed, s): the same draws
meet every dataset, so that two datasets differ by their images alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from avuc.core.private_copy import private_copy
from avuc.predictions import HasTransform, Predictions

__all__ = ["Draw", "NetDraw", "Posterior", "evaluating", "predict", "seeded_generator"]

Draw = Callable[[Tensor], Tensor]


@runtime_checkable
class Posterior(Protocol):
    """Anything that draws functions from images to logits.

    `num_draws` is how many different draws there are, None when unlimited. A posterior with finitely many has
    `member(index)`, and `predict` takes the members in order, each once. Otherwise `draw` is all there is, and the
    same state of the generator gives the same function.
    """

    @property
    def num_draws(self) -> int | None: ...

    def draw(self, generator: torch.Generator) -> Draw: ...


@dataclass(frozen=True)
class NetDraw:
    """A draw that is a net, with some of its weights and buffers (by name) replaced, in evaluation mode.

    Like the draws of a `BayesianModule`, `predict` runs it with batch normalisation folded into the convolutions and
    compiled once for all draws. Any other function of the images works too, only plainly.
    """

    net: nn.Module
    weights: Mapping[str, Tensor]

    def __call__(self, images: Tensor) -> Tensor:
        net = private_copy(self.net).eval()  # another thread may be using the net itself
        logits: Tensor = functional_call(net, dict(self.weights), (images,))
        return logits


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every layer's own mode back afterwards.

    It changes the module for all threads; where others may use it, call `private_copy(module).eval()` instead.
    """
    training = [layer for layer in module.modules() if layer.training]
    for layer in training:
        layer.training = False
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def seeded_generator(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for a key of whole numbers ≥ 0, well mixed: neighbouring keys have nothing in common.

    >>> seeded_generator(0, 1).initial_seed() == seeded_generator(1, 0).initial_seed()
    False
    """
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator(device=device).manual_seed(int(state >> np.uint64(1)))


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
    """The posterior's mean prediction for each image, and what is needed to know how sure it is.

    images: uint8 (N, H, W, C), scaled to [0, 1] and turned to (N, C, H, W) batch by batch on the device, or float in
        whatever shape the posterior takes. They move to the device once if they fit there, else for each batch.
    labels: (N) class numbers, −1 for an image without one; None: no image has one.
    samples: number of draws (at most the posterior's own), or "auto": at least 8, then as many as bring the
        `monte_carlo_error` of the mean probabilities below `tolerance`, at most `max_samples`.
    calibrator: its `transform` acts on each draw's logits, before the average.
    batch_size: by default, what suits the device and the size of an image.
    device: where the posterior lives, by default; another one moves the posterior there.
    dtype: torch.bfloat16 or torch.float16 runs the net under autocast; softmax and sums are float32 and float64.
    compiled: None runs what is fastest: on a GPU in bfloat16 a kernel for whole CIFAR ResNets, else torch.compile when
        there is enough to do. True and False ask for the compiled and the plain net; a word is torch.compile's mode.

    The draws are made for this call alone; for many sets of images a `Predictor` makes them once.

    >>> from avuc.methods.vanilla import DeterministicPosterior
    >>> from avuc.nets import mlp
    >>> images = torch.randint(256, (5, 8, 8, 1), dtype=torch.uint8)
    >>> predict(DeterministicPosterior(mlp(3, (8, 8, 1))), images, torch.tensor([0, 1, 2, 0, 1])).probs.shape
    torch.Size([5, 3])
    """
    from avuc.prediction.predictor import Predictor  # which knows the methods' draws, and they know this file

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
