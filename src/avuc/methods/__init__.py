"""Methods, one file per row of the paper's tables; `METHODS` lists them by name.

A method says how to fit (`build`, `logits`, `kl`, `epoch_end`) and what posterior comes out (`posterior`); the loop
that fits it is the same for all. What it is fitted to, plainly or with AvUC, is an `Objective`.
"""

from __future__ import annotations

from avuc.methods.dropout import Dropout
from avuc.methods.ensemble import Ensemble
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.ll_svi import LLSVI
from avuc.methods.method import Method
from avuc.methods.objective import Objective, ObjectiveLoss, Terms
from avuc.methods.radial import Radial
from avuc.methods.svi import SVI
from avuc.methods.swag import SWAG
from avuc.methods.vanilla import Vanilla

__all__ = [
    "LLSVI",
    "METHODS",
    "SVI",
    "SWAG",
    "Dropout",
    "Ensemble",
    "LLDropout",
    "Method",
    "Objective",
    "ObjectiveLoss",
    "Radial",
    "Terms",
    "Vanilla",
]

METHODS: dict[str, type[Method]] = {
    "vanilla": Vanilla,
    "ensemble": Ensemble,
    "dropout": Dropout,
    "ll_dropout": LLDropout,
    "svi": SVI,
    "ll_svi": LLSVI,
    "radial": Radial,
    "swag": SWAG,
}
