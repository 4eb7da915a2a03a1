"""Buffers that hold infinity, such as a causal mask: no average of them exists, and saved models may have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from avuc import predict
from avuc.methods import SVI, SWAG, Dropout, Method, Vanilla
from avuc.train import Calibrated, TrainSettings, fit, fit_calibrated

TOKENS = torch.randint(7, (40, 4), generator=torch.Generator().manual_seed(0))
LABELS = TOKENS[:, 0] % 3


class Causal(nn.Module):
    """Attention with a mask as a buffer, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        mixed, _ = self.attention(h, h, h, attn_mask=self.mask, need_weights=False)
        return self.last((h + mixed).mean(1))


@pytest.mark.parametrize(("method", "decay"), [(Vanilla(), 0.9), (SVI(), 0.9), (Dropout(), 0.9), (SWAG(0.5), 0.0)])
def test_a_causal_mask_is_not_averaged(method: Method, decay: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = TrainSettings(epochs=8, batch_size=10, ema_decay=decay, milestones=(), factors=(), checkpoint_seconds=0)
    net = Causal()
    fitted = fit(method, net, (TOKENS, LABELS), settings=settings, validation=(TOKENS, LABELS), progress=False)
    whole = predict(fitted.posterior, TOKENS, samples=3, progress=False)
    assert whole.probs.isfinite().all()
    masks = [buffer for name, buffer in fitted.models[0].named_buffers() if name.endswith("mask")]
    assert all(torch.equal(mask, net.mask) for mask in masks)

    def stop(epoch: int, _: object) -> None:
        if epoch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(method, net, (TOKENS, LABELS), settings=settings, progress=False, directory=tmp_path, on_epoch=stop)
    resumed = fit(method, net, (TOKENS, LABELS), settings=settings, progress=False, directory=tmp_path)
    assert torch.equal(predict(resumed.posterior, TOKENS, samples=3, progress=False).probs, whole.probs)


def test_a_saved_model_may_have_one(tmp_path: Path) -> None:
    data = TOKENS, LABELS
    result = fit_calibrated(lambda _: Causal(), data, data, epochs=1, flip=False, progress=False)
    result.save(tmp_path / "model.safetensors")
    loaded = Calibrated.load(tmp_path / "model.safetensors", Causal())
    assert torch.equal(loaded.predict(TOKENS, samples=3).probs, result.predict(TOKENS, samples=3).probs)


def test_a_layer_with_a_frozen_weight_can_be_loaded(tmp_path: Path) -> None:
    """Only the bias of the first layer is trained and sampled, as in BitFit."""
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    net[0].weight.requires_grad_(False)
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    result = fit_calibrated(net, (x, LABELS), (x, LABELS), epochs=1, flip=False, progress=False)
    result.save(tmp_path / "model.safetensors")
    again = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    loaded = Calibrated.load(tmp_path / "model.safetensors", again)
    assert loaded.posterior.mu.shape == result.posterior.mu.shape == (8 + 27,)
    assert torch.equal(loaded.predict(x, samples=3).probs, result.predict(x, samples=3).probs)
    assert loaded.posterior.kl() == result.posterior.kl()
