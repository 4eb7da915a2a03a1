"""A small GPT in plain torch, and the loop that trains it with any loss of `avuc.linear_avuc`.

reproduction/language_models.py runs it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import NonFiniteError

# maps hidden states (B, T, D), the output weight (V, D) and labels (B, T) to a scalar loss
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """The size of a network."""

    vocabulary: int = 8192
    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a layer norm and with a residual connection."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, 0.0
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.project = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        drop = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        x = x + F.dropout(self.project(attended.transpose(1, 2).flatten(2)), drop)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), drop)


class GPT(nn.Module):
    """A GPT that maps tokens (B, T) to hidden states (B, T, D). The embedding is also the output weight."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Parameter(torch.zeros(size.context, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                adds_to_residual = name.endswith(
                    ("project.weight", "down.weight")
                )  # layers that add to the residual stream
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers) if adds_to_residual else 0.02)

    def set_dropout(self, rate: float) -> None:
        """Set the rate of dropout in training."""
        for block in self.blocks:
            block.dropout = rate

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (B, T) to (B, T, D)."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (N, V) of hidden states (N, D), in float32."""
        return hidden.float() @ self.embedding.weight.float().T


@dataclass(frozen=True)
class Schedule:
    """How a network is trained: random windows of the text, AdamW, linear warm-up and cosine decay of the rate."""

    steps: int
    batch: int
    rate: float
    dropout: float = 0.0
    warmup: float = 0.1  # share of the steps
    decay: float = 0.1  # weight decay of the matrices


@dataclass(frozen=True)
class Trained:
    """Time and speed of a training, and the mean loss of its last 20 steps; NaN if it diverged."""

    seconds: float
    tokens_per_second: float
    final_loss: float


def train(model: GPT, tokens: Tensor, loss: Loss, schedule: Schedule, *, seed: int) -> Trained:
    """Train the network in place. The seed determines windows and dropout, so they are the same for every loss.

    Args:
        model: the network, on the device to use.
        tokens: (N,) the text, on that device.
        loss: the loss to minimise.
        schedule: steps, batch and learning rate.
        seed: seed of the windows and of dropout.
    """
    device, context = tokens.device, model.size.context
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - context, (schedule.steps, schedule.batch), generator=generator).to(device)
    offsets = torch.arange(context + 1, device=device)
    torch.manual_seed(seed)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": schedule.decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=schedule.rate, betas=(0.9, 0.95), fused=True)
    warmup_steps = max(1, round(schedule.warmup * schedule.steps))
    model.set_dropout(schedule.dropout)
    model.train()
    recent: list[Tensor] = []
    start_time = time.perf_counter()
    for step in range(schedule.steps):
        progress = (step - warmup_steps) / max(1, schedule.steps - warmup_steps)
        factor = (step + 1) / warmup_steps if step < warmup_steps else 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        for group in optimiser.param_groups:
            group["lr"] = factor * schedule.rate
        window = tokens[starts[step][:, None] + offsets]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            hidden = model(window[:, :-1])
            try:
                value = loss(hidden, model.embedding.weight, window[:, 1:])
            except NonFiniteError:
                recent = [hidden.new_tensor(math.nan)]
                break
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        recent = [*recent[-19:], value.detach()]
    final_loss = float(torch.stack(recent).mean())
    seconds = time.perf_counter() - start_time
    model.eval()
    trained_tokens = (step + 1) * schedule.batch * context
    return Trained(seconds, trained_tokens / seconds, final_loss)


@torch.no_grad()
def hidden_states(model: GPT, tokens: Tensor, max_tokens: int, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Return hidden states (N, D) in float32 and labels (N,) of a text, cut into windows that do not overlap.

    Args:
        model: the network.
        tokens: the text.
        max_tokens: largest number of tokens to predict.
        batch: number of windows in one forward pass.
    """
    context = model.size.context
    count = min(max_tokens, len(tokens) - 1) // context
    inputs = tokens[: count * context].view(count, context)
    labels = tokens[1 : count * context + 1]
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        hidden = torch.cat([model(part) for part in inputs.split(batch)])
    return hidden.float().flatten(0, 1), labels
