"""Two processes train with AvUC as one process does.

AvUC is a ratio over the batch, so the mean of the losses of two half batches is not the loss of the whole batch. Under
`DistributedDataParallel`, `AvUCLoss` sums its four quadrants over the processes before the logarithm, and learns its
threshold from all of them. The threshold and the loss by epoch are those of one process with the whole batch.

Topic: Train
Picture: Loss by epoch for one process and for two processes; the two curves lie on each other.
"""

import tempfile

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import avuc


def train(rank: int, processes: int, folder: str) -> None:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
        net = DistributedDataParallel(net)
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(pixels / 16).float(), torch.tensor(labels)
    avuc_term = avuc.AvUCLoss(beta=1.0, variant="monotone", warmup_epochs=3)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    history = []
    for _ in range(12):
        for rows in torch.randperm(1000).split(100):
            mine = rows[rank::processes]  # each process has its share of the batch
            logits = net(pixels[mine])
            loss = nn.functional.cross_entropy(logits, labels[mine]) + avuc_term(logits, labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        avuc_term.epoch_end()
        history.append(float(nn.functional.cross_entropy(net(pixels[1000:]), labels[1000:]).detach()))
    torch.save((history, float(avuc_term.threshold)), f"{folder}/{processes}-{rank}.pt")
    if processes > 1:
        dist.destroy_process_group()  # without it, gloo's threads sometimes abort a process while Python shuts down


if __name__ == "__main__":
    figure, ax = plt.subplots()
    with tempfile.TemporaryDirectory() as folder:
        train(0, 1, folder)
        torch.multiprocessing.start_processes(train, (2, folder), nprocs=2, start_method="forkserver")
        for processes, style in ((1, "-"), (2, "o")):
            history, threshold = torch.load(f"{folder}/{processes}-0.pt")
            ax.plot(range(1, 13), history, style, label=f"{processes} process{'es' * (processes > 1)}")
            print(f"{processes}: threshold {threshold:.4f} nats, test cross-entropy {history[-1]:.4f}")
    ax.set(xlabel="epoch", ylabel="cross-entropy of test digits")
    ax.legend()
    figure.savefig("ddp.svg")
