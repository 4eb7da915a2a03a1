"""The negative evidence lower bound: cross-entropy plus the KL divergence of the weights."""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import at_least_float32, check_shapes, checked_number, checked_whole, label_weights
from avuc.losses.layout import Task, standard_layout


def elbo_loss(
    logits: Tensor,
    labels: Tensor,
    kl: Tensor | float,
    *,
    num_train: int,
    kl_weight: float | Tensor = 1.0,
    ignore_index: int = -100,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the negative evidence lower bound per training example, a tensor without dimensions.

        L = E_q[cross-entropy] + kl_weight · KL(q ‖ prior)/num_train

    The expectation is the mean over the posterior samples in `logits`.

    Args:
        logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).
        labels: class indices, (N) or (N, *spatial). A batch whose labels are all ignored has cross-entropy 0.
        kl: KL divergence, summed over all variational weights: one number.
        num_train: number of predictions in the training set, not of batches: of its examples, or of the labelled pixels
            or tokens of dense logits, or of the label decisions, because the cross-entropy is a mean over these.
        kl_weight: factor of the KL (default 1); below 1 the posterior is tempered.
        ignore_index: label of the predictions to leave out (default −100).
        task, class_dim: the layout of `logits`, as in `avuc_loss`. For binary and multi-label logits the cross-entropy
            is the binary one, averaged over all decisions.

    >>> round(elbo_loss(torch.zeros(1, 2), torch.tensor([0]), 50.0, num_train=100).item(), 4)  # log 2 + 50/100
    1.1931
    """
    checked_whole("elbo_loss: num_train is the size of the training set and", num_train, least=1)
    if not isinstance(kl_weight, Tensor):
        checked_number("elbo_loss: kl_weight", kl_weight)
    logits, standard = standard_layout(logits, labels, task, class_dim)
    logits, rows = at_least_float32(logits), len(labels) if labels.ndim else 0
    samples = check_shapes(logits, standard)
    labels = standard
    _check_kl(kl, rows, num_train)
    warn_of_probs("elbo_loss", logits, labels, wait=False)
    labels = labels.long()
    if labels.device.type == "cpu":  # refuses labels that are no classes in one line; on a GPU it would wait for them
        label_weights(labels, logits.shape[1 + bool(samples)], ignore_index, None, logits.dtype)
    if samples:
        logits, labels = logits.flatten(0, 1), labels.expand(samples, *labels.shape).flatten(0, 1)
    # the mean of F.cross_entropy would be NaN if every label is ignored
    used = (labels != ignore_index).sum().clamp(min=1)
    nll = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum") / used
    return nll + kl_weight * kl / num_train


def _check_kl(kl: Tensor | float, rows: int, num_train: int) -> None:
    if isinstance(kl, Tensor):
        if kl.numel() != 1:
            raise InputError(f"elbo_loss: kl must be one number, the sum over all weights; found {tuple(kl.shape)}")
        # looking at a value on a GPU would wait for it at every step
        value = None if kl.device.type != "cpu" or torch.compiler.is_compiling() else float(kl.detach())
    else:
        value = float(kl)
        if not math.isfinite(value):
            raise InputError(f"elbo_loss: kl must be a finite number; found {kl!r}")
        if value == 0:
            return
    if value is not None and value < 0:
        warnings.warn(
            f"elbo_loss: kl is {value:g}, and a KL divergence is not negative (an estimate from few samples may be): "
            "check its sign",
            stacklevel=3,
        )
    if rows > num_train:
        warnings.warn(
            f"elbo_loss: num_train={num_train} is less than the {rows} rows of this batch; give the number of training "
            "samples, not the number of batches",
            stacklevel=3,
        )
