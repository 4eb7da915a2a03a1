"""`FamilyLoss`: what the modules of SB-ECE, EUC, UA-CLM and AvU for segmentation have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from avuc.core.data_parallel import Group
from avuc.losses.inputs import checked_number, one_of


class FamilyLoss(nn.Module):
    """A loss function times β. A subclass has the function, its variants, and the options that it takes besides these.

    Args:
        beta: factor of the loss.
        variant: of the loss function.
        ignore_index: label of the predictions to leave out.
        group: the data-parallel processes that share a batch.
        class_dim: the dimension of the classes; None: the one after N.
    """

    function: ClassVar[Callable[..., Tensor]]
    variants: ClassVar[tuple[str, ...]]
    # arguments of the function that are attributes of the module
    options: ClassVar[tuple[str, ...]]

    def __init__(self, beta: float, variant: str, ignore_index: int, group: Group, class_dim: int | None) -> None:
        super().__init__()
        self.beta: float = checked_number(f"{type(self).__name__}: beta", beta)
        one_of("variant", variant, self.variants)
        self.variant = variant
        self.ignore_index: int = ignore_index
        self.group: Group = group
        self.class_dim: int | None = class_dim

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss, a tensor without dimensions; arguments as in the loss function."""
        options: dict[str, Any] = {name: getattr(self, name) for name in self.options}
        loss = self.function(
            logits,
            labels,
            variant=self.variant,
            ignore_index=self.ignore_index,
            weights=weights,
            group=self.group,
            class_dim=self.class_dim,
            **options,
        )
        return self.beta * loss
