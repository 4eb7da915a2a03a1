"""Triton kernels for the loss of tokens whose online softmax is known: one launch per stage instead of a hundred.

    token_sums            statistics of each token, and the sums over tokens that the loss is a function of
    loss_of_sums          the loss of these sums, and its slopes
    token_coefficients    gradient in the sums → `Coefficients` of the gradient in a logit

`avuc.losses.quadrants` and `avuc.losses.ua_clm` have the formulas, `avuc.losses.linear.fused` the order of the sums.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from avuc.gpu.kernels.linear_softmax import jit, start_once_more
from avuc.losses.analytic import EMPTY_MASS
from avuc.losses.linear.fused import SUMS, Figures, Rows, Rule
from avuc.losses.linear.tiles import Coefficients, Partial
from avuc.losses.quadrants import SOFT_TEMPERATURE

with contextlib.suppress(ImportError):  # torch without CUDA comes without Triton
    import triton.language as tl

TOKENS_PER_PROGRAM = 256
WARPS = 4
LOWEST_ENTROPY = math.sqrt(torch.finfo(torch.float32).tiny)  # see `log_tanh`


def token_sums(part: Partial, labels: Tensor, rule: Rule) -> tuple[Tensor, Rows]:
    """Return the sums over tokens, (8) in float64, and the statistics of each token."""
    tokens = len(labels)
    rows = Rows(
        torch.empty_like(part.rest),
        torch.empty_like(part.rest),
        torch.empty(tokens, dtype=torch.uint8, device=labels.device),
        torch.empty(tokens, dtype=torch.uint8, device=labels.device),
    )
    programs = -(-tokens // TOKENS_PER_PROGRAM)
    sums = torch.empty(programs, SUMS, dtype=torch.float64, device=labels.device)
    if programs:
        _start(_token_sums, programs, (*part, labels, *rows, sums), rule, tokens)
    return sums.sum(dim=0), rows._replace(correct=rows.correct.view(torch.bool), valid=rows.valid.view(torch.bool))


def token_coefficients(part: Partial, labels: Tensor, in_sums: Tensor, rule: Rule) -> Coefficients:
    """Return the gradient in the logits, given the gradient in the sums, (8) in float64."""
    tokens = len(labels)
    columns = [torch.empty_like(part.rest) for _ in range(4)]
    programs = -(-tokens // TOKENS_PER_PROGRAM)
    if programs:
        _start(_token_coefficients, programs, (*part, labels, in_sums, *columns), rule, tokens)
    return Coefficients(part.largest, *columns)


def loss_of_sums(sums: Tensor, rule: Rule, nll_weight: float, beta: float) -> tuple[Figures, Tensor]:
    """Return the loss of the sums over all tokens, and the slopes of loss, nll and avuc in the sums, (3, 8)."""
    place: dict[str, Any] = {"device": sums.device}
    loss, nll, avuc = (torch.empty((), **place) for _ in range(3))
    figures = Figures(
        loss,
        nll,
        avuc,
        torch.empty(4, **place),
        torch.empty(2, dtype=torch.long, **place),
        torch.empty(3, dtype=torch.float64, **place),
    )
    slopes = torch.empty(3, SUMS, dtype=torch.float64, **place)
    constants = {"KIND": rule.kind, "TENSOR": isinstance(rule.limit, Tensor), "SUMS": SUMS, "EMPTY": EMPTY_MASS}
    arguments = (sums, *figures, slopes, rule.limit, nll_weight, beta)
    start_once_more(_loss_of_sums, (1, 1, 1), arguments, constants, WARPS)
    return figures, slopes


def _start(kernel: Any, programs: int, tensors: tuple[Tensor, ...], rule: Rule, tokens: int) -> None:
    numbers = rule.limit, rule.words, rule.ignore_index, math.log(max(rule.words, 2)), tokens
    constants = {
        "KIND": rule.kind, "VARIANT": rule.variant, "TENSOR": isinstance(rule.limit, Tensor), "SUMS": SUMS,
        "SHARPNESS": 1 / SOFT_TEMPERATURE, "LOWEST": LOWEST_ENTROPY, "BLOCK": TOKENS_PER_PROGRAM,
    }  # fmt: skip
    start_once_more(kernel, (programs, 1, 1), (*tensors, *numbers), constants, WARPS)


# Exact to rounding at both ends: the entropy of a certain token is as small as the other words' probabilities, and
# losses divide by it.


@jit
def _log_ratio(s):  # type: ignore[no-untyped-def]
    """log((1 + s)/(1 − s)) for |s| ≤ 1/3."""
    q = s * s
    series = 1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13 + q / 15))))))
    return 2 * s * series


@jit
def _log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for x ≥ 0."""
    return tl.where(x < 1, _log_ratio(x / (2 + x)), tl.log(1 + x))


