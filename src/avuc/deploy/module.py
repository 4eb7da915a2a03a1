"""`as_module`: a posterior, its calibrator and its uncertainty as one module with fixed samples, ready for export."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from avuc.calibration import Calibrator, MultiLabelCalibrator
from avuc.core.errors import InputError
from avuc.deploy.draws import Copies, Inputs, SharedTrunk, fixed_draws
from avuc.deploy.rescaling import rescaling_of
from avuc.losses.linear.inputs import without_autocast
from avuc.prediction.checks import check_seed, is_whole
from avuc.prediction.model import posterior_of
from avuc.prediction.outputs import Logits
from avuc.prediction.task import Task

OUTPUTS = ("probs", "entropy", "expected_entropy", "mutual_information", "confidence", "predicted", "logits")


def as_module(
    posterior: Any,
    calibrator: Any = None,
    *,
    samples: int = 16,
    seed: int = 0,
    outputs: Sequence[str] = ("probs", "entropy"),
    example: Inputs | None = None,
    logits: Logits | None = None,
    class_dim: int | None = None,
    task: str | None = None,
) -> Deployed:
    """Return a module from inputs to predictions, with the samples that `predict` uses for the same seed.

        p_s = softmax(calibrator(f_s(x))),    p̄ = 1/S Σ p_s,    entropy H[p̄],    expected entropy 1/S Σ H[p_s]

    The module has no randomness, so torch.export, torch.jit.trace and torch.onnx.export can export it, with any batch
    size. It holds copies of the weights: one network for each sample, or, if the samples differ only in the last linear
    layer, one network and the last layers. It returns a tuple with the wanted outputs in their order.

    Args:
        posterior: a posterior, a plain network (one sample), or a list of networks (an ensemble).
        calibrator: a fitted calibrator of `avuc.calibration`, or a module from logits to logits; None: none.
        samples: number of samples, at most as many as the posterior has.
        seed: seed of the samples.
        outputs: any of "probs", "entropy", "expected_entropy", "mutual_information", "confidence" (the largest
            probability), "predicted" (its class number) and "logits" (log p̄).
        example: one input (1, …), needed for dropout before several layers: the masks have the shape of their inputs.
        logits: function from the network's output to its logits, as in `predict`.
        class_dim: dimension of the network's output that holds the classes. Default None: 1, as in torch's
            cross-entropy; use −1 for language models. The probabilities come in the layout of the network's output.
        task: "multilabel" for independent sigmoids, one logit (N, L) for each label: every output is then (N, L).
            Default None: classes that exclude each other, or two classes if there is one logit for each row.

    >>> from avuc.bayes import to_bayesian
    >>> module = as_module(to_bayesian(nn.Linear(4, 3)), samples=8, outputs=("probs", "mutual_information"))
    >>> probs, information = module(torch.rand(5, 4))
    >>> probs.shape, information.shape, module.outputs
    (torch.Size([5, 3]), torch.Size([5]), ('probs', 'mutual_information'))
    """
    wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not wanted or not set(wanted) <= set(OUTPUTS):
        raise InputError(f"outputs: expected some of {', '.join(OUTPUTS)}; found {wanted}")
    if not is_whole(samples, 1):
        raise InputError(f"samples must be a whole number above 0; found {samples!r}")
    check_seed(seed)
    layout, several = Task(task, class_dim), isinstance(calibrator, MultiLabelCalibrator)
    if isinstance(calibrator, Calibrator) and several != (layout.name == "multilabel"):
        raise InputError("task='multilabel' and MultiLabelCalibrator belong together; pass both, or neither")
    rescaling = rescaling_of(calibrator)
    classes = calibrator.num_classes_ if isinstance(calibrator, Calibrator) else None
    draws = fixed_draws(posterior_of(posterior), int(samples), int(seed), example, logits)
    return Deployed(draws, rescaling, wanted, layout, classes)


class Deployed(nn.Module):
    """The module that `as_module` returns; always in evaluation mode.

    Args:
        draws: module from inputs to the logits of all samples, (S, N, …).
        rescaling: module from logits (…, C) to calibrated logits.
        outputs: names of the outputs.
        task: how the network's output is laid out.
        classes: number of classes, or labels, that the calibrator was fitted on; None: any number.
    """

    def __init__(
        self,
        draws: Copies | SharedTrunk,
        rescaling: nn.Module,
        outputs: tuple[str, ...],
        task: Task,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.draws: Copies | SharedTrunk = draws
        self.rescaling: nn.Module = rescaling
        self.classes: int | None = classes
        self.outputs: tuple[str, ...] = outputs
        self.class_dim: int | None = task.class_dim
        self.multilabel: bool = task.name == "multilabel"
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: batch normalisation and dropout must not change."""
        return super().train(False)

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of `outputs`; a mapping of inputs is passed on as keyword arguments."""
        logits = self.draws(inputs)
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self.multilabel:
            return self._of_labels(logits)
        axis = self._class_axis(logits.ndim)
        if axis is None:  # one logit for each row
            logits = torch.stack((torch.zeros_like(logits), logits), dim=-1)
        elif _size(logits, axis) == 1:
            logits = torch.cat((torch.zeros_like(logits), logits), dim=axis)
            logits = _moved(logits, axis, -1)
        else:
            logits = _moved(logits, axis, -1)
        figures = self._figures(torch.log_softmax(self._calibrated(logits), dim=-1))
        back = -1 if axis is None else axis - 1  # without the dimension of samples
        figures |= {name: _moved(figures[name], -1, back) for name in ("probs", "logits")}
        return tuple(figures[name] for name in self.outputs)

    def _of_labels(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for logits (S, N, L, …) of independent labels: each is a decision of two classes."""
        if logits.ndim < 3:
            raise InputError(f"multi-label logits must be (N, L); the network returns {tuple(logits.shape[1:])}")
        z = _moved(self._calibrated(_moved(logits, 2, -1)), -1, 2)
        figures = self._figures(torch.stack((_log_sigmoid(-z), _log_sigmoid(z)), dim=-1))
        figures["probs"] = figures["probs"][..., 1]
        figures["logits"] = figures["logits"][..., 1] - figures["logits"][..., 0]
        return tuple(figures[name] for name in self.outputs)

    def _calibrated(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (…, C), after a check that the calibrator has the network's number of classes."""
        if self.classes is not None and (size := _size(logits, -1)) != self.classes:
            raise InputError(f"the calibrator was fitted on {self.classes} classes or labels; the network has {size}")
        with without_autocast(logits.device.type):  # autocast would round matrix products to half precision
            calibrated: Tensor = self.rescaling(logits)
        return calibrated

    def _figures(self, log_each: Tensor) -> dict[str, Tensor]:
        """Return every output from the log-probabilities (S, …, C) of the samples."""
        log_mean = torch.logsumexp(log_each, dim=0) - math.log(self.draws.samples)
        each, mean = log_each.exp(), log_each.exp().mean(dim=0)
        total, expected = _entropy(mean, log_mean), _entropy(each, log_each).mean(dim=0)
        confidence, predicted = mean.max(dim=-1)
        return {
            "probs": mean,
            "entropy": total,
            "expected_entropy": expected,
            "mutual_information": (total - expected).clamp(min=0),
            "confidence": confidence,
            "predicted": predicted,
            "logits": log_mean,
        }

    def _class_axis(self, dims: int) -> int | None:
        """Return the dimension of the classes in the logits (S, N, …); None for one logit in each row, (S, N)."""
        if dims == 2:
            return None
        if self.class_dim is None:
            return 2
        return self.class_dim + 1 if self.class_dim >= 0 else dims + self.class_dim

    def extra_repr(self) -> str:
        return f"outputs={self.outputs}"


def _log_sigmoid(logits: Tensor) -> Tensor:
    """Return `logsigmoid`, which onnxruntime computes as the logarithm of a rounded sigmoid: −inf from −17 or 17 on."""
    return logits.clamp(max=0) - torch.log1p(torch.exp(-logits.abs()))


def _entropy(probs: Tensor, log_probs: Tensor) -> Tensor:
    """Return −Σ p log p over the last dimension, in nats; a probability of 0 adds 0."""
    return -(probs * log_probs.clamp(min=-1e30)).sum(dim=-1)


def _moved(tensor: Tensor, source: int, destination: int) -> Tensor:
    """Return `tensor.movedim`; the legacy exporter to ONNX would write negative dimensions into the file."""
    return tensor.movedim(source % tensor.ndim, destination % tensor.ndim)


def _size(tensor: Tensor, axis: int) -> int:
    """Return the size of a dimension that does not depend on the batch, so the tracer need not warn."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined]
        return tensor.shape[axis]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return int(tensor.shape[axis])
