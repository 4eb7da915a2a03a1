"""The loss of `linear_avuc` as a function of eight sums over tokens, for an accelerator that computes them in one go.

    hidden, weight ──► Partial (tiles) ──► sums, (8) ──► sum over ranks ──► loss
                                │                            │
    gradients ◄── tiles ◄── Coefficients ◄── gradient in the sums ◄── slopes of the loss

The sums are Σ nll, the numbers of right tokens, of all tokens and of labels that are no word, and AC, AU, IC, IU; for
UA-CLM, the terms of wrong and of right tokens. Autograd sees one or two functions instead of a hundred operations.
Nothing waits for a GPU if gradients are needed: NaN and wrong labels are then refused in the backward pass, and the
loss is NaN until then.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.accelerators import AcceleratedLinearTiles
from avuc.core.data_parallel import Group, sum_over_ranks, world_size
from avuc.core.errors import InputError
from avuc.losses.inputs import checked_threshold, may_synchronise, refuse_labels, refuse_nan_value
from avuc.losses.linear.objective import Running, Whole, avuc_of_quadrants, mean_of_sum, ua_clm_of_terms
from avuc.losses.linear.statistics import NO_SECOND_DERIVATIVE, over_processes
from avuc.losses.linear.tiles import Coefficients, Options, Partial
from avuc.losses.quadrants import SOFT_THRESHOLD, Quadrants
from avuc.uncertainty import highest_certain

SUMS = 8


class Rule(NamedTuple):
    """What the loss of a token depends on, besides its statistics."""

    kind: str
    variant: str
    limit: float | Tensor  # the largest entropy that is certain; for "soft", the threshold's share of log V
    words: int  # in the whole vocabulary
    ignore_index: int


class Rows(NamedTuple):
    """Statistics of each token, each of shape (T)."""

    entropy: Tensor
    confidence: Tensor
    correct: Tensor
    valid: Tensor


class Figures(NamedTuple):
    """The loss of the sums."""

    loss: Tensor
    nll: Tensor
    avuc: Tensor
    quadrants: Tensor  # (4)
    counts: Tensor  # right and all tokens, (2), int64
    status: Tensor  # loss, labels that are no word, limit: (3), float64


class Terms(NamedTuple):
    """How the loss follows from the sums."""

    nll_weight: float
    beta: float
    group: Group
    whole: Whole | None
    running: Running | None


def rule_of(
    kind: str, variant: str, threshold: float | Tensor | None, words: int, ignore_index: int, device: torch.device
) -> Rule:
    """Return the rule, with the threshold as the kernels take it."""
    if kind != "avuc":
        return Rule(kind, variant, 0.0, words, ignore_index)
    if variant == "soft" and threshold is None:
        return Rule(kind, variant, SOFT_THRESHOLD, words, ignore_index)
    checked = checked_threshold(threshold, variant)
    limit = checked / math.log(max(words, 2)) if variant == "soft" else highest_certain(checked)
    if isinstance(limit, Tensor):
        # a number on the processor needs no copy to the GPU
        limit = float(limit) if limit.device.type == "cpu" and device.type != "cpu" else limit.detach().to(device)
    return Rule(kind, variant, limit, words, ignore_index)


def fused_loss(
    passes: AcceleratedLinearTiles,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    options: Options,
    vocab_group: dist.ProcessGroup | None,
    rule: Rule,
    terms: Terms,
) -> tuple[Figures, Rows]:
    """Return the loss of tokens (T), with first derivatives in hidden (T, D), weight (V, D) and bias (V)."""
    check, labels = _Check(labels, rule), labels.contiguous()
    layer = _Layer(passes, options, vocab_group, rule, check)
    if terms.whole is None and terms.running is None and world_size(terms.group) == 1:
        values = _Loss.apply(layer, hidden, weight, bias, labels, terms.nll_weight, terms.beta)
        found, rows = Figures(*values[:6]), values[6:]
    else:
        sums, *rows = _TokenSums.apply(layer, hidden, weight, bias, labels)
        if terms.whole is None and terms.running is None:
            total = sum_over_ranks(sums, terms.group)
            found = Figures(*_LossOfSums.apply(passes, total, rule, terms.nll_weight, terms.beta))
        else:
            found = _accumulated(sums, rule, terms, rows[0].dtype)
    check.start(found.status, later=found.loss.requires_grad)
    return found, Rows(*rows)


class _Layer(NamedTuple):
    """What both passes need, besides tensors."""

    passes: AcceleratedLinearTiles
    options: Options
    vocab_group: dist.ProcessGroup | None
    rule: Rule
    check: _Check

    def sums(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Rows, Partial]:
        """Return the sums over tokens, the statistics of each, and the online softmax."""
        part = self.passes.forward_tiles(hidden, weight, bias, labels, self.options)
        if self.vocab_group is not None:
            part = over_processes(part, self.vocab_group)
        return *self.passes.token_sums(part, labels, self.rule), part

    def gradients(
        self, saved: tuple[Tensor, ...], in_sums: Tensor, needed: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients in hidden, weight and bias, given that in the sums."""
        hidden, weight, bias, labels, *columns = saved
        part = Partial(*columns)
        coefficients: Coefficients = self.passes.token_coefficients(part, labels, in_sums.contiguous(), self.rule)
        in_hidden, in_weight, in_bias = self.passes.backward_tiles(
            hidden, weight, bias, labels, part.predicted, coefficients, self.options, needed
        )
        if in_hidden is not None and self.vocab_group is not None:
            dist.all_reduce(in_hidden, group=self.vocab_group)
        self.check.finish()  # the forward pass ended long ago, and the GPU has work to do
        return in_hidden, in_weight, in_bias


