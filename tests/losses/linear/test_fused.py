"""The loss as a function of eight sums is the loss by autograd, and it refuses what that refuses."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from avuc.core.errors import InputError, NonFiniteError
from avuc.losses import LinearAvUC, linear_avuc, quadrants
from avuc.losses.linear import fused

stand_in = runpy.run_path(str(Path(__file__).with_name("stand_in.py")))
STAND_IN, accelerated = stand_in["STAND_IN"], stand_in["accelerated"]
KINDS: list[tuple[Any, Any]] = [
    ("avuc", "paper"), ("avuc", "stopgrad"), ("avuc", "monotone"), ("avuc", "soft"), ("ua_clm", "paper"),
    ("ua_clm", "monotone"), ("plain", "paper"),
]  # fmt: skip
WORDS = 23


def inputs(tokens: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = 1.5 * torch.randn(tokens, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(WORDS, 5, generator=generator, dtype=torch.float64)
    bias = torch.randn(WORDS, generator=generator, dtype=torch.float64) / 2
    best = (hidden @ weight.t() + bias).argmax(1)
    other = torch.randint(0, WORDS, (tokens,), generator=generator)
    labels = torch.where(torch.rand(tokens, generator=generator) < 0.5, best, other)
    labels[torch.rand(tokens, generator=generator) < 0.2] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), labels


def compared(of: list[Tensor], labels: Tensor, scale: Any = lambda result: result.loss, **options: Any) -> None:
    """Both ways give the same result and the same gradients, to 1e-9."""
    found = []
    for way in ("fused", "autograd"):
        arguments = {key: value.clone() if key == "running" else value for key, value in options.items()}
        if way == "fused":
            with accelerated(), patch.object(STAND_IN, "token_sums", wraps=STAND_IN.token_sums) as used:
                result = linear_avuc(of[0], of[1], labels, bias=of[2], beta=2.0, nll_weight=0.7, **arguments)
            assert used.called
        else:
            result = linear_avuc(of[0], of[1], labels, bias=of[2], beta=2.0, nll_weight=0.7, **arguments)
        gradients = torch.autograd.grad(scale(result), of) if scale(result).requires_grad else ()
        flat = [*result.quadrants, *(value for value in result if isinstance(value, Tensor)), *gradients]
        found.append([value.detach().double() for value in [*flat, arguments.get("running", torch.zeros(()))]])
        assert [value.requires_grad for value in result[4:]] == [False] * 6
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("threshold", [1.2, torch.tensor(1.2)])
@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_equal_to_autograd(kind: Any, variant: Any, threshold: Any) -> None:
    *of, labels = inputs()
    compared(of, labels, kind=kind, variant=variant, threshold=threshold, chunk_size=4)


def test_the_parts_have_gradients_of_their_own() -> None:
    *of, labels = inputs()
    compared(of, labels, lambda result: result.nll, threshold=1.2)
    compared(of, labels, lambda result: 3 * result.avuc + result.nll, threshold=1.2)
    compared(of, labels, lambda result: result.loss * 2 - result.avuc, threshold=None, variant="soft")


@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_micro_batches(kind: Any, variant: Any) -> None:
    *of, labels = inputs()
    with torch.no_grad():
        options: dict[str, Any] = {"threshold": 1.2, "kind": kind, "variant": variant}
        total = [linear_avuc(of[0][i::2], of[1], labels[i::2], bias=of[2], **options) for i in range(2)]
    half = [of[0].detach()[::2].requires_grad_(), *of[1:]]
    compared(half, labels[::2], total=total, **options)
    if kind == "avuc":
        compared(of, labels, running=torch.full((5,), 0.5).double(), decay=0.8, **options)


@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_extremes(kind: Any, variant: Any) -> None:
    *of, labels = inputs()
    best = (of[0] @ of[1].t() + of[2]).argmax(1)
    options: dict[str, Any] = {"threshold": 1.2, "kind": kind, "variant": variant}
    for these in (torch.full_like(labels, -100), best, (best + 1) % WORDS):
        compared(of, these, **options)
    for tokens in (0, 1):
        compared([of[0].detach()[:tokens].requires_grad_(), *of[1:]], labels[:tokens], **options)


def test_no_gradient_needed() -> None:
    *of, labels = inputs()
    compared([value.detach() for value in of], labels, threshold=1.2)


def run(hidden: Tensor, weight: Tensor, labels: Tensor, **options: Any) -> LinearAvUC:
    with accelerated():
        return linear_avuc(hidden, weight, labels, **{"threshold": 1.2, **options})


def test_refused_at_once() -> None:
    hidden, weight, _, labels = inputs()
    broken = hidden.detach().clone()
    broken[3, 1] = math.nan
    with pytest.raises(NonFiniteError, match="hidden or weight contain NaN or"):
        run(broken, weight, labels)
    with pytest.raises(InputError, match=r"labels must be 0 … 22 \(or ignore_index=-100\); found -100 … 23"):
        run(hidden, weight, labels.clone().index_fill_(0, torch.tensor([2]), WORDS))
    with pytest.raises(InputError, match="threshold is NaN"):
        run(hidden, weight, labels, threshold=math.nan)
    with pytest.raises(InputError, match="needs a threshold"):
        run(hidden, weight, labels, threshold=None)


@pytest.mark.parametrize("wrong", ["nan", "labels"])
def test_refused_in_the_backward_pass(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, which nobody waits for: the check comes after the gradients are computed."""
    monkeypatch.setattr(fused._Check, "start", lambda self, status, later: setattr(self, "status", status.detach()))
    hidden, weight, _, labels = inputs()
    run(hidden, weight, labels).loss.backward()
    if wrong == "nan":
        result = run(hidden * math.nan, weight, labels)
        with pytest.raises(NonFiniteError, match="hidden or weight contain NaN"):
            result.loss.backward()
    else:
        result = run(hidden, weight, labels + WORDS)
        with pytest.raises(InputError, match="labels must be 0"):
            result.loss.backward()


