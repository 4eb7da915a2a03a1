"""Logs the figures of every epoch to MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avuc.core.errors import require
from avuc.trackers.tracker import Tracker


def mlflow(
    experiment: str | None = None,
    *,
    run_name: str | None = None,
    params: Mapping[str, Any] | None = None,
    uri: str | None = None,
    prefix: str = "",
) -> Tracker:
    """Return a tracker that logs every figure of an epoch as a metric. Needs `pip install 'avuc[mlflow]'`.

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
    for name, value in (params or {}).items():
        client.log_param(run.info.run_id, name, value)

    def send(epoch: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            client.log_metric(run.info.run_id, prefix + name, value, step=epoch)

    def end(status: str) -> None:
        client.set_terminated(run.info.run_id, status)

    return Tracker(send, lambda: end("FINISHED"), run, lambda: end("FAILED"))
