"""`linear_avuc` has the value and the gradients of the losses on materialised logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.losses import avuc_loss, avuc_quadrants, linear_avuc
from avuc.losses.ua_clm import ua_clm_loss

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]
TOKENS, WIDTH, WORDS = 37, 6, 53


def inputs(
    tokens: int = TOKENS, words: int = WORDS, width: int = WIDTH, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias and labels; about half of the tokens are right, a fifth has no label."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for scale, shape in ((1.5, (tokens, width)), (1.0, (words, width)), (0.5, (words,)))
    )
    best = (hidden @ weight.t() + bias).argmax(dim=1)
    labels = torch.where(
        torch.rand(tokens, generator=generator) < 0.5, best, torch.randint(0, words, (tokens,), generator=generator)
    )
    labels[torch.rand(tokens, generator=generator) < 0.2] = -100
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), bias.to(dtype).requires_grad_(), labels


def logits_of(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None = None, scale: float | None = None
) -> Tensor:
    z = F.linear(hidden, weight, bias)
    z = z if scale is None else z * scale
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def materialised(
    logits: Tensor, labels: Tensor, threshold: float | None, kind: str, variant: Any, beta: float
) -> Tensor:
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / (labels != -100).sum().clamp(min=1)
    if kind == "avuc":
        return loss + beta * avuc_loss(logits, labels, threshold, variant=variant)
    return loss + beta * ua_clm_loss(logits, labels, variant=variant) if kind == "ua_clm" else loss


def same(found: Tensor, expected: Tensor, of: list[Tensor], tolerance: float = 1e-9) -> None:
    """Values and gradients are equal, and the gradients are not all zero."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    ours = torch.autograd.grad(found, of)
    theirs = torch.autograd.grad(expected, of)
    assert max(float(gradient.abs().max()) for gradient in theirs) > 1e-4
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


KINDS = [("avuc", variant) for variant in VARIANTS] + [("ua_clm", "paper"), ("ua_clm", "monotone"), ("plain", "paper")]


@pytest.mark.parametrize("chunk_size", [None, 1, 16, 53, 1000])
@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_equal_to_materialised_logits(kind: Any, variant: Any, chunk_size: int | None) -> None:
    hidden, weight, bias, labels = inputs()
    found = linear_avuc(
        hidden, weight, labels, threshold=1.1, bias=bias, kind=kind, variant=variant, beta=2.5, chunk_size=chunk_size
    )
    expected = materialised(logits_of(hidden, weight, bias), labels, 1.1, kind, variant, 2.5)
    same(found.loss, expected, [hidden, weight, bias])


@pytest.mark.parametrize("chunk_size", [1, 4, None])
@pytest.mark.parametrize("variant", ["paper", "monotone"])
def test_ua_clm_of_very_certain_mistakes_in_float32(variant: Any, chunk_size: int | None) -> None:
    """Entropies from 1e-4 to 1e-12: 1 + 1e-12 is 1 in float32, so nothing may be computed from Σ exp(z − m)."""
    logits = torch.zeros(5, 12)
    logits[:, 7], logits[:, 3] = torch.tensor([12.0, 17.3, 21.1, 25.7, 30.3]), -1.3
    found = []
    for dtype in (torch.float64, torch.float32):
        hidden = logits.to(dtype).requires_grad_()
        weight, labels = torch.eye(12, dtype=dtype), torch.full((5,), 2)
        result = linear_avuc(
            hidden, weight, labels, threshold=None, kind="ua_clm", variant=variant, nll_weight=0, chunk_size=chunk_size
        )
        found.append((result.nll, result.loss, result.entropy, *torch.autograd.grad(result.loss, hidden)))
    for exact, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("scale", [None, 0.4])
@pytest.mark.parametrize("with_bias", [False, True])
def test_softcap_scale_and_bias(softcap: float | None, scale: float | None, with_bias: bool) -> None:
    hidden, weight, bias, labels = inputs()
    found = linear_avuc(
        hidden, weight, labels, threshold=2.0, bias=bias if with_bias else None, softcap=softcap, logit_scale=scale,
        chunk_size=10,
    )  # fmt: skip
    logits = logits_of(hidden, weight, bias if with_bias else None, softcap, scale)
    of = [hidden, weight, bias] if with_bias else [hidden, weight]
    same(found.loss, materialised(logits, labels, 2.0, "avuc", "monotone", 1.0), of)


