"""Micro-batches: two passes give the gradient of the whole batch; running quadrants give what their formula says."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError, NonFiniteError
from avuc.losses import AvUCLoss, Quadrants, avuc_loss, avuc_quadrants

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]
ROWS, FEATURES, CLASSES = 26, 6, 4
# unequal micro-batches, one of them a single row
SPLITS = [slice(0, 9), slice(9, 10), slice(10, 26)]


def net(dropout: float = 0.0) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layers


def data(ignored: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    if ignored:
        labels[torch.rand(ROWS, generator=generator) < 0.3] = -100
        labels[9] = -100  # a micro-batch without any label
    return inputs, labels, torch.rand(ROWS, generator=generator, dtype=torch.float64)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def accumulated(model: nn.Module, loss: AvUCLoss, parts: list[tuple[Tensor, ...]]) -> tuple[float, list[Tensor]]:
    """The sum of the losses of the parts, and the gradients, by two passes."""
    model.zero_grad()
    total = loss.total((model(x), *rest) for x, *rest in parts)
    value = 0.0
    for x, y, *weights in parts:
        part = loss(model(x), y, *weights, total=total)
        part.backward()
        value += part.item()
    return value, gradients(model)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_passes_give_the_gradient_of_the_whole_batch(variant: Any, ignored: bool, weighted: bool) -> None:
    inputs, labels, weights = data(ignored)
    columns = (inputs, labels, weights) if weighted else (inputs, labels)
    model, loss = net(), AvUCLoss(threshold=0.6, variant=variant, beta=2.5)
    value = loss(model(inputs), *columns[1:])
    value.backward()
    expected = gradients(model)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-3
    summed, found = accumulated(model, loss, [tuple(column[part] for column in columns) for part in SPLITS])
    assert summed == pytest.approx(value.item(), abs=1e-12)
    for ours, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-10)


def test_the_mean_of_the_micro_batches_is_another_gradient() -> None:
    """What the two passes are for: without them the gradient is far away."""
    inputs, labels, _ = data()
    model, loss = net(), AvUCLoss(threshold=0.6)
    loss(model(inputs), labels).backward()
    expected = gradients(model)
    model.zero_grad()
    for part in SPLITS:
        (loss(model(inputs[part]), labels[part]) / len(SPLITS)).backward()
    assert any(float((a - b).norm() / b.norm()) > 0.1 for a, b in zip(gradients(model), expected, strict=True))


@pytest.mark.parametrize("uncertainty", ["entropy", "mutual_information"])
def test_posterior_samples_and_dense_logits(uncertainty: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 8, CLASSES, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, CLASSES, (8, 2, 2), generator=generator)
    loss = AvUCLoss(threshold=0.3, uncertainty=uncertainty)
    (expected,) = torch.autograd.grad(loss(logits, labels), logits)
    total = loss.total((logits[:, part], labels[part]) for part in (slice(0, 3), slice(3, 8)))
    parts = [loss(logits[:, part], labels[part], total=total) for part in (slice(0, 3), slice(3, 8))]
    (found,) = torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_both_passes_have_the_same_dropout_masks() -> None:
    """The state of torch's generator is restored: in the second pass it makes the masks of the first."""
    inputs, labels, _ = data()
    model, loss = net(dropout=0.5), AvUCLoss(threshold=0.6)
    torch.manual_seed(5)
    kept = [model(inputs[part]) for part in SPLITS]
    loss(torch.cat(kept), labels).backward()
    expected = gradients(model)
    torch.manual_seed(5)
    _, found = accumulated(model, loss, [(inputs[part], labels[part]) for part in SPLITS])
    for ours, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-10)


