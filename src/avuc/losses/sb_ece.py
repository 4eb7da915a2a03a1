"""SB-ECE: soft-binned calibration error as a loss (Karandikar et al. 2021, arXiv 2108.00106).

Each prediction with confidence p belongs to bin m, with anchor ξ_m, by the share g_m = softmax_m(−(p − ξ_m)²/T). Of bin
m, S_m is the summed share, C_m the mean confidence and A_m the accuracy. With W predictions:

    form            loss                                    anchors
    binned          √( Σ_m S_m/W · (C_m − A_m)² )           midpoints of bins between 0 and 1       Eq. 11
    label_binned    √( 1/W Σ_i Σ_m g_im (p_i − A_m)² )      midpoints of bins between 1/C and 1     Eq. 12

Both were checked against the authors' TensorFlow code, which returns the square of the second form. It adds 1e-5 to
shares and sums; here a bin without a share has no part in the sum instead.

    variant     gradient
    paper       as printed, also through the shares: a prediction can lower the loss by moving to another bin
    stopgrad    shares are constants: the confidences of overconfident bins fall, those of underconfident bins rise
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.family import FamilyLoss
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import checked_number, checked_whole, one_of, refuse_nan, transforming
from avuc.losses.layout import Task, standard_layout
from avuc.losses.quadrants import SampleStatistics, sample_statistics

SBECEForm = Literal["binned", "label_binned"]
SBECEVariant = Literal["paper", "stopgrad"]
SB_ECE_FORMS: tuple[str, ...] = get_args(SBECEForm)
SB_ECE_VARIANTS: tuple[str, ...] = get_args(SBECEVariant)
# Larger inputs are summed in blocks whose shares (rows × bins) are computed again in the backward pass.
BLOCK_ROWS = 1 << 16


def sb_ece_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    form: SBECEForm = "binned",
    variant: SBECEVariant = "paper",
    bins: int = 15,
    temperature: float = 0.01,
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the soft-binned calibration error of a batch, a tensor without dimensions. Add it to the cross-entropy.

        binned:        √( Σ_m S_m/W · (C_m − A_m)² )
        label_binned:  √( 1/W Σ_i Σ_m g_im (p_i − A_m)² )

    It is small if the confidence equals the accuracy in every bin. As T → 0 the first form becomes the L2 calibration
    error of equal-width bins. A batch without predictions has loss 0.

    Args:
        logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).
        labels: class indices, (N) or (N, *spatial).
        form: "binned" (default), Eq. 11 of the paper, or "label_binned", Eq. 12.
        variant: "paper" (default), or "stopgrad", without a gradient through the shares of bins.
        bins: number of bins (default 15).
        temperature: T, the squared distance at which a share falls by e (default 0.01).
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; see `avuc_loss`.
        task, class_dim: the layout of `logits`, as in `avuc_loss`.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # confidence .88
    >>> round(sb_ece_loss(logits, torch.tensor([0, 1])).item(), 3)  # accuracy .5
    0.381
    """
    one_of("form", form, SB_ECE_FORMS, "sb_ece")
    one_of("variant", variant, SB_ECE_VARIANTS)
    logits, labels = standard_layout(logits, labels, task, class_dim)
    statistics = sample_statistics(logits, labels, "entropy", ignore_index, weights)
    loss = sb_ece_from_statistics(statistics, form, variant, bins, temperature, group)
    refuse_nan(loss, "logits")
    warn_of_probs("sb_ece_loss", logits, labels)
    return loss


