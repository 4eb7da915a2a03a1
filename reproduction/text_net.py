"""The network of the text studies: a small transformer encoder, trained from scratch.

reproduction/studies/{ag-news,sst2,wnut17}/nets.py use it; reproduction/run_study.py runs these studies.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from text_words import PADDING, table_rows
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention and a small MLP, each after a layer norm and with a residual connection.

    The projections are plain linear layers, so that every method can change them: dropout masks, sampled weights.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, is_word: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.project_in(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(), attn_mask=is_word[:, None, None, :])
        x = x + self.project_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))


class TextEncoder(nn.Module):
    """A transformer encoder over words; the embedding of a word is the sum over its features.

    Args:
        num_classes: number of classes.
        vocabulary: largest size of the vocabulary, as in `text_words.encode_words`.
        length: number of words of a sentence.
        width: width of every layer.
        layers: number of blocks.
        heads: number of attention heads; it must divide the width.
        each_word: whether the logits are those of each word, (N, length, classes), or of each sentence, (N, classes).
    """

    def __init__(
        self,
        num_classes: int,
        vocabulary: int,
        length: int,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        each_word: bool = False,
    ) -> None:
        super().__init__()
        self.each_word = each_word
        self.embedding = nn.Embedding(table_rows(vocabulary), width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        is_word = features[..., 0] != PADDING
        x = self.embedding(features).sum(2) + self.position
        for block in self.blocks:
            x = block(x, is_word)
        x = self.norm(x)
        if not self.each_word:
            present = is_word[..., None].to(x.dtype)
            x = (x * present).sum(1) / present.sum(1)
        return self.head(x)
