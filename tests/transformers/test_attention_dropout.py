"""Monte Carlo dropout of networks of Transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from avuc.methods import Dropout, LLDropout
from avuc.methods.dropout import DropoutPosterior

IDS = torch.randint(1, 20, (6, 5), generator=torch.Generator().manual_seed(0))
TOKENS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def bert(attention: float) -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3,
        hidden_dropout_prob=0.2, attention_probs_dropout_prob=attention,
    )  # fmt: skip
    return BertForSequenceClassification(config).eval()


def test_without_dropout_in_attention_nothing_is_said_and_samples_are_those_of_training() -> None:
    model = bert(0.0)
    nn.init.normal_(model.classifier.weight, std=1.0)
    posterior, generator = DropoutPosterior.of_own_layers(copy.deepcopy(model)), torch.Generator().manual_seed(0)
    model.train()
    with torch.no_grad():
        samples = torch.stack([posterior.draw(generator)(**TOKENS).logits for _ in range(600)])
        usual = torch.stack([model(**TOKENS).logits for _ in range(600)])
    assert float(samples.var(0).mean()) == pytest.approx(float(usual.var(0).mean()), rel=0.2)


def test_own_layers_train_where_attention_reads_the_rate_of_its_layer() -> None:
    model = Dropout(rate=0.3, own_layers=True).build(bert(0.3)).train()
    model(**TOKENS).logits.sum().backward()
    layers = [module for name, module in model.named_modules() if name.endswith("self.dropout")]
    assert [layer.p for layer in layers] == [0.0, 0.0]  # attention drops neither in training nor in samples


def test_layers_that_are_not_of_torch_are_named() -> None:
    """GPT-2 has its weights in Conv1D: only its last layer is an nn.Linear."""
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20, num_labels=3)
    model = GPT2ForSequenceClassification(config)
    with pytest.warns(UserWarning, match=r"does not drop the inputs of 'transformer\.h\.0\..* \(Conv1D\).* and 1 more"):
        Dropout(rate=0.3).build(model)
    Dropout(rate=0.3).build(bert(0.0))  # a warning would be an error
    LLDropout(rate=0.3).build(model)
