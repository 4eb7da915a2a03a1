"""Where tiles are kept: never in a number that is final, or in one that another tile or sum needs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.gpu.linear_room import TAIL, WIDE_TAIL, Room, aligned


def span(tensor: Tensor, of: Tensor) -> range | None:
    """The bytes of `of` that `tensor` covers, None if it is elsewhere."""
    start = tensor.data_ptr() - of.data_ptr()
    size = of.numel() * of.element_size()
    numbers = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(start, start + numbers * tensor.element_size()) if 0 <= start < size else None


def apart(one: range, other: range) -> bool:
    return one.stop <= other.start or other.stop <= one.start


@given(
    st.integers(1, 300), st.sampled_from([16, 48, 64, 7]), st.integers(16, 900), st.sampled_from([1, 7, 16, 64, 256]),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_every_word_once_and_no_tile_in_a_final_number(
    tokens: int, depth: int, words: int, width: int, to_hidden: bool, to_weight: bool, own: bool, dtype: torch.dtype
) -> None:
    hidden = torch.empty(tokens, depth, dtype=dtype)
    in_hidden = torch.empty_like(hidden) if to_hidden else None
    in_weight = torch.empty(words, depth, dtype=dtype) if to_weight else None
    room = Room(hidden, in_hidden, in_weight, words, width, own)
    row, final = depth * hidden.element_size(), 0
    seen: dict[str, list[int]] = {"hidden": [], "weight": []}
    complete = False
    all_words = torch.arange(words)
    for step, part in zip(room.steps(), room.parts(all_words), strict=True):
        assert part.tolist() == list(range(step.start, step.stop))
        assert step.tile.shape == (tokens, step.stop - step.start)
        assert step.tile.stride(0) in (step.stop - step.start, aligned(step.stop - step.start))
        assert 0 < step.stop - step.start <= width
        seen["hidden"] += range(step.start, step.stop) if step.to_hidden else ()
        seen["weight"] += range(step.start, step.stop) if step.to_weight else ()
        assert not (complete and step.to_hidden)
        if step.to_weight:
            assert step.start == final // row
            final = step.stop * row
        sums = None if room.sums is None or in_weight is None or complete else span(room.sums, in_weight)
        assert sums is None or final <= sums.start
        place = None if in_weight is None else span(step.tile, in_weight)
        if place is not None:
            assert final <= place.start
            assert place.stop <= words * row
            assert sums is None or apart(place, sums)
        place = None if in_hidden is None else span(step.tile, in_hidden)
        if place is not None:  # the gradient in hidden is summed elsewhere, and not written yet
            assert room.sums is not None
            assert not complete
        complete |= step.completes
    assert seen["weight"] == (list(range(words)) if to_weight else [])
    assert sorted(seen["hidden"]) == (list(range(words)) if to_hidden else [])
    assert complete


@pytest.mark.parametrize(
    ("tokens", "words", "depth", "recomputed", "tiles"),
    [(4_096, 32_000, 2_048, 8_192, 24), (16_384, 128_256, 4_096, 32_768, 64)],
)
def test_large_layers(tokens: int, words: int, depth: int, recomputed: int, tiles: int) -> None:
    """Few tiles, nothing allocated but the last one, and only the words whose rows hold the sum are computed again."""
    hidden, weight = (torch.empty(size, depth, dtype=torch.bfloat16, device="meta") for size in (tokens, words))
    room = Room(hidden, torch.empty_like(hidden), weight, words, (1 << 26) // tokens, False)
    steps = list(room.steps())
    assert len(steps) < tiles
    assert sum(step.stop - step.start for step in steps) == words + recomputed
    assert room.private is not None
    assert len(room.private) == TAIL * tokens


def test_many_tokens_per_feature_have_a_wider_tile() -> None:
    hidden, weight = (torch.empty(size, 64, dtype=torch.bfloat16, device="meta") for size in (8_000, 40_000))
    steps = list(Room(hidden, torch.empty_like(hidden), weight, 40_000, 4_096, False).steps())
    assert {step.stop - step.start for step in steps[1:-1]} <= {WIDE_TAIL - 16, WIDE_TAIL}
    assert len(steps) < 250


def test_an_odd_vocabulary_has_aligned_rows() -> None:
    """50,257 words, as in GPT-2."""
    hidden, weight = (torch.empty(size, 768, dtype=torch.bfloat16, device="meta") for size in (4_096, 50_257))
    steps = list(Room(hidden, torch.empty_like(hidden), weight, 50_257, 16_384, False).steps())
    assert any((step.stop - step.start) % 16 for step in steps)
    assert all(step.tile.stride(0) % 16 == 0 for step in steps)
