"""EUC: evidential uncertainty calibration, the loss of DEAR for open-set recognition (Bao et al. 2021).

An evidential network has evidence e ≥ 0 for each of K classes, which gives a Dirichlet distribution with parameters
α = e + 1. With S = Σα, the expected probability of class k is α_k/S, and the uncertainty is u = K/S, between 0 and 1.
With p = max α/S:

    L = λ · mean of 1[right]·(−p·log(1 − u)) + (1 − λ) · mean of 1[wrong]·(−(1 − p)·log u)

λ rises from .01 to 1 over the training: at first certain mistakes count, later uncertain right predictions. This is the
authors' code (arXiv 2107.10161 could not be read to compare).

    variant     right                  wrong              gradients
    paper       −p·log(1 − u)          −(1 − p)·log u     wrong way for mistakes with u < 1/e and right ones with p < ½
    stopgrad    the same, p is a constant
    monotone    −(1 − p)·log(1 − u)    −p·log u           right predictions more certain, wrong ones less, always

`DirichletHead` maps outputs to log α. softmax(log α) = α/S, so the cross-entropy of log α is DEAR's evidential loss
log S − log α_y, and predictions, metrics and calibrators take log α like any logits.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.family import FamilyLoss
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import (
    at_least_float32,
    check_shapes,
    checked_number,
    checked_whole,
    classes_last,
    may_synchronise,
    one_of,
    refuse_nan,
)
from avuc.losses.layout import standard_layout
from avuc.losses.quadrants import SampleStatistics, sample_statistics

Evidence = Literal["relu", "exp", "softplus"]
EUCVariant = Literal["paper", "stopgrad", "monotone"]
EVIDENCES: tuple[str, ...] = get_args(Evidence)
EUC_VARIANTS: tuple[str, ...] = get_args(EUCVariant)
FIRST_BALANCE = 0.01


class DirichletHead(nn.Module):
    """The last layer of an evidential network: outputs (N, K) become log α, with α = evidence + 1.

    softmax(log α) are the expected probabilities, so everything that takes logits takes log α; its cross-entropy is the
    evidential loss of DEAR. Outputs of any shape are mapped one by one.

    Args:
        evidence: how outputs z become evidence: "exp" (default), "softplus" or "relu".

    >>> net = nn.Sequential(nn.Linear(4, 3), DirichletHead())
    >>> bool((net(torch.randn(2, 4)) >= 0).all())
    True
    """

    def __init__(self, evidence: Evidence = "exp") -> None:
        super().__init__()
        one_of("evidence", evidence, EVIDENCES, "euc")
        self.evidence = evidence

    def forward(self, outputs: Tensor) -> Tensor:
        """Return log α in float32 or better."""
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = at_least_float32(outputs)
            if self.evidence == "exp":  # log(e^z + 1), without overflow
                return F.softplus(outputs)
            return torch.log1p(F.relu(outputs) if self.evidence == "relu" else F.softplus(outputs))

    def extra_repr(self) -> str:
        return f"evidence={self.evidence!r}"


def with_dirichlet_head(net: nn.Module, evidence: Evidence | None = None) -> nn.Module:
    """Return an evidential network: `net` if it has a `DirichletHead`, else `net` with one as its last layer.

    Args:
        net: the network.
        evidence: how outputs become evidence. Default None: as the network's own head does; "exp" if it has none.
    """
    heads = [layer for layer in net.modules() if isinstance(layer, DirichletHead)]
    for head in heads:
        if evidence not in (None, head.evidence):
            raise InputError(
                f"euc: the network ends in DirichletHead({head.evidence!r}), and the objective's options say evidence "
                f"{evidence!r}; leave the option out, or the head"
            )
    return net if heads else _WithHead(net, DirichletHead(evidence or "exp"))


class _WithHead(nn.Sequential):
    """A network and its head; unlike `nn.Sequential` it passes on keyword arguments."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        net, head = self
        return head(net(*args, **kwargs))

    def _get_name(self) -> str:
        return "Sequential"  # checkpoints are identified by the printed layers, and earlier versions had that class


