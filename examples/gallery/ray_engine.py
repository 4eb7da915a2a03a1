"""A study on a Ray cluster gives the same figures as on one machine, bit for bit.

With `engine="ray"` trainings and evaluations become tasks of a Ray cluster: the one that `RAY_ADDRESS` names, or one
that is started here. A task whose worker dies is run again. The same small study is run twice, once in this process
and once on Ray; every metric of every method, shift and severity agrees exactly.

Topic: Studies
Picture: Every figure of the study on Ray against the same figure of the local run, all points on the diagonal.
"""

import logging
import math
import sys
import tempfile

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import avuc.study
from avuc.methods import SVI, Vanilla
from avuc.train import TrainSettings

try:
    import ray
except ImportError:
    sys.exit("Skipped: Ray is not installed (pip install 'avuc[ray]').")

digits = load_digits()
images = torch.tensor(digits.images * 255 / 16).to(torch.uint8)[..., None]  # (N, H, W, C)
labels = torch.tensor(digits.target)
settings = TrainSettings(epochs=3, batch_size=50, learning_rate=3e-3, milestones=(), factors=(), pad=0, flip=False)


def rows(engine: str, folder: str) -> dict[tuple[str, int, str, int, str], float]:
    data = {"train": (images[:1000], labels[:1000]), "test": (images[1000:], labels[1000:])}
    methods = {"network": Vanilla(), "SVI": SVI()}
    shifts = {"shifts": ["gaussian_noise", "contrast"], "severities": [3, 5], "samples": 4}
    where = {"out": folder, "engine": engine, "device": "cpu", "progress": False}
    store = avuc.study.run(methods=methods, data=data, net="mlp", train=settings, **shifts, **where)
    found = {tuple(row[:5]): row[5] for row in store.rows() if not math.isnan(row[5])}
    store.close()
    return found


with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
    local = rows("local", here)
    try:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"Skipped: Ray could not start ({' '.join(str(error).split())[:200]}).")
    spread = rows("ray", there)
    ray.shutdown()
same = sum(spread[key] == value for key, value in local.items())
print(f"{same} of {len(local)} figures are the same")
figure, ax = plt.subplots()
ax.plot([0, 10], [0, 10], "C4:", linewidth=1)
ax.loglog(list(local.values()), [spread[key] for key in local], "o", markersize=3)
ax.set(xlabel="local", ylabel="Ray")
figure.savefig("ray_engine.svg")
