"""Random streams per image: the numbers belong to an image, not to its position in a batch.

Image n has the counter-based stream r(n, j) = mix(key_n + (j + 1)·γ), which is SplitMix64 with γ = ⌊2⁶⁴/φ⌋ (Steele,
Lea & Flood 2014). The key is a hash of the image's bytes and a seed; in `corrupt` that seed is a hash of shift,
severity and the user's seed. A shifted image therefore does not depend on batch size, order or split, and CPU and GPU
use the same integers. Identical images in one call get different keys, in their order.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(word: int) -> int:
    """Return a 64-bit word as a signed integer (two's complement): torch has no unsigned 64-bit arithmetic."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word


def _mix_(words: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64 in place. The masks turn torch's arithmetic shifts into logical ones."""
    words ^= (words >> 30).bitwise_and_((1 << 34) - 1)
    words *= _signed(_MIX_1)
    words ^= (words >> 27).bitwise_and_((1 << 37) - 1)
    words *= _signed(_MIX_2)
    words ^= (words >> 31).bitwise_and_((1 << 33) - 1)
    return words


def stable_seed(*parts: str | int) -> int:
    """Return a 63-bit seed from names and numbers, the same on every machine and in every process (unlike `hash`).

    >>> stable_seed("fog", 3, 0) == stable_seed("fog", 3, 0) != stable_seed("fog", 3, 1)
    True
    """
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def digests(images: Tensor) -> Tensor:
    """Return a 64-bit hash of each image, int64 (N,).

    Args:
        images: uint8 (N, …).
    """
    count = images.shape[0]
    flat = images.reshape(count, -1)
    spare = -flat.shape[1] % 8
    if spare:
        flat = torch.nn.functional.pad(flat, (0, spare))
    flat = flat.contiguous()
    if flat.storage_offset() % 8:
        flat = flat.clone()  # a view as 64-bit words needs aligned memory
    words = flat.view(torch.int64)
    position = torch.arange(1, words.shape[1] + 1, device=images.device) * _signed(_GAMMA)
    # each word is mixed with its position before the sum, so differences between words cannot cancel
    return _mix_(words + _mix_(position)).sum(dim=1)


def image_keys(hashes: Tensor, seed: int) -> Tensor:
    """Return one key per image, int64 (N,); the k-th copy of an image gets the k-th key.

    Args:
        hashes: from `digests`, int64 (N,).
        seed: of all images.

    >>> keys = image_keys(digests(torch.zeros(3, 2, 2, 1, dtype=torch.uint8)), seed=0)
    >>> len(set(keys.tolist()))
    3
    """
    return _mix_(_mix_(hashes + _signed(seed * _GAMMA)) + _occurrence(hashes) * _signed(_GAMMA))


def _occurrence(digest: Tensor) -> Tensor:
    """Return how many equal values precede each one: 0 for the first copy, 1 for the second, …"""
    ordered, order = digest.sort(stable=True)
    index = torch.arange(len(digest), device=digest.device)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    start = torch.where(first, index, torch.zeros_like(index)).cummax(0).values
    return torch.empty_like(index).scatter_(0, order, index - start)


class ImageStreams(torch.Generator):
    """A `torch.Generator` with one random stream per image of a batch.

    Each method below takes the next numbers of every image's stream. A shift may also use it as a plain generator, as
    in `torch.randn(..., generator=generator)`; its numbers then depend on the order of the batch.

    Attributes:
        keys: one key per image, int64 (N,).
        drawn: how many 64-bit words of each stream were used.
    """

    keys: Tensor
    drawn: int

    @classmethod
    def of(cls, keys: Tensor, seed: int) -> ImageStreams:
        """Return streams with the given keys; `seed` is that of the plain generator."""
        generator = cls(device=keys.device)
        generator.manual_seed(seed)
        generator.keys = keys
        generator.drawn = 0
        return generator

    def words(self, count: int) -> Tensor:
        """Return uniformly random 64-bit words, int64 (N, count)."""
        counter = torch.arange(self.drawn + 1, self.drawn + count + 1, device=self.keys.device) * _signed(_GAMMA)
        self.drawn += count
        return _mix_(self.keys[:, None] + counter)

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers uniform on (0, 1], float32 (N, *shape): two per 64-bit word."""
        count = math.prod(shape)
        halves = self.words((count + 1) // 2).view(torch.int32)[:, :count]
        return halves.float().add_(2.0**31 + 0.5).mul_(2.0**-32).reshape(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float32 (N, *shape), by the Box–Muller transform."""
        count = math.prod(shape)
        half = (count + 1) // 2
        pair = self.uniform(2, half)
        radius = pair[:, 0].log().mul_(-2).sqrt_()
        angle = pair[:, 1].mul(2 * math.pi)
        torch.cos(angle, out=pair[:, 0])
        torch.sin(angle, out=pair[:, 1])
        return pair.mul_(radius[:, None]).flatten(1)[:, :count].reshape(-1, *shape)

    def bits16(self, *shape: int) -> Tensor:
        """Return integers uniform on 0…65535, int32 (N, *shape): four per 64-bit word."""
        count = math.prod(shape)
        quarters = self.words((count + 3) // 4).view(torch.int16)[:, :count]
        return quarters.to(torch.int32).bitwise_and_(0xFFFF).reshape(-1, *shape)

    def below(self, high: Tensor) -> Tensor:
        """Return one integer per image, int64 (N,), uniform on 0…high[n] − 1 with a bias below high/2³²."""
        return (self.words(1)[:, 0].bitwise_and_(0xFFFFFFFF) * high) >> 32


def streams(images: Tensor, generator: torch.Generator) -> ImageStreams:
    """Return the random streams of a batch, from which a shift draws its numbers.

    The result has the methods `uniform(*shape)`, `normal(*shape)`, `bits16(*shape)`, `below(high)` and `words(count)`;
    each returns numbers of shape (N, *shape), where row n belongs to image n.

    Args:
        images: uint8 (N, H, W, C).
        generator: the generator that the shift was called with. If it is an `ImageStreams`, it is returned; for a plain
            `torch.Generator`, new streams are made from its seed.

    >>> images = torch.zeros(2, 4, 4, 1, dtype=torch.uint8)
    >>> streams(images, torch.Generator().manual_seed(0)).normal(4, 4).shape
    torch.Size([2, 4, 4])
    """
    if isinstance(generator, ImageStreams):
        return generator
    seed = generator.initial_seed()
    return ImageStreams.of(image_keys(digests(images), seed), seed)
