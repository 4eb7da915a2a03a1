"""Methods that train a posterior, one file for each; `METHODS` lists them by name.

A method defines how to train (`build`, `logits`, `kl`, `epoch_end`) and the posterior of the trained models
(`posterior`). The training loop is the same for all methods. An `Objective` defines the loss, with or without AvUC.
"""

from __future__ import annotations

from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.ensemble import Ensemble
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.ll_svi import LLSVI
from avuc.methods.method import Method
from avuc.methods.objective import Objective, ObjectiveLoss
from avuc.methods.objective import Terms as Terms
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
    "DropoutPosterior",
    "Ensemble",
    "LLDropout",
    "Method",
    "Objective",
    "ObjectiveLoss",
    "Radial",
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
"""Every method by its name in recipes and on the command line."""
