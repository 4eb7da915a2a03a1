"""The callbacks in real Lightning trainings: equal to a loop by hand, after resuming, and on two processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SubsetRandomSampler, TensorDataset

import avuc
from avuc.core.errors import InputError
from avuc.lightning import AvUCCallback, PosteriorCallback
from avuc.lightning.posterior_callback import examples_in
from avuc.losses import AvUCLoss, elbo_loss

# Lightning's advice on numbers of worker processes, intervals of logging and folders that are not empty
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning uses what torch 2.13 deprecates
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`.*"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore:.*isn't supported with an iterable.*"),
]
ROWS, BATCH, EPOCHS = 240, 60, 4
SILENT: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def digits(rows: int = ROWS) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.from_numpy(images[:rows] / 16), torch.from_numpy(labels[:rows]).long())


def loader(batch: int = BATCH) -> DataLoader:
    return DataLoader(digits(), batch_size=batch)


class Classifier(LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = nn.Linear(64, 10, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        self.avuc = AvUCLoss(**(options or {"warmup_epochs": 2}))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        logits = self(batch[0])
        loss: Tensor = F.cross_entropy(logits, batch[1]) + self.avuc(logits, batch[1])
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        logits = self(batch[0])
        self.log("val", F.cross_entropy(logits, batch[1]) + self.avuc(logits, batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def by_hand(module: Classifier) -> dict[str, float]:
    """The same training without Lightning; returns what is logged in the last epoch."""
    optimizer = module.configure_optimizers()
    for _ in range(EPOCHS):
        sums = torch.zeros(4, dtype=torch.float64)
        for x, y in loader():
            logits = module(x)
            loss = F.cross_entropy(logits, y) + module.avuc(logits, y)
            if not module.avuc.warming_up:
                probs = logits.detach().softmax(-1)
                quadrants = avuc.avuc_quadrants(probs, y, module.avuc.threshold, variant=module.avuc.variant)
                sums += torch.stack(quadrants).double()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        module.avuc.epoch_end()
    shares = (sums / sums.sum()).tolist()
    return {"threshold": float(module.avuc.threshold), **dict(zip(("ac", "au", "ic", "iu"), shares, strict=True))}


def same_state(ours: nn.Module, other: nn.Module, **tolerance: float) -> None:
    assert ours.state_dict().keys() == other.state_dict().keys()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, **tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("validated", [False, True])
def test_a_training_is_that_of_a_loop_by_hand(tmp_path: Path, validated: bool) -> None:
    """Also with validation in between, whose predictions must not count for the threshold."""
    reference, module = Classifier(), Classifier()
    expected = by_hand(reference)
    log = CSVLogger(tmp_path)
    trainer = Trainer(max_epochs=EPOCHS, callbacks=[AvUCCallback()], logger=log, default_root_dir=tmp_path, **SILENT)
    trainer.fit(module, loader(), loader(50) if validated else None)
    same_state(module, reference)
    assert module.avuc.epoch == EPOCHS
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for name, value in expected.items():
        assert logged[f"avuc/{name}"] == pytest.approx(value, rel=1e-5), name
    table = Path(log.log_dir, "metrics.csv").read_text().splitlines()
    assert "avuc/threshold" in table[0]
    assert not module.avuc._forward_hooks


@pytest.mark.parametrize(
    "when",
    [{"save_on_train_epoch_end": True}, {"save_on_train_epoch_end": False}, {"every_n_train_steps": len(loader())}],
    ids=["end of epoch", "after validation", "after the last batch"],
)
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path, when: dict[str, Any]) -> None:
    """Lightning writes some checkpoints before the epoch has ended; all kinds resume equally."""

    def saving() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / "saved", "{epoch}", save_top_k=-1, **when)

    whole = Classifier()
    options: dict[str, Any] = {"logger": False, "default_root_dir": tmp_path, **SILENT}
    Trainer(max_epochs=EPOCHS, callbacks=[AvUCCallback(), saving()], **options).fit(whole, loader(), loader())
    saved = sorted((tmp_path / "saved").glob("*.ckpt"))
    assert len(saved) == EPOCHS
    # older versions have no such option and read everything
    reading = {"weights_only": False} if "weights_only" in inspect.signature(Trainer.fit).parameters else {}
    for checkpoint in saved[:-1]:
        resumed = Classifier()
        trainer = Trainer(max_epochs=EPOCHS, callbacks=[AvUCCallback()], enable_checkpointing=False, **options)
        trainer.fit(resumed, loader(), loader(), ckpt_path=checkpoint, **reading)
        same_state(resumed, whole)
        assert resumed.avuc.epoch == EPOCHS


@pytest.mark.filterwarnings("ignore:.*the AvUC term is never used")  # not in the first of two trainings
def test_a_second_training_goes_on_with_the_threshold(tmp_path: Path) -> None:
    module, callback = Classifier(), AvUCCallback(quadrants=False)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **SILENT}
    Trainer(max_epochs=2, callbacks=[callback], **options).fit(module, loader())
    threshold = float(module.avuc.threshold)
    assert threshold > 0
    trainer = Trainer(max_epochs=1, callbacks=[callback], **options)
    trainer.fit(module, loader())
    assert module.avuc.epoch == 3
    assert float(module.avuc.threshold) == threshold
    assert "avuc/ac" not in trainer.callback_metrics


def test_warm_up_by_steps_and_two_losses(tmp_path: Path) -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__(warmup_steps=3)
            self.other = AvUCLoss(threshold=0.5, beta=0.0)

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            logits = self(batch[0])
            own: Tensor = self.avuc(logits, batch[1]) + self.other(logits, labels=batch[1])
            return F.cross_entropy(logits, batch[1]) + own

    module = Two()
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **SILENT}
    trainer = Trainer(max_epochs=1, callbacks=[AvUCCallback(prefix="loss")], **options)
    trainer.fit(module, loader())
    assert not module.avuc.warming_up
    logged = trainer.callback_metrics
    assert float(logged["loss/other/threshold"]) == 0.5
    assert sum(float(logged[f"loss/other/{name}"]) for name in ("ac", "au", "ic", "iu")) == pytest.approx(1)
    assert {"loss/avuc/threshold", "loss/avuc/iu"} <= set(logged)


def test_a_module_without_the_loss_is_named(tmp_path: Path) -> None:
    class Plain(Classifier):
        def __init__(self) -> None:
            super().__init__()
            del self.avuc

    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **SILENT}
    for callback, remedy in ((AvUCCallback(), "self.avuc = AvUCLoss"), (PosteriorCallback(), "to_bayesian")):
        with pytest.raises(InputError, match=remedy):
            Trainer(max_epochs=1, callbacks=[callback], **options).fit(Plain(), loader())


# ---- two processes


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }
    module = Classifier()
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": out, **SILENT}
    options |= {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}  # Lightning's own would shuffle
    trainer = Trainer(max_epochs=EPOCHS, callbacks=[AvUCCallback()], **options)
    sampler = DistributedSampler(digits(), 2, rank, shuffle=False)
    trainer.fit(module, DataLoader(digits(), batch_size=BATCH // 2, sampler=sampler))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    torch.save((module.state_dict(), logged), f"{out}/{rank}.pt")


def test_two_processes_train_and_log_like_one(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    run_ranks(rank_main, 2, str(tmp_path))
    reference = Classifier()
    expected = by_hand(reference)
    for rank in (0, 1):
        state, logged = torch.load(tmp_path / f"{rank}.pt")
        for name in ("net.weight", "avuc.threshold"):
            torch.testing.assert_close(state[name], reference.state_dict()[name], rtol=1e-6, atol=1e-9)
        for name, value in expected.items():
            assert logged[f"avuc/{name}"] == pytest.approx(value, rel=1e-5), name


# ---- the posterior


class Bayesian(LightningModule):
    num_train: int

    def __init__(self) -> None:
        super().__init__()
        self.net = avuc.to_bayesian(nn.Linear(64, 10, dtype=torch.float64))
        self.seen: set[int] = set()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        self.seen.add(self.num_train)
        return elbo_loss(self.net(batch[0]), batch[1], self.net.kl(), num_train=self.num_train)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(row, label) for row, label in digits(40)])


@pytest.mark.parametrize(
    ("data", "given", "expected"),
    [
        (DataLoader(digits(), batch_size=50), None, ROWS),
        (DataLoader(digits(), batch_size=50, drop_last=True, shuffle=True), None, ROWS),
        (DataLoader(digits(), batch_size=50, sampler=SubsetRandomSampler(range(70))), None, 70),
        (DataLoader(Endless(), batch_size=20), 1234, 1234),
    ],
    ids=["loader", "shuffled", "sampler", "given"],
)
def test_the_number_of_training_examples(tmp_path: Path, data: DataLoader, given: int | None, expected: int) -> None:
    module = Bayesian()
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **SILENT}
    trainer = Trainer(max_epochs=1, callbacks=[PosteriorCallback(given)], **options)
    trainer.fit(module, data)
    assert module.seen == {expected}
    kl = module.net.kl().item()
    assert float(trainer.callback_metrics["posterior/kl"]) == pytest.approx(kl, rel=1e-6)
    assert float(trainer.callback_metrics["posterior/kl_per_example"]) == pytest.approx(kl / expected, rel=1e-6)


def test_an_unknown_number_of_examples_is_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **SILENT}
    with pytest.raises(InputError, match=r"PosteriorCallback\(num_train=\.\.\.\)"):
        Trainer(max_epochs=1, callbacks=[PosteriorCallback()], **options).fit(
            Bayesian(), DataLoader(Endless(), batch_size=20)
        )
    with pytest.raises(InputError, match="num_train"):
        PosteriorCallback(0)


def test_the_parts_of_several_processes_are_one_training_set() -> None:
    for rank in (0, 1):
        sampler = DistributedSampler(digits(41), 2, rank)  # 21 for each process, one of them twice
        assert examples_in(DataLoader(digits(41), sampler=sampler)) == 41
