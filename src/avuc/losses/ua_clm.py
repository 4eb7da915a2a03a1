"""UA-CLM: an uncertainty-aware loss for fine-tuning language models (Krishnan et al. 2024, arXiv 2412.02904).

    L = −mean over wrong tokens of P·log tanh H − mean over right tokens of (1 − P)·log(1 − tanh H)          (Eq. 2)

H is the entropy of the next-token distribution, and a token is right if it is the most likely one. The paper writes
P(w_i | w_0 … w_{i−1}), as in its cross-entropy, so P is the probability of the *label* in `variant="paper"`. For wrong
tokens it could also be read as that of the predicted token; no code was published to check it. That reading is
`variant="monotone"`:

    variant     P on wrong tokens               a gradient step on a confident mistake
    paper       the label's probability q       lowers q, and raises the logit of the mistake
    monotone    the confidence p                lowers the logit of the mistake

On right tokens both are the same number.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.family import FamilyLoss
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import one_of, refuse_nan
from avuc.losses.layout import Task, standard_layout
from avuc.losses.quadrants import SampleStatistics, sample_statistics

UACLMVariant = Literal["paper", "monotone"]
UA_CLM_VARIANTS: tuple[str, ...] = get_args(UACLMVariant)


def ua_clm_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    variant: UACLMVariant = "paper",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the UA-CLM loss of a batch of tokens, a tensor without dimensions. Add it to the cross-entropy.

        L = −mean over wrong tokens of P·log tanh H − mean over right tokens of (1 − P)·log(1 − tanh H)

    It is small if right tokens have a low and wrong tokens a high entropy H. Without wrong or without right tokens that
    mean is 0.

    Args:
        logits: (N, C), dense (N, C, *spatial), or (N, T, C) with `class_dim=-1`; (S, N, C) for S posterior samples. The
            logits that predict each label: shift those of a causal model by one first.
        labels: class indices, (N) or (N, *spatial).
        variant: what P is: "paper" (default), the probability of the label; "monotone", that of the predicted token,
            which points every gradient the right way: right tokens more certain, wrong tokens less.
        ignore_index: label of the tokens to leave out (default −100).
        weights: weight of each token in its mean, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; see `avuc_loss`.
        task, class_dim: the layout of `logits`, as in `avuc_loss`.

    >>> logits, labels = torch.tensor([[9.0, 0.0], [0.1, 0.0]]), torch.tensor([0, 1])
    >>> round(ua_clm_loss(logits, labels).item(), 3)  # certain and right, unsure and wrong
    0.243
    >>> round(ua_clm_loss(logits, 1 - labels, variant="monotone").item(), 3)  # certain and wrong, unsure and right
    7.131
    """
    one_of("variant", variant, UA_CLM_VARIANTS)
    logits, labels = standard_layout(logits, labels, task, class_dim)
    statistics = sample_statistics(logits, labels, "entropy", ignore_index, weights, with_nll=variant == "paper")
    loss = ua_clm_from_statistics(statistics, variant, group)
    refuse_nan(loss, "logits")
    warn_of_probs("ua_clm_loss", logits, labels)
    return loss


def ua_clm_from_statistics(statistics: SampleStatistics, variant: UACLMVariant, group: Group = None) -> Tensor:
    """Return the loss of tokens whose statistics are known; "paper" needs their `nll`."""
    return ua_clm_of_sums(sum_over_ranks(ua_clm_sums(statistics, variant), group))


def ua_clm_sums(statistics: SampleStatistics, variant: UACLMVariant) -> Tensor:
    """Return four sums over tokens: terms and weights of the wrong ones, then of the right ones.

    Sums of parts of a batch add up to those of the whole, so the loss can be computed in chunks: `ua_clm_of_sums`.
    """
    one_of("variant", variant, UA_CLM_VARIANTS)
    used = statistics.weight > 0  # a token of weight 0 may be NaN
    h = torch.where(used, statistics.uncertainty, 1.0)
    p = torch.where(used, statistics.confidence, 1.0)
    on_wrong = p
    if variant == "paper":
        if statistics.nll is None:
            raise InputError("ua_clm: variant 'paper' needs the label's probability; give statistics with nll")
        on_wrong = torch.exp(-torch.where(used, statistics.nll, 0.0))
    wrong = statistics.weight * ~statistics.correct
    right = statistics.weight * statistics.correct
    wrong_terms = -on_wrong * log_tanh(h)
    right_terms = -(1 - p) * log_one_minus_tanh(h)
    return torch.stack((wrong_terms * wrong, wrong, right_terms * right, right)).sum(dim=1)


def ua_clm_of_sums(sums: Tensor) -> Tensor:
    """Return the loss of the four sums of `ua_clm_sums`."""
    wrong, num_wrong, right, num_right = sums
    loss: Tensor = wrong / torch.where(num_wrong > 0, num_wrong, 1.0) + right / torch.where(
        num_right > 0, num_right, 1.0
    )
    return loss


def log_tanh(h: Tensor) -> Tensor:
    """Return log tanh h for h ≥ 0. It is constant below 1e-19 (in float32), where the entropy has no gradient left."""
    h = h.clamp(min=math.sqrt(torch.finfo(h.dtype).tiny))
    return torch.log(-torch.expm1(-2 * h)) - torch.log1p(torch.exp(-2 * h))


def log_one_minus_tanh(h: Tensor) -> Tensor:
    """Return log(1 − tanh h), exact where 1 − tanh h rounds to 0."""
    return math.log(2) - F.softplus(2 * h)


class UACLMLoss(FamilyLoss):
    """`ua_clm_loss` times β, as a module. Add it to the cross-entropy.

    Args:
        beta: factor of the loss (default 1).
        variant: "paper" (default) or "monotone"; see `ua_clm_loss`.
        ignore_index: label of the tokens to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.
        task, class_dim: the layout of the logits, as in `avuc_loss`; `class_dim=-1` for (N, T, C).

    >>> loss = UACLMLoss(variant="monotone", class_dim=-1)
    >>> logits = torch.randn(2, 5, 11, requires_grad=True)  # 2 texts of 5 tokens, 11 words
    >>> loss(logits, torch.randint(0, 11, (2, 5))).backward()
    """

    function = staticmethod(ua_clm_loss)
    variants = UA_CLM_VARIANTS
    options = ("task",)

    def __init__(
        self,
        beta: float = 1.0,
        variant: UACLMVariant = "paper",
        *,
        ignore_index: int = -100,
        group: Group = None,
        task: Task | None = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__(beta, variant, ignore_index, group, class_dim)
        self.task = task
