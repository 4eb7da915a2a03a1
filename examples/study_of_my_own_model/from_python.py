"""The same without a recipe: functions and objects in place of names."""

from digits import load
from model import MyNet
from smudge import smudge

import avuc.study
from avuc.methods import SVI, Objective, Vanilla
from avuc.train import TrainSettings

store = avuc.study.run(
    methods={
        "Plain": Vanilla(),
        "Temperature": {"reuse_model": "Plain", "calibrator": "temperature"},
        "Posterior + AvUC": {
            "method": SVI(moped=True, delta=0.1),
            "objective": Objective("avuc", variant="monotone", warmup_epochs=1, kl_weight=0.1),
            "init_from": "Plain",
        },
    },
    data=load,
    net=MyNet,
    shifts=[smudge],
    train=TrainSettings(
        epochs=4, batch_size=50, learning_rate=3e-3, milestones=(3,), factors=(0.2,), pad=1, flip=False
    ),
    validation=200,
    out="out/from-python",
    severities=[1, 5],
    samples=8,
)
for method, _seed, shift, severity, metric, value in store.rows():
    if metric == "ece" and shift != "validation":
        print(f"{method:18} {shift:16} {severity}  ECE {value:.3f}")
