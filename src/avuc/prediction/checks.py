"""Checks of what `predict` gets: an error where the result would be wrong, a warning where it probably would be."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from avuc.core.errors import InputError, NonFiniteError
from avuc.core.probabilities import looks_like
from avuc.predictions import Predictions

if TYPE_CHECKING:
    from avuc.posterior import Posterior

CHANNELS = (1, 3, 4)
# number of images, from the first, that the warnings are based on
FEW = 64
# a spread of the samples' probabilities that is rounding only, in float32
NO_SPREAD = 1e-7
# parts of torch's messages about an input that does not fit the network
MISFITS = (
    "expected scalar type",
    "should be the same",
    "must have the same dtype",
    "same device",
    "channels",
    "shapes cannot be multiplied",
    "not implemented for",
    "Expected tensor for argument",
    "expected input",
    "Expected input",
    "Given groups",
    "must match the size of tensor",
    "Dimension out of range",
)


def check_posterior(posterior: object) -> None:
    """Raise an error if the argument is not a posterior; the message says how to make one."""
    if not callable(getattr(posterior, "draw", None)) or not hasattr(posterior, "num_draws"):
        kind = type(posterior).__name__
        remedy = "a class with draw(generator) and num_draws"
        if isinstance(posterior, nn.Module):
            remedy = (
                "wrap a plain net in avuc.methods.vanilla.DeterministicPosterior, or make it Bayesian (to_bayesian)"
            )
        raise InputError(f"predict needs a posterior, found {kind}, which has no draw() and num_draws; {remedy}")
    count = getattr(posterior, "num_draws", None)
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"the posterior's num_draws must be None or a whole number from 1 up, found {count!r}")
    if count > 1 and not callable(getattr(posterior, "member", None)):
        raise InputError(
            f"the posterior has num_draws={count} but no member(index): random samples would use some members twice "
            "and others never; add the method, or set num_draws to None"
        )


def check_seed(seed: object) -> None:
    """Raise an error if the seed is not an integer from 0 up."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 up, found {seed!r}")


def number_of_samples(posterior: Posterior, samples: int | str, tolerance: float, max_samples: int) -> tuple[int, bool]:
    """Return the largest number of samples, and whether to stop earlier if the Monte Carlo error is small enough."""
    automatic = samples == "auto"
    wanted = max_samples if automatic else samples
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise InputError(
            f"samples must be a positive whole number or 'auto', found {samples!r} (at most {max_samples})"
        )
    if automatic and not tolerance > 0:
        raise InputError(f"tolerance must be positive, found {tolerance}")
    if posterior.num_draws is not None:
        # the members are the whole posterior: "auto" uses all, because fewer would be another posterior
        return (posterior.num_draws if automatic else min(wanted, posterior.num_draws)), False
    return wanted, automatic


def check_images(images: object) -> None:
    """Raise an error for what cannot be images, and for uint8 images with the channels first."""
    if not isinstance(images, Tensor | np.ndarray) or images.ndim == 0:
        kind = f"a {images.ndim}-dimensional one" if isinstance(images, Tensor | np.ndarray) else type(images).__name__
        raise InputError(f"images must be a tensor or an array with one image in each row, found {kind}")
    if len(images) == 0:
        raise InputError("predict needs at least one image, found none")
    if images.dtype not in (torch.uint8, np.uint8):
        return
    shape = tuple(images.shape)
    if images.ndim != 4:
        raise InputError(f"uint8 images must be (N, height, width, channels), found {shape}")
    if shape[3] not in CHANNELS and shape[1] in CHANNELS:
        raise InputError(
            f"uint8 images must be (N, height, width, channels), found {shape} with the channels first; "
            "use images.permute(0, 2, 3, 1), or .transpose(0, 2, 3, 1) of an array"
        )


def tensor_of(images: Tensor | np.ndarray) -> Tensor:
    """Return the images as a tensor. An array is copied: it may be read-only, reversed or of another byte order."""
    if isinstance(images, Tensor):
        return images
    return torch.from_numpy(np.array(images, dtype=images.dtype.newbyteorder("=")))


def warn_about_images(images: Tensor | np.ndarray) -> None:
    """Warn about float images that look like bytes or have the channels last: floats are used as they are."""
    few = tensor_of(images[:FEW]).detach()
    if few.ndim != 4 or not few.is_floating_point():
        return
    shape = tuple(images.shape)
    if shape[3] in CHANNELS and shape[1] not in CHANNELS and min(shape[1:3]) > max(CHANNELS):
        _warn(
            f"float images {shape} seem to have the channels last; float images are used as they are, and networks "
            "take (N, channels, height, width): use images.permute(0, 3, 1, 2), or pass uint8"
        )
    low, high = (float(bound) for bound in few.aminmax())
    if low >= 0 and 1 < high <= 255 and bool((few == few.round()).all()):
        _warn(
            f"float images hold whole numbers up to {high:g} and look like bytes; float images are used as they are: "
            "pass uint8, which is scaled to [0, 1], or divide by 255, unless the network expects 0…255"
        )


