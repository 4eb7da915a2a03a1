"""Networks and posteriors of several tests of prediction, and the logits of all their samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from avuc.data.arrays import as_input
from avuc.methods.swag import SWAGModel, SWAGPosterior
from avuc.nets import small_cnn
from avuc.posterior import Posterior, sample_generator


def digits(rows: int = 6, seed: int = 0, side: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (rows, side, side, 1), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (rows,), generator=generator)


def cnn(seed: int = 0) -> nn.Module:
    net = small_cnn(10, (12, 12, 1), width=4, generator=torch.Generator().manual_seed(seed))
    net.train()(as_input(digits(64, seed=9)[0]))  # statistics that are not 0 and 1
    return net


def swag() -> SWAGPosterior:
    model = SWAGModel(cnn(), rank=3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in model.net.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        model.collect()
    return SWAGPosterior(model, digits(32, seed=4)[0])


def stored(posterior: Posterior, x: Tensor, count: int, seed: int) -> Tensor:
    """The logits of every draw, (S, N, C), each draw called as it is."""
    member = getattr(posterior, "member", None)
    with torch.no_grad():
        return torch.stack(
            [
                (member(s) if member and posterior.num_draws else posterior.draw(sample_generator(seed, s)))(x)
                for s in range(count)
            ]
        )
