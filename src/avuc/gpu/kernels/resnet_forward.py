"""A CIFAR ResNet in evaluation mode as one kernel: all images and all weight samples in a single launch.

One block of threads computes the whole network for one image; activations stay in shared memory. Products are bf16,
sums are float32, and activations are rounded to bf16 after each layer's ReLU, as under autocast.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.gpu.kernels.build import Argument, Program, program
from avuc.gpu.kernels.build import unsupported_reason as no_kernels
from avuc.nets.common import Normalise
from avuc.nets.resnet_cifar import BasicBlock, CifarResNet, PadShortcut

SOURCE = "resnet_forward.cu"
SHARED = 2 * 34 * 34 * 16 * 2  # two planes of 32×32 pixels and 16 channels with a border, bf16
WIDTHS = (16, 16, 32, 64)  # of the first convolution and of the three stages
LAYERS = (
    CifarResNet, BasicBlock, PadShortcut, Normalise, nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.Sequential, nn.Identity
)  # fmt: skip


class ResNetForward:
    """A CIFAR ResNet as one kernel.

    >>> from avuc.nets import resnet20
    >>> forward = ResNetForward(resnet20())
    >>> forward.words  # numbers of 4 bytes in the packed weights of a sample: two bf16 weights, or one bias
    135356
    """

    # with 74 KB of shared memory three blocks fit on a multiprocessor, with up to 168 registers per thread
    defines: Mapping[str, int] = {"WARPS": 4, "BLOCKS_PER_SM": 3}

    @staticmethod
    def unsupported_reason(net: nn.Module, device: torch.device) -> str | None:
        """Return why the kernel cannot run this network on this device, or None if it can."""
        if type(net) is not CifarResNet:
            return f"{type(net).__name__} is no CifarResNet"
        for name, layer in net.named_modules():
            if type(layer) not in LAYERS:
                return f"layer {name} is a {type(layer).__name__}"
            if layer._forward_hooks or layer._forward_pre_hooks:
                return f"layer {name or type(layer).__name__} has hooks"
            if "forward" in vars(layer):
                return f"layer {name or type(layer).__name__} has a forward function of its own"
            if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is None:
                return f"layer {name} has no running statistics"
        blocks = len(net.layer1)
        for name, (outputs, inputs, stride) in _convolutions(blocks).items():
            try:
                layer = net.get_submodule(name)
            except AttributeError:
                return f"layer {name} is missing"
            assert isinstance(layer, nn.Conv2d)
            expected = ((outputs, inputs, 3, 3), (stride, stride), (1, 1), (1, 1), "zeros")
            actual = (tuple(layer.weight.shape), layer.stride, layer.padding, layer.dilation, layer.padding_mode)
            if actual != expected:
                return f"layer {name} is no {inputs}→{outputs} 3×3 convolution of stride {stride}"
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in net.modules())
        if convolutions != len(_convolutions(blocks)):
            return "the shortcuts have weights, or the stages differ in length"
        if net.linear.in_features != WIDTHS[-1]:
            return f"the linear layer takes {net.linear.in_features} features"
        return no_kernels(device)

    def __init__(self, net: CifarResNet) -> None:
        """Read the architecture and the input normalisation; the weights are arguments of `logits`."""
        self.blocks: int = len(net.layer1)
        self.classes: int = net.linear.out_features
        self.layers: dict[str, tuple[int, int, int]] = _convolutions(self.blocks)
        mean, std = [0.0] * 3, [1.0] * 3
        if isinstance(net.normalise, Normalise):
            mean, std = net.normalise.mean.flatten().tolist(), net.normalise.std.flatten().tolist()
        self._by, self._plus = [1 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
        self._index = _fragments(list(self.layers.values()))
        self._indices: dict[torch.device, Tensor] = {}
        self.products: int = len(self._index) // 2
        floats = sum(outputs for outputs, _, _ in self.layers.values()) + self.classes * (WIDTHS[-1] + 1)
        self._padding = -floats % 4  # the weights of every sample start at a multiple of 16 bytes
        self.words: int = self.products + floats + self._padding

    @torch.no_grad()
    def pack(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the weights of one sample in the order in which the kernel reads them, int32 (P,).

        Args:
            weights: the weights by name, with batch normalisation folded into the convolutions.
        """
        missing = [name for name in self.layers if f"{name}.bias" not in weights]
        if missing:
            raise InputError(f"pack takes the weights of a folded net; {missing[0]} has no bias")
        device = weights["linear.weight"].device
        if device not in self._indices:
            self._indices[device] = self._index.to(device)
        convolutions = [weights[f"{name}.weight"] for name in self.layers]
        tail = [*(weights[f"{name}.bias"] for name in self.layers), weights["linear.weight"], weights["linear.bias"]]
        zeros = torch.zeros(4, device=device)  # for unused positions of the first layer, and for padding
        parts = [*convolutions, zeros, *tail, zeros[: self._padding]]
        flat = torch.cat([part.reshape(-1).float() for part in parts])
        start = sum(outputs * inputs * 9 for outputs, inputs, _ in self.layers.values()) + len(zeros)
        if len(flat) - start != self.words - self.products:
            raise InputError(
                f"these weights are not those of this net: {len(flat) - start} biases and linear weights,"
                f" expected {self.words - self.products}"
            )
        products = flat.index_select(0, self._indices[device]).bfloat16().view(torch.int32)
        return torch.cat([products, flat[start:].view(torch.int32)])

    def logits(self, images: Tensor, packed: Tensor) -> Tensor:
        """Return the logits (S, N, classes) of all samples, float32.

        Args:
            images: uint8 (N, 32, 32, 3), or floating point (N, 3, 32, 32) in [0, 1].
            packed: the weights of S samples (S, P), each row from `pack`.
        """
        return self.launch(program(SOURCE, self.defines, packed.device), images, packed)

    @torch.no_grad()
    def launch(self, built: Program, images: Tensor, packed: Tensor) -> Tensor:
        """Return `logits`, computed by this build of the kernel."""
        whole = images.dtype == torch.uint8
        shape = (32, 32, 3) if whole else (3, 32, 32)
        if tuple(images.shape[1:]) != shape or not (whole or images.is_floating_point()):
            raise InputError(
                "images are uint8 (N, 32, 32, 3) or floating-point (N, 3, 32, 32);"
                f" found {images.dtype} {tuple(images.shape)}"
            )
        if packed.dim() != 2 or packed.shape[1] != self.words or packed.dtype != torch.int32:
            raise InputError(
                f"packed weights are int32 (D, {self.words}), each row from pack();"
                f" found {packed.dtype} {tuple(packed.shape)}"
            )
        if images.device != packed.device:
            raise InputError(f"images are on {images.device}, the weights on {packed.device}; move one of them")
        images = images.contiguous() if whole else images.float().contiguous()
        packed = packed.contiguous()
        logits = torch.empty(len(packed), len(images), self.classes, device=packed.device)
        if logits.numel():
            by = [b / 255 for b in self._by] if whole else self._by
            sizes = (self.words, self.products, self.blocks, self.classes)
            args: list[Argument] = [images, int(not whole), packed, *sizes, logits, *by, *self._plus]
            grid, block = (len(images), len(packed), 1), 32 * self.defines["WARPS"]
            built.launch("resnet_forward", grid=grid, block=block, args=args, shared=SHARED)
        return logits


