"""In Lightning, AvUC is an attribute of the module and one callback.

`AvUCCallback` finds the `AvUCLoss` in your LightningModule, ends its epochs, and logs its threshold and four
quadrants. The share of right and certain predictions (AC) grows and all others shrink, because the network memorises
its training digits. The warm-up epochs, in which the threshold is learned, have no quadrants yet.

Topic: Train
Picture: Shares of the four quadrants AC, AU, IC and IU of the training predictions by epoch after the warm-up.
"""

import logging

import matplotlib.pyplot as plt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import avuc
from avuc.lightning import AvUCCallback


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.avuc = avuc.AvUCLoss(beta=1.0, variant="monotone", warmup_epochs=8)  # the callback finds it

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        logits = self.net(batch[0])
        return nn.functional.cross_entropy(logits, batch[1]) + self.avuc(logits, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class History(Callback):
    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        history.append({name: float(value) for name, value in trainer.callback_metrics.items()})


history: list[dict[str, float]] = []
logging.disable(logging.WARNING)
seed_everything(0, verbose=False)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
data = TensorDataset(pixels.float() / 16 + 0.3 * torch.randn(pixels.shape), labels)  # noise: hard enough for mistakes
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(max_epochs=25, accelerator="cpu", callbacks=[AvUCCallback(), History()], **quiet)
trainer.fit(Digits(), DataLoader(data, batch_size=50, shuffle=True))

figure, ax = plt.subplots()
known = [epoch for epoch, logged in enumerate(history) if "avuc/ac" in logged]
for name in ("ac", "au", "ic", "iu"):
    shares = [history[epoch][f"avuc/{name}"] for epoch in known]
    ax.plot([epoch + 1 for epoch in known], shares, label=name.upper())
    print(f"{name.upper()}: {shares[0]:.3f} in epoch {known[0] + 1}, {shares[-1]:.3f} in epoch {known[-1] + 1}")
ax.set(xlabel="epoch", ylabel="share of the soft counts", yscale="log")
ax.legend()
figure.savefig("avuc_lightning.svg")
