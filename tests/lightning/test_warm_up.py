"""`AvUCCallback` says at the start of a training if the warm-up of the loss takes all of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from avuc.lightning import AvUCCallback
from avuc.losses import AvUCLoss

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning uses what torch 2.13 deprecates
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
]
ROWS, BATCH = 24, 6  # four batches in an epoch
SILENT: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


def rows() -> TensorDataset:
    return TensorDataset(torch.randn(ROWS, 3), torch.arange(ROWS) % 2)


class Classifier(LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.avuc = AvUCLoss(**options)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        logits = self.net(batch[0])
        own: Tensor = self.avuc(logits, batch[1])
        return F.cross_entropy(logits, batch[1]) + own

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("loss", "training", "words"),
    [
        ({"warmup_epochs": 2}, {"max_epochs": 2}, "takes 2 epochs, and the training has 2"),
        ({"warmup_epochs": 2}, {"max_steps": 8}, "takes 2 epochs, and the training has 2"),
        ({"warmup_epochs": 2}, {"max_steps": 9}, ""),
        ({"warmup_epochs": 2}, {"max_steps": 4, "accumulate_grad_batches": 2}, "takes 2 epochs"),
        ({"warmup_epochs": 1}, {"max_epochs": 2}, ""),
        ({"warmup_steps": 12}, {"max_epochs": 3}, "takes 12 batches, and the training has 12"),
        ({"warmup_steps": 11}, {"max_epochs": 3}, ""),
        ({"warmup_epochs": 5, "beta": 0.0}, {"max_epochs": 1}, ""),
    ],
)
def test_a_warm_up_as_long_as_the_training_is_named(
    tmp_path: Path, loss: dict[str, Any], training: dict[str, Any], words: str
) -> None:
    module = Classifier(**loss)
    trainer = Trainer(callbacks=[AvUCCallback()], **training, default_root_dir=tmp_path, **SILENT)
    with pytest.warns(UserWarning, match=f"never used: its warm-up {words}") if words else contextlib.nullcontext():
        trainer.fit(module, DataLoader(rows(), batch_size=BATCH))


def test_data_without_a_length_say_nothing_about_the_warm_up(tmp_path: Path) -> None:
    class Endless(IterableDataset[tuple[Tensor, ...]]):
        def __iter__(self) -> Any:
            return iter(list(rows()))

    trainer = Trainer(max_steps=9, callbacks=[AvUCCallback()], default_root_dir=tmp_path, **SILENT)
    module = Classifier(warmup_epochs=2)
    trainer.fit(module, DataLoader(Endless(), batch_size=BATCH))
    assert not module.avuc.warming_up