def _convolutions(blocks: int) -> dict[str, tuple[int, int, int]]:
    """Return the convolutions by name, in order, with output channels, input channels and stride."""
    layers = {"conv1": (WIDTHS[0], 3, 1)}
    for stage, (before, width) in enumerate(pairwise(WIDTHS), start=1):
        for block in range(blocks):
            new = block == 0 and before != width
            layers[f"layer{stage}.{block}.conv1"] = (width, before if new else width, 2 if new else 1)
            layers[f"layer{stage}.{block}.conv2"] = (width, width, 1)
    return layers


def _fragments(layers: list[tuple[int, int, int]]) -> Tensor:
    """Return the index of each bf16 number the kernel reads, in the concatenated convolution weights (and one zero).

    The order in each layer is [16 output channels][16 input channels][dx][dy][lane][8 outputs of the 16][8 inputs of
    the 16][2], the B operand of mma.m16n8k16: a lane has output lane/4 and inputs 2(lane%4), + 1. In the first layer,
    4 pixels × 4 channels (of which 3 and 3 are used) replace the 16 input channels and dx.
    """
    zero = sum(outputs * inputs * 9 for outputs, inputs, _ in layers)
    indices, start = [], 0
    lane, n = torch.arange(32).view(32, 1, 1, 1), torch.arange(2).view(2, 1, 1)
    half, low = torch.arange(2).view(2, 1), torch.arange(2)
    output, inner = 8 * n + lane // 4, 8 * half + 2 * (lane % 4) + low
    dy = torch.arange(3).view(3, 1, 1, 1, 1)
    for outputs, inputs, _ in layers:
        if inputs == 3:
            pixel, channel = inner // 4, inner % 4
            index = ((output * 3 + channel) * 3 + dy) * 3 + pixel
            index = torch.where((pixel < 3) & (channel < 3), start + index, zero)
        else:
            dx = torch.arange(3).view(3, *[1] * 5)
            step = torch.arange(inputs // 16).view(-1, *[1] * 6)
            pair = torch.arange(outputs // 16).view(-1, *[1] * 7)
            index = start + (((16 * pair + output) * inputs + 16 * step + inner) * 3 + dy) * 3 + dx
        indices.append(index.reshape(-1))
        start += outputs * inputs * 9
    return torch.cat(indices)