def test_the_parts_of_the_result() -> None:
    hidden, weight, bias, labels = inputs()
    found = linear_avuc(hidden, weight, labels, threshold=1.1, bias=bias, beta=3.0, nll_weight=0.5, chunk_size=7)
    logits = logits_of(hidden, weight, bias).detach()
    probs, used = logits.softmax(-1), labels != -100
    torch.testing.assert_close(found.nll, F.cross_entropy(logits, labels))
    torch.testing.assert_close(found.avuc, avuc_loss(logits, labels, 1.1, variant="monotone"))
    torch.testing.assert_close(found.loss, 0.5 * found.nll + 3 * found.avuc)
    torch.testing.assert_close(found.quadrants, avuc_quadrants(probs, labels, 1.1, variant="monotone"))
    torch.testing.assert_close(found.entropy, -(probs * probs.log()).sum(-1))
    torch.testing.assert_close(found.confidence, probs.max(-1).values)
    assert torch.equal(found.valid, used)
    assert torch.equal(found.correct, (probs.argmax(-1) == labels) & used)
    assert found.num_correct == found.correct.sum()
    assert found.num_valid == used.sum()


def test_one_token_at_a_time() -> None:
    """The loop oracle: every quantity of every token written out."""
    hidden, weight, bias, labels = (value.detach() for value in inputs())
    found = linear_avuc(hidden, weight, labels, threshold=1.1, bias=bias, variant="paper", beta=1.0, chunk_size=9)
    nll, cells = 0.0, {"ac": 0.0, "au": 0.0, "ic": 0.0, "iu": 0.0}
    for h, y in zip(hidden, labels.tolist(), strict=True):
        if y == -100:
            continue
        z = [
            math.fsum(a * b for a, b in zip(w, h, strict=True)) + c for w, c in zip(weight.tolist(), bias, strict=True)
        ]
        total = math.fsum(math.exp(v) for v in z)
        p = [math.exp(v) / total for v in z]
        u, best = -math.fsum(v * math.log(v) for v in p), max(range(len(p)), key=p.__getitem__)
        nll -= math.log(p[y])
        share = p[best] if best == y else 1 - p[best]
        cells[("a" if best == y else "i") + ("c" if u <= 1.1 else "u")] += share * (
            1 - math.tanh(u) if u <= 1.1 else math.tanh(u)
        )
    nll /= int((labels != -100).sum())
    avuc = math.log(1 + (cells["au"] + cells["ic"]) / (cells["ac"] + cells["iu"]))
    assert found.loss.item() == pytest.approx(nll + avuc, abs=1e-12)


@given(
    st.integers(1, 9), st.integers(2, 40), st.integers(1, 50), st.integers(0, 10**6), st.sampled_from(KINDS),
    st.floats(0.01, 3),
)  # fmt: skip
def test_any_shape_and_tile(
    tokens: int, words: int, chunk_size: int, seed: int, kind: tuple[Any, Any], threshold: float
) -> None:
    hidden, weight, bias, labels = inputs(tokens, words, 3, seed)
    found = linear_avuc(
        hidden, weight, labels, threshold=threshold, bias=bias, kind=kind[0], variant=kind[1], chunk_size=chunk_size
    ).loss
    logits = logits_of(hidden, weight, bias)
    expected = materialised(logits, labels, threshold, *kind, 1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    for ours, theirs in zip(
        torch.autograd.grad(found, (hidden, weight, bias)),
        torch.autograd.grad(expected, (hidden, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


# the gradient of "stopgrad" is not the derivative of its value
@pytest.mark.parametrize(("kind", "variant"), [pair for pair in KINDS if pair[1] != "stopgrad"])
def test_gradcheck(kind: Any, variant: Any) -> None:
    hidden, weight, bias, labels = inputs(tokens=6, words=5, width=3, seed=3)

    def loss(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        result = linear_avuc(h, w, labels, threshold=0.9, bias=b, kind=kind, variant=variant, chunk_size=2, softcap=4.0)
        return result.loss

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias))