@given(st.lists(st.integers(1, 25), max_size=6, unique=True), st.sampled_from(VARIANTS), st.floats(0.01, 1.5))
def test_any_split_gives_the_same_gradient(cuts: list[int], variant: Any, threshold: float) -> None:
    generator = torch.Generator().manual_seed(len(cuts))
    logits = (3 * torch.randn(26, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 5, (26,), generator=generator)
    edges = [0, *sorted(cuts), 26]
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    quadrants = avuc_quadrants(logits.softmax(-1), labels, threshold, variant=variant)
    parts = zip(logits.split(sizes), labels.split(sizes), strict=True)
    value = sum(avuc_loss(z, y, threshold, variant=variant, total=quadrants) for z, y in parts)
    whole = avuc_loss(logits, labels, threshold, variant=variant)
    torch.testing.assert_close(value, whole)
    found, expected = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (value, whole))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_nothing_is_computed_during_the_warm_up() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    loss = AvUCLoss(warmup_epochs=1)
    total = loss.total(never())
    assert [float(value) for value in total] == [0, 0, 0, 0]
    inputs, labels, _ = data()
    assert float(loss(net()(inputs), labels, total=total)) == 0
    assert float(loss.gathered[:, 1].sum()) == ROWS
    loss.epoch_end()
    # the warm-up ended between the passes: no loss, and a finite gradient of 0
    logits = net()(inputs).detach().requires_grad_()
    loss(logits, labels, total=total).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0