def sb_ece_from_statistics(
    statistics: SampleStatistics,
    form: SBECEForm = "binned",
    variant: SBECEVariant = "paper",
    bins: int = 15,
    temperature: float = 0.01,
    group: Group = None,
) -> Tensor:
    """Return the loss of predictions whose confidence, correctness and weight are known."""
    p = statistics.confidence
    edges = anchors(statistics.num_classes, form, bins, p.dtype, p.device)
    sharpness = 1 / checked_temperature(temperature)
    used = statistics.weight > 0  # a prediction of weight 0 may be NaN
    columns = torch.where(used, p, 0.5), statistics.correct.to(p.dtype), statistics.weight
    if len(p) <= BLOCK_ROWS or torch.compiler.is_compiling() or transforming():
        sums = _bin_sums(*columns, edges, sharpness, variant)
    else:
        sums = p.new_zeros(5, bins)
        for block in zip(*(column.split(BLOCK_ROWS) for column in columns), strict=True):
            sums = sums + checkpoint(_bin_sums, *block, edges, sharpness, variant, use_reentrant=False)
    share, gap, above, squared, right = sum_over_ranks(sums, group)
    total = share.sum()
    # A smaller share changes nothing, but the square of its inverse, in the gradient, would overflow.
    tiny = share <= math.sqrt(torch.finfo(share.dtype).tiny)
    filled = torch.where(tiny, 1.0, share)
    if form == "binned":
        gap = torch.where(tiny, 0.0, gap)
        squares = gap * gap / filled
    else:  # Σ g (p − A)², with p and A measured from the anchor: p and A are close to it, so little is cancelled
        squared, above, right = (torch.where(tiny, 0.0, sums) for sums in (squared, above, right))
        squares = (squared - 2 * above * right / filled + right * right / filled).clamp(min=0)
    mean = squares.sum() / torch.where(total > 0, total, 1.0)
    zero = mean == 0  # the derivative of the root at 0 is infinite; it is 0 here
    return torch.where(zero, 0.0, torch.where(zero, 1.0, mean).sqrt())


def anchors(num_classes: int, form: SBECEForm, bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the midpoints ξ of the bins: of [0, 1], or of [1/C, 1] for the label-binned form."""
    checked_whole("sb_ece: bins", bins, least=1)
    one_of("form", form, SB_ECE_FORMS, "sb_ece")
    lowest = 0.0 if form == "binned" else 1 / num_classes
    middle = (torch.arange(bins, dtype=dtype, device=device) + 0.5) / bins
    return lowest + (1 - lowest) * middle


def checked_temperature(temperature: float) -> float:
    """Return a temperature above 0; `InputError` otherwise."""
    if checked_number("sb_ece: temperature", temperature) == 0:
        raise InputError("sb_ece: temperature must be above 0; found 0")
    return float(temperature)


def _bin_sums(p: Tensor, right: Tensor, weight: Tensor, edges: Tensor, sharpness: float, variant: str) -> Tensor:
    """Return five sums for each bin, (5, bins): shares, and the shares times p − a, p − ξ, (p − ξ)² and a − ξ."""
    distance = p.unsqueeze(1) - edges
    share = torch.softmax(-sharpness * distance * distance, dim=1)
    if variant == "stopgrad":
        share = share.detach()
    share = share * weight.unsqueeze(1)
    gap = (p - right).unsqueeze(1)
    correct = right.unsqueeze(1) - edges
    return torch.stack(
        [
            share.sum(dim=0),
            (share * gap).sum(dim=0),
            (share * distance).sum(dim=0),
            (share * distance * distance).sum(dim=0),
            (share * correct).sum(dim=0),
        ]
    )


class SBECELoss(FamilyLoss):
    """`sb_ece_loss` times β, as a module. Add it to the cross-entropy.

    Args:
        beta: factor of the loss (default 1).
        variant: "paper" (default) or "stopgrad"; see `sb_ece_loss`.
        form: "binned" (default) or "label_binned".
        bins: number of bins (default 15).
        temperature: softness of the bins (default 0.01).
        ignore_index: label of the predictions to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.
        task, class_dim: the layout of the logits, as in `avuc_loss`.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    >>> SBECELoss()(logits, torch.tensor([0, 1])).backward()  # overconfident
    >>> bool((logits.grad[:, 0] > 0).all())
    True
    """

    function = staticmethod(sb_ece_loss)
    variants = SB_ECE_VARIANTS
    options = ("form", "bins", "temperature", "task")

    def __init__(
        self,
        beta: float = 1.0,
        variant: SBECEVariant = "paper",
        *,
        form: SBECEForm = "binned",
        bins: int = 15,
        temperature: float = 0.01,
        ignore_index: int = -100,
        group: Group = None,
        task: Task | None = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__(beta, variant, ignore_index, group, class_dim)
        one_of("form", form, SB_ECE_FORMS, "sb_ece")
        self.bins: int = checked_whole("sb_ece: bins", bins, least=1)
        self.temperature: float = checked_temperature(temperature)
        self.form = form
        self.task = task
