"""What `linear_avuc` takes and refuses: layouts, types, extremes, autocast, torch.compile."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import avuc
from avuc.core.errors import InputError, NonFiniteError
from avuc.losses import avuc_loss, linear_avuc

TOKENS, WIDTH, WORDS = 24, 6, 31


def inputs(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = 1.5 * torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.where(
        torch.rand(TOKENS, generator=generator) < 0.5,
        (hidden @ weight.t()).argmax(1),
        torch.randint(0, WORDS, (TOKENS,), generator=generator),
    )
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def materialised(hidden: Tensor, weight: Tensor, labels: Tensor, threshold: float = 1.0) -> Tensor:
    logits = F.linear(hidden, weight).flatten(0, -2)
    labels = labels.flatten()
    return F.cross_entropy(logits, labels) + avuc_loss(logits, labels, threshold, variant="monotone")


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


# ---- layouts


def test_batches_of_sequences_and_shift() -> None:
    hidden, weight, labels = inputs()
    hidden, labels = hidden.detach().reshape(4, 6, WIDTH).requires_grad_(), labels.reshape(4, 6)
    found = linear_avuc(hidden, weight, labels, threshold=1.0)
    close(gradients(found.loss, hidden, weight), gradients(materialised(hidden, weight, labels), hidden, weight))
    assert found.entropy.shape == found.correct.shape == labels.shape
    found = linear_avuc(hidden, weight, labels, threshold=1.0, shift=True)
    expected = materialised(hidden[:, :-1], weight, labels[:, 1:])
    torch.testing.assert_close(found.loss, expected)
    close(gradients(found.loss, hidden, weight), gradients(expected, hidden, weight))
    assert found.valid.tolist() == [[True] * 5 + [False]] * 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int16])
def test_types_of_labels(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs()
    found = linear_avuc(hidden, weight, labels.to(dtype), threshold=1.0).loss
    assert found == linear_avuc(hidden, weight, labels, threshold=1.0).loss
    wide = torch.cat((weight, weight.new_zeros(200, weight.shape[1])))  # in uint8, −100 is word 156
    found = linear_avuc(hidden, wide, labels.to(dtype), threshold=1.0, shift=True).loss
    assert found == linear_avuc(hidden, wide, labels, threshold=1.0, shift=True).loss


def test_tied_embeddings() -> None:
    """The weight is the embedding as well, and gets the gradient of both uses."""
    embedding = nn.Embedding(WORDS, WIDTH, dtype=torch.float64)
    words = torch.randint(0, WORDS, (3, 7), generator=torch.Generator().manual_seed(1))
    own = linear_avuc(torch.tanh(embedding(words)), embedding.weight, words, threshold=2.0, shift=True).loss
    hidden = torch.tanh(embedding(words))
    expected = materialised(hidden[:, :-1], embedding.weight, words[:, 1:], 2.0)
    close(gradients(own, embedding.weight), gradients(expected, embedding.weight))


def test_non_contiguous_inputs_and_frozen_ones() -> None:
    hidden, weight, labels = inputs()
    across = hidden.detach().t().contiguous().t().requires_grad_()
    turned = weight.detach().t().contiguous().t().requires_grad_()
    found = gradients(linear_avuc(across, turned, labels, threshold=1.0).loss, across, turned)
    close(found, gradients(materialised(hidden, weight, labels), hidden, weight))
    alone = linear_avuc(hidden, weight.detach(), labels, threshold=1.0).loss
    close(gradients(alone, hidden), found[:1])
    alone = linear_avuc(hidden.detach(), weight, labels, threshold=1.0).loss
    close(gradients(alone, weight), found[1:])
    assert not linear_avuc(hidden.detach(), weight.detach(), labels, threshold=1.0).loss.requires_grad


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_logits_are_never_made() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(200, 8, generator=generator, requires_grad=True)
    weight = torch.randn(3_000, 8, generator=generator, requires_grad=True)
    labels = torch.randint(0, 3_000, (200,), generator=generator)
    with LargestTensor() as watch:
        linear_avuc(hidden, weight, labels, threshold=2.0, chunk_size=100).loss.backward()
    assert watch.elements == weight.numel() == 24_000
    with LargestTensor() as watch:
        materialised(hidden, weight, labels).backward()
    assert watch.elements >= 600_000


# ---- extremes


@pytest.mark.parametrize("kind", ["avuc", "ua_clm", "plain"])
def test_all_labels_ignored_keep_the_graph(kind: Any) -> None:
    hidden, weight, labels = inputs()
    result = linear_avuc(hidden, weight, torch.full_like(labels, -100), threshold=1.0, kind=kind)
    assert result.loss == 0
    assert result.num_valid == result.num_correct == 0
    for gradient, of in zip(gradients(result.loss, hidden, weight), (hidden, weight), strict=True):
        assert torch.equal(gradient, torch.zeros_like(of))


def test_no_tokens_and_one_token() -> None:
    hidden, weight, labels = inputs()
    result = linear_avuc(hidden[:0], weight, labels[:0], threshold=1.0)
    assert result.loss == 0
    close(gradients(result.loss, weight), (torch.zeros_like(weight),))
    one = linear_avuc(hidden[:1], weight, labels[:1], threshold=1.0)
    torch.testing.assert_close(one.loss, materialised(hidden[:1], weight, labels[:1]))


def test_one_word() -> None:
    hidden, weight, _ = inputs()
    result = linear_avuc(hidden, weight[:1], torch.zeros(TOKENS, dtype=torch.long), threshold=1.0)
    assert result.loss == 0
    assert result.num_correct == TOKENS


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right: bool) -> None:
    hidden, weight, _ = inputs()
    best = (hidden @ weight.t()).argmax(1)
    labels = best if right else (best + 1) % WORDS
    found = linear_avuc(hidden, weight, labels, threshold=1.0, chunk_size=8)
    expected = materialised(hidden, weight, labels)
    assert found.num_correct == (TOKENS if right else 0)
    torch.testing.assert_close(found.loss, expected)
    close(gradients(found.loss, hidden, weight), gradients(expected, hidden, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_of_exactly_0_and_1(dtype: torch.dtype) -> None:
    """Logits of ±1,000: every softmax is one-hot, and the entropy 0."""
    hidden = torch.eye(3, dtype=dtype).requires_grad_()
    weight = (1_000 * (2 * torch.eye(3, dtype=dtype) - 1)).requires_grad_()
    result = linear_avuc(hidden, weight, torch.tensor([0, 1, 0]), threshold=0.5, chunk_size=1)
    assert result.entropy.tolist() == [0, 0, 0]
    assert result.confidence.tolist() == [1, 1, 1]
    assert result.nll.item() == pytest.approx(2_000 / 3)
    for gradient in gradients(result.loss, hidden, weight):
        assert gradient.isfinite().all()


def test_ties_are_the_first_word() -> None:
    hidden, weight = torch.ones(1, 2), torch.ones(9, 2)
    for label in range(9):
        result = linear_avuc(hidden, weight, torch.tensor([label]), threshold=1.0, chunk_size=4)
        assert bool(result.correct) == (label == 0)


def test_excluded_words() -> None:
    """A bias of −inf takes a word out, even all words of a tile; gradients stay finite."""
    hidden, weight, labels = inputs()
    bias = torch.zeros(WORDS, dtype=torch.float64)
    bias[:12] = -math.inf
    labels = labels.clamp(min=12)
    found = linear_avuc(hidden, weight, labels, threshold=1.0, bias=bias, chunk_size=5)
    expected = materialised(hidden, weight[12:], labels - 12)
    torch.testing.assert_close(found.loss, expected)
    close(gradients(found.loss, hidden, weight), gradients(expected, hidden, weight))


def test_a_thousand_words_and_large_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(50, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = (30 * torch.randn(1_000, 16, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 1_000, (50,), generator=generator)
    found = linear_avuc(hidden, weight, labels, threshold=0.1)
    expected = materialised(hidden, weight, labels, 0.1)
    close(gradients(found.loss, hidden, weight), gradients(expected, hidden, weight), 1e-8)


@pytest.mark.parametrize("size", [1 / 3, 1 / 8])  # with small logits the sums over tiles are what is rounded
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_materialised(dtype: torch.dtype, size: float) -> None:
    """Distance to float64, of the loss on logits in that type and of ours."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(256, 64, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(700, 64, generator=generator) * size).to(dtype).requires_grad_()
    labels = torch.randint(0, 700, (256,), generator=generator)
    labels[::2] = F.linear(hidden, weight).argmax(1)[::2]
    wide = [value.detach().double().requires_grad_() for value in (hidden, weight)]
    exact = gradients(materialised(*wide, labels, 3.0), *wide)  # type: ignore[misc]
    theirs = gradients(materialised(hidden, weight, labels, 3.0), hidden, weight)
    result = linear_avuc(hidden, weight, labels, threshold=3.0, chunk_size=64)
    assert result.loss.dtype == torch.float32
    for one, other, best in zip(gradients(result.loss, hidden, weight), theirs, exact, strict=True):
        assert one.dtype == dtype
        distance, allowed = ((value.double() - best).norm() / best.norm() for value in (one, other))
        assert distance <= 1.01 * allowed
        assert distance < 0.05


