"""`predict`: from a model and data to `Predictions`, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from avuc.core.renamed import renamed
from avuc.core.tasks import IGNORE_INDEX
from avuc.posterior import Posterior
from avuc.prediction.data import Inputs, Loaded, source_of
from avuc.prediction.outputs import Logits
from avuc.prediction.predictor import MEMORY, Predictor
from avuc.predictions import HasTransform, Predictions


@renamed(posterior="model", images="data")
def predict(
    model: Posterior | nn.Module | Sequence[nn.Module],
    data: Any,
    labels: Any = None,
    *,
    samples: int | Literal["auto"] = 128,
    calibrator: HasTransform | None = None,
    inputs: Inputs | None = None,
    logits: Logits | None = None,
    task: str | None = None,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    seed: int = 0,
    tolerance: float = 0.005,
    max_samples: int = 1024,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    compiled: bool | str | None = None,
    fold_batch_norm: bool = True,
    progress: bool = True,
) -> Predictions:
    """Return the mean prediction over samples of a posterior, and the quantities that measure its uncertainty.

    With p_s = softmax(f_s(x)) for sample s of S, the result has the

        mean  p̄ = 1/S Σ p_s,        expected entropy  1/S Σ H[p_s],        Monte Carlo error of p̄ (from Σ p_s²).

    Only these sums are kept, so memory does not grow with the number of samples. Sample s uses a generator seeded by
    (seed, s): every dataset is predicted with the same samples, so two datasets differ only by their images.

    Args:
        model: a network, which is run in evaluation mode and not changed; a list of networks, which is an ensemble; or
            a posterior: what a method returns, or any object with `draw` and `num_draws` (see `Posterior`). The model
            that `Dropout.build` or `SWAG.build` makes is one network, with a warning: pass `method.posterior([model])`.
        data: a tensor or an array with one example in each row; a mapping of them, which is passed by keyword; a
            DataLoader or a Dataset, whose batches are loaded once. A batch is a tensor, a pair (input, labels), or a
            mapping, whose "labels" or "label" are taken out. Float images and token ids are used as they are. Uint8
            images (N, H, W, C) are scaled to [0, 1] and changed to (N, C, H, W), if the network is one of `avuc.nets`
            or was trained by a method of this package, and refused otherwise.
        labels: class indices, (N,) or (N, *spatial), −1 for an image without a label; None if no image has one, or if
            they are in `data`.
        samples: number of samples, at most as many as the posterior has. "auto" uses at least 8 and stops when the
            Monte Carlo error of the mean probabilities is at most `tolerance`, or at `max_samples`. If `data` are
            loaded in batches, the first batch decides.
        calibrator: its `transform` is applied to the logits of each sample, before the mean.
        inputs: function from a batch to a pair: what the network takes (a tensor, a tuple of arguments or a mapping of
            keyword arguments) and the labels or None. Default None: batches as described at `data`.
        logits: function from the network's output to the tensor of its logits. Default None: the output is that tensor,
            has it as `logits`, or is a tuple with only one candidate.
        task: "multiclass", "binary" (one logit for each row) or "multilabel" (one for each label). Default None: binary
            if there is one logit, else multiclass.
        class_dim: dimension of the classes in the network's output; default None: 1, as in (N, C) and
            (N, C, *spatial). −1 for the (N, T, C) of language models.
        ignore_index: positions with this label are left out (default −100); None: no position is.
        seed: seed of the samples.
        tolerance: for `samples="auto"`.
        max_samples: for `samples="auto"`.
        batch_size: examples per batch; the default depends on the device and the size of an example, and is that of a
            DataLoader.
        device: default: where the model is. If another device is given, the model is moved there.
        dtype: torch.bfloat16 or torch.float16 runs the network under autocast. Softmax and sums always use float32
            and float64.
        compiled: None selects what is fastest: on a GPU with bfloat16 a kernel for CIFAR ResNets, else torch.compile
            if the work would take more than 30 seconds without it. True compiles, False does not; a string is a mode
            of torch.compile. If compiling fails, a warning says why and the network runs without.
        fold_batch_norm: whether to fold batch normalisation into the convolution before it, which is exact up to
            rounding.
        progress: whether to show a progress bar.

    To predict many datasets, or data whose predictions do not fit into memory, use a `Predictor`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.rand(5, 8), torch.tensor([0, 1, 2, 0, 1])), batch_size=2)
    >>> predict(nn.Linear(8, 3), loader).labels
    tensor([0, 1, 2, 0, 1])
    """
    source = source_of(data, labels, inputs, batch_size)
    predictor = Predictor(
        model,
        samples=samples,
        inputs=inputs,
        logits=logits,
        task=task,
        class_dim=class_dim,
        ignore_index=ignore_index,
        seed=seed,
        tolerance=tolerance,
        max_samples=max_samples,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        compiled=compiled,
        fold_batch_norm=fold_batch_norm,
        memory=MEMORY if isinstance(source, Loaded) else 0,  # all samples run over each batch
    )
    return predictor(source, calibrator=calibrator, progress=progress)