@jit
def _one_minus_exp(y):  # type: ignore[no-untyped-def]
    """1 − exp(−y) for y ≥ 0."""
    series = 1 - y / 2 * (1 - y / 3 * (1 - y / 4 * (1 - y / 5 * (1 - y / 6 * (1 - y / 7)))))
    return tl.where(y < 0.5, y * series, 1 - tl.exp(-y))


@jit
def _limit_of(limit, TENSOR: tl.constexpr):  # type: ignore[no-untyped-def]
    if TENSOR:
        value = tl.load(limit).to(tl.float32)
    else:
        value = limit
    return value


@jit
def _statistics(  # type: ignore[no-untyped-def]
    largest, rest, spread, label_logit, predicted, labels, row, tokens, ignore_index,
):  # fmt: skip
    inside = row < tokens
    others = tl.load(rest + row, mask=inside, other=0.0)
    label = tl.load(labels + row, mask=inside, other=0)
    valid = inside & (label != ignore_index)
    right = valid & (tl.load(predicted + row, mask=inside, other=-1) == label)
    log_total, p = _log1p(others), 1 / (1 + others)
    mean = tl.load(spread + row, mask=inside, other=0.0) * p  # of z − m
    to_label = tl.load(largest + row, mask=inside, other=0.0) - tl.load(label_logit + row, mask=inside, other=0.0)
    return inside, label, valid, right, p, others * p, mean, log_total - mean, log_total + to_label


