"""A study is one SQLite file, and one query answers your question.

`avuc.study.run` trains every method with every seed and evaluates it under every shift and severity. Each figure is
one row of the table `rows`. The query takes the mean ECE over shifts and seeds: in this small study a temperature that
was fitted on clean digits makes shifted ones slightly worse. Two seeds are an illustration, not evidence.

Topic: Studies
Picture: Mean ECE by severity for a network, the same with a temperature, and an ensemble; all rise with the severity.
"""

import sqlite3
from contextlib import closing

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import avuc.study
from avuc.methods import Ensemble, Vanilla
from avuc.train import TrainSettings

digits = load_digits()
images = torch.tensor(digits.images * 255 / 16).to(torch.uint8)[..., None]  # (N, H, W, C)
labels = torch.tensor(digits.target)
store = avuc.study.run(
    methods={
        "network": Vanilla(),
        "temperature": {"reuse_model": "network", "calibrator": "temperature"},
        "ensemble": Ensemble(members=3),
    },
    data={"train": (images[:1000], labels[:1000]), "test": (images[1000:], labels[1000:])},
    net="mlp",
    shifts=["gaussian_noise", "contrast", "gaussian_blur"],
    train=TrainSettings(epochs=8, batch_size=50, learning_rate=3e-3, milestones=(), factors=(), pad=0, flip=False),
    validation=200,
    seeds=[0, 1],
    severities=[1, 3, 5],
    out="study",
    device="cpu",
    progress=False,
)
store.close()

QUERY = """
    SELECT method, severity, avg(value) FROM rows
    WHERE metric = 'ece' AND severity > 0 GROUP BY method, severity ORDER BY method, severity
"""
with closing(sqlite3.connect("study/study.sqlite")) as connection:
    found = connection.execute(QUERY).fetchall()
figure, ax = plt.subplots()
for method in dict.fromkeys(row[0] for row in found):
    points = [(severity, value) for name, severity, value in found if name == method]
    ax.plot(*zip(*points, strict=True), "o-", label=method)
    print(f"{method:12}", ", ".join(f"severity {severity}: ECE {value:.3f}" for severity, value in points))
ax.set(xlabel="severity", ylabel="mean ECE over three shifts and two seeds", xticks=[1, 3, 5], ylim=(0, None))
ax.legend()
figure.savefig("study_sql.svg")
