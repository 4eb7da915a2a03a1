from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
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
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
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


def trained(code: str, folder: Path, ranks: int, average: str) -> list[Any]:
    """Run code in `ranks` processes, as torchrun does; return what the first one prints after RESULT."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(folder), average]
    processes = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        environment = os.environ | common | own
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks
    (line,) = (line for line in outputs[0].splitlines() if line.startswith("RESULT"))
    result: list[Any] = json.loads(line.removeprefix("RESULT"))
    return result


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture(name="tiny_model")
def tiny_model_fixture() -> Callable[..., nn.Module]:
    return tiny_model


# a tiny model of each family: sizes, configuration, class; the vocabulary is no multiple of anything
VOCABULARY = 37
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.0}
GPT2 |= {"attn_implementation": "eager"}  # of transformers 4.51, the other one does not run in float64
GPT2 |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LANGUAGE_MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt2": (GPT2Config, GPT2LMHeadModel, GPT2),  # tied
    "llama": (LlamaConfig, LlamaForCausalLM, SIZES),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, SIZES | {"head_dim": 8, "final_logit_softcapping": 3.0}),  # tied
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, SIZES | {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, SIZES | {"head_dim": 8}),
}


def language_model(name: str = "gpt2", **changes: Any) -> Any:
    """A tiny causal language model whose weights are large enough for confident tokens."""
    set_seed(0)
    config, kind, sizes = LANGUAGE_MODELS[name]
    model = kind(config(**(sizes | changes)))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(10)
    return model


class Sentences(Dataset[dict[str, Tensor]]):
    """Random walks over words, so that the next word can be learned; the first words of some rows have no label."""

    def __init__(self, rows: int, length: int = 8, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (rows, length), generator=generator)
        self.ids = steps.cumsum(dim=1) % VOCABULARY
        self.labels = self.ids.clone()
        for row in range(0, rows, 3):
            self.labels[row, : 1 + row % 5] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


@pytest.fixture(name="language_model")
def language_model_fixture() -> Callable[..., Any]:
    return language_model


@pytest.fixture
def sentences() -> type[Sentences]:
    return Sentences
