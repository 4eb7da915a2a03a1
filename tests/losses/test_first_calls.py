"""Probabilities in place of logits: every loss function warns, real logits never do, and later calls cost nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from avuc.losses import (
    SBECELoss,
    auavuc_loss,
    avuc_loss,
    confidence_penalty,
    elbo_loss,
    euc_loss,
    first_calls,
    sb_ece_loss,
    segmentation_avu_loss,
    ua_clm_loss,
)

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "avuc_loss": lambda z, y: avuc_loss(z, y, 0.5),
    "avuc_loss, soft": lambda z, y: avuc_loss(z, y, None, variant="soft"),
    "auavuc_loss": lambda z, y: auavuc_loss(z, y),
    "confidence_penalty": lambda z, y: confidence_penalty(z, y),
    "elbo_loss": lambda z, y: elbo_loss(z, y, 0.0, num_train=100),
    "euc_loss": lambda z, y: euc_loss(z, y, balance=0.5),
    "sb_ece_loss": lambda z, y: sb_ece_loss(z, y),
    "ua_clm_loss": lambda z, y: ua_clm_loss(z, y),
}


@pytest.fixture(autouse=True)
def _nothing_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_calls", {})


def batch(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(*shape, generator=generator), torch.randint(0, shape[1], (shape[0], *shape[2:]))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_warns_of_probabilities_at_the_users_line(name: str) -> None:
    logits, labels = batch(32, 5)
    with pytest.warns(UserWarning, match=f"{name.split(',')[0]}: the logits look like probabilities") as caught:
        found = LOSSES[name](logits.softmax(1), labels)
    assert found.isfinite()
    assert [warning.filename for warning in caught] == [__file__]


def test_dense_scores_samples_and_modules() -> None:
    logits, labels = batch(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="look like probabilities"):
        segmentation_avu_loss(logits.softmax(1), labels)
    with pytest.warns(UserWarning, match="look like probabilities"):
        avuc_loss(logits.softmax(1), labels, 0.5)
    with pytest.warns(UserWarning, match="look like probabilities"):
        avuc_loss(logits.softmax(1).movedim(1, -1), labels, 0.5, class_dim=-1)
    with pytest.warns(UserWarning, match="look like probabilities"):
        avuc_loss(torch.stack([logits.softmax(1), logits.sigmoid().softmax(1)]), labels, 0.5)
    with pytest.warns(UserWarning, match="look like probabilities") as caught:
        SBECELoss()(logits.softmax(1), labels)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("change", ["percentages", "float16", "one row", "gradient"])
def test_other_forms_of_probabilities(change: str) -> None:
    logits, labels = batch(32, 5)
    probs = logits.softmax(1)
    forms: dict[str, Tensor] = {
        "percentages": 100 * probs,
        "float16": probs.half(),
        "one row": probs[:1],
        "gradient": probs.requires_grad_(),
    }
    with pytest.warns(UserWarning, match="look like p"):
        avuc_loss(forms[change], labels[: len(forms[change])], 0.5)


@pytest.mark.parametrize("name", LOSSES)
def test_real_logits_are_never_reported(name: str) -> None:
    logits, labels = batch(32, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for z in (logits, logits.abs(), logits.relu(), logits.log_softmax(1), logits.sigmoid(), torch.zeros(32, 5)):
            LOSSES[name](z, labels)


def test_binary_and_multilabel_logits_may_be_one_everywhere() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        avuc_loss(torch.ones(8), torch.ones(8, dtype=torch.long), 0.5)
        avuc_loss(torch.ones(8, 3), torch.ones(8, 3, dtype=torch.long), 0.5, task="multilabel")


def test_few_calls_of_a_line_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, looks = [0], []
    monkeypatch.setattr(first_calls, "looks_like", lambda rows: looks.append(calls[0]))
    logits, labels = batch(8, 3)
    for calls[0] in range(1, 101):
        avuc_loss(logits, labels, 0.5)
    assert looks == [1, 2, 4, 8, 16, 32, 64]
    for calls[0] in range(200, 203):
        avuc_loss(logits, labels, 0.5)  # another line
    assert looks[7:] == [200, 201]


def test_another_device_is_read_at_the_first_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(first_calls, "looks_like", lambda rows: looks.append(1))
    logits, labels = torch.zeros(8, 3, device="meta"), torch.zeros(8, device="meta")

    def step(**options: Any) -> None:
        first_calls.warn_of_probs("loss", logits, labels, **options)

    for _ in range(9):
        step()
    assert len(looks) == 1
    first_calls._calls.clear()
    for _ in range(9):
        step(wait=False)
    assert len(looks) == 1


def test_compiled_and_mapped_calls_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "looks_like", lambda rows: pytest.fail("read values"))
    logits, labels = batch(8, 3)
    probs = logits.softmax(1)
    compiled = torch.compile(lambda z: avuc_loss(z, labels, 0.5), backend="aot_eager", fullgraph=True)
    mapped = torch.func.vmap(lambda z: avuc_loss(z, labels, 0.5))
    assert torch.isclose(compiled(probs), mapped(probs[None])[0])
