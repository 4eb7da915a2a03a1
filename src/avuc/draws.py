"""`Posterior`, what every method yields, and `predict`, which turns one into `Predictions`.

A draw s is a function of the image, f_s(x) = logits. With p_s = softmax(f_s(x)), `predict` keeps running sums only,

    mean  p̄ = 1/S Σ p_s        expected entropy  1/S Σ H[p_s]        Σ p_s² for the Monte Carlo error,

so memory does not grow with the number of draws. Draw s comes from a generator seeded by (seed, s): the same draws
meet every dataset, so that two datasets differ by their images alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from avuc.bayes import WeightDraw
from avuc.data.arrays import as_input
from avuc.errors import InputError
from avuc.moments import DrawSums, monte_carlo_error
from avuc.nets.runner import Runner
from avuc.predictions import HasTransform, Predictions
from avuc.progress import Progress

__all__ = ["Draw", "NetDraw", "Posterior", "evaluating", "predict", "seeded_generator"]

Draw = Callable[[Tensor], Tensor]

# below this many images × draws, compiling costs more than it saves
WORTH_COMPILING = 500_000
# draws between two looks at the device: each look makes a GPU wait for the host
LOOK_EVERY = 16
# numbers in a batch of images, by device: 10,000 CIFAR images on a GPU, one core's cache on a CPU
BATCH_NUMBERS = {"cuda": 30_720_000}
BATCH_NUMBERS_ELSEWHERE = 786_432
# fewer draws give no usable estimate of their own spread
FEWEST_DRAWS = 8


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
        with evaluating(self.net):
            logits: Tensor = functional_call(self.net, dict(self.weights), (images,))
        return logits


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every layer's own mode back afterwards."""
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


