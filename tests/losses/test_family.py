"""What every loss of the family guarantees: ignored labels, weights, ranks, precision, derivatives, modules."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from avuc.core.errors import InputError, NonFiniteError
from avuc.losses import (
    EUCLoss,
    SBECELoss,
    SegmentationAvULoss,
    UACLMLoss,
    euc_loss,
    sb_ece_loss,
    segmentation_avu_loss,
    ua_clm_loss,
)

Loss = Callable[..., Tensor]
# rows (N, C); each takes ignore_index, weights and group
ROWS: dict[str, Loss] = {
    **{f"ua_clm {v}": lambda z, y, v=v, **k: ua_clm_loss(z, y, variant=v, **k) for v in ("paper", "monotone")},
    **{
        f"sb_ece {f} {v}": lambda z, y, f=f, v=v, **k: sb_ece_loss(z, y, form=f, variant=v, **k)
        for f in ("binned", "label_binned")
        for v in ("paper", "stopgrad")
    },
    **{
        f"euc {v} {e}": lambda z, y, v=v, e=e, **k: euc_loss(z, y, balance=0.3, variant=v, evidence=e, **k)
        for v in ("paper", "stopgrad", "monotone")
        for e in ("exp", "softplus")
    },
    "euc relu": lambda z, y, **k: euc_loss(z, y, balance=0.3, evidence="relu", **k),
}
# images (N, C, H, W)
IMAGES: dict[str, Loss] = {
    f"segmentation {v}": lambda z, y, v=v, **k: segmentation_avu_loss(z, y, variant=v, **k)
    for v in ("paper", "stopgrad", "monotone")
}
LOSSES = {**ROWS, **IMAGES}


def rows(count: int = 40, classes: int = 4, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return logits, torch.where(torch.rand(count, generator=generator) < 0.5, logits.argmax(-1), labels)


def images(count: int = 3, seed: int = 0, side: int = 9) -> tuple[Tensor, Tensor]:
    """Logits of blurred shapes, so that errors and objects have some extent."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)
    logits = 6 * torch.nn.functional.avg_pool2d(noise, 3, 1, 1)
    labels = torch.nn.functional.avg_pool2d(noise + torch.randn(noise.shape, generator=generator), 3, 1, 1).argmax(1)
    return logits, labels


def batch(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    return images(seed=seed) if name in IMAGES else rows(seed=seed)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    logits, labels = rows(8) if name in ROWS else images(2, side=5)
    logits.requires_grad_()
    if "stopgrad" in name:  # no derivative of the value: only that it is finite and not zero
        (gradient,) = torch.autograd.grad(LOSSES[name](logits, labels), logits)
        assert bool(gradient.isfinite().all())
        assert bool((gradient != 0).any())
        return
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels), logits)


@pytest.mark.parametrize("name", [name for name in LOSSES if "stopgrad" not in name and "segm" not in name])
def test_second_derivatives(name: str) -> None:
    logits, labels = rows(5)
    assert torch.autograd.gradgradcheck(lambda z: LOSSES[name](z, labels), logits.requires_grad_())


@pytest.mark.parametrize("name", ROWS)
def test_ignored_rows_do_not_count(name: str) -> None:
    logits, labels = rows()
    labels[::3] = -100
    kept = labels != -100
    torch.testing.assert_close(ROWS[name](logits, labels), ROWS[name](logits[kept], labels[kept]))
    other = torch.where(kept, labels, 77)
    torch.testing.assert_close(ROWS[name](logits, other, ignore_index=77), ROWS[name](logits, labels))


@pytest.mark.parametrize("name", ROWS)
def test_a_weight_of_two_is_two_rows(name: str) -> None:
    logits, labels = rows()
    weights = torch.arange(len(labels)) % 3
    several = torch.arange(len(labels)).repeat_interleave(weights)
    weighted = ROWS[name](logits, labels, weights=weights.double())
    torch.testing.assert_close(weighted, ROWS[name](logits[several], labels[several]))


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_counts(name: str) -> None:
    logits, labels = batch(name)
    for z, y in ((logits, torch.full_like(labels, -100)), (logits[:0], labels[:0])):
        leaf = z.clone().requires_grad_()
        loss = LOSSES[name](leaf, y)
        loss.backward()
        assert loss.item() == 0
        assert leaf.grad is not None
        assert not leaf.grad.any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3e3])
def test_extreme_logits_are_finite(name: str, dtype: torch.dtype, scale: float) -> None:
    """All right, all wrong and mixed; uniform rows, and p exactly 0 and 1."""
    logits, labels = batch(name)
    logits = scale * logits.clamp(-2, 2)
    predicted = logits.argmax(1)
    for target in (labels, predicted, (predicted + 1) % logits.shape[1], torch.zeros_like(labels)):
        leaf = logits.to(dtype).requires_grad_()
        loss = LOSSES[name](leaf, target)
        loss.backward()
        assert loss.dtype == torch.float32
        assert bool(loss.isfinite())
        assert loss.item() >= 0
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize("name", ROWS)
def test_one_row_and_a_thousand_classes(name: str) -> None:
    for logits, labels in (rows(1), rows(16, 1000), rows(3, 1)):
        leaf = logits.clone().requires_grad_()
        loss = ROWS[name](leaf, labels)
        loss.backward()
        assert bool(loss.isfinite())