class _TokenSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layer: _Layer, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
    ) -> tuple[Tensor, ...]:
        sums, rows, part = layer.sums(hidden, weight, bias, labels)
        ctx.layer = layer
        ctx.save_for_backward(hidden, weight, bias, labels, *part)
        ctx.mark_non_differentiable(*rows)
        ctx.set_materialize_grads(False)
        return sums, *rows

    @staticmethod
    def backward(ctx: Any, in_sums: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(NO_SECOND_DERIVATIVE)
        if in_sums is None:
            return (None,) * 5
        return None, *ctx.layer.gradients(ctx.saved_tensors, in_sums, ctx.needs_input_grad[1:4]), None


class _LossOfSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, passes: AcceleratedLinearTiles, sums: Tensor, rule: Rule, nll_weight: float, beta: float
    ) -> tuple[Tensor, ...]:
        found, slopes = passes.loss_of_sums(sums, rule, nll_weight, beta)
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(found.quadrants, found.counts, found.status)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor | None, None, None, None]:
        if torch.is_grad_enabled():
            raise InputError(NO_SECOND_DERIVATIVE)
        (slopes,) = ctx.saved_tensors
        return None, _in_sums(slopes, gradients), None, None, None


class _Loss(torch.autograd.Function):
    """`_TokenSums` and `_LossOfSums` in one, for a process that shares its batch with no other."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: _Layer,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        nll_weight: float,
        beta: float,
    ) -> tuple[Tensor, ...]:
        sums, rows, part = layer.sums(hidden, weight, bias, labels)
        found, slopes = layer.passes.loss_of_sums(sums, layer.rule, nll_weight, beta)
        ctx.layer = layer
        ctx.save_for_backward(slopes, hidden, weight, bias, labels, *part)
        ctx.mark_non_differentiable(found.quadrants, found.counts, found.status, *rows)
        ctx.set_materialize_grads(False)
        return *found, *rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(NO_SECOND_DERIVATIVE)
        slopes, *saved = ctx.saved_tensors
        in_sums = _in_sums(slopes, gradients)
        if in_sums is None:
            return (None,) * 7
        return None, *ctx.layer.gradients(saved, in_sums, ctx.needs_input_grad[1:4]), None, None, None


def _in_sums(slopes: Tensor, gradients: tuple[Tensor | None, ...]) -> Tensor | None:
    """Return the gradient in the sums, given those in loss, nll and avuc."""
    found: Tensor | None = None
    for place, gradient in enumerate(gradients[:3]):
        if gradient is not None:
            part = gradient * slopes[place]
            found = part if found is None else found + part
    return found


def _accumulated(sums: Tensor, rule: Rule, terms: Terms, dtype: torch.dtype) -> Figures:
    """Return the loss of a micro-batch: few operations on the sums, by autograd."""
    group, whole = terms.group, terms.whole
    total = sum_over_ranks(sums.detach(), group)
    limit = torch.zeros_like(total[0]) + rule.limit
    # the error may come later, in the backward pass: until then a wrong label or a threshold of NaN must be seen
    nll = mean_of_sum(torch.where(total[3] > 0, math.nan, sums[0]), total[2], whole, group)
    masses = torch.where((total[3] > 0) | limit.isnan(), math.nan, sums[4:])
    avuc, quadrants = torch.zeros_like(nll), torch.zeros_like(masses)
    if rule.kind == "avuc":
        avuc, parts = avuc_of_quadrants(Quadrants(*masses.unbind()), group, whole, terms.running)
        quadrants = torch.stack(parts)
    elif rule.kind == "ua_clm":
        wrong = torch.stack((masses[0], sums[2] - sums[1], masses[1], sums[1]))
        avuc = ua_clm_of_terms(wrong, group, whole)
    loss = terms.nll_weight * nll + terms.beta * avuc
    status = torch.stack((loss.detach(), total[3], limit))
    loss, nll, avuc, quadrants = (value.to(dtype) for value in (loss, nll, avuc, quadrants))
    return Figures(loss, nll, avuc, quadrants.detach(), total[1:3].long(), status)


class _Check:
    """Refuses NaN and labels that are no words: at once, or after the GPU has computed them."""

    def __init__(self, labels: Tensor, rule: Rule) -> None:
        self.labels, self.rule = labels, rule
        self.status: Tensor | None = None
        self.ready: torch.cuda.Event | None = None

    def start(self, status: Tensor, later: bool) -> None:
        """Check `status`, or start to copy it if the backward pass can check it `later`."""
        if not may_synchronise(status):
            return
        if not (later and status.is_cuda):
            self.status = status.detach()
            self.finish()
            return
        self.status = torch.empty(status.shape, dtype=status.dtype, pin_memory=True)
        self.status.copy_(status.detach(), non_blocking=True)
        self.ready = torch.cuda.Event()
        self.ready.record(torch.cuda.current_stream(status.device))

    def finish(self) -> None:
        """Raise `InputError` or `NonFiniteError` if something is wrong."""
        if self.status is None:
            return
        if self.ready is not None:
            self.ready.synchronize()
        loss, unknown, limit = self.status.tolist()
        if unknown:
            refuse_labels(self.labels, self.rule.words, self.rule.ignore_index)
            raise InputError("linear_avuc: another process of the group has labels that are no words; see its error")
        if math.isnan(limit):
            raise InputError("avuc: threshold is NaN; give an uncertainty in nats")
        refuse_nan_value(loss, "hidden or weight")
