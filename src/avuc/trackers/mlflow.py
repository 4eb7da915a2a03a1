"""Logs the figures of every epoch to MLflow."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from avuc.core.errors import require
from avuc.trackers.tracker import Tracker

# MLflow refuses all other signs, and longer names
OTHER_SIGNS = re.compile(r"[^/\w.\- ]" if os.name == "nt" else r"[^/\w.\- :]")
MOST_SIGNS = 250


def mlflow(
    experiment: str | None = None,
    *,
    run_name: str | None = None,
    params: Mapping[str, Any] | None = None,
    uri: str | None = None,
    prefix: str = "",
) -> Tracker:
    """Return a tracker that logs every figure of an epoch as a metric. Needs `pip install 'avuc[mlflow]'`.

    MLflow takes letters, digits and `_-. /:` in names: `%` becomes " percent" and every other sign `_`.

    It has a run of its own, whether or not another one is active. `tracker.run.info.run_id` names it. An error in
    the `with` block ends it as FAILED.

    Args:
        experiment: name of the experiment, made if there is none; MLflow's default experiment if None.
        run_name: name of the run.
        params: settings to record with the run.
        uri: the tracking server or folder; MLflow's own setting (`MLFLOW_TRACKING_URI`) if None.
        prefix: put before the name of each figure, for example "seed-0/".

    >>> tracker = mlflow("digits", run_name="svi", params={"beta": 3.0})  # doctest: +SKIP
    >>> fitted = fit(SVI(), net, data, on_epoch=tracker)  # doctest: +SKIP
    """
    client = require("mlflow", "mlflow", "avuc.trackers.mlflow").MlflowClient(uri)
    existing = None if experiment is None else client.get_experiment_by_name(experiment)
    number = "0" if experiment is None else existing.experiment_id if existing else client.create_experiment(experiment)
    run = client.create_run(number, run_name=run_name)
    names = Names()
    for name, value in (params or {}).items():
        client.log_param(run.info.run_id, names.of(str(name)), value)

    def send(epoch: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            client.log_metric(run.info.run_id, names.of(prefix + name), value, step=epoch)

    def end(status: str) -> None:
        client.set_terminated(run.info.run_id, status)

    return Tracker(send, lambda: end("FINISHED"), run, lambda: end("FAILED"))


class Names:
    """Names that MLflow accepts. Each name keeps its new one, and no two names get the same.

    >>> names = Names()
    >>> names.of("p/nll"), names.of("accuracy %"), names.of("top-5%"), names.of("a=1"), names.of("a?1"), names.of("a=1")
    ('p/nll', 'accuracy percent', 'top-5 percent', 'a_1', 'a_1_2', 'a_1')
    """

    def __init__(self) -> None:
        self._new: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the name to log under."""
        if name not in self._new:
            self._new[name] = self._free(accepted(name))
        return self._new[name]

    def _free(self, name: str) -> str:
        taken, number, free = set(self._new.values()), 2, name
        while free in taken:
            end = f"_{number}"
            free, number = name[: MOST_SIGNS - len(end)] + end, number + 1
        return free


def accepted(name: str) -> str:
    """Return a name with the signs that MLflow takes, and that is a path below its folder of figures.

    >>> accepted("50%/acc@5"), accepted("../nll"), accepted("/a//b/")
    ('50 percent/acc_5', '_/nll', 'a/b')
    """
    text = re.sub(r"(?<=[^\s/])%", " percent", name).replace("%", "percent")
    text = OTHER_SIGNS.sub("_", text)
    parts = ["_" if part.strip(".") == "" else part for part in text.split("/") if part]
    return posixpath.join(*parts)[:MOST_SIGNS] if parts else "_"