@pytest.mark.parametrize("way", ["one batch", "total", "running"])
@pytest.mark.parametrize("wrong", ["nan", "labels", "threshold"])
def test_the_loss_is_nan_until_it_is_refused(wrong: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is printed before the backward pass, or without one, must not look like a loss."""
    hidden, weight, _, labels = inputs()
    options: dict[str, Any] = {"total": {"total": run(hidden, weight, labels)}}.get(way, {})
    options |= {"running": torch.zeros(5).double()} if way == "running" else {}
    monkeypatch.setattr(fused._Check, "start", lambda self, status, later: setattr(self, "status", status.detach()))
    if wrong == "labels":
        labels = torch.where(torch.arange(len(labels)) == 3, WORDS, labels)
    elif wrong == "threshold":
        for module in (fused, quadrants):  # as if on a GPU
            monkeypatch.setattr(module, "checked_threshold", lambda threshold, variant: threshold)
        options["threshold"] = torch.tensor(math.nan)
    result = run(hidden * math.nan if wrong == "nan" else hidden, weight, labels, **options)
    assert result.loss.isnan()
    assert result.avuc.isnan()
    assert result.nll.isnan() == (wrong != "threshold")
    with pytest.raises(InputError):
        result.loss.backward()


@pytest.mark.parametrize("wrong", ["labels", "threshold"])
def test_compiled_code_cannot_refuse_but_has_the_loss_nan(wrong: str) -> None:
    hidden, weight, _, labels = inputs()
    labels[3] = WORDS if wrong == "labels" else 0
    threshold = torch.tensor(math.nan if wrong == "threshold" else 1.2)
    loss = torch.compile(lambda *of: linear_avuc(*of, threshold=threshold).loss, backend="eager", fullgraph=True)
    assert loss(hidden, weight, labels).isnan()


@pytest.mark.parametrize("way", ["fused", "autograd"])
def test_a_refused_batch_leaves_running_quadrants_as_they_are(way: str) -> None:
    hidden, weight, _, labels = inputs()
    running = torch.zeros(5).double()
    of = {"fused": run, "autograd": linear_avuc}[way]
    of(hidden, weight, labels, threshold=1.2, running=running)
    before = running.clone()
    assert before.any()
    with pytest.raises(NonFiniteError):
        of(hidden * math.nan, weight, labels, threshold=1.2, running=running)
    if way == "fused":
        with pytest.raises(InputError):
            of(hidden, weight, labels + WORDS, threshold=1.2, running=running)
    assert torch.equal(running, before)


@pytest.mark.parametrize("tokens", [0, 3])
def test_labels_of_another_process_are_refused_here_too(tokens: int) -> None:
    check = fused._Check(torch.arange(tokens), fused.Rule("avuc", "paper", 1.0, WORDS, -100))
    with pytest.raises(InputError, match="another process"):
        check.start(torch.tensor([math.nan, 1.0, 1.0]), later=False)


def test_second_derivatives_are_refused() -> None:
    hidden, weight, _, labels = inputs()
    with pytest.raises(InputError, match="second derivative"):
        torch.autograd.grad(run(hidden, weight, labels).loss, hidden, create_graph=True)


def test_a_learned_threshold_takes_the_other_way() -> None:
    hidden, weight, _, labels = inputs()
    threshold = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    loss = run(hidden, weight, labels, threshold=threshold, variant="soft").loss
    assert float(torch.autograd.grad(loss, threshold)[0]) != 0


class Launches(TorchDispatchMode):
    """Counts operations that start a kernel on a GPU."""

    FREE = frozenset({"view", "t", "unsqueeze", "select", "slice", "expand", "unbind", "detach", "alias"})

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        self.names += [] if name in self.FREE else [name]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_few_operations_besides_the_stages(kind: Any, variant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage is one or two kernels, which tests/gpu counts; autograd's own operations come on top."""
    hidden, weight, _, labels = inputs()
    results: dict[str, Any] = {}

    def replay(name: str, stage: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name not in results:
                results[name] = stage(*arguments)
            return results[name]

        return call

    for name in ("forward_tiles", "backward_tiles", "token_sums", "token_coefficients", "loss_of_sums"):
        monkeypatch.setattr(STAND_IN, name, replay(name, getattr(STAND_IN, name)))
    options: dict[str, Any] = {"kind": kind, "variant": variant}
    run(hidden, weight, labels, **options).loss.backward()
    hidden.grad = weight.grad = None
    for name in ("forward_tiles", "token_sums", "loss_of_sums", "token_coefficients", "backward_tiles"):
        results[name] = _copied(results[name])
    with Launches() as watch:
        run(hidden, weight, labels, **options).loss.backward()
    ours = [name for name in watch.names if name not in ("_local_scalar_dense", "new_empty_strided")]
    assert len(ours) <= 3, ours  # the last is a copy of gradients that this test keeps


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