@pytest.mark.parametrize("name", LOSSES)
def test_nan_is_an_error(name: str) -> None:
    logits, labels = batch(name)
    labels = torch.ones_like(labels)  # an object everywhere, so that every pixel counts
    logits[0, 0, ...] = math.nan
    with pytest.raises(NonFiniteError):
        LOSSES[name](logits, labels)
    with pytest.raises(InputError):
        LOSSES[name](logits, labels[:-1])
    with pytest.raises(InputError):
        LOSSES[name](logits, labels + 50)


@pytest.mark.parametrize("name", LOSSES)
def test_dense_input_and_samples(name: str) -> None:
    logits, labels = batch(name)
    loss = LOSSES[name](logits, labels)
    torch.testing.assert_close(LOSSES[name](torch.stack((logits, logits)), labels), loss)
    torch.testing.assert_close(LOSSES[name](logits.unsqueeze(0), labels), loss)
    if name in ROWS:
        dense = logits.reshape(4, 10, -1)
        torch.testing.assert_close(LOSSES[name](dense.movedim(-1, 1), labels.reshape(4, 10)), loss)
        torch.testing.assert_close(LOSSES[name](dense, labels.reshape(4, 10), class_dim=-1), loss)
    else:
        torch.testing.assert_close(LOSSES[name](logits.movedim(1, -1), labels, class_dim=-1), loss)


@pytest.mark.parametrize("name", ["ua_clm paper", "sb_ece binned paper", "euc paper exp", "segmentation paper"])
def test_functorch(name: str) -> None:
    logits, labels = batch(name)
    leaf = logits.clone().requires_grad_()
    LOSSES[name](leaf, labels).backward()
    torch.testing.assert_close(torch.func.grad(lambda z: LOSSES[name](z, labels))(logits), leaf.grad)


MODULES: dict[str, tuple[nn.Module, Loss]] = {
    "ua_clm": (UACLMLoss(2.0, "monotone"), lambda z, y, w: ua_clm_loss(z, y, variant="monotone", weights=w)),
    "sb_ece": (
        SBECELoss(2.0, "stopgrad", form="label_binned", bins=5, temperature=0.1),
        lambda z, y, w: sb_ece_loss(z, y, variant="stopgrad", form="label_binned", bins=5, temperature=0.1, weights=w),
    ),
    "euc": (
        EUCLoss(2.0, 10, "monotone", evidence="softplus"),
        lambda z, y, w: euc_loss(z, y, balance=0.01, variant="monotone", evidence="softplus", weights=w),
    ),
    "segmentation": (
        SegmentationAvULoss(2.0, "monotone", thresholds=(0.3, 0.1), background=None, opening=1),
        lambda z, y, w: segmentation_avu_loss(
            z, y, variant="monotone", thresholds=(0.3, 0.1), background=None, opening=1, weights=w
        ),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_module_is_the_function(name: str) -> None:
    module, function = MODULES[name]
    logits, labels = images() if name == "segmentation" else rows()
    weights = torch.rand(labels.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for given in (None, weights):
        torch.testing.assert_close(module(logits, labels, given), 2 * function(logits, labels, given))
    with pytest.raises(InputError, match="beta"):
        type(module)(beta=math.nan)
    with pytest.raises(InputError, match="variant must be one of"):
        type(module)(variant="nonsense")


# ---- memory


def saved_elements(loss: Callable[[Tensor], Tensor], logits: Tensor) -> int:
    """Return how many numbers the forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(logits.clone().requires_grad_())
    assert value.requires_grad
    return sum(kept.values())


def test_memory_does_not_grow_with_bins_or_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avuc.losses.sb_ece.BLOCK_ROWS", 500)
    logits, labels = rows(20_000, 10)
    few, many = (saved_elements(lambda z, b=b: sb_ece_loss(z, labels, bins=b), logits) for b in (5, 100))
    assert many < 1.1 * few
    assert many < 4 * logits.numel()
    logits, labels = images(2, side=64)
    levels = [0.004 * n for n in range(1, 101)]
    few, many = (
        saved_elements(lambda z, t=t: segmentation_avu_loss(z, labels, thresholds=t), logits)
        for t in (levels[:5], levels)
    )
    assert many < 1.1 * few
    assert many < 40 * labels.numel()


# ---- data-parallel ranks

CUTS = (2, 0)  # images of the first of two ranks


def net() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(3, 3, 1).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer


def measure(model: nn.Module, inputs: Tensor, labels: Tensor, **options: object) -> dict[str, list[Tensor]]:
    results = {}
    for name, loss in LOSSES.items():
        model.zero_grad()
        value = loss(model(inputs), labels, **options)
        value.backward()
        results[name] = [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return results


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = DistributedDataParallel(net())
    for cut in CUTS:
        inputs, labels = (x[:cut] if rank == 0 else x[cut:] for x in images(5))
        results = measure(model, inputs, labels)
        alone = {name: loss(net()(inputs), labels, group=False).detach() for name, loss in LOSSES.items()}
        torch.save((results, alone), f"{out}/{cut}-{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_ranks_equal_one_process(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    """Also with uneven shares and a rank that has no image at all."""
    run_ranks(rank_main, 2, str(tmp_path))
    inputs, labels = images(5)
    expected = measure(net(), inputs, labels)
    for cut in CUTS:
        for rank in range(2):
            results, alone = torch.load(tmp_path / f"{cut}-{rank}.pt", weights_only=True)
            part = slice(0, cut) if rank == 0 else slice(cut, None)
            for name, values in expected.items():
                torch.testing.assert_close(results[name], values, rtol=1e-6, atol=1e-9, msg=f"{name}, rank {rank}")
                own = LOSSES[name](net()(inputs[part]), labels[part])
                torch.testing.assert_close(alone[name], own.detach(), msg=f"{name}, rank {rank}")
