"""Ranks that share a batch or a vocabulary, and micro-batches, compute what one process computes on everything."""

from __future__ import annotations

import contextlib
import os
import runpy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import LinearAvUC, linear_avuc

# both ways to the loss: by autograd, and with an accelerator
WAYS = {
    "": contextlib.nullcontext,
    " accelerated": runpy.run_path(str(Path(__file__).with_name("stand_in.py")))["accelerated"],
}
TOKENS, WIDTH, WORDS = 30, 5, 23
KINDS: list[tuple[Any, Any]] = [
    ("avuc", "paper"), ("avuc", "stopgrad"), ("avuc", "monotone"), ("avuc", "soft"), ("ua_clm", "paper"),
    ("ua_clm", "monotone"), ("plain", "paper"),
]  # fmt: skip
# the words of each rank, of unequal number; the best word of some tokens appears in both parts
VOCABULARY = [slice(0, 9), slice(9, 23)]
# the tokens of each rank, of unequal number
BATCH = [slice(0, 11), slice(11, 30)]
MICRO_BATCHES = [slice(0, 4), slice(4, 5), slice(5, 19)]


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = 1.5 * torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64)
    bias = torch.randn(WORDS, generator=generator, dtype=torch.float64) / 2
    weight[20], bias[20] = weight[3], bias[3]  # a tie across the two parts of the vocabulary
    best = (hidden @ weight.t() + bias).argmax(1)
    other = torch.randint(0, WORDS, (TOKENS,), generator=generator)
    labels = torch.where(torch.rand(TOKENS, generator=generator) < 0.5, best, other)
    labels[torch.rand(TOKENS, generator=generator) < 0.2] = -100
    labels[4] = -100  # a micro-batch without any label
    return hidden, weight, bias, labels


def run(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, kind: Any, variant: Any, **more: Any
) -> LinearAvUC:
    return linear_avuc(
        hidden, weight, labels, threshold=1.2, bias=bias, kind=kind, variant=variant, beta=2.0, chunk_size=4, **more
    )


def leaves(*values: Tensor) -> list[Tensor]:
    return [value.clone().requires_grad_() for value in values]


def measured(kind: Any, variant: Any) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    *values, labels = inputs()
    of = leaves(*values)
    result = run(*of, labels, kind, variant, group=False)  # type: ignore[arg-type]
    return result.loss.detach(), list(torch.autograd.grad(result.loss, of)), _counts(result)


def _counts(result: LinearAvUC) -> list[Tensor]:
    return [*result.quadrants, result.num_correct, result.num_valid]


