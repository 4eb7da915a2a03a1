"""Errors are told apart by class; texts of other libraries are read in one place."""

from __future__ import annotations

import math

import pytest
import torch

from avuc.core.errors import InputError, NonFiniteError, explained, loader_process_died, out_of_memory
from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss, avuc_quadrants, confidence_penalty

NAN = torch.tensor([[math.nan, 0.0]])
LABELS = torch.tensor([0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: avuc_loss(NAN, LABELS, 0.5),
        lambda: avuc_loss(NAN, LABELS, 0.5, variant="soft"),
        lambda: auavuc_loss(NAN, LABELS),
        lambda: confidence_penalty(NAN, LABELS),
        lambda: avuc_quadrants(NAN, LABELS, 0.5),
        lambda: AvUCLoss(warmup_epochs=1)(NAN, LABELS),
    ],
)
def test_losses_raise_a_class_of_their_own_for_nan(call) -> None:
    with pytest.raises(NonFiniteError, match="NaN"):
        call()


def test_a_bad_threshold_is_another_error() -> None:
    with pytest.raises(InputError) as caught:
        avuc_loss(torch.zeros(1, 2), LABELS, math.nan)
    assert not isinstance(caught.value, NonFiniteError)


MEMORY = [
    (MemoryError(), "there is not enough memory"),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        "there is not enough memory",
    ),
    (RuntimeError("std::bad_alloc"), "there is not enough memory"),
    (torch.OutOfMemoryError("HIP is full"), "the GPU has not enough memory"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "the GPU has not enough memory"),
]


@pytest.mark.parametrize(("error", "line"), MEMORY)
def test_errors_about_memory(error: BaseException, line: str) -> None:
    assert out_of_memory(error)
    assert str(explained(error)).startswith(line)


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shape mismatch"), KeyError("x")])
def test_other_errors(error: BaseException) -> None:
    assert not out_of_memory(error)
    assert not loader_process_died(error)
    assert explained(error) is None


def test_a_dead_loader_process() -> None:
    error = RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed.")
    assert loader_process_died(error)
    assert "a process that loads data was killed" in str(explained(error))
