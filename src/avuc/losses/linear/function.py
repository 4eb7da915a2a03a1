"""`linear_avuc`: cross-entropy and AvUC of a linear layer, without ever holding tokens × vocabulary logits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.inputs import checked_number, checked_whole, label_weights, may_synchronise, one_of, refuse_nan
from avuc.losses.linear.fused import Terms, fused_loss, rule_of
from avuc.losses.linear.inputs import (
    as_the_layer,
    check_groups,
    check_tensors,
    checked_decay,
    next_labels,
    place_in_vocabulary,
    positive,
    without_autocast,
)
from avuc.losses.linear.objective import Kind, Running, Whole, avuc_of, mean_nll, summed, ua_clm_of
from avuc.losses.linear.statistics import accelerated, token_statistics
from avuc.losses.linear.tiles import Options, accumulator
from avuc.losses.quadrants import VARIANTS, Quadrants, SampleStatistics, Variant
from avuc.losses.ua_clm import UA_CLM_VARIANTS

Backend = Literal["auto", "chunked", "triton"]
KINDS: tuple[str, ...] = get_args(Kind)
BACKENDS: tuple[str, ...] = get_args(Backend)


class LinearAvUC(NamedTuple):
    """What `linear_avuc` returns. `loss`, `nll` and `avuc` have gradients, the other tensors have none.

    Args:
        loss: nll_weight·nll + beta·avuc, a tensor without dimensions.
        nll: the mean negative log-likelihood (cross-entropy) of the tokens that have a label.
        avuc: the AvUC loss, or the UA-CLM loss for kind="ua_clm"; 0 for kind="plain".
        quadrants: AC, AU, IC and IU of all ranks of `group`; zeros for the other kinds.
        entropy: of each token, the shape of `labels`.
        num_correct: number of tokens whose most probable word is their label, over all ranks of `group`.
        num_valid: number of tokens that have a label, over all ranks of `group`.
        confidence: probability of the most probable word of each token, the shape of `labels`.
        correct: whether that word is the label, the shape of `labels`; False where there is no label.
        valid: whether the token has a label, the shape of `labels`.

    >>> result = linear_avuc(torch.eye(2), 9 * torch.eye(2), torch.tensor([0, 0]), threshold=0.3)
    >>> result.num_correct, result.num_valid
    (tensor(1), tensor(2))
    """

    loss: Tensor
    nll: Tensor
    avuc: Tensor
    quadrants: Quadrants
    entropy: Tensor
    num_correct: Tensor
    num_valid: Tensor
    confidence: Tensor
    correct: Tensor
    valid: Tensor


def linear_avuc(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    threshold: float | Tensor | None,
    bias: Tensor | None = None,
    kind: Kind = "avuc",
    variant: Variant = "monotone",
    beta: float = 1.0,
    nll_weight: float = 1.0,
    ignore_index: int = -100,
    shift: bool = False,
    softcap: float | None = None,
    logit_scale: float | None = None,
    chunk_size: int | None = None,
    backend: Backend = "auto",
    group: Group = None,
    vocab_group: dist.ProcessGroup | None = None,
    total: LinearAvUC | Iterable[LinearAvUC] | None = None,
    running: Tensor | None = None,
    decay: float = 0.9,
) -> LinearAvUC:
    """Return cross-entropy and AvUC of the logits hidden·weightᵀ + bias, which are never held all at once.

        loss = nll_weight · cross_entropy + beta · log(1 + (AU + IC)/(AC + IU))

    Value and gradients are those of `cross_entropy` and `avuc_loss` on the logits. Memory is a tile of logits and a few
    numbers per token: the backward pass computes the logits again. First derivatives only.

    Args:
        hidden: inputs of the linear layer, (..., D).
        weight: weight of the linear layer, (V, D), in the type of `hidden`; also tied embeddings.
        labels: words, (...), as many as hidden states.
        threshold: largest entropy, in nats, that counts as certain. None only for the soft variant (log(V)/2) and for
            the kinds without a threshold.
        bias: (V). Default None: none.
        kind: "avuc" (default), "ua_clm" (`ua_clm_loss` in place of AvUC), or "plain" (cross-entropy alone).
        variant: "monotone" (default), "paper", "stopgrad" or "soft"; see `avuc_quadrants` and `ua_clm_loss`.
        beta: factor of AvUC or UA-CLM (default 1).
        nll_weight: factor of the cross-entropy (default 1).
        ignore_index: label of the tokens to leave out (default −100). If all are left out, loss and gradients are 0.
        shift: whether position t predicts the label at t + 1 of the last dimension of `labels`, as in causal language
            models; then hidden states and labels both come from the same positions. Default False.
        softcap: c in z = c·tanh(z/c), as in Gemma 2. Default None: none.
        logit_scale: factor of the logits, before `softcap`. Default None: 1.
        chunk_size: words per tile. Default None: as many as are fast.
        backend: "auto" (default), "chunked" (torch operations, on any device) or "triton" (NVIDIA GPUs).
        group: the data-parallel processes that share a batch; see `avuc_loss`. The cross-entropy is the mean over all
            their tokens, too.
        vocab_group: processes that hold consecutive parts of the vocabulary, in the order of their ranks (tensor
            parallelism). `weight` and `bias` are the part of this process; `hidden` and `labels` are the same on all.
            The gradient in `hidden` is summed over them. `group` must be given then. Default None: no such split.
        total: results of all micro-batches of a larger batch (gradient accumulation), from a first pass without
            gradients. Losses and gradients of all micro-batches then sum to those of the larger batch.
        running: for micro-batches without a first pass: zeros of shape (5), float64, kept by the caller and updated by
            each call with gradients. AvUC is that of quadrants averaged over past batches. This is biased: the past
            comes from older weights and has no gradient. Default None: every batch has its own loss.
        decay: weight of the past in `running` (default 0.9).

    >>> hidden, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(100, 8, requires_grad=True)
    >>> labels = torch.randint(0, 100, (2, 5))
    >>> result = linear_avuc(hidden, weight, labels, threshold=1.0, shift=True)
    >>> result.loss.backward()
    >>> int(result.num_valid)  # the last position of each row predicts nothing
    8
    """
    check_tensors(hidden, weight, labels, bias)
    check_groups(vocab_group, group)
    one_of("kind", kind, KINDS)
    one_of("backend", backend, BACKENDS)
    one_of("variant", variant, UA_CLM_VARIANTS if kind == "ua_clm" else VARIANTS)
    beta, nll_weight = checked_number("linear_avuc: beta", beta), checked_number("linear_avuc: nll_weight", nll_weight)
    if chunk_size is not None:
        checked_whole("linear_avuc: chunk_size", chunk_size, least=1)
    if total is not None and running is not None:
        raise InputError("linear_avuc: give total or running, not both")
    if running is not None and kind != "avuc":
        raise InputError(f"linear_avuc: running holds quadrants, which kind {kind!r} does not have; leave it out")
    past = None if running is None else Running(running, checked_decay(decay, running))
    whole = None if total is None else summed(map(_whole, [total] if isinstance(total, LinearAvUC) else total))

    hidden, weight, bias = as_the_layer(hidden, weight, bias)
    shape = labels.shape
    labels = labels.long()  # uint8 cannot hold an ignore_index of −100
    labels = (next_labels(labels, ignore_index) if shift else labels).reshape(-1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    first, words = place_in_vocabulary(len(weight), vocab_group, weight.device)
    capped, scale = positive("softcap", softcap), positive("logit_scale", logit_scale)
    options = Options(capped, scale, chunk_size, first, backend)
    fused = None if torch.compiler.is_compiling() else accelerated(options, flat, weight)
    if fused is not None and not (isinstance(threshold, Tensor) and threshold.requires_grad):
        rule = rule_of(kind, variant, threshold, words, ignore_index, hidden.device)
        terms = Terms(nll_weight, beta, group, whole, past)
        with without_autocast(hidden.device.type):
            found, of = fused_loss(fused, flat, weight, bias, labels, options, vocab_group, rule, terms)
        num_correct, num_valid = found.counts.unbind(0)
        entropy, confidence, correct, valid = of if len(shape) == 1 else (column.reshape(shape) for column in of)
        return LinearAvUC(
            found.loss, found.nll, found.avuc, Quadrants(*found.quadrants.unbind(0)), entropy, num_correct, num_valid,
            confidence, correct, valid,
        )  # fmt: skip
    with torch.autocast(hidden.device.type, enabled=False):
        # first, because it waits for the labels, and a GPU would have nothing to do after the tiles
        used = label_weights(labels, words, ignore_index, None, accumulator(flat.dtype))
        rows = token_statistics(flat, weight, bias, labels, options, vocab_group)
        used = torch.ones_like(rows.nll) if used is None else used
        if not may_synchronise(labels):  # nobody can refuse labels that are no words: the loss must show them
            rows = rows._replace(nll=torch.where((labels < 0) | (labels >= words), math.nan, rows.nll))
        valid = used > 0
        correct = (rows.predicted == labels) & valid
        statistics = SampleStatistics(rows.confidence, rows.entropy, correct, used, words, rows.nll)
        num_correct, num_valid = sum_over_ranks(torch.stack((correct.sum(), valid.sum())), group)
        nll = mean_nll(rows.nll, used, num_valid, whole, group)
        avuc, quadrants = torch.zeros_like(nll), Quadrants(*nll.new_zeros(4))
        if kind == "avuc":
            avuc, quadrants = avuc_of(statistics, threshold, variant, group, whole, past)
            if isinstance(threshold, Tensor):
                avuc = torch.where(threshold.detach().reshape(()).isnan().to(avuc.device), math.nan, avuc)
        elif kind == "ua_clm":
            avuc = ua_clm_of(statistics, variant, group, whole)
        loss = nll_weight * nll + beta * avuc
    refuse_nan(loss, "hidden or weight", threshold)
    entropy, confidence = rows.entropy.detach().reshape(shape), rows.confidence.detach().reshape(shape)
    return LinearAvUC(
        loss, nll, avuc, quadrants, entropy, num_correct, num_valid,
        confidence, correct.reshape(shape), valid.reshape(shape),
    )  # fmt: skip


def _whole(result: LinearAvUC) -> Whole:
    return Whole(result.quadrants, result.num_correct, result.num_valid)
