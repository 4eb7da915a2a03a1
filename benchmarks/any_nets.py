"""The networks of bench_any_net.py, with random weights, and a batch for each."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

NETS = ("resnet50", "vit_b_16", "efficientnet_lite0", "bert_base")
CLASSES = 1000


class Encoder(nn.Module):
    """A text classifier with the sizes of BERT-base."""

    def __init__(self, width: int, depth: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        self.register_buffer("numbers", torch.arange(tokens))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.norm(self.words(ids) + self.places(self.numbers[: ids.shape[1]]))
        logits: Tensor = self.head(self.layers(hidden)[:, 0])
        return logits


class Blocks(nn.Module):
    """Convolutions with batch normalisation and skip connections: a small ResNet, or with `groups` an EfficientNet."""

    def __init__(self, width: int, depth: int, depthwise: bool) -> None:
        super().__init__()
        groups = width if depthwise else 1

        def block() -> nn.Sequential:
            middle = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
            return nn.Sequential(middle, nn.BatchNorm2d(width), nn.ReLU6(), nn.Conv2d(width, width, 1))

        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def made(name: str, small: bool) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights and a batch for it; ImportError if its package is missing."""
    if name == "bert_base":
        sizes = (32, 1, 2, 16, 50) if small else (768, 12, 12, 128, 30_522)
        return Encoder(*sizes), torch.randint(sizes[-1], (2, 16) if small else (64, 128))
    images = torch.rand(*((2, 3, 32, 32) if small else (64, 3, 224, 224)))
    if name != "vit_b_16":
        images = images.to(memory_format=torch.channels_last)
    if small and name != "vit_b_16":
        return Blocks(16, 2, name.startswith("efficient")), images
    if name == "efficientnet_lite0":
        from efficientnet_lite_pytorch import EfficientNet

        net: nn.Module = EfficientNet.from_name("efficientnet-lite0")
        return net.to(memory_format=torch.channels_last), images
    if small and importlib.util.find_spec("torchvision") is None:
        return Blocks(16, 2, False), images
    import torchvision

    if name == "resnet50":
        return torchvision.models.resnet50().to(memory_format=torch.channels_last), images
    if small:
        return torchvision.models.VisionTransformer(32, 8, 1, 2, 32, 64), images
    net = torchvision.models.vit_b_16()
    nn.init.trunc_normal_(net.heads.head.weight, std=0.02)  # it starts at 0, where MOPED gives no spread
    return net, images


class Same(Dataset[Tensor]):
    """The same batch again and again."""

    def __init__(self, batch: Tensor, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch
