"""Network architectures; `NETS` has them by name.

Every factory has the arguments `(num_classes, image_shape, *, mean=None, std=None, generator=None, ...)`. A network
takes float images (N, C, H, W) in [0, 1] and returns logits (N, num_classes). `image_shape` is (height, width,
channels), the order in which images are stored. With `mean` and `std` (one number per channel) the network normalises
its input itself; these constants are not in the `state_dict`. Initial weights are He normal, with zero biases (He et
al. 2015, arXiv:1502.01852), and are sampled from `generator`.

>>> import torch
>>> net = NETS["resnet20"](num_classes=10, generator=torch.Generator().manual_seed(0))
>>> net(torch.rand(2, 3, 32, 32)).shape
torch.Size([2, 10])
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from avuc.nets.mlp import mlp
from avuc.nets.resnet_cifar import resnet20, resnet32, resnet44, resnet56
from avuc.nets.resnet_imagenet import resnet50
from avuc.nets.small_cnn import small_cnn

__all__ = ["NETS", "mlp", "resnet20", "resnet32", "resnet44", "resnet50", "resnet56", "small_cnn"]

NETS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "small_cnn": small_cnn,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
    "resnet50": resnet50,
}
"""Factories of networks, by name."""
