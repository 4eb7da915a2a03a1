"""Draws that differ in the last linear layer only: the net before it runs once for all of them.

    f_s(x) = W_s h(x) + b_s,        h(x) the same for all draws.

Dropout before that layer is the same with W_s = W diag(mask_s).
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from avuc.methods.dropout import MaskDraw
from avuc.nets.runner import Runner
from avuc.posterior import Draw
from avuc.prediction.backends.dropout_masks import dropout_hooks, masks_of
from avuc.prediction.backends.generic import AT_ONCE, Source, draws_at_once, parts_of
from avuc.prediction.inputs import Batch, Batches

__all__ = ["LastLayer"]


class _Head(NamedTuple):
    """The last layer of one draw."""

    weight: Tensor
    bias: Tensor | None


class LastLayer:
    at_once = AT_ONCE

    def __init__(
        self,
        source: Source,
        net: nn.Module,
        whole: nn.Module,
        name: str,
        *,
        dtype: torch.dtype | None,
        folded: bool,
        memory: int,
    ) -> None:
        self.source, self.net, self.name = source, net, name
        self._prefix = f"{name}." if name else ""
        self.dtype, self.memory = dtype, memory
        self._runner = Runner(whole, folded=folded)
        self._trunk = self._runner.function({})
        self._features: list[Tensor] = []
        self._kept: dict[int, _Head] = {}
        self._size = 0
        self._chunk: tuple[Tensor, Tensor | None] | None = None

    @classmethod
    def of(
        cls, source: Source, draw: Draw, *, dtype: torch.dtype | None, folded: bool, memory: int
    ) -> LastLayer | None:
        """This way, if one draw can go it; `ready` looks at the others, `begin` at what the net does."""
        name = _name(draw)
        parts = parts_of(draw)
        if name is None:
            return None
        if parts is not None:
            net, whole = parts.key, parts.whole()
        else:
            assert isinstance(draw, MaskDraw)
            net = whole = draw.net
        if not _is_plain_linear(whole, name, dropout=parts is None):
            return None
        return cls(source, net, whole, name, dtype=dtype, folded=folded, memory=memory)

    def begin(self, batches: Batches) -> bool:
        """What goes into the last layer, for all images; False where it is not what the net ends with."""
        self._features = []
        layer = self._runner.module.get_submodule(self.name)
        assert isinstance(layer, nn.Linear)
        self.at_once = draws_at_once(batches.size, layer.out_features, batches.device)
        seen: list[tuple[tuple[object, ...], object]] = []
        handle = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs, output)))
        device = batches.device.type
        try:
            for batch in batches:
                seen.clear()
                autocast = torch.autocast(device, self.dtype) if self.dtype is not None else contextlib.nullcontext()
                with autocast:
                    logits = self._trunk(batch.input)
                if len(seen) != 1 or seen[0][1] is not logits or len(seen[0][0]) != 1:
                    return False
                features = seen[0][0][0]
                if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(batch):
                    return False
                self._features.append(features if features.dtype == torch.float64 else features.float())
        finally:
            handle.remove()
        return True

    def ready(self, draws: range) -> bool:
        heads = []
        for index in draws:
            head = self._kept.get(index) or self._made(index)
            if head is None:
                return False
            heads.append(head)
        # like the features, in float32 at least: the last layer is too small for its precision to cost anything
        dtype = self._features[0].dtype
        weight = torch.stack([head.weight for head in heads]).to(dtype)
        biases = [head.bias for head in heads if head.bias is not None]
        self._chunk = (weight, torch.stack(biases).to(dtype) if biases else None)
        return True

    def logits(self, draws: range, batch: Batch) -> Tensor:
        assert self._chunk is not None
        weight, bias = self._chunk
        features = self._features[batch.number].expand(len(weight), -1, -1)
        if bias is None:
            return torch.bmm(features, weight.mT)
        return torch.baddbmm(bias[:, None], features, weight.mT)

    def end(self) -> None:
        self._features, self._chunk = [], None

    def _made(self, index: int) -> _Head | None:
        draw = self.source(index)
        if _name(draw) != self.name:
            return None
        base = self._runner.base
        weight, bias = base[f"{self._prefix}weight"], base.get(f"{self._prefix}bias")
        parts = parts_of(draw)
        if parts is not None:
            net = parts.key
            weight = parts.weights.get(f"{self._prefix}weight", weight)
            bias = parts.weights.get(f"{self._prefix}bias", bias)
        else:
            assert isinstance(draw, MaskDraw)
            net = draw.net
            (mask,) = masks_of(draw, {self.name: (weight.shape[1],)}, weight.device).values()
            weight = weight * mask
        if net is not self.net:
            return None
        head = _Head(weight, bias)
        size = weight.nbytes + (0 if bias is None else bias.nbytes)
        if self._size + size <= self.memory:
            self._size += size
            self._kept[index] = head
        return head


def _name(draw: Draw) -> str | None:
    """The one layer that this draw is drawn in; None where there are several, or none."""
    parts = parts_of(draw)
    if parts is not None:
        places = [name.rpartition(".") for name in parts.weights]
        owners, leaves = {owner for owner, _, _ in places}, {leaf for _, _, leaf in places}
        return owners.pop() if len(owners) == 1 and leaves <= {"weight", "bias"} else None
    names = dropout_hooks(draw.net) if isinstance(draw, MaskDraw) else {}
    return next(iter(names)) if len(names) == 1 else None


def _is_plain_linear(net: nn.Module, name: str, dropout: bool) -> bool:
    """Whether a layer computes W x + b and nothing more, with weights that no other layer has."""
    layers = dict(net.named_modules(remove_duplicate=False))
    layer = layers[name]
    own = {id(parameter) for parameter in layer.parameters()}
    uses = [id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False) if id(parameter) in own]
    return (
        type(layer) is nn.Linear
        and not layer._forward_hooks
        and len(layer._forward_pre_hooks) == int(dropout)
        and not parametrize.is_parametrized(layer)
        and len(uses) == len(own)
    )
