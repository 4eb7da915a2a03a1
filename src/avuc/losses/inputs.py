"""Checks of the losses' arguments, with one-line errors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from avuc.core.arrays import range_remedy
from avuc.core.errors import InputError, NonFiniteError
from avuc.core.probabilities import are_probs, check_probs, looks_like

# ---- numbers


def one_of(name: str, value: str, allowed: tuple[str, ...], where: str = "avuc") -> None:
    """Raise `InputError` if a keyword has none of its valid values; `where` is the loss, for the message."""
    if value not in allowed:
        raise InputError(f"{where}: {name} must be one of {', '.join(allowed)}; found {value!r}")


def checked_number(what: str, value: Any) -> float:
    """Return a finite number that is not negative; `InputError` otherwise. A tensor with one element is accepted."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{what} must be a number; found {value!r}")
    if not 0 <= float(value) < math.inf:
        raise InputError(f"{what} must not be negative, NaN or infinite; found {value!r}")
    return float(value)


def checked_whole(what: str, value: Any, least: int = 0) -> int:
    """Return a whole number of at least `least`; `InputError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{what} must be a whole number; found {value!r}")
    if value < least:
        raise InputError(f"{what} must {'not be negative' if least == 0 else f'be at least {least}'}; found {value!r}")
    return int(value)


def checked_threshold(threshold: Any, variant: str) -> float | Tensor:
    """Return one number: a float, or a tensor without dimensions in float32 or better.

    With NaN every prediction would be certain. On a GPU `refuse_nan` checks for it, together with the loss.
    """
    if threshold is None:
        raise InputError(f"avuc: variant {variant!r} needs a threshold; AvUCLoss learns one, 'soft' has a default")
    if isinstance(threshold, Tensor):
        if threshold.numel() != 1 or threshold.is_complex():
            raise InputError(
                f"avuc: threshold must be one number; found {tuple(threshold.shape)} numbers of {threshold.dtype}"
            )
        threshold = threshold.reshape(())
        if threshold.dtype not in (torch.float32, torch.float64):
            threshold = threshold.float()
        unknown = threshold.device.type == "cpu" and may_synchronise(threshold) and math.isnan(threshold.item())
    elif isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise InputError(f"avuc: threshold must be a number; found {threshold!r}")
    else:
        threshold = float(threshold)
        unknown = math.isnan(threshold)
    if unknown:
        raise InputError("avuc: threshold is NaN; give an uncertainty in nats")
    return threshold  # type: ignore[no-any-return]


# ---- scores and labels


def check_shapes(scores: Tensor, labels: Tensor) -> int:
    """Return the number of samples in `scores` (0: no sample dimension); `InputError` if shapes do not match."""
    for name, values in (("scores", scores), ("labels", labels)):
        if not isinstance(values, Tensor):
            raise InputError(
                f"avuc: {name} must be a tensor; found {type(values).__name__}: convert it with torch.as_tensor"
            )
    has_samples, classes_at = scores.ndim - labels.ndim - 1, scores.ndim - labels.ndim
    fits = (
        labels.ndim >= 1
        and has_samples in (0, 1)
        and scores.shape[has_samples] == labels.shape[0]
        and scores.shape[classes_at + 1 :] == labels.shape[1:]
        and (has_samples == 0 or scores.shape[0] > 0)
        and scores.shape[classes_at] > 0
    )
    if not fits:
        if scores.ndim == 2 and labels.shape == (scores.shape[0], 1):
            raise InputError(
                f"avuc: labels {tuple(labels.shape)} do not go with scores {tuple(scores.shape)}; class indices of "
                "shape (N): use labels.squeeze(1)"
            )
        if labels.ndim >= 2 and scores.shape[-labels.ndim :] == labels.shape:
            raise InputError(
                "avuc: labels must be integers, class indices of shape (N); found one-hot or soft labels of shape "
                f"{tuple(labels.shape)}: use labels.argmax(-1), or task='multilabel' for independent labels"
            )
        if labels.ndim > 1 and scores.shape[:-1] == labels.shape and scores.shape[-1] > 0:
            raise InputError(
                f"avuc: scores {tuple(scores.shape)} have the classes last for labels {tuple(labels.shape)}: pass "
                "class_dim=-1 to the loss; where it has no class_dim, as in fit, let the network return "
                "logits.movedim(-1, 1)"
            )
        raise InputError(
            "avuc: scores (N, C) or (S, N, C) go with labels (N), and (N, C, *spatial) or (S, N, C, *spatial) with "
            f"(N, *spatial); found scores {tuple(scores.shape)} and labels {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"avuc: labels must be integers, class indices; found {labels.dtype}")
    return scores.shape[0] if has_samples else 0


def class_indices(labels: Tensor) -> Tensor:
    """Return labels as int64, (M): in uint8, label 156 and an ignore_index of −100 are the same bits."""
    return labels.reshape(-1).long()


def label_weights(
    labels: Tensor, num_classes: int, ignore_index: int, weights: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Return a weight per label, 0 for ignored ones, or None if all have weight 1; checks the range of labels."""
    if weights is not None:
        if not isinstance(weights, Tensor):
            raise InputError(f"avuc: weights must be a tensor; found {type(weights).__name__}: use torch.as_tensor")
        if weights.numel() != labels.numel():
            remedy = "; of class weights give class_weights[labels]" if weights.numel() == num_classes else ""
            raise InputError(
                f"avuc: one weight per label; found {weights.numel()} weights for {labels.numel()} labels{remedy}"
            )
        weights = weights.reshape(-1).to(labels.device, dtype)
        if may_synchronise(weights) and weights.numel():
            low, high = _extremes(weights)
            if not 0 <= low <= high < math.inf:
                raise InputError(f"avuc: weights must not be negative, NaN or infinite; found {low} … {high}")
    if may_synchronise(labels) and labels.numel():
        low, high = _extremes(labels)
        if low >= 0 and high < num_classes and not 0 <= ignore_index < num_classes:
            return weights
        refuse_labels(labels, num_classes, ignore_index)
    used = (labels != ignore_index).to(dtype)
    return used if weights is None else used * weights