@jit
def _soft_member(u, share, ceiling, SHARPNESS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The membership in the uncertain set, and its slope in u."""
    x = tl.minimum(tl.maximum(u / ceiling, 1e-6), 1 - 1e-6)
    middle = tl.minimum(tl.maximum(share, 1e-6), 1 - 1e-6)
    odds = tl.log(x / (1 - x)) - tl.log(middle / (1 - middle))
    member = tl.sigmoid(odds * SHARPNESS)
    moves = (u / ceiling >= 1e-6) & (u / ceiling <= 1 - 1e-6)
    slope = tl.where(moves, SHARPNESS * member * (1 - member) / (x * (1 - x) * ceiling), 0.0)
    return tl.where(u == u, member, u), slope  # NaN must pass


@jit
def _log_tanh(h, LOWEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """log tanh h, log(1 − tanh h) and their slopes, for h ≥ 0."""
    at = tl.where(h < LOWEST, LOWEST, h)
    t, w = tl.exp(-2 * at), _one_minus_exp(2 * at)
    log_w = tl.where(t < 0.5, -_log_ratio(t / (2 - t)), tl.log(w))
    slope = tl.where(h < LOWEST, 0.0, 4 * t / (w * (1 + t)))
    return log_w - _log1p(t), slope, 0.6931471805599453 - 2 * h - _log1p(tl.exp(-2 * h)), -2 / (1 + t)


@jit
def _token_sums(  # type: ignore[no-untyped-def]
    largest, rest, spread, label_logit, predicted, labels, entropy, confidence, correct, valid_out, sums,
    limit, words, ignore_index, ceiling, tokens,
    KIND: tl.constexpr, VARIANT: tl.constexpr, TENSOR: tl.constexpr, SUMS: tl.constexpr, SHARPNESS: tl.constexpr,
    LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, label, valid, right, p, q, _, u, nll = _statistics(
        largest, rest, spread, label_logit, predicted, labels, row, tokens, ignore_index
    )
    tl.store(entropy + row, u, mask=inside)
    tl.store(confidence + row, p, mask=inside)
    tl.store(correct + row, right.to(tl.uint8), mask=inside)
    tl.store(valid_out + row, valid.to(tl.uint8), mask=inside)
    sums += tl.program_id(0) * SUMS
    unknown = valid & ((label < 0) | (label >= words))
    tl.store(sums, tl.sum(tl.where(valid, nll, 0.0).to(tl.float64), axis=0))
    tl.store(sums + 1, tl.sum(right.to(tl.float64), axis=0))
    tl.store(sums + 2, tl.sum(valid.to(tl.float64), axis=0))
    tl.store(sums + 3, tl.sum(unknown.to(tl.float64), axis=0))
    first = tl.zeros((BLOCK,), tl.float32)
    second, third, fourth = first, first, first
    if KIND == "avuc":
        on_right = right.to(tl.float32)
        on_wrong = valid.to(tl.float32) - on_right
        w = _one_minus_exp(2 * u)
        scaled, other = w / (2 - w), 2 * tl.exp(-2 * u) / (2 - w)  # tanh u, 1 − tanh u
        if VARIANT == "soft":
            member, _ = _soft_member(u, _limit_of(limit, TENSOR), ceiling, SHARPNESS)
            certain, uncertain = (1 - member) * other, member * scaled
        else:
            above = u > _limit_of(limit, TENSOR)
            if VARIANT == "monotone":
                share = tl.where(above, q, p)
            else:
                share = tl.where(right, p, q)
            certain, uncertain = tl.where(above, 0.0, share * other), tl.where(above, share * scaled, 0.0)
        first, second = certain * on_right, uncertain * on_right
        third, fourth = certain * on_wrong, uncertain * on_wrong
    if KIND == "ua_clm":
        low, _, high, _ = _log_tanh(tl.where(valid, u, 1.0), LOWEST)
        if VARIANT == "paper":
            on_label = tl.exp(-tl.where(valid, nll, 0.0))
        else:
            on_label = tl.where(valid, p, 1.0)
        first = tl.where(valid & (right == 0), -on_label * low, 0.0)
        second = tl.where(right, -q * high, 0.0)
    tl.store(sums + 4, tl.sum(first.to(tl.float64), axis=0))
    tl.store(sums + 5, tl.sum(second.to(tl.float64), axis=0))
    tl.store(sums + 6, tl.sum(third.to(tl.float64), axis=0))
    tl.store(sums + 7, tl.sum(fourth.to(tl.float64), axis=0))


@jit
def _token_coefficients(  # type: ignore[no-untyped-def]
    largest, rest, spread, label_logit, predicted, labels, in_sums, constant, slope, at_label, at_predicted,
    limit, words, ignore_index, ceiling, tokens,
    KIND: tl.constexpr, VARIANT: tl.constexpr, TENSOR: tl.constexpr, SUMS: tl.constexpr, SHARPNESS: tl.constexpr,
    LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, _, valid, right, p, q, mean, u, nll = _statistics(
        largest, rest, spread, label_logit, predicted, labels, row, tokens, ignore_index
    )
    in_nll = tl.where(valid, tl.load(in_sums).to(tl.float32), 0.0)
    in_p = tl.zeros((BLOCK,), tl.float32)
    in_u = in_p
    to_1, to_2 = tl.load(in_sums + 4).to(tl.float32), tl.load(in_sums + 5).to(tl.float32)
    if KIND == "avuc":
        to_3, to_4 = tl.load(in_sums + 6).to(tl.float32), tl.load(in_sums + 7).to(tl.float32)
        to_certain = tl.where(valid, tl.where(right, to_1, to_3), 0.0)
        to_uncertain = tl.where(valid, tl.where(right, to_2, to_4), 0.0)
        w, t = _one_minus_exp(2 * u), tl.exp(-2 * u)
        scaled, other, bend = w / (2 - w), 2 * t / (2 - w), 4 * t / ((2 - w) * (2 - w))
        if VARIANT == "soft":
            member, steep = _soft_member(u, _limit_of(limit, TENSOR), ceiling, SHARPNESS)
            in_u = to_uncertain * (steep * scaled + member * bend)
            in_u -= to_certain * (steep * other + (1 - member) * bend)
        else:
            above = u > _limit_of(limit, TENSOR)
            if VARIANT == "monotone":
                complement = above
            else:
                complement = right == 0
            share, scale = tl.where(complement, q, p), tl.where(above, scaled, other)
            upstream = tl.where(above, to_uncertain, to_certain)
            in_u = upstream * tl.where(above, share, -share) * bend
            if VARIANT != "stopgrad":
                in_p = upstream * tl.where(complement, -scale, scale)
    if KIND == "ua_clm":
        low, to_low, high, to_high = _log_tanh(tl.where(valid, u, 1.0), LOWEST)
        wrong = valid & (right == 0)
        if VARIANT == "paper":
            on_label = tl.exp(-tl.where(valid, nll, 0.0))
            in_nll += tl.where(wrong, to_1 * on_label * low, 0.0)
        else:
            on_label = p
            in_p -= tl.where(wrong, to_1 * low, 0.0)
        in_p += tl.where(right, to_2 * high, 0.0)
        in_u = tl.where(wrong, -to_1 * on_label * to_low, tl.where(right, -to_2 * q * to_high, 0.0))
    through = in_p * p
    tl.store(constant + row, p * (in_nll + in_u * mean - through), mask=inside)
    tl.store(slope + row, -p * in_u, mask=inside)
    tl.store(at_label + row, -in_nll, mask=inside)
    tl.store(at_predicted + row, through, mask=inside)


@jit
def _loss_of_sums(  # type: ignore[no-untyped-def]
    sums, loss_out, nll_out, avuc_out, quadrants, counts, status, slopes, limit, nll_weight, beta,
    KIND: tl.constexpr, TENSOR: tl.constexpr, SUMS: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    place, cell = tl.arange(0, SUMS), tl.arange(0, 4)
    correct, valid = tl.load(sums + 1), tl.load(sums + 2)
    tokens = tl.where(valid > 0, valid, 1.0)
    nll = tl.load(sums) / tokens
    first, second = tl.load(sums + 4), tl.load(sums + 5)
    avuc, to_first, to_second = 0.0 * nll, 0.0 * tokens, 0.0 * tokens
    to_third = to_first
    if KIND == "avuc":
        third, fourth = tl.load(sums + 6), tl.load(sums + 7)
        good, bad = first + fourth, second + third
        full = good > EMPTY
        floor = tl.where((full | (good != good)), good, EMPTY)
        avuc = _log1p((bad / floor).to(tl.float32)).to(tl.float64)
        to_second = 1 / (floor + bad)
        to_third = to_second
        to_first = tl.where(full, to_second - 1 / floor, 0.0)
    if KIND == "ua_clm":
        to_first = 1 / tl.where(valid > correct, valid - correct, 1.0)
        to_second = 1 / tl.where(correct > 0, correct, 1.0)
        avuc = first * to_first + second * to_second
    # the error comes later, in the backward pass: until then a wrong label or a threshold of NaN must be seen
    unknown, level = tl.load(sums + 3), _limit_of(limit, TENSOR)
    nll = tl.where(unknown > 0, float("nan"), nll)
    avuc = tl.where((unknown > 0) | (level != level), float("nan"), avuc)
    loss = nll_weight * nll + beta * avuc
    tl.store(loss_out, loss.to(tl.float32))
    tl.store(nll_out, nll.to(tl.float32))
    tl.store(avuc_out, avuc.to(tl.float32))
    four = tl.load(sums + 4 + cell)
    if KIND != "avuc":
        four = 0.0 * tokens + tl.zeros((4,), tl.float64)
    tl.store(quadrants + cell, four.to(tl.float32))
    tl.store(counts, correct.to(tl.int64))
    tl.store(counts + 1, valid.to(tl.int64))
    tl.store(status, loss)
    tl.store(status + 1, unknown)
    tl.store(status + 2, level)
    of_nll = tl.where(place == 0, 1 / tokens, 0.0)
    of_avuc = tl.where(place == 4, to_first, tl.where(place == 5, to_second, 0.0))
    if KIND == "avuc":
        of_avuc = tl.where(place == 6, to_third, tl.where(place == 7, to_first, of_avuc))
    tl.store(slopes + place, nll_weight * of_nll + beta * of_avuc)
    tl.store(slopes + SUMS + place, of_nll)
    tl.store(slopes + 2 * SUMS + place, of_avuc)