def warn_about_net(posterior: object) -> None:
    """Warn about a network whose output for an image depends on the other images in the batch."""
    layers = posterior.named_modules() if isinstance(posterior, nn.Module) else ()
    for name, layer in layers:
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            _warn(
                f"{name} normalises by the statistics of each batch (track_running_stats=False): the prediction of an "
                "image depends on the other images in its batch, and on batch_size"
            )
            return


def logits_of(output: Any, rows: int) -> Tensor:
    """Return the logits from a network's output.

    The output may be a tensor; an object or mapping with "logits", as in Hugging Face; or a tuple or list with exactly
    one tensor of shape (rows, classes).

    >>> logits_of({"logits": torch.zeros(2, 3), "loss": torch.tensor(0.1)}, 2).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    kind = f"a {type(output).__name__}"
    if isinstance(output, tuple | list):
        tensors = [part for part in output if isinstance(part, Tensor)]
        fitting = [part for part in tensors if part.is_floating_point() and part.ndim == 2 and len(part) == rows]
        if len(fitting) == 1:
            return fitting[0]
        kind += f" with the tensors {', '.join(str(tuple(part.shape)) for part in tensors) or 'none'}"
    elif isinstance(output, Mapping):
        kind += f" with the keys {', '.join(map(repr, list(output)[:6])) or 'none'}"
    raise InputError(
        f"the network returns {kind}, and which part holds the logits ({rows}, classes) is not clear; "
        "wrap it in a module whose forward returns the tensor of logits alone"
    )


def check_outputs(logits: Tensor) -> None:
    """Raise an error if the outputs (N, C) are not the logits of a classifier."""
    if not logits.is_floating_point():
        raise InputError(f"the network's outputs must be floating-point logits, found {logits.dtype}")
    if logits.shape[-1] < 2:
        raise InputError(
            f"the network has one output for each image, found {tuple(logits.shape)}, but predict needs at least two "
            "classes for the softmax; for a sigmoid output z return both columns, "
            "torch.cat([torch.zeros_like(z), z], dim=1)"
        )
    looks = looks_like(logits)
    if looks is not None:
        raise InputError(
            f"the network's outputs look like {looks} (not negative, every row has the same sum), but predict needs "
            "logits: remove the network's last softmax, or return the logarithm of its outputs"
        )


def warn_about_spread(predictions: Predictions) -> None:
    """Warn if several samples of a posterior all give the same prediction."""
    error = predictions.monte_carlo_error
    if predictions.samples > 1 and predictions.num_classes > 1 and error is not None and error <= NO_SPREAD:
        _warn(
            f"all {predictions.samples} samples give the same prediction: the posterior has no spread (a dropout rate "
            "of 0, dropout that is not in the network's layers, or σ close to 0), and mutual information will be 0"
        )


def refuse_nan(flags: list[Tensor], first: int, size: int, rows: int) -> None:
    """Raise an error that names the first sample and batch with NaN.

    Args:
        flags: (samples, batches) parts, True where the probabilities hold NaN.
        first: index of the first sample in `flags`.
        size: images per batch.
        rows: number of images.
    """
    places = torch.cat(flags).nonzero()
    if not len(places):
        return
    sample, batch = (int(number) for number in places[0])
    low, high = batch * size, min((batch + 1) * size, rows) - 1
    raise NonFiniteError(
        f"sample {first + sample}, batch {batch} (images {low}…{high}): "
        "the logits hold NaN or +infinity; look for NaN in the images or the weights, or for an overflow in low "
        "precision (dtype=None avoids it)"
    )


def explanation(error: RuntimeError, posterior: object, images: Tensor | np.ndarray) -> InputError | None:
    """Return a one-line error if torch's error means that the network does not fit the images, else None."""
    text = " ".join(str(error).split())
    if not any(words in text for words in MISFITS):
        return None
    found = f"images {tuple(images.shape)} {images.dtype}"
    tensors = [*posterior.parameters(), *posterior.buffers()] if isinstance(posterior, nn.Module) else []
    floats = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    devices = {str(tensor.device) for tensor in tensors}
    given = tensor_of(images[:1])
    if len(devices) > 1:
        remedy = f"its weights are on {', '.join(sorted(devices))}: move them to one device, or pass device="
    elif "device" in text:
        remedy = "pass device= with the device that its weights are on"
    elif given.dtype != torch.uint8 and floats and given.dtype not in floats:
        wanted = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floats))
        remedy = f"its weights are {wanted}: convert the images with .to(torch.{wanted.split(', ')[0]}), or pass uint8"
    else:
        remedy = "float images must have the shape that the network takes, usually (N, channels, height, width)"
    return InputError(f"the posterior cannot take {found} ({text[:160]}); {remedy}")


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=6)
