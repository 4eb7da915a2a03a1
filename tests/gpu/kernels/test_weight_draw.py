"""The kernel that draws weights, emulated against Philox in NumPy, and on a GPU against torch.randn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from avuc.gpu.kernels import weight_draw as kernel


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox 4×32 with ten rounds, in 64-bit integers; (N, 4) counters."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        one, two = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (two >> half) ^ c1 ^ k0, two & low, (one >> half) ^ c3 ^ k1, one & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], 1)


def normals(count: int, lanes: int, seed: int) -> np.ndarray:
    """The numbers that torch.randn gives on a GPU with so many threads, in float64."""
    rounds = -(-count // (4 * lanes))
    found = np.empty((rounds, 4, lanes))
    for number in range(rounds):
        lane = np.arange(lanes)
        zero = np.zeros_like(lane)
        words = philox(np.stack([zero + number, zero, lane, zero], 1), (seed & 0xFFFFFFFF, seed >> 32))
        uniform = (words + 0.5) / 2**32
        for pair in (0, 2):
            radius, angle = np.sqrt(-2 * np.log(uniform[:, pair])), 2 * np.pi * uniform[:, pair + 1]
            found[number, pair], found[number, pair + 1] = radius * np.sin(angle), radius * np.cos(angle)
    return found.reshape(-1)[:count]


def test_philox_of_the_oracle() -> None:
    """The known answers that the authors of Philox publish."""
    ones = np.full((1, 4), 0xFFFFFFFF)
    assert philox(np.zeros((1, 4), int), (0, 0)).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    assert philox(ones, (0xFFFFFFFF, 0xFFFFFFFF)).tolist() == [[0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]]


@pytest.mark.parametrize("count", [1, 300, 2048, 5000])
def test_the_emulated_kernel(emulated: Callable[..., Any], count: int) -> None:
    lanes, seed = 512, 2**62 + 2**31 + 5
    generator = torch.Generator().manual_seed(0)
    mean, spread = torch.randn(count, generator=generator), torch.rand(count, generator=generator)
    cut = count // 3  # a part in float32 and one in bfloat16
    parts = [(0, torch.full((cut,), torch.nan)), (cut, torch.full((count - cut,), torch.nan, dtype=torch.bfloat16))]
    parts = [(start, part) for start, part in parts if part.numel()]
    build = lambda source, defines, device: emulated(source, defines)  # noqa: E731
    kernel.draw_weights(mean, spread, seed, parts, lanes=lanes, build=build)
    want = mean.double() + spread.double() * torch.from_numpy(normals(count, lanes, seed))
    for start, part in parts:
        close = 2**-8 if part.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(part.double(), want[start : start + part.numel()], rtol=close, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 1000, 100_003, 25_557_032])
def test_on_a_gpu(count: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    mean, spread = torch.randn(count, device=device), torch.rand(count, device=device)
    noise = torch.randn(count, generator=torch.Generator(device).manual_seed(2**62 + 5), device=device)
    parts = [(0, torch.full((count,), torch.nan, device=device))]
    assert kernel.usable(mean, parts)
    kernel.draw_weights(mean, spread, 2**62 + 5, parts)
    torch.testing.assert_close(parts[0][1], mean + spread * noise, rtol=1e-5, atol=1e-5)
