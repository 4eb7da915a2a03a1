"""Fitted calibrators as modules without branches on values, so that they can be exported."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from avuc.calibration import AutoCalibrator, MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.calibration.blend import BlendedCalibrator
from avuc.calibration.mixtures import MixedTemperatureScaling
from avuc.calibration.one_vs_rest import OneVsRest
from avuc.calibration.structured import LOWEST, LinearScaling, MatrixScaling, StructuredVectorScaling, WithMatrix
from avuc.core.errors import InputError
from avuc.core.ties import without_floor, without_last_bits


class Unchanged(nn.Module):
    """Returns the logits: no calibrator."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits


class Fitted(nn.Module):
    """A module of fitted numbers, which keep their precision: `.half()` is for the network and would round them."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, exact in before.items():
            moved = self._buffers[name]
            if exact is not None and moved is not None and moved.dtype != exact.dtype:
                self._buffers[name] = exact.to(moved.device)
        return self


class DividedByTemperature(Fitted):
    """(z − max z)/T: the same probabilities as z/T, and nothing overflows."""

    temperature: Tensor

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature


class MixedTemperatures(Fitted):
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
        # not logaddexp, which the legacy exporter to ONNX does not have
        terms = torch.clamp(torch.cat((log_probs, uniform.unsqueeze(0))), min=-1e30)
        mixed = torch.clamp(torch.logsumexp(terms, dim=0), min=-1e30)
        return torch.where(logits > -math.inf, mixed, torch.full_like(mixed, -math.inf))


class DividedByLabel(Fitted):
    """z_l/T_l for each label l, in the last dimension."""

    temperature: Tensor

    def __init__(self, temperature: Any) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.as_tensor(temperature, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature


class EachLabel(nn.Module):
    """The calibrator of two classes of each label, in the last dimension; one calibrator is for all labels."""

    def __init__(self, each: list[nn.Module]) -> None:
        super().__init__()
        self.each: nn.ModuleList = nn.ModuleList(each)

    def forward(self, logits: Tensor) -> Tensor:
        columns = logits.unsqueeze(-1)
        both = torch.cat((torch.zeros_like(columns), columns), dim=-1)
        mapped: Tensor
        if len(self.each) == 1:
            mapped = self.each[0](both)
        else:
            mapped = torch.stack(
                [calibrator(both[..., label, :]) for label, calibrator in enumerate(self.each)], dim=-2
            )
        return mapped[..., 1] - mapped[..., 0]


class ScaledByClass(Fitted):
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


class LinearMap(Fitted):
    """W x + b of x = log((1 − ε) softmax(z/T) + ε/C), W a matrix or its diagonal; an impossible class stays so.

    Without ε the probabilities are at least `floor`.
    """

    temperature: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(self, temperature: float, smoothing: float, weights: Any, bias: Any, floor: float = 1e-12) -> None:
        super().__init__()
        self.smoothing: float = smoothing
        self.floor: float = floor
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.float32))
        self.register_buffer("bias", torch.as_tensor(bias, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        top = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        x = torch.softmax(top, dim=-1) * (1 - self.smoothing) + self.smoothing / logits.shape[-1]
        x = torch.log(torch.clamp(x, min=self.floor) if self.smoothing == 0 else x)
        result = (x * self.weights if self.weights.ndim == 1 else x @ self.weights.to(x.dtype).T) + self.bias
        return torch.where(logits > -math.inf, result, torch.full_like(result, -math.inf))


class MappedByClass(Fitted):
    """log of g_k(softmax(z)_k), normalised, as in `OneVsRest`; it compares with every breakpoint, to be exportable."""

    places: Tensor
    values: Tensor
    last: Tensor

    def __init__(self, lengths: Any, breakpoints: Any, values: Any, *, linear: bool, coarse: bool) -> None:
        super().__init__()
        self.linear: bool = linear
        self.coarse: bool = coarse
        self.register_buffer("places", torch.as_tensor(breakpoints, dtype=torch.float64))
        self.register_buffer("values", torch.as_tensor(values, dtype=torch.float64))
        self.register_buffer("last", torch.as_tensor(lengths) - 1)

    def forward(self, logits: Tensor) -> Tensor:
        coarse = self.coarse and logits.dtype != torch.float64
        probs: Tensor = without_last_bits(without_floor(torch.softmax(logits.double(), dim=-1)), coarse=coarse)
        above = torch.minimum((self.places < probs.unsqueeze(-1)).long().sum(-1), self.last + int(not self.linear))
        below = torch.clamp(above - 1, min=0)
        mapped = _entries(self.values, below)
        if self.linear:
            left = _entries(self.places, below)
            width, rise = _entries(self.places, above) - left, _entries(self.values, above) - mapped
            share = torch.where(width > 0, (probs - left) / torch.clamp(width, min=1e-300), torch.zeros_like(probs))
            mapped = mapped + rise * torch.clamp(share, 0.0, 1.0)
        total = mapped.sum(-1, keepdim=True)
        uniform = torch.full_like(mapped, 1 / logits.shape[-1])
        shares = torch.where(total > 0, mapped / torch.where(total > 0, total, torch.ones_like(total)), uniform)
        result = torch.clamp(shares, min=1e-12).log().to(logits.dtype)
        return torch.where(logits > -math.inf, result, torch.full_like(result, -math.inf))


class Blend(Fitted):
    """log Σ_k w_k softmax of the k-th calibrator; a class with logit −inf stays impossible."""

    weights: Tensor

    def __init__(self, parts: list[nn.Module], weights: Any) -> None:
        super().__init__()
        self.parts: nn.ModuleList = nn.ModuleList(parts)
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        each = torch.stack([torch.log_softmax(part(logits), dim=-1) for part in self.parts])
        shares = self.weights.log().to(each.dtype).reshape(-1, *[1] * logits.ndim)
        mixed = torch.clamp(torch.logsumexp(each + shares, dim=0), min=-1e30)
        return torch.where(logits > -math.inf, mixed, torch.full_like(mixed, -math.inf))


def _entries(table: Tensor, at: Tensor) -> Tensor:
    """Return table[k, at[..., k]] for each class k."""
    return table.expand(*at.shape, table.shape[-1]).gather(-1, at.unsqueeze(-1)).squeeze(-1)


def _linear_map(calibrator: LinearScaling) -> LinearMap:
    bias = calibrator.bias_
    if isinstance(calibrator, WithMatrix):
        weights = calibrator.matrix_.reshape(len(bias), len(bias))
    else:
        assert isinstance(calibrator, StructuredVectorScaling)
        weights = calibrator.scale_
    floor = math.exp(LOWEST) if isinstance(calibrator, MatrixScaling) else 1e-12
    return LinearMap(calibrator.temperature_, calibrator.smoothing_, weights, bias, floor)


def rescaling_of(calibrator: object) -> nn.Module:
    """Return a fitted calibrator of `avuc.calibration` as a module from logits (..., C) to logits.

    >>> rescaling_of(TemperatureScaling.identity(2))(torch.tensor([[1.0, 3.0]]))
    tensor([[-2.,  0.]])
    """
    if calibrator is None:
        return Unchanged()
    if isinstance(calibrator, AutoCalibrator) and hasattr(calibrator, "chosen_"):
        return rescaling_of(calibrator.chosen_)
    if isinstance(calibrator, BlendedCalibrator):
        if not hasattr(calibrator, "parts_"):
            raise InputError("the BlendedCalibrator is not fitted; AutoCalibrator().fit(logits, labels) makes it")
        return Blend([rescaling_of(part) for part in calibrator.parts_], calibrator.weights_)
    if isinstance(calibrator, TemperatureScaling | VectorScaling | MultiLabelCalibrator | OneVsRest | LinearScaling):
        if not hasattr(calibrator, "temperature_"):
            raise InputError(f"the {type(calibrator).__name__} is not fitted; call fit(logits, labels) or load() first")
        if isinstance(calibrator, VectorScaling):
            return ScaledByClass(calibrator.scale_, calibrator.bias_)
        if isinstance(calibrator, LinearScaling):
            return _linear_map(calibrator)
        if isinstance(calibrator, OneVsRest):
            return MappedByClass(*calibrator.table(), linear=calibrator.linear, coarse=calibrator.coarse)
        if isinstance(calibrator, MultiLabelCalibrator):
            if calibrator.each_ is not None:
                return EachLabel([rescaling_of(of_label) for of_label in calibrator.each_])
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
