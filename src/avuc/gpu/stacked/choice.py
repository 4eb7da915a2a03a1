"""Which models can be trained as one stacked network, and which of them together."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.data.arrays import Dataset
from avuc.gpu.kernels.conv3x3_launch import unsupported_reason as kernel_unsupported_reason
from avuc.gpu.stacked.dropout import hooks_of
from avuc.gpu.stacked.net import norm_layers, weight_layers
from avuc.gpu.stacked.weights import net_of, slots_of
from avuc.methods import SVI, SWAG, Dropout, Vanilla
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.ll_svi import LLSVI
from avuc.methods.radial import Radial
from avuc.nets.common import Normalise
from avuc.nets.resnet_cifar import CifarResNet, PadShortcut
from avuc.training.model_trainer import ModelTrainer

METHODS = (Vanilla, SVI, LLSVI, Radial, SWAG, Dropout, LLDropout)


def unsupported_reason(trainer: ModelTrainer, data: Dataset) -> str | None:
    """Return why a model cannot be part of a stack, or None if it can."""
    method, net = getattr(trainer.method, "member", trainer.method), net_of(trainer)
    if type(method) not in METHODS:
        return f"the method {trainer.method.name} is not one of {', '.join(kind.name for kind in METHODS)}"
    if isinstance(method, SVI) and (method.estimator != "weight" or method.train_draws != 1):
        return "it does not use exactly one weight sample per step"
    if type(net) is not CifarResNet:
        return f"{type(net).__name__} is not a CIFAR ResNet"
    drops = hooks_of(net)
    if sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()) > len(drops):
        return "its network has hooks"
    if any("forward" in vars(module) for module in net.modules()):
        return "a layer has a forward function of its own"
    if any(hook.masks.generator is not trainer.noise for hook in drops.values()):
        return "its masks are not drawn from its own generator"
    if any(isinstance(module, nn.Conv2d) and module.kernel_size != (3, 3) for module in net.modules()):
        return "its shortcuts have weights (option B)"
    norms = norm_layers(net).values()
    if any(not layer.affine or not layer.track_running_stats or layer.momentum is None for layer in norms):
        return "its batch normalisation has no scale, no running statistics or no momentum"
    if len({(layer.eps, layer.momentum) for layer in norms}) > 1:
        return "its batch normalisations differ"
    if not all(parameter.requires_grad for parameter in trainer.model.parameters()):
        return "some of its weights are frozen"
    if len({parameter.dtype for parameter in trainer.parameters}) > 1:
        return "its weights are of several types"
    if isinstance(trainer.model, BayesianModule):
        names, mine = list(slots_of(trainer)), [slot.name for slot in trainer.model.layout.slots]
        if any(len(slot.places) > 1 for slot in trainer.model.layout.slots) or mine not in (
            names[start : start + len(mine)] for start in range(len(names))
        ):
            return "its variational weights do not lie side by side"
    return _without_kernel(trainer, net, data) if data.device.type == "cuda" else None


def _without_kernel(trainer: ModelTrainer, net: CifarResNet, data: Dataset) -> str | None:
    """Return why the convolutions would not be fast on a GPU, or None if they are."""
    settings = trainer.settings
    if settings.precision != "bfloat16" or not (settings.compile and settings.capture):
        return "only bfloat16 steps that are compiled and captured are stacked"
    _, height, width, channels = data.images.shape
    for layer in weight_layers(net).values():
        if isinstance(layer, nn.Conv2d):
            x, weight = (1, 1, height, width, channels), (1, layer.out_channels, 3, 3, channels)
            reason = kernel_unsupported_reason(x, weight, layer.stride[0], torch.bfloat16, data.device)
            if reason is not None:
                return reason
            height, width, channels = height // layer.stride[0], width // layer.stride[0], layer.out_channels
    return None


def signature(trainer: ModelTrainer) -> Hashable:
    """Return a key: supported models with equal keys can be in one stack."""
    net = net_of(trainer)
    assert isinstance(net, CifarResNet)
    first = next(iter(norm_layers(net).values()))
    constants = net.normalise
    scaling = (
        (*constants.mean.flatten().tolist(), *constants.std.flatten().tolist())
        if isinstance(constants, Normalise)
        else ()
    )
    shapes = tuple((name, slot.shape, slot.order) for name, slot in slots_of(trainer).items())
    strides = tuple(getattr(layer, "stride", ()) for layer in weight_layers(net).values())
    shortcuts = tuple(name for name, module in net.named_modules() if isinstance(module, PadShortcut))
    steps = {
        float(state["step"]) for state in trainer.optimizer.state.values() if isinstance(state.get("step"), Tensor)
    }
    drops = bool(hooks_of(net))  # masks would slow down models without dropout
    return shapes, strides, shortcuts, scaling, first.eps, first.momentum, frozenset(steps), trainer.augmentation, drops
