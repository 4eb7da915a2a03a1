"""Per-image random streams: uniform, normal, independent, and the same whatever the batch."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from avuc.shifts.streams import ImageStreams, digests, image_keys, stable_seed, streams


def splitmix64(state: int, count: int) -> list[int]:
    """The published algorithm in Python's unbounded integers."""
    mask, words = (1 << 64) - 1, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        words.append(word ^ (word >> 31))
    return words


def make(count: int, seed: int = 0) -> ImageStreams:
    return ImageStreams.of(image_keys(torch.arange(count), seed), seed)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5))
def test_words_are_splitmix64(key: int, skip: int) -> None:
    random = ImageStreams.of(torch.tensor([key]), 0)
    random.words(skip)
    words = random.words(7)[0].tolist()
    assert [word & ((1 << 64) - 1) for word in words] == splitmix64(key & ((1 << 64) - 1), skip + 7)[skip:]


def test_uniform_is_uniform() -> None:
    draw = make(64).uniform(5001).double().numpy()
    assert draw.min() > 0
    assert draw.max() <= 1
    assert stats.kstest(draw.ravel(), "uniform").pvalue > 1e-3


def test_normal_is_normal_and_white() -> None:
    draw = make(64).normal(71, 71).double()
    flat = draw.numpy().ravel()
    assert stats.kstest(flat, "norm").pvalue > 1e-3
    assert abs(stats.kurtosis(flat)) < 0.05
    power = torch.fft.fft2(draw).abs().square().mean(0).div_(71 * 71)
    assert abs(power.mean() - 1) < 0.02
    # each frequency averages 64 exponential variables: standard deviation 1/8
    assert 0.11 < power.std() < 0.14


def test_bits16_and_below_are_uniform() -> None:
    random = make(4000)
    counts = np.bincount(random.bits16(33).numpy().ravel() >> 12, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-3
    draw = random.below(torch.full((4000,), 7))
    assert stats.chisquare(np.bincount(draw.numpy(), minlength=7)).pvalue > 1e-3


def test_images_and_seeds_are_independent() -> None:
    first, second = make(32, seed=0).normal(4000), make(32, seed=1).normal(4000)
    correlation = np.corrcoef(torch.cat((first, second)).numpy())
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / 4000**0.5


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_one_changed_byte_changes_the_digest(count: int, height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    other = images.copy()
    other.reshape(count, -1)[np.arange(count), rng.integers(0, height * width * 3, count)] ^= np.uint8(
        1 << rng.integers(8)
    )
    assert (digests(torch.from_numpy(images)) != digests(torch.from_numpy(other))).all()


def test_moved_bytes_change_the_digest() -> None:
    """Every single-dot image has its own digest: differences do not cancel between words."""
    images = torch.zeros(32 * 32 * 3, 32, 32, 3, dtype=torch.uint8)
    images.view(3072, 3072).fill_diagonal_(255)
    assert len(set(digests(images).tolist())) == 3072


def test_copies_are_told_apart_in_order() -> None:
    image = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)
    keys = image_keys(digests(image[[0, 1, 0, 0, 1]]), 3)
    assert len(set(keys.tolist())) == 5
    alone = image_keys(digests(image), 3)
    assert keys[:2].tolist() == alone.tolist()
    assert keys[2] == image_keys(digests(image[[0, 0]]), 3)[1]


def test_plain_generator_gives_streams_by_its_seed() -> None:
    images = torch.randint(0, 256, (3, 4, 4, 1), dtype=torch.uint8)
    one = streams(images, torch.Generator().manual_seed(5)).normal(2)
    assert torch.equal(one, streams(images, torch.Generator().manual_seed(5)).normal(2))
    assert not torch.equal(one, streams(images, torch.Generator().manual_seed(6)).normal(2))
    made = make(3)
    assert streams(images, made) is made


def test_stable_seed_does_not_change() -> None:
    """Saved studies are regenerated from these; a change would silently be another test set."""
    assert stable_seed("fog", 3, 0) == int.from_bytes(hashlib.sha256(b"fog\x003\x000").digest()[:8], "little") // 2
    assert stable_seed("a", "bc") != stable_seed("ab", "c")


@pytest.mark.gpu
def test_same_integers_on_the_gpu() -> None:
    images = torch.randint(0, 256, (9, 7, 5, 3), dtype=torch.uint8)
    here, there = (image_keys(digests(images.to(device)), 4) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
    assert torch.equal(ImageStreams.of(here, 0).words(50), ImageStreams.of(there, 0).words(50).cpu())
