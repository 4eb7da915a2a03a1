"""`PosteriorCallback`: the size of the training set for the KL term, and a log of the KL."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DistributedSampler

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.losses.inputs import checked_whole


class PosteriorCallback(Callback):
    """Set `num_train` of the LightningModule to the number of training examples, and log the KL divergence.

    `elbo_loss(logits, labels, self.net.kl(), num_train=self.num_train)` then has the right weight of the KL, whatever
    the loader. Logged after each epoch: `kl`, summed over all Bayesian submodules, and `kl_per_example`.

    Args:
        num_train: number of training examples. Default None: that of the trainer's loader, over all processes.
        attribute: the attribute of the LightningModule that is set (default "num_train").
        prefix: of the logged names (default "posterior").

    >>> callback = PosteriorCallback(num_train=50_000)
    >>> callback.num_train
    50000
    """

    def __init__(
        self, num_train: int | None = None, *, attribute: str = "num_train", prefix: str = "posterior"
    ) -> None:
        super().__init__()
        if num_train is not None:
            checked_whole("PosteriorCallback: num_train is the number of training examples and", num_train, least=1)
        self.num_train: int | None = num_train
        self.attribute: str = attribute
        self.prefix: str = prefix
        self._examples: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not self._posteriors(pl_module):
            raise InputError(
                "PosteriorCallback: the LightningModule has no Bayesian part; make it one in __init__: "
                "self.net = avuc.to_bayesian(net)"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._examples = self.num_train or examples_in(trainer.train_dataloader)
        setattr(pl_module, self.attribute, self._examples)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        terms: list[Tensor] = [posterior.kl().detach().float() for posterior in self._posteriors(pl_module)]
        kl, rows = sum(terms[1:], terms[0]), self._examples or 1
        values = {f"{self.prefix}/kl": kl, f"{self.prefix}/kl_per_example": kl / rows}
        pl_module.log_dict(values, on_step=False, on_epoch=True, sync_dist=True)

    @staticmethod
    def _posteriors(pl_module: LightningModule) -> list[BayesianModule]:
        return [module for module in pl_module.modules() if isinstance(module, BayesianModule)]


def examples_in(loader: Any) -> int:
    """Return the number of examples in an epoch of a DataLoader, over all processes; those dropped at the end count."""
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):  # each process has a part, filled up with repeated examples
        sampler = sampler.dataset
    for sized in (sampler, getattr(loader, "dataset", None)):
        try:
            return len(sized)  # type: ignore[arg-type]
        except TypeError:  # an iterable data set, several loaders, or no DataLoader at all
            continue
    raise InputError(
        f"PosteriorCallback: the number of training examples is not known from a {type(loader).__name__}; give it: "
        "PosteriorCallback(num_train=...)"
    )
