"""Record every epoch of a training in MLflow, and read the curves back.

Needs `pip install 'avuc[mlflow,sklearn]'`. Here the runs are files in a temporary folder. With a server, leave out
`uri` and set MLFLOW_TRACKING_URI. `avuc.trackers.tensorboard` and `avuc.trackers.wandb` are used in the same way.
"""

import os
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from avuc import trackers
from avuc.data import Dataset, split_dataset
from avuc.methods import SVI, Objective
from avuc.nets import mlp
from avuc.train import TrainSettings, fit

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow 3 prefers a database, which needs more packages
from mlflow import MlflowClient

images, labels = load_digits(return_X_y=True)
pixels = torch.from_numpy(images * 15).to(torch.uint8).view(-1, 8, 8, 1)
data = Dataset(pixels, torch.from_numpy(labels).long(), 10, "digits")
train, validation = split_dataset(data, 300, seed=0).apply(data)
settings = TrainSettings(epochs=4, batch_size=50, learning_rate=3e-3, validation_draws=8, pad=0, flip=False)

with tempfile.TemporaryDirectory() as folder:
    uri = Path(folder).as_uri()
    for name, objective in {"ELBO": Objective(), "ELBO + AvUC": Objective("avuc", beta=3.0, warmup_epochs=1)}.items():
        with trackers.mlflow("digits", run_name=name, params={"beta": objective.beta}, uri=uri) as tracker:
            fit(
                SVI(),
                lambda generator: mlp(10, (8, 8, 1), hidden=(32,), generator=generator),
                train,
                objective=objective,
                settings=settings,
                validation=validation,
                progress=False,
                on_epoch=tracker,
            )

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("digits")
    for run in client.search_runs([experiment.experiment_id]):
        curve = client.get_metric_history(run.info.run_id, "validation_nll")
        values = ", ".join(f"{metric.value:.3f}" for metric in sorted(curve, key=lambda metric: metric.step))
        print(f"{run.info.run_name:12s} validation NLL by epoch: {values}")
