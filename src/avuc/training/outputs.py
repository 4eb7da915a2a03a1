"""The logits of a training batch from what a network returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from avuc.core.errors import InputError
from avuc.prediction.outputs import logits_of

REMEDY = "return the logits alone, or an object or dict with logits"


def logits_to_train(output: Any, inputs: Any) -> Tensor:
    """Return the logits of a batch; `InputError` if they are not clear, or are no logits of several classes.

    Args:
        output: what the network returned: logits, or an object or mapping with "logits", as in Hugging Face.
        inputs: of the batch: a tensor, or a mapping of tensors.

    >>> import torch
    >>> logits_to_train({"logits": torch.zeros(2, 3)}, torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    logits = output if isinstance(output, Tensor) else logits_of(output, len(first), remedy=REMEDY)
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        raise InputError(
            f"the network returns one logit for each row, {tuple(logits.shape)}, and this training takes one for each "
            "class: give it two outputs for the labels 0 and 1; a training loop of your own can use one (AvUCLoss)"
        )
    return logits
