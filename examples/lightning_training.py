"""Train a Bayesian network with the AvUC loss in Lightning, and calibrate it.

Needs `pip install 'avuc[lightning,sklearn]'`.
"""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import avuc
from avuc import metrics
from avuc.lightning import AvUCCallback, PosteriorCallback, calibrate


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = avuc.to_bayesian(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
        self.avuc = avuc.AvUCLoss(beta=1.0, warmup_epochs=8)  # AvUCCallback finds it and ends its epochs
        self.num_train = 1  # PosteriorCallback sets it

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        logits = self(batch[0])
        elbo = avuc.elbo_loss(logits, batch[1], self.net.kl(), num_train=self.num_train, kl_weight=0.1)
        return elbo + self.avuc(logits, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.WARNING)
seed_everything(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.from_numpy(images / 16).float(), torch.from_numpy(labels).long())
train, held_out, test = random_split(data, [1000, 300, 497])

module = Digits()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(max_epochs=16, accelerator="cpu", callbacks=[AvUCCallback(), PosteriorCallback()], **quiet)
trainer.fit(module, DataLoader(train, batch_size=100, shuffle=True))
print(", ".join(f"{name} {float(value):.3f}" for name, value in sorted(trainer.callback_metrics.items())))

calibrator = calibrate(module.net, DataLoader(held_out, batch_size=300))
for name, chosen in {"as trained": None, "calibrated": calibrator}.items():
    p = avuc.predict(module.net, DataLoader(test, batch_size=497), samples=32, calibrator=chosen, progress=False)
    print(f"{name}: accuracy {metrics.accuracy(p.probs, p.labels):.3f}, NLL {metrics.nll(p.probs, p.labels):.3f}")
