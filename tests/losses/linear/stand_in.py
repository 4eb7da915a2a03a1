"""An accelerator in plain torch and any precision: what the kernels of `avuc.gpu` do, by autograd on each stage."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from avuc.losses.analytic import loss_of
from avuc.losses.linear import statistics, tiles
from avuc.losses.linear.fused import Figures, Rows, Rule
from avuc.losses.linear.tiles import Coefficients, Partial
from avuc.losses.quadrants import SampleStatistics, quadrants_of
from avuc.losses.ua_clm import ua_clm_of_sums, ua_clm_sums


def of_partial(part: Partial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """nll, confidence, entropy and the mean of z − m."""
    log_total, confidence = part.rest.log1p(), 1 / (1 + part.rest)
    mean = part.spread * confidence
    return log_total + part.largest - part.label_logit, confidence, log_total - mean, mean


def sums_of(
    nll: Tensor, confidence: Tensor, entropy: Tensor, predicted: Tensor, labels: Tensor, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    valid = labels != rule.ignore_index
    correct = (predicted == labels) & valid
    unknown = valid & ((labels < 0) | (labels >= rule.words))
    of = SampleStatistics(confidence, entropy, correct, valid.to(nll), rule.words, nll)
    four = list(torch.zeros(4, dtype=nll.dtype))
    if rule.kind == "avuc":
        soft = rule.variant == "soft"
        # the way back to the threshold that the rule was made of
        limit = rule.limit * math.log(rule.words) if soft else (rule.limit - 2.0**-20)
        four = list(quadrants_of(of, limit if soft else limit / (1 + 2.0**-18), rule.variant))  # type: ignore[arg-type]
    elif rule.kind == "ua_clm":
        wrong, _, right, _ = ua_clm_sums(of, rule.variant)  # type: ignore[arg-type]
        four[:2] = wrong, right
    counts = (correct.sum(), valid.sum(), unknown.sum())
    sums = torch.stack([torch.where(valid, nll, 0).sum(), *(count.to(nll) for count in counts), *four])
    return sums.double(), correct, valid


def token_sums(part: Partial, labels: Tensor, rule: Rule) -> tuple[Tensor, Rows]:
    nll, confidence, entropy, _ = of_partial(part)
    sums, correct, valid = sums_of(nll, confidence, entropy, part.predicted, labels, rule)
    return sums, Rows(entropy, confidence, correct, valid)


def token_coefficients(part: Partial, labels: Tensor, in_sums: Tensor, rule: Rule) -> Coefficients:
    *values, mean = of_partial(part)
    with torch.enable_grad():
        leaves = [value.requires_grad_() for value in values]
        sums, _, _ = sums_of(*leaves, part.predicted, labels, rule)  # type: ignore[arg-type]
        gradients = torch.autograd.grad(sums, leaves, in_sums, allow_unused=True)
    in_nll, in_p, in_u = (torch.zeros_like(mean) if value is None else value for value in gradients)
    p, through = values[1].detach(), in_p * values[1].detach()
    return Coefficients(part.largest, p * (in_nll + in_u * mean - through), -p * in_u, -in_nll, through)


def loss_of_sums(sums: Tensor, rule: Rule, nll_weight: float, beta: float) -> tuple[Figures, Tensor]:
    with torch.enable_grad():
        at = sums.detach().clone().requires_grad_()
        nll, avuc = at[0] / at[2].detach().clamp(min=1), 0 * at[4]
        if rule.kind == "avuc":
            avuc = loss_of(at[4:])
        elif rule.kind == "ua_clm":
            counts = (at[2] - at[1]).detach(), at[1].detach()
            avuc = ua_clm_of_sums(torch.stack((at[4], counts[0], at[5], counts[1])))
        loss = nll_weight * nll + beta * avuc
        slopes = torch.stack([torch.autograd.grad(value, at, retain_graph=True)[0] for value in (loss, nll, avuc)])
    limit = torch.as_tensor(rule.limit, dtype=torch.float64)
    nll, avuc = nll.detach(), avuc.detach()
    nll, avuc = nll + (math.nan if sums[3] else 0), avuc + (math.nan if sums[3] or limit.isnan() else 0)
    loss = nll_weight * nll + beta * avuc
    status = torch.stack((loss, sums[3], limit))
    quadrants = sums[4:].clone() if rule.kind == "avuc" else torch.zeros(4).double()
    values = (loss, nll, avuc, quadrants)
    return Figures(*values, sums[1:3].long(), status), slopes


STAND_IN: Any = SimpleNamespace(
    unsupported_reason=lambda hidden, weight: None,
    forward_tiles=tiles.forward_tiles,
    backward_tiles=tiles.backward_tiles,
    token_sums=token_sums,
    token_coefficients=token_coefficients,
    loss_of_sums=loss_of_sums,
)


@contextlib.contextmanager
def accelerated() -> Iterator[None]:
    """While open, `linear_avuc` finds this accelerator."""
    with patch.object(statistics, "linear_tiles", lambda: STAND_IN):
        yield
