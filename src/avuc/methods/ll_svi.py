"""LL-SVI: mean-field inference over the last layer only (Riquelme et al. 2018); everything before it is a plain net."""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.svi import SVI


@dataclass(frozen=True)
class LLSVI(SVI):
    """SVI on the last registered layer that has a weight matrix."""

    name = "ll_svi"
    layers = "last"
