"""The shifted sets of a study: images, sentences or other inputs, changed by a shift of avuc or of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data import Dataset
from avuc.data.tensors import Inputs, MemoryData, TensorData, each
from avuc.shifts import Profile, apply_shift, corrupt, moved_labels
from avuc.shifts.streams import stable_seed
from avuc.shifts.text import TEXT_SHIFTS
from avuc.study.data.shifted_text import encoded, sentences_of, text_shifted
from avuc.study.own.code import ANY_ERROR, bound, described, find, is_path, seeded
from avuc.study.own.text_file import is_text_file

CHUNK = 1024  # examples that a shift of the user's own gets at a time


def shifted_data(
    clean: MemoryData,
    name: str,
    severity: int,
    seed: int,
    profile: Profile,
    size: int = 0,
    options: Mapping[str, Any] | None = None,
) -> MemoryData:
    """Return the clean data with a shift applied.

    Labels stay the same, except for sentences of another domain; labels of pixels move with the pixels. The user's
    function may return a pair: the inputs and a label for each pixel or token.

    Args:
        clean: the test data.
        name: a shift of avuc, the import path of a function, or a file of sentences.
        severity: 1 to 5.
        seed: seed of the random numbers, which also depend on name and severity.
        profile: decides which constants the corruptions of images use.
        size: height and width to which images are scaled first; 0 keeps their size.
        options: `DataConfig.offered`; the user's function gets those that it has a parameter for.
    """
    if size:
        clean = scaled(clean, size)
    if is_path(name) and clean.device.type != "cpu":
        # on the CPU, so that the user's function need not handle devices and gives the same numbers everywhere
        return shifted_data(clean.to("cpu"), name, severity, seed, profile, options=options).to(clean.device)
    # the same for every method and after an interruption, even if the user's function does not use its generator
    with seeded(stable_seed(name, severity, seed, "global")):
        return _shifted(clean, name, severity, seed, profile, options or {})


def _shifted(
    clean: MemoryData, name: str, severity: int, seed: int, profile: Profile, options: Mapping[str, Any]
) -> MemoryData:
    title = f"{name} {severity}"
    if name in TEXT_SHIFTS or is_text_file(name):
        return text_shifted(clean, name, severity, seed)
    if clean.images is None:
        if not is_path(name):
            others = f"; for sentences there are {', '.join(TEXT_SHIFTS)}" if isinstance(clean, TensorData) else ""
            raise InputError(
                f"study.shifts: {name!r} changes uint8 images, and {clean.name} has none; name a function of your own, "
                f"module:function{others}"
            )
        assert isinstance(clean, TensorData)
        return _own_shifted(clean, name, severity, seed, options)
    labels = clean.labels
    if is_path(name):
        images, labels = own_images(clean.images, labels, name, severity, seed, options)
        _check_classes(labels, clean.num_classes, name)
    else:
        images = corrupt(clean.images, name, severity, seed=seed, profile=profile)
        if labels.ndim == clean.images.ndim - 1:
            labels = moved_labels(clean.images, labels, name, severity, seed=seed, profile=profile)
    if isinstance(clean, TensorData):
        return replace(clean, inputs=images, labels=labels, name=title)
    return replace(clean, images=images, labels=labels, name=title)


def scaled(data: MemoryData, size: int) -> Dataset:
    """Return images scaled to `size` × `size`, bilinearly; a smaller size averages over pixels.

    Args:
        data: images with one label each.
        size: the new height and width.
    """
    if not isinstance(data, Dataset):
        raise InputError(f"study.shift_size: {data.name} are no images with one label each; leave it out")
    result = torch.empty((len(data), size, size, data.images.shape[3]), dtype=torch.uint8, device=data.device)
    for rows, some in zip(result.split(CHUNK), data.images.split(CHUNK), strict=True):
        pixels = some.permute(0, 3, 1, 2).float()
        pixels = interpolate(pixels, size=(size, size), mode="bilinear", antialias=size < max(some.shape[1:3]))
        rows.copy_(pixels.round_().clamp_(0, 255).permute(0, 2, 3, 1))
    return replace(data, images=result)


def shift_function(path: str, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the user's function in the form (batch, severity, generator); it gets the arguments that it names.

    Args:
        path: the function.
        options: further arguments that it may name.
    """
    function = find(path, "study.shifts")

    def shift(batch: Any, severity: int, generator: torch.Generator, **more: Any) -> Any:
        offered = {"severity": severity, "generator": generator, **more}
        offered |= {key: value for key, value in (options or {}).items() if key not in offered}
        call = bound(function, offered, {}, "study.shifts", path, takes_batch=True)
        try:
            return call(batch)
        except InputError:
            raise
        except ANY_ERROR as error:
            raise InputError(f"study.shifts: {path} failed: {described(error)}") from error

    return shift