# ---- refused


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    hidden, weight, labels = inputs()
    broken = hidden.detach().clone()
    broken[3, 1] = bad
    with pytest.raises(NonFiniteError, match="hidden or weight contain NaN or"):
        linear_avuc(broken, weight, labels, threshold=1.0)
    with pytest.raises(InputError, match="threshold is NaN"):
        linear_avuc(hidden, weight, labels, threshold=math.nan)


NO_QUADRANTS = linear_avuc(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), threshold=None, kind="plain")
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"labels": torch.zeros(3, dtype=torch.long)},
        r"hidden \(..., D\) goes with labels \(...\); found hidden \(24, 6\)",
    ),
    ({"weight": torch.zeros(31, 5).double()}, r"goes with weight \(V, D\)"),
    ({"weight": torch.zeros(0, 6).double()}, r"goes with weight \(V, D\)"),
    ({"weight": torch.zeros(31, 6)}, "must have one type; found torch.float64, torch.float32: use autocast"),
    ({"weight": [[1.0]]}, "weight must be a tensor; found list"),
    ({"hidden": torch.zeros(24, 6, dtype=torch.long)}, "hidden must be floating point"),
    ({"labels": torch.zeros(24)}, "labels must be integers; found torch.float32"),
    ({"labels": torch.full((24,), 31)}, "labels must be 0 … 30"),
    ({"labels": torch.full((24,), -1)}, "labels must be 0 … 30"),
    ({"bias": torch.zeros(3).double()}, r"bias must have shape \(31,\); found \(3,\)"),
    ({"threshold": None}, "variant 'monotone' needs a threshold"),
    ({"kind": "brier"}, "kind must be one of avuc, ua_clm, plain"),
    ({"variant": "hard"}, "variant must be one of"),
    ({"kind": "ua_clm", "variant": "soft"}, "variant must be one of paper, monotone"),
    ({"backend": "cuda"}, "backend must be one of auto, chunked, triton"),
    ({"beta": -1}, "beta must not be negative"),
    ({"chunk_size": 0}, "chunk_size must be at least 1"),
    ({"softcap": 0}, "softcap must be above 0; leave it out for none"),
    ({"logit_scale": torch.ones((), requires_grad=True)}, "multiply hidden by a learned scale instead"),
    ({"total": []}, "total has no results"),
    ({"running": torch.zeros(4)}, "running must be a tensor of 5 floats"),
    ({"running": torch.zeros(5), "decay": 1.0}, "decay must be below 1"),
    ({"running": torch.zeros(5), "kind": "ua_clm"}, "running holds quadrants, which kind 'ua_clm' does not have"),
    ({"total": NO_QUADRANTS}, "total has no quadrants; use kind='avuc' in the first pass as well"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    hidden, weight, labels = inputs()
    arguments: dict[str, Any] = {"hidden": hidden, "weight": weight, "labels": labels, "threshold": 1.0} | change
    with pytest.raises(InputError, match=message) as caught:
        linear_avuc(**arguments)
    assert "\n" not in str(caught.value)


def test_second_derivatives_and_torch_func_are_refused() -> None:
    hidden, weight, labels = inputs()
    loss = linear_avuc(hidden, weight, labels, threshold=1.0).loss
    with pytest.raises(InputError, match="second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(InputError, match=r"torch.func .* use avuc_loss on logits"):
        torch.func.grad(lambda h: linear_avuc(h, weight, labels, threshold=1.0).loss)(hidden)


# ---- autocast and torch.compile


def test_autocast_computes_what_the_layer_would() -> None:
    hidden, weight, labels = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_avuc(hidden, weight, labels, threshold=1.0)
    low = [value.detach().bfloat16() for value in (hidden, weight)]
    expected = linear_avuc(*low, labels, threshold=1.0)
    assert found.loss == expected.loss
    assert {gradient.dtype for gradient in gradients(found.loss, hidden, weight)} == {torch.float32}


def test_compiled() -> None:
    hidden, weight, labels = inputs()
    bias = torch.zeros(WORDS, dtype=torch.float64, requires_grad=True)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return avuc.linear_avuc(2 * hidden, weight, labels, threshold=1.0, bias=bias, chunk_size=8).loss

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, expected = compiled(hidden, weight, bias), loss(hidden, weight, bias)
    torch.testing.assert_close(found, expected)
    close(gradients(found, hidden, weight, bias), gradients(expected, hidden, weight, bias))