def test_one_large_batch_that_is_all_wrong_and_certain() -> None:
    """AC + IU is empty: the gradient still moves predictions out of IC, as in one batch."""
    logits = torch.tensor([[4.0, 0, 0], [0, 5.0, 0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 0])
    loss = AvUCLoss(threshold=1.0)
    (expected,) = torch.autograd.grad(loss(logits, labels), logits)
    total = loss.total([(logits, labels)])
    (found,) = torch.autograd.grad(sum(loss(logits[i : i + 1], labels[i : i + 1], total=total) for i in (0, 1)), logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_nan_is_named_in_the_first_pass() -> None:
    with pytest.raises(NonFiniteError, match="NaN"):
        AvUCLoss(threshold=1.0).total([(torch.full((2, 3), math.nan), torch.tensor([0, 1]))])


def test_no_batches_have_empty_quadrants() -> None:
    total = AvUCLoss(threshold=1.0).total([])
    assert isinstance(total, Quadrants)
    assert float(torch.stack(total).sum()) == 0


# ---- ranks


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    inputs, labels, weights = data(ignored=True)
    # unequal numbers of rows, the same number of micro-batches
    mine = ([slice(0, 9), slice(9, 10)], [slice(10, 12), slice(12, 26)])[rank]
    results = {}
    for variant in VARIANTS:
        loss = AvUCLoss(threshold=0.6, variant=variant, beta=2.5)  # type: ignore[arg-type]
        model = DistributedDataParallel(net())
        parts = [(inputs[part], labels[part], weights[part]) for part in mine]
        total = loss.total((model.module(x), *rest) for x, *rest in parts)
        with model.no_sync():
            loss(model(parts[0][0]), *parts[0][1:], total=total).backward()
        loss(model(parts[1][0]), *parts[1][1:], total=total).backward()
        running = AvUCLoss(threshold=0.6, variant=variant, running=0.5)  # type: ignore[arg-type]
        for x, *rest in parts:
            value = running(model.module(x), *rest)
        results[variant] = gradients(model), value.detach()
    # the noise of a rank is not that of torch's own generator
    passes: list[list[Tensor]] = [[], []]
    posterior = to_bayesian(net(), initial_std=0.5)
    for again in range(2):  # the first time, the rank's generator is made inside
        for outputs in passes:
            outputs.clear()
        loss.total((keep(posterior(x), passes[0]), *rest) for x, *rest in parts)
        for x, *_ in parts:
            keep(posterior(x), passes[1])
        assert all(map(torch.equal, *passes)), again
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def keep(logits: Tensor, outputs: list[Tensor]) -> Tensor:
    outputs.append(logits.detach())
    return logits


def test_two_ranks_with_two_micro_batches_each(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    run_ranks(rank_main, 2, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    inputs, labels, weights = data(ignored=True)
    for variant in VARIANTS:
        model, loss = net(), AvUCLoss(threshold=0.6, variant=variant, beta=2.5)  # type: ignore[arg-type]
        loss(model(inputs), labels, weights).backward()
        for a, b, whole in zip(first[variant][0], second[variant][0], gradients(model), strict=True):
            torch.testing.assert_close(a, whole, rtol=0, atol=1e-10)
            torch.testing.assert_close(b, whole, rtol=0, atol=1e-10)
        running = AvUCLoss(threshold=0.6, variant=variant, running=0.5)  # type: ignore[arg-type]
        for rows in ([*range(9), 10, 11], [9, *range(12, 26)]):
            value = running(model(inputs[rows]), labels[rows], weights[rows])
        torch.testing.assert_close(first[variant][1], value.detach())
        torch.testing.assert_close(second[variant][1], value.detach())


# ---- running quadrants


def batches(number: int = 5, rows: int = 7) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(number, rows, CLASSES, generator=generator, dtype=torch.float64)
    return list(zip(logits, torch.randint(0, CLASSES, (number, rows), generator=generator), strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_running_quadrants_against_a_loop(variant: Any, decay: float) -> None:
    loss = AvUCLoss(beta=2.0, threshold=0.6, variant=variant, running=decay)
    sums, weight = [0.0] * 4, 0.0
    for logits, labels in batches():
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, labels)
        (found,) = torch.autograd.grad(value, leaf)
        own = avuc_quadrants(leaf.softmax(-1), labels, loss.threshold, variant=variant)
        sums = [decay * old + (1 - decay) * new.item() for old, new in zip(sums, own, strict=True)]
        weight = decay * weight + (1 - decay)
        ac, au, ic, iu = (total / weight for total in sums)
        assert value.item() == pytest.approx(2 * math.log(1 + (au + ic) / (ac + iu)), rel=1e-12)
        # the slopes of the averaged quadrants, times the gradient of this batch's quadrants
        bad, good = 1 / (ac + au + ic + iu), 1 / (ac + au + ic + iu) - 1 / (ac + iu)
        (expected,) = torch.autograd.grad(2 * (good * (own.ac + own.iu) + bad * (own.au + own.ic)), leaf)
        torch.testing.assert_close(found, expected)


def test_a_decay_of_0_is_the_loss_of_each_batch() -> None:
    running, plain = AvUCLoss(threshold=0.6, running=0.0), AvUCLoss(threshold=0.6)
    for logits, labels in batches():
        torch.testing.assert_close(running(logits, labels), plain(logits, labels))


def test_evaluation_neither_uses_nor_changes_the_averages() -> None:
    running, plain = AvUCLoss(threshold=0.6, running=0.9), AvUCLoss(threshold=0.6)
    (first, answers), (second, others), *_ = batches()
    running(first, answers)
    before = running.state_dict()["averages"].clone()
    running.eval()
    torch.testing.assert_close(running(second, others), plain(second, others))
    assert torch.equal(running.state_dict()["averages"], before)


def test_the_averages_are_saved_and_older_states_load() -> None:
    one, two = AvUCLoss(threshold=0.6, running=0.9), AvUCLoss(threshold=0.6, running=0.9)
    *past, (logits, labels) = batches()
    for z, y in past:
        one(z, y)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(logits, labels), two(logits, labels))
    fresh = AvUCLoss(threshold=0.6, running=0.9)
    fresh.load_state_dict(AvUCLoss(threshold=0.6).state_dict())  # without averages
    torch.testing.assert_close(fresh(logits, labels), AvUCLoss(threshold=0.6)(logits, labels))
    assert "averages" not in AvUCLoss(threshold=0.6).state_dict()
    moved = one.half().state_dict()["averages"]
    assert moved.dtype == torch.float64


@pytest.mark.parametrize("decay", [1.0, 2, -0.1, math.nan, True, "0.9"])
def test_a_decay_outside_its_range_is_refused(decay: Any) -> None:
    with pytest.raises(InputError, match="running"):
        AvUCLoss(threshold=0.6, running=decay)


def test_running_quadrants_need_a_warm_up_like_any_other_loss() -> None:
    loss = AvUCLoss(warmup_steps=2, running=0.9)
    values = [float(loss(logits, labels)) for logits, labels in batches()]
    assert values[:2] == [0, 0]
    assert all(value > 0 for value in values[2:])