def refuse_labels(labels: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise `InputError` if some labels are not classes."""
    if bool(((labels != ignore_index) & ((labels < 0) | (labels >= num_classes))).any()):
        low, high = _extremes(labels)
        raise InputError(
            f"avuc: labels must be 0 … {num_classes - 1} (or ignore_index={ignore_index}); found {low} … {high}"
            + range_remedy(low, high, num_classes)
        )


def _extremes(values: Tensor) -> list[float]:
    """Return the smallest and the largest value, with one transfer from a GPU."""
    pair = torch.stack(values.detach().aminmax())
    # inside torch.func, versions of torch before 2.11 have item() but no tolist()
    return [value.item() for value in pair] if transforming() else pair.tolist()


def at_least_float32(values: Tensor) -> Tensor:
    """Return float32 or float64: bfloat16 logits near 10 are 0.06 apart."""
    if not values.is_floating_point():
        raise InputError(f"avuc: scores must be floating point; found {values.dtype}")
    return values if values.dtype == torch.float64 else values.float()


def classes_last(scores: Tensor, labels: Tensor) -> Tensor:
    """Return scores ([S,] N, C, *spatial) as ([S,] N·spatial, C)."""
    classes_at = scores.ndim - labels.ndim
    if labels.ndim > 1:
        scores = scores.movedim(classes_at, -1)
    return scores.reshape(*scores.shape[: classes_at - 1], -1, scores.shape[-1])


def look_like_probs(scores: Tensor, labels: Tensor) -> bool:
    """Return whether all rows look like probabilities, which logits hardly ever do."""
    classes_at = scores.ndim - labels.ndim
    return may_synchronise(scores) and looks_like(scores.detach().movedim(classes_at, -1)) is not None


def refuse_logits(probs: Tensor) -> None:
    """Raise `InputError` for rows (N, C) that are negative or do not sum to 1; `refuse_nan` handles NaN."""
    if not probs.numel() or not may_synchronise(probs):
        return
    values = probs.detach()
    if bool(are_probs(values)) or bool(values.isnan().any()):
        return
    try:
        check_probs(values)
    except InputError as error:
        raise InputError(f"avuc: {error}") from error


# ---- results


def refuse_nan(result: Tensor, what: str, threshold: float | Tensor | None = None) -> None:
    """Raise `NonFiniteError` if `result` is NaN. NaN in any input reaches it, on every rank."""
    if not may_synchronise(result):
        return
    value = result.detach().sum()
    if isinstance(threshold, Tensor) and threshold.is_cuda:
        value = value + torch.where(threshold.detach().isnan(), math.nan, 0.0).sum()
    if math.isnan(value.item()):
        if isinstance(threshold, Tensor) and bool(threshold.isnan().any()):
            raise InputError("avuc: threshold is NaN; give an uncertainty in nats")
        refuse_nan_value(math.nan, what)


def refuse_nan_value(value: float, what: str) -> None:
    """Raise `NonFiniteError` if the value is NaN."""
    if math.isnan(value):
        raise NonFiniteError(f"avuc: {what} contain NaN or +inf; look for the first bad layer with torch.isfinite")


def may_synchronise(tensor: Tensor) -> bool:
    """Return whether a value can be read here: not during tracing or graph capture, and not inside torch.vmap."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            if torch._C._functorch.is_batchedtensor(tensor):
                return False
            tensor = torch._C._functorch.get_unwrapped(tensor)
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def transforming() -> bool:
    """Return whether torch.func or forward-mode differentiation is active; both need ordinary torch operations."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def outside_transforms() -> contextlib.AbstractContextManager[object]:
    """Return a context in which tensors of a module can be changed in place, which torch.func refuses otherwise."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return contextlib.nullcontext()
    return torch._C._DisableFuncTorch()  # type: ignore[no-any-return, unused-ignore]


def plain_value(values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """Return the value of a tensor inside torch.func. `reduce` (a sum or mean) joins the members of a torch.vmap."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return values
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(values):
        member = functorch.maybe_get_bdim(values) if functorch.is_batchedtensor(values) else None
        values = functorch.get_unwrapped(values)
        values = values if member is None else reduce(values, dim=member)
    return values