def own_images(
    images: Tensor, labels: Tensor, path: str, severity: int, seed: int, options: Mapping[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """Return uint8 images (N, H, W, C) shifted by the user's function, and their labels; shapes and types must stay."""
    function, parts = shift_function(path, options), list[Tensor]()

    def shift(batch: Tensor, severity: int, generator: torch.Generator, /) -> Tensor:
        start = sum(map(len, parts))
        batch_labels = labels[start : start + len(batch)]
        # a clone, because the user's function may write into its batch
        result, moved = _shift_batch(function, batch.clone(), batch_labels, severity, generator, path)
        if not isinstance(result, Tensor):
            raise InputError(f"study.shifts: {path} returned a {type(result).__name__}; expected a tensor of images")
        if (result.shape, result.dtype) != (batch.shape, batch.dtype):
            raise InputError(
                f"study.shifts: {path} returned {result.dtype} of shape {tuple(result.shape)}; expected uint8 of shape "
                f"{tuple(batch.shape)}, like its input"
            )
        parts.append(moved)
        return result

    shifted = apply_shift(images, shift, path, severity, seed=seed)
    assert isinstance(shifted, Tensor)
    return shifted, torch.cat(parts) if parts else labels


def _shift_batch(
    function: Callable[..., Any], batch: Inputs, labels: Tensor, severity: int, generator: torch.Generator, path: str
) -> tuple[Any, Tensor]:
    """Return the shifted inputs of a batch and their labels; the user's function may return both, or inputs only."""
    if labels.ndim == 1:  # a shift does not change the label of a whole example
        return function(batch, severity, generator), labels
    result = function(batch, severity, generator, labels=labels.clone())
    if not isinstance(result, tuple) or len(result) != 2:
        return result, labels
    inputs, moved = result
    if not isinstance(moved, Tensor) or (moved.shape, moved.dtype) != (labels.shape, labels.dtype):
        facts = f"{tuple(moved.shape)}, {moved.dtype}" if isinstance(moved, Tensor) else type(moved).__name__
        raise InputError(
            f"study.shifts: {path} returned labels {facts}; expected {tuple(labels.shape)}, {labels.dtype}, like those "
            "that it gets"
        )
    return inputs, moved


def _check_classes(labels: Tensor, num_classes: int, path: str) -> None:
    """Refuse labels of a shift that are no classes."""
    wrong = labels[((labels < 0) | (labels >= num_classes)) & (labels != IGNORE_INDEX)]
    if len(wrong) and labels.ndim > 1:
        raise InputError(
            f"study.shifts: {path} returned the label {int(wrong[0])}; expected classes 0 … {num_classes - 1}, and "
            f"{IGNORE_INDEX} where there is no label"
        )


def _own_shifted(clean: TensorData, path: str, severity: int, seed: int, options: Mapping[str, Any]) -> TensorData:
    """Apply the user's function to sentences, or to tensors of any kind."""
    function = shift_function(path, options)
    if clean.texts:
        generator = torch.Generator().manual_seed(stable_seed(path, severity, seed))
        returned = function(list(clean.texts), severity, generator, labels=clean.labels.clone())
        texts, labels = sentences_of(returned, clean, path)
        return encoded(clean, texts, labels, f"{path} {severity}")
    generator = torch.Generator(clean.device).manual_seed(stable_seed(path, severity, seed))
    parts, moved = [], list[Tensor]()
    for rows in torch.arange(len(clean), device=clean.device).split(CHUNK):
        batch = each(clean.inputs, lambda tensor: tensor[rows])  # noqa: B023  # called at once; indexing copies
        shifted, labels = _shift_batch(function, batch, clean.labels[rows], severity, generator, path)
        _check_alike(shifted, each(clean.inputs, lambda tensor: tensor[rows]), path)  # noqa: B023
        parts.append(shifted)
        moved.append(labels)
    _check_classes(torch.cat(moved), clean.num_classes, path)
    if isinstance(clean.inputs, Tensor):
        inputs: Inputs = torch.cat(parts)
    else:
        inputs = {name: torch.cat([part[name] for part in parts]) for name in clean.inputs}
    return replace(clean, inputs=inputs, labels=torch.cat(moved), name=f"{path} {severity}")


def _check_alike(returned: Any, batch: Inputs, path: str) -> None:
    def facts(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: facts(part) for name, part in value.items()}
        return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else type(value).__name__

    if facts(returned) != facts(batch):
        raise InputError(f"study.shifts: {path} returned {facts(returned)}; expected {facts(batch)}, like its input")