@torch.no_grad()
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
    compiled: None compiles on a GPU when there is enough to do; a word is torch.compile's mode.

    >>> from avuc.methods.vanilla import DeterministicPosterior
    >>> from avuc.nets import mlp
    >>> images = torch.randint(256, (5, 8, 8, 1), dtype=torch.uint8)
    >>> predict(DeterministicPosterior(mlp(3, (8, 8, 1))), images, torch.tensor([0, 1, 2, 0, 1])).probs.shape
    torch.Size([5, 3])
    """
    limit, automatic = _number_of_draws(posterior, samples, tolerance, max_samples)
    place = _device(posterior, images, device)
    batches = _Batches(images, labels, batch_size, place)
    if compiled is None:
        compiled = place.type == "cuda" and limit * batches.rows >= WORTH_COMPILING
    runners: dict[nn.Module, Runner] = {}  # by net
    sums = DrawSums(batches.rows, place)
    autocast = torch.autocast(place.type, dtype) if dtype is not None else contextlib.nullcontext()
    used, error = 0, None
    unseen: list[Tensor] = []  # of each draw since the last look: which batches held NaN
    with Progress("draws", None if automatic else limit) if progress else contextlib.nullcontext() as bar:
        while used < limit:
            drawn = _draw(posterior, used, seeded_generator(seed, used, device=place))
            function = _fast(drawn, runners, fold_batch_norm, compiled)
            broken = []
            for rows, x in batches:
                with autocast:
                    logits = _call(function, x, batches.size if compiled else len(x))
                if logits.ndim != 2 or len(logits) != len(x):
                    raise InputError(f"a draw must give logits ({len(x)}, classes), found {tuple(logits.shape)}")
                broken.append(sums.add(rows, _probabilities(logits, calibrator)))
            unseen.append(torch.stack(broken))
            used += 1
            if automatic or used in (1, limit) or used % LOOK_EVERY == 0:
                _refuse_nan(unseen, used, batches)
                unseen.clear()
            if automatic and used >= FEWEST_DRAWS:
                error = monte_carlo_error(sums.probs, sums.squares, used)
            if bar is not None:
                bar.advance(note="" if error is None else f"error {error:.4f}")
            if error is not None and error <= tolerance:
                break
    error = monte_carlo_error(sums.probs, sums.squares, used, posterior.num_draws)
    return sums.predictions(batches.labels, used, error)


def _number_of_draws(posterior: Posterior, samples: int | str, tolerance: float, max_samples: int) -> tuple[int, bool]:
    """How many draws at most, and whether to stop earlier."""
    automatic = samples == "auto"
    wanted = max_samples if automatic else samples
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise InputError(
            f"samples must be a positive whole number or 'auto', found {samples!r} (at most {max_samples})"
        )
    if automatic and not tolerance > 0:
        raise InputError(f"tolerance must be positive, found {tolerance}")
    if posterior.num_draws is not None:
        # members are the whole posterior: leaving some out saves little and answers another question
        return (posterior.num_draws if automatic else min(wanted, posterior.num_draws)), False
    return wanted, automatic


def _device(posterior: Posterior, images: Tensor | np.ndarray, device: torch.device | str | None) -> torch.device:
    if device is not None:
        place = torch.device(device)
        if isinstance(posterior, nn.Module):
            posterior.to(place)
        return place
    if isinstance(posterior, nn.Module):
        for tensor in (*posterior.parameters(), *posterior.buffers()):
            return tensor.device
    return images.device if isinstance(images, Tensor) else torch.device("cpu")


def _draw(posterior: Posterior, index: int, generator: torch.Generator) -> Draw:
    member = getattr(posterior, "member", None)
    if posterior.num_draws is not None and member is not None:
        chosen: Draw = member(index)
        return chosen
    return posterior.draw(generator)


def _fast(draw: Draw, runners: dict[nn.Module, Runner], folded: bool, compiled: bool | str) -> Draw:
    """The same function, folded and compiled where that is possible."""
    if isinstance(draw, WeightDraw) and not draw.bayesian.recurrent:
        net, layout = draw.bayesian.module, draw.bayesian.layout
        weights = layout.by_place(layout.views(draw.weights))
    elif isinstance(draw, NetDraw):
        net, weights = draw.net, dict(draw.weights)
    else:
        return draw
    if net not in runners:
        runners.clear()  # an ensemble's members follow one another: only one is in use
        # a Bayesian module's own net lacks the weights that are drawn
        whole = draw.bayesian.mean_module() if isinstance(draw, WeightDraw) else net
        runners[net] = Runner(whole, key=net, folded=folded, compiled=compiled)
    return runners[net].function(weights)


def _call(function: Draw, images: Tensor, rows: int) -> Tensor:
    """The logits; a compiled function sees batches of one size only, so the last one is filled up."""
    missing = rows - len(images)
    if missing <= 0:
        return function(images)
    filled = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
    return function(filled)[: len(images)]


def _probabilities(logits: Tensor, calibrator: HasTransform | None) -> Tensor:
    logits = logits.double() if logits.dtype == torch.float64 else logits.float()
    if calibrator is not None:
        logits = calibrator.transform(logits)
    return logits.softmax(-1)


class _Batches:
    """The images in order, in batches, as the posterior takes them, with the rows they came from."""

    def __init__(
        self, images: Tensor | np.ndarray, labels: Tensor | np.ndarray | None, size: int | None, device: torch.device
    ) -> None:
        if len(images) == 0:
            raise InputError("predict needs at least one image, found none")
        if size is None:
            numbers = BATCH_NUMBERS.get(device.type, BATCH_NUMBERS_ELSEWHERE)
            size = min(max(numbers // max(1, math.prod(images.shape[1:])), 32), 16_384)
        if size < 1:
            raise InputError(f"batch_size must be at least 1, found {size}")
        if images.dtype in (torch.uint8, np.uint8) and images.ndim != 4:
            raise InputError(f"uint8 images must be (N, height, width, channels), found {tuple(images.shape)}")
        self.rows, self.size, self.device = len(images), size, device
        self.labels = torch.full((self.rows,), -1) if labels is None else torch.as_tensor(labels)
        if self.labels.shape != (self.rows,):
            raise InputError(f"labels must be one per image, ({self.rows},); found {tuple(self.labels.shape)}")
        self.images = images
        # each draw reads every image again: a GPU wants them next to it, as long as they leave it room to work
        if device.type == "cuda" and images.nbytes <= torch.cuda.mem_get_info(device)[0] // 4:
            self.images = torch.as_tensor(np.array(images) if isinstance(images, np.ndarray) else images).to(device)

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self.rows, self.size):
            rows = slice(start, min(start + self.size, self.rows))
            batch = self.images[rows]
            tensor = batch if isinstance(batch, Tensor) else torch.from_numpy(np.array(batch))
            tensor = tensor.to(self.device, non_blocking=True)
            yield rows, as_input(tensor) if tensor.dtype == torch.uint8 else tensor


def _refuse_nan(flags: list[Tensor], used: int, batches: _Batches) -> None:
    found = torch.stack(flags).nonzero()
    if not len(found):
        return
    draw, batch = (int(number) for number in found[0])
    first, last = batch * batches.size, min((batch + 1) * batches.size, batches.rows) - 1
    raise InputError(
        f"draw {used - len(flags) + draw}, batch {batch} (images {first}…{last}): "
        "the logits hold NaN or +infinity; look for NaN in the images or the weights, or for an overflow in low "
        "precision (dtype=None avoids it)"
    )
