"""`Task`: how the logits and labels of a network are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX, TASKS


@dataclass(frozen=True)
class Task:
    """How logits and labels are laid out.

    Attributes:
        name: "multiclass", "binary" or "multilabel"; None: multiclass or, for one number, binary.
        class_dim: the dimension of the classes in the logits (N, …); None: the one after N.
        ignore_index: rows with this label are left out; None: no row is.
    """

    name: str | None = None
    class_dim: int | None = None
    ignore_index: int | None = IGNORE_INDEX

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, or None; found {self.name!r}")
        if self.name == "multilabel" and self.class_dim is not None:
            raise InputError("multi-label logits are (N, L); leave class_dim out")