def both_splits(rank: int, values: list[Tensor], labels: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, variant in KINDS:
        # the vocabulary is split
        words = VOCABULARY[rank]
        of = leaves(values[0], values[1][words], values[2][words])
        result = run(*of, labels, kind, variant, group=False, vocab_group=dist.group.WORLD)  # type: ignore[arg-type]
        found[f"vocabulary {kind} {variant}"] = (
            result.loss.detach(), list(torch.autograd.grad(result.loss, of)), _counts(result)
        )  # fmt: skip
        # the batch is split: the mean of the ranks' gradients, as DistributedDataParallel takes it
        own = BATCH[rank]
        of = leaves(values[0][own], *values[1:])
        result = run(*of, labels[own], kind, variant)  # type: ignore[arg-type]
        found[f"batch {kind} {variant}"] = (
            result.loss.detach(), _mean(list(torch.autograd.grad(result.loss, of))), _counts(result)
        )  # fmt: skip
        # the batch is split, and each rank's part comes in micro-batches
        parts = [slice(own.start + part.start, min(own.start + part.stop, own.stop)) for part in MICRO_BATCHES]
        of = leaves(*values)
        with torch.no_grad():
            total = [run(of[0][p], *of[1:], labels[p], kind, variant) for p in parts]
        losses = [run(of[0][p], *of[1:], labels[p], kind, variant, total=total).loss for p in parts]
        value = torch.stack(losses).sum()
        gradients = list(torch.autograd.grad(value, of))
        value = value.detach().clone()
        dist.all_reduce(value)
        for gradient in gradients:
            dist.all_reduce(gradient)
        found[f"micro-batches {kind} {variant}"] = (value, [gradient / 2 for gradient in gradients], None)
    return found


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    *values, labels = inputs()
    world = dist.group.WORLD
    found: dict[str, Any] = {}
    for way, context in WAYS.items():
        with context():
            found |= {name + way: value for name, value in both_splits(rank, values, labels).items()}
    try:
        run(*values, labels, "avuc", "paper", vocab_group=world)
        found["message"] = "no error"
    except InputError as error:
        found["message"] = str(error)
    torch.save(found, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def _mean(gradients: list[Tensor]) -> list[Tensor]:
    for gradient in gradients[1:]:  # the hidden states are each rank's own
        dist.all_reduce(gradient)
        gradient /= 2
    gradients[0] /= 2
    return gradients


def close(found: Any, expected: Any, name: str) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9, msg=lambda text: f"{name}: {text}")


def test_two_ranks_equal_one_process(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    run_ranks(rank_main, 2, str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for (kind, variant), way in product(KINDS, WAYS):
        loss, (in_hidden, in_weight, in_bias), counts = measured(kind, variant)
        assert float(in_weight.abs().max()) > 1e-3
        for rank, found in enumerate(ranks):
            name = f"vocabulary {kind} {variant}{way}"
            words, own = VOCABULARY[rank], BATCH[rank]
            close(found[name], (loss, [in_hidden, in_weight[words], in_bias[words]], counts), f"{name}, rank {rank}")
            name = f"batch {kind} {variant}{way}"
            close(found[name], (loss, [in_hidden[own], in_weight, in_bias], counts), f"{name}, rank {rank}")
            name = f"micro-batches {kind} {variant}{way}"
            close(found[name][:2], (loss, [in_hidden, in_weight, in_bias]), f"{name}, rank {rank}")
    for found in ranks:
        assert "with vocab_group give group as well" in found["message"]


@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_micro_batches_sum_to_the_batch(kind: Any, variant: Any) -> None:
    *values, labels = inputs()
    loss, gradients, counts = measured(kind, variant)
    parts = [slice(0, 4), slice(4, 5), slice(5, 30)]
    of = leaves(*values)
    with torch.no_grad():
        total = [run(of[0][part], *of[1:], labels[part], kind, variant) for part in parts]
    summed = torch.zeros((), dtype=torch.float64)
    for part in parts:
        result = run(of[0][part], *of[1:], labels[part], kind, variant, total=total)
        result.loss.backward()
        summed += result.loss.detach()
    close(summed, loss, "loss")
    close([value.grad for value in of], gradients, "gradients")
    close([sum(column) for column in zip(*map(_counts, total), strict=True)], counts, "counts")


def test_one_result_is_a_total() -> None:
    *values, labels = inputs()
    whole = run(*values, labels, "avuc", "monotone")
    of = leaves(*values)
    found = run(*of, labels, "avuc", "monotone", total=whole).loss
    loss, gradients, _ = measured("avuc", "monotone")
    close(found.detach(), loss, "loss")
    close(list(torch.autograd.grad(found, of)), gradients, "gradients")
    with pytest.raises(InputError, match="give total or running, not both"):
        run(*values, labels, "avuc", "paper", total=whole, running=torch.zeros(5))


def test_running_quadrants() -> None:
    """The value is the loss of quadrants averaged over past batches: biased, so not that of the batch alone."""
    *values, labels = inputs()
    of = leaves(*values)
    averages, weights, mean = torch.zeros(5).double(), 0.0, torch.zeros(4).double()
    for part in MICRO_BATCHES:
        result = run(of[0][part], *of[1:], labels[part], "avuc", "monotone", running=averages, decay=0.8)
        mean = 0.8 * mean + 0.2 * torch.stack(tuple(result.quadrants))
        weights = 0.8 * weights + 0.2
        ac, au, ic, iu = mean / weights
        close(result.avuc.detach(), torch.log1p((au + ic) / (ac + iu)), "loss")
        assert bool(torch.autograd.grad(result.loss, of[1])[0].any()) == bool(result.num_valid)
    close(averages, torch.cat((mean, torch.tensor([weights], dtype=torch.float64))), "averages")
    own = run(of[0][part], *of[1:], labels[part], "avuc", "monotone").avuc
    assert abs(own.item() - result.avuc.item()) > 1e-3
    with torch.no_grad():  # evaluation has its own loss and leaves the averages alone
        alone = run(of[0][part], *of[1:], labels[part], "avuc", "monotone", running=averages, decay=0.8).avuc
    close(alone, own.detach(), "without gradients")
    close(averages, torch.cat((mean, torch.tensor([weights], dtype=torch.float64))), "averages")
