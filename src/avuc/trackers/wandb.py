"""Logs the figures of every epoch to Weights & Biases."""

from __future__ import annotations

from typing import Any

from avuc.core.errors import require
from avuc.trackers.tracker import Tracker


def wandb(project: str | None = None, *, prefix: str = "", **options: Any) -> Tracker:
    """Return a tracker that logs every figure of an epoch. Needs `pip install 'avuc[wandb]'`.

    `tracker.run` is the run, for everything else that you want to record. The x-axis of the figures is `epoch`, which
    is logged with them, because W&B's own step cannot begin again at 0 for a second training in the same run.

    Args:
        project: name of the project.
        prefix: put before the name of each figure and of `epoch`, for example "seed-0/".
        **options: further arguments of `wandb.init`, for example `name`, `config`, or `mode="offline"`.

    >>> tracker = wandb("digits", name="svi", config={"beta": 3.0}, mode="offline")  # doctest: +SKIP
    >>> fitted = fit(SVI(), net, data, on_epoch=tracker)  # doctest: +SKIP
    """
    run = require("wandb", "wandb", "avuc.trackers.wandb").init(project=project, **options)

    axis, known = f"{prefix}epoch", set[str]()

    def send(epoch: int, figures: dict[str, float]) -> None:
        values = {prefix + name: value for name, value in figures.items()}
        for name in values:
            if name not in known:
                run.define_metric(name, step_metric=axis)
                known.add(name)
        # without `step`: W&B drops values of a step below its last one, which every other call of `log` raises
        run.log(values | {axis: epoch}, commit=True)

    return Tracker(send, run.finish, run, lambda: run.finish(exit_code=1))
