from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    TrainingArguments,
    set_seed,
)

CLASSES, LENGTH, WORDS = 3, 6, 20


class Rows(Dataset[dict[str, Tensor]]):
    """Random sentences whose class is a noisy function of their words; the end of each sentence is padding."""

    def __init__(self, rows: int, *, tokens: bool, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, WORDS, (rows, LENGTH), generator=generator)
        self.mask = torch.ones_like(self.ids)
        self.mask[::2, 4:] = 0
        noise = torch.randint(0, 5, self.ids.shape, generator=generator) == 0
        self.labels = (self.ids + noise) % CLASSES
        self.labels[self.mask == 0] = -100
        if not tokens:
            self.labels = self.labels[:, 0]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def tiny_model(tokens: bool = False, dropout: float = 0.0) -> nn.Module:
    set_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return (BertForTokenClassification if tokens else BertForSequenceClassification)(config)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., TrainingArguments]:
    def make(**changes: Any) -> TrainingArguments:
        defaults: dict[str, Any] = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "num_train_epochs": 2,
            "learning_rate": 5e-3,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "logging_steps": 1,
            "dataloader_pin_memory": False,
        }
        return TrainingArguments(**(defaults | changes))

    return make


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture(name="tiny_model")
def tiny_model_fixture() -> Callable[..., nn.Module]:
    return tiny_model
