"""`calibrate`: a calibrator for a trained LightningModule."""

from __future__ import annotations

from typing import Any

from torch import nn

from avuc.calibration import CALIBRATORS, Calibrator
from avuc.core.errors import InputError
from avuc.prediction import Predictor
from avuc.prediction.data import Inputs
from avuc.prediction.outputs import Logits


def calibrate(
    module: nn.Module,
    loader: Any,
    method: str = "temperature",
    *,
    samples: int = 16,
    inputs: Inputs | None = None,
    logits: Logits | None = None,
    class_dim: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Calibrator:
    """Return a calibrator that is fitted to the module's outputs on held-out data.

    The module's `forward` must return logits. It runs in evaluation mode, and the module is not changed. Use the
    calibrator with `avuc.predict(module, loader, calibrator=calibrator)`, or apply `calibrator.transform(logits)`.

    Args:
        module: the LightningModule, or a part of it. A Bayesian part is given itself, `module.net`, and sampled.
        loader: DataLoader of held-out examples with their labels, as `avuc.predict` takes it.
        method: a name in `avuc.calibration.CALIBRATORS`; default "temperature".
        samples: posterior samples, if `module` is a posterior (default 16).
        inputs: function from a batch to (what the module takes, labels), as in `avuc.predict`. Default None.
        logits: function from the module's output to its logits. Default None.
        class_dim: dimension of the classes in the output; default None: the one after N.
        seed: seed of the samples.
        **options: arguments of the calibrator, for example `threshold` for "avuts".

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x = 9 * torch.eye(4).repeat(10, 1)  # certain of a class, and right in three of four cases
    >>> loader = DataLoader(TensorDataset(x, torch.tensor([0, 1, 2, 0]).repeat(10)), batch_size=20)
    >>> round(calibrate(nn.Identity(), loader).temperature_, 2)  # 9 / log 9
    4.1
    """
    if method not in CALIBRATORS:
        raise InputError(f"calibrate: method must be one of {', '.join(CALIBRATORS)}; found {method!r}")
    calibrator = CALIBRATORS[method](**options)
    predictor = Predictor(
        module, samples=samples, inputs=inputs, logits=logits, class_dim=class_dim, seed=seed, memory=0
    )
    sample_logits, labels = predictor.labelled_logits(loader)
    if len(labels) == 0 or int(labels.min()) < 0:
        raise InputError("calibrate: every example needs a label; let the loader yield pairs (input, labels)")
    return calibrator.fit(sample_logits if len(sample_logits) > 1 else sample_logits[0], labels)
