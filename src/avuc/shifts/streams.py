"""Random numbers that belong to an image, not to its place in a batch.

Image n owns the counter-based stream  r(n, j) = mix(key_n + (j + 1)·γ),  SplitMix64 with γ = ⌊2⁶⁴/φ⌋ (Steele et al.
2014). The key is a hash of the image's bytes and the seed, so a corrupted image depends on the image, the shift, the
severity and the seed only: any batch size, order or split gives the same bytes, and CPU and GPU see the same integers.
Identical images inside one call are told apart by the order in which they occur.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

__all__ = ["ImageStreams", "digests", "image_keys", "stable_seed", "streams"]

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(word: int) -> int:
    """The two's complement of a 64-bit word: torch has no unsigned 64-bit arithmetic."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word


def _mix_(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place. Masks make torch's arithmetic shift a logical one."""
    words ^= (words >> 30).bitwise_and_((1 << 34) - 1)
    words *= _signed(_MIX_1)
    words ^= (words >> 27).bitwise_and_((1 << 37) - 1)
    words *= _signed(_MIX_2)
    words ^= (words >> 31).bitwise_and_((1 << 33) - 1)
    return words


def stable_seed(*parts: str | int) -> int:
    """One 63-bit seed from names and numbers, the same on every machine and in every process (unlike `hash`).

    >>> stable_seed("fog", 3, 0) == stable_seed("fog", 3, 0) != stable_seed("fog", 3, 1)
    True
    """
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def digests(images: Tensor) -> Tensor:
    """A 64-bit hash of each image's bytes, (N,) int64."""
    count = images.shape[0]
    flat = images.reshape(count, -1)
    spare = -flat.shape[1] % 8
    if spare:
        flat = torch.nn.functional.pad(flat, (0, spare))
    flat = flat.contiguous()
    if flat.storage_offset() % 8:
        flat = flat.clone()  # eight bytes are read as one word only where words begin
    words = flat.view(torch.int64)
    place = torch.arange(1, words.shape[1] + 1, device=images.device) * _signed(_GAMMA)
    # each word is mixed with its place before the sum, so that differences cannot cancel between words
    return _mix_(words + _mix_(place)).sum(dim=1)


def image_keys(hashes: Tensor, seed: int) -> Tensor:
    """One int64 key per image (N,) from the images' digests and the seed; the k-th copy of an image gets the k-th key.

    >>> keys = image_keys(digests(torch.zeros(3, 2, 2, 1, dtype=torch.uint8)), seed=0)
    >>> len(set(keys.tolist()))
    3
    """
    return _mix_(_mix_(hashes + _signed(seed * _GAMMA)) + _occurrence(hashes) * _signed(_GAMMA))


def _occurrence(digest: Tensor) -> Tensor:
    """How many equal values stand before each one: 0 for the first copy, 1 for the second, …"""
    ordered, order = digest.sort(stable=True)
    index = torch.arange(len(digest), device=digest.device)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    start = torch.where(first, index, torch.zeros_like(index)).cummax(0).values
    return torch.empty_like(index).scatter_(0, order, index - start)


class ImageStreams(torch.Generator):
    """A `torch.Generator` that also carries one random stream per image of the batch it comes with.

    Each draw below takes the next numbers of every image's own stream. A shift that calls `torch.randn(...,
    generator=generator)` instead works as well; its numbers then follow the order of the batch.
    """

    keys: Tensor
    drawn: int

    @classmethod
    def of(cls, keys: Tensor, seed: int) -> ImageStreams:
        made = cls(device=keys.device)
        made.manual_seed(seed)
        made.keys = keys
        made.drawn = 0
        return made

    def words(self, count: int) -> Tensor:
        """(N, count) uniformly random 64-bit words."""
        counter = torch.arange(self.drawn + 1, self.drawn + count + 1, device=self.keys.device) * _signed(_GAMMA)
        self.drawn += count
        return _mix_(self.keys[:, None] + counter)

    def uniform(self, *shape: int) -> Tensor:
        """(N, *shape) float32, uniform on (0, 1]: the halves of each word."""
        count = math.prod(shape)
        halves = self.words((count + 1) // 2).view(torch.int32)[:, :count]
        return halves.float().add_(2.0**31 + 0.5).mul_(2.0**-32).reshape(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """(N, *shape) float32, standard normal (Box–Muller)."""
        count = math.prod(shape)
        half = (count + 1) // 2
        pair = self.uniform(2, half)
        radius = pair[:, 0].log().mul_(-2).sqrt_()
        angle = pair[:, 1].mul(2 * math.pi)
        torch.cos(angle, out=pair[:, 0])
        torch.sin(angle, out=pair[:, 1])
        return pair.mul_(radius[:, None]).flatten(1)[:, :count].reshape(-1, *shape)

    def bits16(self, *shape: int) -> Tensor:
        """(N, *shape) int32, uniform on 0 … 65535: the quarters of each word."""
        count = math.prod(shape)
        quarters = self.words((count + 3) // 4).view(torch.int16)[:, :count]
        return quarters.to(torch.int32).bitwise_and_(0xFFFF).reshape(-1, *shape)

    def below(self, high: Tensor) -> Tensor:
        """(N,) int64, image n's uniform on 0 … high[n] − 1 (bias below high/2³²)."""
        return (self.words(1)[:, 0].bitwise_and_(0xFFFFFFFF) * high) >> 32


def streams(images: Tensor, generator: torch.Generator) -> ImageStreams:
    """The image streams a shift draws from: those it was handed, or new ones keyed by a plain generator's seed.

    >>> images = torch.zeros(2, 4, 4, 1, dtype=torch.uint8)
    >>> streams(images, torch.Generator().manual_seed(0)).normal(4, 4).shape
    torch.Size([2, 4, 4])
    """
    if isinstance(generator, ImageStreams):
        return generator
    seed = generator.initial_seed()
    return ImageStreams.of(image_keys(digests(images), seed), seed)
