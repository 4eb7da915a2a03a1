"""Architectures, written once, deterministic; `NETS` lists them by name.

Every factory is `factory(num_classes, image_shape, *, mean=None, std=None, generator=None, ...)`. A net takes float
images (N, C, H, W) in [0, 1] and returns logits (N, num_classes). `image_shape` is (height, width, channels), the
order images are stored in. `mean` and `std` (one number per channel) put the normalisation of the input inside the
net, so that whoever calls a net never has to know it; they are not in the `state_dict`. Weights are drawn from
`generator` only: He normal with zero biases (He et al. 2015, arXiv:1502.01852).

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
