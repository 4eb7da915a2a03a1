"""A mapping of tensors has the network's keyword arguments: in training, in validation and in predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc.methods import LLSVI, SVI, SWAG, Dropout, Ensemble, Method, Objective, Vanilla
from avuc.prediction import predict
from avuc.train import TrainSettings, fit, fit_calibrated

SETTINGS = TrainSettings(epochs=2, batch_size=16, pad=0, flip=False)
METHODS = [Vanilla(), SVI(), SVI(train_draws=2), LLSVI(), Dropout(), SWAG(start=0.0), Ensemble(members=2)]


class Keywords(nn.Module):
    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 4), nn.Linear(8, 3)

    def forward(self, values: Tensor, kind: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.cat([values, self.embedding(kind)], dim=-1))
        return logits


class Joined(Keywords):
    """The same network, with one tensor as its input."""

    def forward(self, both: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(both[:, :4], both[:, 4].long())


def examples() -> tuple[dict[str, Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    values, kind = torch.randn(40, 4, generator=generator), torch.randint(5, (40,), generator=generator)
    labels = torch.randint(3, (40,), generator=generator)
    joined = {"data": (torch.cat([values, kind[:, None]], dim=1), labels)}
    return {"values": values, "kind": kind, "labels": labels}, joined


@pytest.mark.parametrize("kind", ["avuc", "euc"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:30])
def test_a_mapping_trains_like_a_tensor(method: Method, kind: Any) -> None:
    named, joined = examples()
    arguments: dict[str, Any] = {
        "objective": Objective(kind, warmup_epochs=1),
        "settings": SETTINGS,
        "progress": False,
    }
    ours = fit(method, Keywords, named, validation=named, **arguments)
    theirs = fit(method, Joined, joined["data"], validation=joined["data"], **arguments)
    for model, other in zip(ours.models, theirs.models, strict=True):
        for (name, tensor), expected in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(tensor, expected), name
    probs = predict(ours.posterior, named, samples=3, progress=False).probs
    expected = predict(theirs.posterior, *joined["data"], samples=3, progress=False).probs
    assert torch.allclose(probs, expected, atol=1e-6)


def test_the_default_training_takes_a_mapping() -> None:
    named, _ = examples()
    result = fit_calibrated(Keywords, named, named, epochs=1, progress=False)
    inputs: Any = {name: named[name] for name in ("values", "kind")}
    assert result.predict(inputs, samples=2).probs.shape == (40, 3)
