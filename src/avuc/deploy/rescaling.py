"""Fitted calibrators as modules without branches on values, so that they can be exported."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from avuc.calibration import MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.calibration.mixtures import MixedTemperatureScaling
from avuc.core.errors import InputError


class Unchanged(nn.Module):
    """Returns the logits: no calibrator."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits


class DividedByTemperature(nn.Module):
    """(z − max z)/T: the same probabilities as z/T, and nothing overflows."""

    temperature: Tensor

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature


class MixedTemperatures(nn.Module):
    """log(w₁ softmax(z/T) + w₂ softmax(z) + w₃/C); a class with logit −inf stays impossible."""

    temperature: Tensor
    weights: Tensor

    def __init__(self, temperature: float, weights: tuple[float, float, float]) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        top = logits - logits.amax(dim=-1, keepdim=True)
        scaled = torch.stack((top / self.temperature, top))
        log_probs = torch.log_softmax(scaled, dim=-1) + self.weights[:2].log().reshape(2, *[1] * logits.ndim)
        uniform = torch.zeros_like(logits) + (self.weights[2] / logits.shape[-1]).log()
        mixed = torch.clamp(torch.logaddexp(torch.logaddexp(log_probs[0], log_probs[1]), uniform), min=-1e30)
        return torch.where(logits > -math.inf, mixed, torch.full_like(mixed, -math.inf))


class DividedByLabel(nn.Module):
    """z_l/T_l for each label l, in the last dimension."""

    temperature: Tensor

    def __init__(self, temperature: Any) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.as_tensor(temperature, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature


class ScaledByClass(nn.Module):
    """a ∘ log softmax(z) + b; a class with logit −inf stays impossible."""

    scale: Tensor
    bias: Tensor

    def __init__(self, scale: Any, bias: Any) -> None:
        super().__init__()
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("bias", torch.as_tensor(bias, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        log_probs = torch.log_softmax(logits, dim=-1)
        possible = torch.clamp(log_probs, min=-1e30) * self.scale + self.bias
        return torch.where(log_probs > -1e30, possible, torch.full_like(possible, -math.inf))


def rescaling_of(calibrator: object) -> nn.Module:
    """Return a fitted calibrator of `avuc.calibration` as a module from logits (..., C) to logits.

    >>> rescaling_of(TemperatureScaling.identity(2))(torch.tensor([[1.0, 3.0]]))
    tensor([[-2.,  0.]])
    """
    if calibrator is None:
        return Unchanged()
    if isinstance(calibrator, TemperatureScaling | VectorScaling | MultiLabelCalibrator):
        if not hasattr(calibrator, "temperature_"):
            raise InputError(f"the {type(calibrator).__name__} is not fitted; call fit(logits, labels) or load() first")
        if isinstance(calibrator, VectorScaling):
            return ScaledByClass(calibrator.scale_, calibrator.bias_)
        if isinstance(calibrator, MultiLabelCalibrator):
            return DividedByLabel(calibrator.temperature_)
        if isinstance(calibrator, MixedTemperatureScaling):
            return MixedTemperatures(calibrator.temperature_, calibrator.mixture())
        return DividedByTemperature(calibrator.temperature_)
    if isinstance(calibrator, nn.Module):
        return calibrator
    raise InputError(
        f"calibrator: expected one of avuc.calibration or an nn.Module from logits to logits, found "
        f"{type(calibrator).__name__}"
    )
