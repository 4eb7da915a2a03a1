"""Checks of the arguments of `predict`: an error if the result would be wrong, a warning if it probably would be."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from avuc.core.caller import warn_caller
from avuc.core.errors import InputError, NonFiniteError
from avuc.core.private_copy import changed_by_eval
from avuc.prediction.arguments import Arguments, Array, tensor_of

if TYPE_CHECKING:
    from avuc.posterior import Posterior

CHANNELS = (1, 3, 4)
# number of images, from the first, that the warnings are based on
FEW = 64
# a spread of the samples' probabilities that is rounding only, in float32
NO_SPREAD = 1e-7
# parts of torch's messages about an input that does not fit the network
TYPE_MISFITS = (
    "expected scalar type",
    "should be the same",
    "must have the same dtype",
    "not implemented for",
    "Expected tensor for argument",
)
MISFITS = (
    *TYPE_MISFITS,
    "same device",
    "channels",
    "shapes cannot be multiplied",
    "expected input",
    "Expected input",
    "Given groups",
    "must match the size of tensor",
    "Dimension out of range",
)
# parts of Python's messages about arguments that a function does not take
WRONG_CALLS = (
    "unexpected keyword argument",
    "required positional argument",
    "positional arguments but",
    "positional argument but",
    "multiple values for argument",
)


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is a whole number of Python or NumPy from `least` on."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def check_seed(seed: object) -> None:
    """Raise an error if the seed is not an integer from 0 up."""
    if not is_whole(seed, 0):
        raise InputError(f"seed must be a whole number from 0 up, found {seed!r}")


def refuse_bytes(model: object) -> InputError:
    """Return the error for uint8 images and a network without a rule for scaling them."""
    return InputError(
        f"uint8 images for {type(model).__name__}, which was not told how to scale them: pass float tensors as the "
        "network expects them, or inputs=, a function from a batch to (input, labels); or set takes_bytes = True on a "
        "network made for images (N, C, H, W) scaled to [0, 1]"
    )


def number_of_samples(posterior: Posterior, samples: int | str, tolerance: float, max_samples: int) -> tuple[int, bool]:
    """Return the largest number of samples, and whether to stop earlier if the Monte Carlo error is small enough."""
    automatic = samples == "auto"
    wanted: Any = max_samples if automatic else samples
    if not is_whole(wanted, 1):
        raise InputError(
            f"samples must be a positive whole number or 'auto', found {samples!r} (at most {max_samples})"
        )
    if automatic and not tolerance > 0:
        raise InputError(f"tolerance must be positive, found {tolerance}")
    if posterior.num_draws is not None:
        # the members are the whole posterior: "auto" uses all, because fewer would be another posterior
        return (posterior.num_draws if automatic else min(int(wanted), posterior.num_draws)), False
    return int(wanted), automatic


def check_images(images: Array) -> None:
    """Raise an error for uint8 images that are not (N, height, width, channels)."""
    shape = tuple(images.shape)
    if images.ndim != 4:
        raise InputError(f"uint8 images must be (N, height, width, channels), found {shape}")
    if shape[3] not in CHANNELS and shape[1] in CHANNELS:
        raise InputError(
            f"uint8 images must be (N, height, width, channels), found {shape} with the channels first; "
            "use images.permute(0, 2, 3, 1), or .transpose(0, 2, 3, 1) of an array"
        )


def warn_about_images(data: Arguments) -> None:
    """Warn about float images that look like bytes or have the channels last: floats are used as they are."""
    images = data.only
    if images is None or data.exact or images.ndim != 4:
        return
    few = tensor_of(images[:FEW]).detach()
    if few.ndim != 4 or not few.is_floating_point():
        return
    shape = tuple(images.shape)
    if shape[3] in CHANNELS and shape[1] not in CHANNELS and min(shape[1:3]) > max(CHANNELS):
        warn_caller(
            f"float images {shape} seem to have the channels last; float images are used as they are, and networks "
            "take (N, channels, height, width): use images.permute(0, 3, 1, 2), or pass uint8"
        )
    low, high = (float(bound) for bound in few.aminmax())
    if low >= 0 and 1 < high <= 255 and bool((few == few.round()).all()):
        warn_caller(
            f"float images hold whole numbers up to {high:g} and look like bytes; float images are used as they are: "
            "pass uint8, which is scaled to [0, 1], or divide by 255, unless the network expects 0…255"
        )


def warn_about_net(posterior: object) -> None:
    """Warn about a network whose output for an image depends on the other images in the batch.

    Refuse one that evaluation mode would change: copies share its weights.
    """
    changed = changed_by_eval(posterior, from_training=False) if isinstance(posterior, nn.Module) else ""
    if changed:
        raise InputError(
            f"eval() changes the network's {changed!r}, as if adapters are merged into the weights, and predict would "
            "do so once for each sample: call eval() on the network first"
        )
    name = batch_statistics(posterior)
    if name is not None:
        warn_caller(
            f"{name} normalises by the statistics of each batch (track_running_stats=False): the prediction of an "
            "image depends on the other images in its batch, and on batch_size"
        )


def batch_statistics(posterior: object) -> str | None:
    """Return the name of a layer that normalises by the statistics of each batch, None if there is none."""
    layers = posterior.named_modules() if isinstance(posterior, nn.Module) else ()
    names = (name for name, layer in layers if isinstance(layer, _BatchNorm) and layer.running_mean is None)
    return next(names, None)


def warn_about_spread(samples: int, error: float | None) -> None:
    """Warn if several samples of a posterior all give the same prediction, so that the Monte Carlo error is 0."""
    if samples > 1 and error is not None and error <= NO_SPREAD:
        warn_caller(
            f"all {samples} samples give the same prediction: the posterior has no spread (a dropout rate "
            "of 0, dropout that is not in the network's layers, or σ close to 0), and mutual information will be 0"
        )


def refuse_nan(flags: list[Tensor], first: int, size: int, rows: int, start: tuple[int, int] = (0, 0)) -> None:
    """Raise an error that names the first sample and batch with NaN.

    Args:
        flags: (samples, batches) parts, True where the probabilities hold NaN.
        first: index of the first sample in `flags`.
        size: images per batch.
        rows: number of images.
        start: numbers of batches and images before these.
    """
    indices = torch.cat(flags).nonzero()
    if not len(indices):
        return
    sample, batch = (int(number) for number in indices[0])
    low, high = start[1] + batch * size, start[1] + min((batch + 1) * size, rows) - 1
    raise NonFiniteError(
        f"sample {first + sample}, batch {start[0] + batch} (images {low}…{high}): "
        "the logits hold NaN or +infinity; look for NaN in the images or the weights, or for an overflow in low "
        "precision (dtype=None avoids it)"
    )


def explanation(error: Exception, posterior: object, data: Arguments) -> InputError | None:
    """Return a one-line error if torch's or Python's error means that the network does not fit the data, else None."""
    text = " ".join(str(error).split())
    if isinstance(error, TypeError):
        if "must be Tensor, not NoneType" in text and "'weight'" in text:
            return InputError(
                f"a layer of the network has no weight ({text[:160]}); of a posterior pass the posterior itself, not "
                "its .module, or its mean_module()"
            )
        if not any(words in text for words in WRONG_CALLS):
            return None
        return InputError(
            f"the network cannot be called with {data.describe()} ({text[:160]}); pass inputs=, a function from a "
            "batch to (what the network takes, labels or None), for example "
            "inputs=lambda batch: (batch['image'], batch['label'])"
        )
    if not any(words in text for words in MISFITS):
        return None
    tensors = [*posterior.parameters(), *posterior.buffers()] if isinstance(posterior, nn.Module) else []
    floats = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    devices = {str(tensor.device) for tensor in tensors}
    input_dtype = None if data.only is None else tensor_of(data.only[:1]).dtype
    is_image = data.only is not None and data.only.ndim == 4
    if len(devices) > 1:
        remedy = f"its weights are on {', '.join(sorted(devices))}: move them to one device, or pass device="
    elif "device" in text:
        remedy = "pass device= with the device that its weights are on"
    elif (
        input_dtype is not None
        and not data.scaled
        and floats
        and input_dtype not in floats
        and any(words in text for words in TYPE_MISFITS)
    ):
        wanted = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floats))
        kind = wanted.split(", ")[0]
        how = f".to(torch.{kind})" if isinstance(data.only, Tensor) else f".astype({kind!r})"
        remedy = f"its weights are {wanted}: convert them with {how}" + (", or pass uint8" if is_image else "")
    elif data.only is None:
        remedy = "give each argument in the shape and type that the network takes, or pass inputs="
    else:
        usual = ", for images usually (N, channels, height, width)" if data.only.ndim in (3, 4) else ""
        remedy = f"give them the shape and type that the network takes{usual}"
    return InputError(f"the network cannot take {data.describe()} ({text[:160]}); {remedy}")
