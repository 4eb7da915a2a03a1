"""What a network returns: where its logits are, and whether they are logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from avuc.core.caller import warn_caller
from avuc.core.errors import InputError
from avuc.core.probabilities import looks_like
from avuc.prediction.task import Task

Logits = Callable[[Any], Tensor]
"""A function from a network's output to its logits."""

# if at least this many outputs are all from 0 to 1, they are probabilities; fewer may be logits
FEWEST_SIGMOIDS = 16


CHOOSE = "pass logits=, a function from this output to the tensor of logits"


def logits_of(output: Any, rows: int, function: Logits | None = None, *, remedy: str = CHOOSE) -> Tensor:
    """Return the logits from a network's output.

    The output may be a tensor; an object or mapping with "logits", as in Hugging Face; or a tuple or list with exactly
    one tensor of shape (rows, classes), or exactly one with a row of another shape for each example.

    Args:
        output: what the network returned.
        rows: number of examples.
        function: returns the logits from the output; None: as above.
        remedy: what the caller's user can do if the logits are not found, for the message.

    >>> import torch
    >>> logits_of({"logits": torch.zeros(2, 3), "loss": torch.tensor(0.1)}, 2).shape
    torch.Size([2, 3])
    """
    if function is not None:
        logits = function(output)
        if not isinstance(logits, Tensor):
            raise InputError(f"logits= must return a tensor of logits, found {type(logits).__name__}")
        return logits
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    kind = f"a {type(output).__name__}"
    if isinstance(output, tuple | list):
        tensors = [part for part in output if isinstance(part, Tensor)]
        fitting = [part for part in tensors if part.is_floating_point() and part.ndim and len(part) == rows]
        matrices = [part for part in fitting if part.ndim == 2] or fitting
        if len(matrices) == 1:
            return matrices[0]
        kind += f" with the tensors {', '.join(str(tuple(part.shape)) for part in tensors) or 'none'}"
    elif isinstance(output, Mapping):
        kind += f" with the keys {', '.join(map(repr, list(output)[:6])) or 'none'}"
    raise InputError(
        f"the network returns {kind}, and which part holds the logits ({rows}, classes) is not clear; {remedy}"
    )


def check_outputs(logits: Tensor, task: Task, *, chosen: bool = False, taker: str = "predict") -> None:
    """Raise an error if the outputs (N, …) of a network are not the logits of a classifier.

    Args:
        logits: what the network returned, or the part that was found or chosen.
        task: how they are laid out.
        chosen: whether the user's `logits=` returned them: numbers from 0 to 1 are then meant.
        taker: the function that needs logits, for the message.
    """
    if not logits.is_floating_point():
        raise InputError(f"the network's outputs must be floating-point logits, found {logits.dtype}")
    axis = 1 if task.class_dim is None else task.class_dim
    single = logits.ndim < 2 or (-logits.ndim <= axis < logits.ndim and logits.shape[axis] == 1)
    if single or task.name == "multilabel":
        # sigmoids of a network that learned anything fill the range from 0 to 1; logits are negative about as often
        # as positive
        if not chosen and logits.numel() >= FEWEST_SIGMOIDS and bool(((logits >= 0) & (logits <= 1)).all()):
            warn_caller(
                "the network's outputs are all from 0 to 1, like probabilities of a sigmoid, but predict needs logits: "
                "remove the network's last sigmoid, or pass logits=torch.logit"
            )
        return
    if not -logits.ndim <= axis < logits.ndim:
        return
    looks = looks_like(logits.movedim(axis, -1))
    if looks is not None:
        raise InputError(
            f"the network's outputs look like {looks} (not negative, every row has the same sum), but {taker} needs "
            "logits: remove the network's last softmax, or return the logarithm of its outputs"
        )
