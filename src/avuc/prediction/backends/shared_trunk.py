"""The backend for samples that differ only in the last linear layer: the network before it runs once.

    f_s(x) = W_s h(x) + b_s,        h(x) the same for all samples.

Dropout before the last layer is the special case W_s = W diag(mask_s).
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from avuc.bayes.layout import choose
from avuc.core.errors import InputError
from avuc.methods.dropout import MaskDraw
from avuc.nets.runner import Runner
from avuc.posterior import Draw
from avuc.prediction.backends.backend import (
    SAMPLES_PER_CHUNK,
    BackendOptions,
    SampleSource,
    net_with_weights,
    samples_per_chunk,
)
from avuc.prediction.backends.dropout_masks import dropout_hooks, masks_of
from avuc.prediction.backends.features import FeatureStore, are_readable, attributes_of, same_values, trunk_digest
from avuc.prediction.inputs import Batch, Batches


class _Head(NamedTuple):
    """The last layer of one sample."""

    weight: Tensor
    bias: Tensor | None


class SharedTrunkBackend:
    """Computes the input of the last layer once per dataset, and the last layer for many samples in one product."""

    samples_per_chunk: int = SAMPLES_PER_CHUNK

    def __init__(
        self, source: SampleSource, key: nn.Module, net: nn.Module, layer: str, options: BackendOptions
    ) -> None:
        """`net` has all weights, `key` identifies it in the samples, and `layer` is the name of the last layer."""
        self.share_plain: bool = options.share_plain
        self.source: SampleSource = source
        self.key: nn.Module = key
        self.layer: str = layer
        self.dtype: torch.dtype | None = options.dtype
        self.memory: int = options.memory
        self.store: FeatureStore | None = options.features if layer else None
        self._digest: str | None = None
        self._prefix = f"{layer}." if layer else ""
        self._runner = Runner(net, folded=options.fold_batch_norm)
        self._trunk = self._runner.function({})
        self._features: list[Tensor] = []  # input of the last layer, by batch
        self._kept: dict[int, _Head] = {}
        self._memory_used = 0
        self._chunk: tuple[Tensor, Tensor | None] | None = None  # weights and biases of the samples in use

    @classmethod
    def for_sample(cls, source: SampleSource, first: Draw, options: BackendOptions) -> SharedTrunkBackend | None:
        """Return this backend if it supports the first sample; `ready` checks the others, `begin` the network."""
        layer = differing_layer(first, options.share_plain)
        if layer is None:
            return None
        with_weights = net_with_weights(first)
        if with_weights is not None:
            key, net = with_weights.key, with_weights.build()
        else:
            assert isinstance(first, MaskDraw)
            key = net = first.net
        if not is_plain_linear(net, layer, dropout=with_weights is None):
            return None
        return cls(source, key, net, layer, options)

    def begin(self, batches: Batches) -> bool:
        """Compute the input of the last layer for all images. Return False if its output is not the logits."""
        self._features = []
        if self._runner.folds and batches.images is None:
            return False
        layer = self._runner.module.get_submodule(self.layer)
        assert isinstance(layer, nn.Linear)
        self.samples_per_chunk = samples_per_chunk(batches.size, layer.out_features, batches.device)
        digest = self._trunk_digest()
        kept = None if self.store is None or digest is None else self.store.get(batches, digest)
        if kept is not None:
            self._features = kept
            return True
        calls: list[tuple[tuple[object, ...], Tensor, Tensor]] = []
        handle = layer.register_forward_hook(lambda _, inputs, output: calls.append((inputs, output, output.clone())))
        device = batches.device.type
        try:
            for batch in batches:
                calls.clear()
                autocast = torch.autocast(device, self.dtype) if self.dtype is not None else contextlib.nullcontext()
                with autocast:
                    arguments = batch.input
                    logits = self._trunk(*arguments.args, **arguments.kwargs)
                if len(calls) != 1 or len(calls[0][0]) != 1:
                    return False
                (features,), output, output_copy = calls[0]
                # the layer's output must be the logits, and nothing may have changed it in place
                if output is not logits or not same_values(output, output_copy):
                    return False
                if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(batch):
                    return False
                self._features.append(features if features.dtype == torch.float64 else features.float())
        finally:
            handle.remove()
        if self.store is not None and digest is not None:
            self.store.put(batches, digest, self._features)
        return True

    def _trunk_digest(self) -> str | None:
        """Return a digest of the trunk; features of models with the same digest can be used. None: none can."""
        if self._digest is None and self.store is not None:  # the backend is made anew if the posterior changes
            net = self._runner.module
            tensors, others = attributes_of(net)
            values = self._runner.base | tensors
            if are_readable(values.values()):
                self._digest = trunk_digest(values, self._prefix, f"{net!r} {self.dtype} {others}")
        return self._digest

    def ready(self, samples: range) -> bool:
        heads = []
        for index in samples:
            head = self._kept.get(index) or self._prepare(index)
            if head is None:
                return False
            heads.append(head)
        # at least float32, like the features: the last layer is so small that low precision would save nothing
        dtype = self._features[0].dtype
        weight = torch.stack([head.weight for head in heads]).to(dtype)
        biases = [head.bias for head in heads if head.bias is not None]
        self._chunk = (weight, torch.stack(biases).to(dtype) if biases else None)
        return True

    def logits(self, samples: range, batch: Batch) -> Tensor:
        assert self._chunk is not None
        weight, bias = self._chunk
        features = self._features[batch.number].expand(len(weight), -1, -1)
        if bias is None:
            return torch.bmm(features, weight.mT)
        return torch.baddbmm(bias[:, None], features, weight.mT)

    def end(self) -> None:
        self._features, self._chunk = [], None

    def _prepare(self, index: int) -> _Head | None:
        sample = self.source(index)
        if differing_layer(sample, self.share_plain) != self.layer:
            return None
        base = self._runner.base
        weight, bias = base[f"{self._prefix}weight"], base.get(f"{self._prefix}bias")
        with_weights = net_with_weights(sample)
        if with_weights is not None:
            key = with_weights.key
            weight = with_weights.weights.get(f"{self._prefix}weight", weight)
            bias = with_weights.weights.get(f"{self._prefix}bias", bias)
        else:
            assert isinstance(sample, MaskDraw)
            key = sample.net
            (mask,) = masks_of(sample, {self.layer: (weight.shape[1],)}, weight.device).values()
            weight = weight * mask
        if key is not self.key:
            return None
        head = _Head(weight, bias)
        size = weight.nbytes + (0 if bias is None else bias.nbytes)
        if self._memory_used + size <= self.memory:
            self._memory_used += size
            self._kept[index] = head
        return head


def differing_layer(sample: Draw, share_plain: bool) -> str | None:
    """Return the name of the layer in which models differ: the sampled one, or the last one of a plain network.

    Args:
        sample: of a posterior.
        share_plain: whether a plain network shares its features.
    """
    with_weights = net_with_weights(sample)
    if not share_plain or with_weights is None or with_weights.weights:
        return sampled_layer(sample)
    try:
        slots = choose(with_weights.build(), "last").slots
    except InputError:  # no weight matrix, or one of half precision
        return None
    layers = {name.rpartition(".")[0] for slot in slots for name in slot.places}
    return layers.pop() if len(layers) == 1 else None


def sampled_layer(sample: Draw) -> str | None:
    """Return the name of the only layer that is sampled; None if there are several, or none."""
    with_weights = net_with_weights(sample)
    if with_weights is not None:
        names = [name.rpartition(".") for name in with_weights.weights]
        layers, kinds = {layer for layer, _, _ in names}, {kind for _, _, kind in names}
        return layers.pop() if len(layers) == 1 and kinds <= {"weight", "bias"} else None
    hooks = dropout_hooks(sample.net) if isinstance(sample, MaskDraw) else {}
    return next(iter(hooks)) if len(hooks) == 1 else None


def is_plain_linear(net: nn.Module, name: str, dropout: bool) -> bool:
    """Return whether a layer computes W x + b and nothing else, with weights that no other layer shares."""
    layers = dict(net.named_modules(remove_duplicate=False))
    layer = layers[name]
    own = {id(parameter) for parameter in layer.parameters()}
    uses = [id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False) if id(parameter) in own]
    return (
        type(layer) is nn.Linear
        and "forward" not in vars(layer)
        and not layer._forward_hooks
        and len(layer._forward_pre_hooks) == int(dropout)
        and not parametrize.is_parametrized(layer)
        and len(uses) == len(own)
    )
