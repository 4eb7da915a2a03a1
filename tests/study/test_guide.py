"""The code of docs/guide/study.md that needs a network and data of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import avuc
from avuc.train import TrainSettings


def make_net(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, num_classes))


def rain(images: Tensor, severity: int) -> Tensor:
    return images.clamp(min=40 * severity)


def loader(count: int, seed: int) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 80, (count, 8, 8, 3), generator=generator) + 60 * labels.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(images.to(torch.uint8), labels), batch_size=16)


def test_a_study_from_python(
    guide_code: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = guide_code("guide/study", "needs your network and data")
    assert "samples=32," in code
    settings = TrainSettings(epochs=7, batch_size=16, milestones=(), factors=(), pad=1)
    namespace = {"avuc": avuc, "make_net": make_net, "rain": rain, "settings": settings}
    namespace |= {"train_loader": loader(60, 0), "test_loader": loader(30, 1)}
    small = 'samples=2, train=settings, device="cpu", severities=[1], progress=False,'
    exec(compile(code.replace("samples=32,", small), "study.md", "exec"), namespace)
    store = namespace["store"]
    assert [method.name for method in store.stored_recipe().methods] == ["Vanilla", "TS", "SVI-AvUC"]
    assert {row[2] for row in store.rows()} >= {"clean", "fog"}
    store.close()