def euc_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    balance: float | Tensor,
    evidence: Evidence | None = "exp",
    variant: EUCVariant = "paper",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the EUC loss of a batch, a tensor without dimensions. Add it to the cross-entropy of `DirichletHead`.

        L = λ · mean of 1[right]·(−p·log(1 − u)) + (1 − λ) · mean of 1[wrong]·(−(1 − p)·log u)

    with p = max α/S, u = K/S and S = Σα. It is small if right predictions have much evidence and wrong ones little. A
    batch without predictions has loss 0.

    Args:
        logits: outputs of the network, (N, K), (S, N, K) for S posterior samples, or dense ([S,] N, K, *spatial).
        labels: class indices, (N) or (N, *spatial).
        balance: λ, between 0 and 1; DEAR raises it from .01 to 1, as `EUCLoss` does.
        evidence: how outputs become evidence: "exp" (default), "softplus" or "relu"; None if they are log α already,
            from a `DirichletHead`.
        variant: "paper" (default), "stopgrad" or "monotone"; the last points every gradient the right way.
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; see `avuc_loss`.
        class_dim: the dimension of the classes. Default None: the one after N.

    >>> outputs, labels = torch.tensor([[5.0, 0.0], [0.1, 0.0]]), torch.tensor([0, 1])
    >>> round(euc_loss(outputs, labels, balance=0.5).item(), 3)  # much evidence and right, little and wrong
    0.091
    """
    one_of("variant", variant, EUC_VARIANTS)
    known = not isinstance(balance, Tensor) or (balance.device.type == "cpu" and may_synchronise(balance))
    if known and checked_number("euc: balance", balance) > 1:
        raise InputError(f"euc: balance must be between 0 and 1; found {balance!r}")
    logits, labels = standard_layout(logits, labels, "multiclass", class_dim)
    statistics = evidence_statistics(logits, labels, evidence, ignore_index, weights)
    loss = euc_from_statistics(statistics, balance, variant, group)
    refuse_nan(loss, "logits")
    warn_of_probs("euc_loss", logits, labels)
    return loss


def evidence_statistics(
    logits: Tensor, labels: Tensor, evidence: Evidence | None, ignore_index: int, weights: Tensor | None
) -> SampleStatistics:
    """Return confidence max α/S, uncertainty K/S, correctness and weight of each prediction."""
    samples = check_shapes(logits, labels)
    if evidence is not None:
        logits = DirichletHead(evidence)(logits)
    elif may_synchronise(logits) and logits.numel() and bool((logits.detach() < 0).any()):
        raise InputError("euc: log α cannot be negative; end the network with DirichletHead, or set evidence")
    statistics = sample_statistics(logits, labels, "entropy", ignore_index, weights)
    with torch.autocast(logits.device.type, enabled=False):
        flat = classes_last(at_least_float32(logits), labels)
        u = torch.exp(math.log(flat.shape[-1]) - flat.logsumexp(dim=-1))
    return statistics._replace(uncertainty=u.mean(dim=0) if samples else u)


def euc_from_statistics(
    statistics: SampleStatistics, balance: float | Tensor, variant: EUCVariant, group: Group = None
) -> Tensor:
    """Return the loss of predictions whose statistics are known, with an uncertainty between 0 and 1."""
    used = statistics.weight > 0  # a prediction of weight 0 may be NaN
    p = torch.where(used, statistics.confidence, 0.5)
    u = torch.where(used, statistics.uncertainty, 0.5)
    if variant == "stopgrad":
        p = p.detach()
    smallest = torch.finfo(u.dtype).eps  # without evidence u = 1, and log(1 − u) would be infinite
    on_right = (1 - p if variant == "monotone" else p) * -torch.log1p(-u.clamp(max=1 - smallest))
    on_wrong = (p if variant == "monotone" else 1 - p) * -torch.log(u.clamp(min=torch.finfo(u.dtype).tiny))
    right = statistics.weight * statistics.correct
    wrong = statistics.weight * ~statistics.correct
    sums = torch.stack(((on_right * right).sum(), (on_wrong * wrong).sum(), statistics.weight.sum()))
    of_right, of_wrong, total = sum_over_ranks(sums, group)
    loss: Tensor = (balance * of_right + (1 - balance) * of_wrong) / torch.where(total > 0, total, 1.0)
    return loss


class EUCLoss(FamilyLoss):
    """`euc_loss` times β, with λ rising from .01 to 1: λ_t = .01^(1 − t/T) in epoch t of T. Call `epoch_end()`.

    Args:
        beta: factor of the loss (default 1).
        epochs: T, the epochs over which λ rises (default 50, as in DEAR); afterwards λ = 1.
        variant: "paper" (default), "stopgrad" or "monotone"; see `euc_loss`.
        evidence: "exp" (default), "softplus" or "relu"; None if the outputs are log α, from a `DirichletHead`.
        ignore_index: label of the predictions to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.
        class_dim: the dimension of the classes. Default None: the one after N.

    >>> net = nn.Sequential(nn.Linear(4, 3), DirichletHead())
    >>> euc = EUCLoss(epochs=10, evidence=None)
    >>> logits, labels = net(torch.randn(8, 4)), torch.randint(0, 3, (8,))
    >>> (F.cross_entropy(logits, labels) + euc(logits, labels)).backward()
    >>> euc.epoch_end()
    """

    function = staticmethod(euc_loss)
    variants = EUC_VARIANTS
    options = ("balance", "evidence")
    balance: Tensor

    def __init__(
        self,
        beta: float = 1.0,
        epochs: int = 50,
        variant: EUCVariant = "paper",
        *,
        evidence: Evidence | None = "exp",
        ignore_index: int = -100,
        group: Group = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__(beta, variant, ignore_index, group, class_dim)
        self.epochs: int = checked_whole("EUCLoss: epochs", epochs)
        self.epoch: int = 0
        if evidence is not None:
            one_of("evidence", evidence, EVIDENCES, "euc")
        self.evidence = evidence
        # a tensor, so that a captured training step sees λ change
        self.register_buffer("balance", torch.tensor(self._balance()), persistent=False)

    def epoch_end(self) -> None:
        """Count an epoch and raise λ."""
        self.epoch += 1
        self.balance.fill_(self._balance())

    def _balance(self) -> float:
        return FIRST_BALANCE ** (1 - min(self.epoch / self.epochs, 1)) if self.epochs else 1.0

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.epoch)

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch = int(state)
        self.balance.fill_(self._balance())
