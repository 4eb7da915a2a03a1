"""The emulator itself: what it computes, and that it shows the mistakes it is there for."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch

Emulate = Callable[..., Any]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("k", [16, 48])
def test_product(emulated: Emulate, k: int, order: int) -> None:
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(32, k, generator=generator).bfloat16()
    b = torch.randn(8, k, generator=generator).bfloat16()
    c = torch.full((32, 8), torch.nan)
    program = emulated("product.cu")
    program.order = order
    program.launch("product", grid=(2, 1, 1), block=32, args=[a, b, c, k, 0.5], shared=24 * (2 * k + 16))
    torch.testing.assert_close(c, 0.5 * (a.float() @ b.float().T), rtol=1e-5, atol=1e-5)


def test_transposed_matrices_and_shuffles(emulated: Emulate) -> None:
    a = torch.arange(256, dtype=torch.int16)
    out = torch.zeros(32, 4, dtype=torch.int32)
    swapped = torch.zeros(32)
    emulated("product.cu").launch("turned", grid=(1, 1, 1), block=32, args=[a, out, swapped], shared=512)
    matrix = a.view(16, 16)
    for lane in range(32):
        for word in range(4):
            part = matrix[8 * (word // 2) :][:8, 8 * (word % 2) :][:, :8].T  # transposed: columns become rows
            low, high = part[lane // 4, 2 * (lane % 4)], part[lane // 4, 2 * (lane % 4) + 1]
            assert int(out[lane, word]) == int(low) | int(high) << 16
        assert swapped[lane] == lane ^ 5


def test_bf16_rounds_to_nearest_even(emulated: Emulate) -> None:
    # the product with the identity gives back what copies and matrices carry, whatever the bits
    a = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    c = torch.zeros(16, 8)
    eye = torch.eye(16)[:8].bfloat16()
    emulated("product.cu").launch("product", grid=(1, 1, 1), block=32, args=[a, eye, c, 16, 1.0], shared=24 * 48)
    assert torch.equal(c, a[:, :8].float())


def test_a_missing_barrier_shows_in_one_of_the_orders(emulated: Emulate) -> None:
    expected = (torch.arange(64) + 32).remainder(64).float()
    program = emulated("product.cu")
    right = []
    for order in (0, 1):
        out = torch.zeros(64)
        program.order = order
        program.launch("unguarded", grid=(1, 1, 1), block=64, args=[out], shared=256)
        right.append(torch.equal(out, expected))
    assert right != [True, True]


def _too_little_shared(emulate: Emulate, said: Any) -> None:
    faulthandler.disable()  # the end is expected
    a, b, c = torch.zeros(16, 16).bfloat16(), torch.zeros(8, 16).bfloat16(), torch.zeros(16, 8)
    emulate("product.cu").launch("product", grid=(1, 1, 1), block=32, args=[a, b, c, 16, 1.0], shared=23 * 48)
    said.put("went on")


def test_leaving_the_shared_memory_ends_the_program(emulated: Emulate) -> None:
    emulated("product.cu")
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    process = context.Process(target=_too_little_shared, args=(emulated, said))
    process.start()
    process.join(60)
    assert process.exitcode == -6
    assert said.empty()


def test_arguments_keep_their_values() -> None:
    from avuc.gpu.kernels.build import packed_arguments

    tensor = torch.zeros(3)
    kept, pointers = packed_arguments([tensor, -7, 0.5])
    assert ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_void_p))[0] == tensor.data_ptr()
    assert ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int32))[0] == -7
    assert ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_float))[0] == 0.5
    assert len(kept) == 3
