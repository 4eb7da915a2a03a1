"""AvUCLoss as a module: what it remembers, what it refuses, and what must not disturb it."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, avuc_loss
from avuc.losses.module import MANY_BATCHES


def batch(seed: int = 0, n: int = 40, classes: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator)
    return logits.to(dtype), torch.randint(0, classes, (n,), generator=generator)


def midpoint(batches: list[tuple[Tensor, Tensor]]) -> float:
    """The threshold by a loop in float64."""
    us: dict[bool, list[float]] = {True: [], False: []}
    for logits, labels in batches:
        for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
            e = [math.exp(z - max(row)) for z in row]
            p = [x / sum(e) for x in e]
            us[row.index(max(row)) == label].append(-sum(x * math.log(x) for x in p if x > 0))
    return (sum(us[True]) / len(us[True]) + sum(us[False]) / len(us[False])) / 2


def warmed(**options: Any) -> AvUCLoss:
    module = AvUCLoss(warmup_epochs=1, **options)
    module(*batch())
    module.epoch_end()
    return module


CASTS = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "to float16": lambda m: m.to(torch.float16),
    "double": lambda m: m.double(),
    "to device and dtype": lambda m: m.to("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_casts_of_the_module_leave_the_statistics_alone(cast: str, when: str) -> None:
    module = nn.ModuleDict({"net": nn.Linear(2, 2), "loss": AvUCLoss(beta=1.0, warmup_epochs=2)})
    avuc = module["loss"]
    assert isinstance(avuc, AvUCLoss)
    seen = [batch(0), batch(1)]
    for number, one in enumerate(seen):
        if (when, number) in (("before", 0), ("between", 1)):
            CASTS[cast](module)
        avuc(*one)
        avuc.epoch_end()
    if when == "after":
        CASTS[cast](module)
    assert avuc.threshold.dtype == torch.float32
    assert avuc.gathered.dtype == torch.float64
    assert avuc.threshold.item() == pytest.approx(midpoint(seen), rel=1e-6)
    assert avuc(*batch(2)) == avuc_loss(*batch(2), avuc.threshold)


def test_the_device_still_moves() -> None:
    module = AvUCLoss(warmup_epochs=1).to("meta")
    assert {tensor.device.type for tensor in module.statistics()} == {"meta"}


def test_a_model_made_on_the_meta_device_keeps_its_threshold() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"net": nn.Linear(2, 2), "loss": AvUCLoss(beta=1.0, threshold=0.5)})
    model.to_empty(device="cpu")
    assert model["loss"](*batch()) == avuc_loss(*batch(), 0.5)


@pytest.mark.gpu
def test_the_statistics_follow_to_the_gpu() -> None:
    module = nn.Sequential(AvUCLoss(warmup_epochs=1)).half().cuda()[0]
    assert isinstance(module, AvUCLoss)
    assert {tensor.device.type for tensor in module.statistics()} == {"cuda"}
    logits, labels = batch()
    module(logits.cuda(), labels.cuda())
    module.epoch_end()
    assert module.threshold.item() == pytest.approx(midpoint([batch()]), rel=1e-6)
    assert module(logits.cuda(), labels.cuda()).item() == pytest.approx(
        3 * avuc_loss(logits, labels, float(module.threshold)).item(), rel=1e-5
    )


def test_the_default_dtype_does_not_reach_the_statistics() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        module = warmed()
    finally:
        torch.set_default_dtype(torch.float32)
    assert module.threshold.dtype == torch.float32


def test_optimisers_and_averages_do_not_see_the_statistics() -> None:
    """DistributedDataParallel broadcasts, mixed precision casts and SWA averages every buffer."""
    module = AvUCLoss()
    assert not list(module.buffers())
    assert not list(module.parameters())


# ---- steps instead of epochs


def test_warm_up_in_steps() -> None:
    module = AvUCLoss(beta=1.0, warmup_steps=3)
    seen = [batch(seed) for seed in range(3)]
    for one in seen:
        assert module.warming_up
        assert module(*one).item() == 0
        module.epoch_end()  # epochs do not end it
    assert not module.warming_up
    assert module.threshold.item() == pytest.approx(midpoint(seen), rel=1e-6)
    before = module.threshold.clone()
    assert module(*batch(9)) == avuc_loss(*batch(9), module.threshold)
    assert module(*batch(9)) > 0
    assert module.threshold == before


def test_only_training_calls_are_steps() -> None:
    module = AvUCLoss(warmup_steps=2)
    module.eval()
    for seed in range(5):
        assert module(*batch(seed)).item() == 0
    module.train()
    module(*batch(7))
    assert module.warming_up
    module(*batch(8))
    assert not module.warming_up
    assert module.threshold.item() == pytest.approx(midpoint([batch(7), batch(8)]), rel=1e-6)


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_steps_resume_exactly(stop: int) -> None:
    whole, half, resumed = (AvUCLoss(warmup_steps=3) for _ in range(3))
    for seed in range(stop):
        whole(*batch(seed))
        half(*batch(seed))
    stored = io.BytesIO()
    torch.save(half.state_dict(), stored)
    stored.seek(0)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    assert resumed.warming_up == (stop < 3)
    for seed in range(stop, 4):
        assert resumed(*batch(seed)) == whole(*batch(seed))
    assert torch.equal(resumed.threshold, whole.threshold)
    assert torch.equal(resumed.gathered, whole.gathered)


def test_nothing_seen_in_all_steps_is_an_error() -> None:
    module = AvUCLoss(warmup_steps=2)
    logits, labels = batch()
    module(logits, torch.full_like(labels, -100))
    with pytest.raises(InputError, match="no prediction was seen"):
        module(logits[:0], labels[:0])


# ---- a warm-up that nobody ends


def test_one_warning_when_nobody_ends_the_warm_up() -> None:
    module = AvUCLoss(warmup_epochs=2)
    logits, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    module(logits + 1, labels)
    module.steps.fill_(MANY_BATCHES - 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(5):
            module(logits + 1, labels)
    assert [str(one.message) for one in said] == [
        "AvUCLoss: 25,000 batches in one warm-up epoch, and the loss is 0 until the warm-up ends; call epoch_end() "
        "after each epoch, or use warmup_steps"
    ]


def test_epochs_that_end_do_not_warn() -> None:
    module = AvUCLoss(warmup_epochs=3)
    logits, labels = torch.tensor([[2.0, 1.0]]), torch.tensor([0])
    for _ in range(2):
        module.steps.fill_(MANY_BATCHES - 2)
        module(logits, labels)
        module.epoch_end()
        assert module.steps == 0


# ---- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": math.nan}, "threshold must not be negative, NaN or infinite; found nan"),
        ({"threshold": math.inf}, "threshold must not be"),
        ({"threshold": -0.1}, "threshold must not be negative"),
        ({"threshold": True}, "threshold must be a number; found True"),
        ({"threshold": "0.5"}, "threshold must be a number; found '0.5'"),
        ({"beta": math.nan}, "beta must not be"),
        ({"beta": math.inf}, "beta must not be"),
        ({"beta": -1.0}, "beta must not be negative"),
        ({"beta": False}, "beta must be a number"),
        ({"beta": None}, "beta must be a number"),
        ({"warmup_epochs": 1.5}, "warmup_epochs must be a whole number; found 1.5"),
        ({"warmup_epochs": 2.0}, "warmup_epochs must be a whole number"),
        ({"warmup_epochs": -1}, "warmup_epochs must not be negative"),
        ({"warmup_epochs": True}, "warmup_epochs must be a whole number"),
        ({"warmup_epochs": math.nan}, "warmup_epochs must be a whole number"),
        ({"warmup_epochs": "3"}, "warmup_epochs must be a whole number"),
        ({"warmup_epochs": None}, "warmup_epochs must be a whole number"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1"),
        ({"warmup_steps": -3}, "warmup_steps must be at least 1"),
        ({"warmup_steps": 10.0}, "warmup_steps must be a whole number"),
        ({"warmup_steps": True}, "warmup_steps must be a whole number"),
        ({"warmup_steps": 10, "warmup_epochs": 2}, "warmup_steps or warmup_epochs, not both"),
        ({"warmup_steps": 10, "threshold": 0.5}, "warmup_steps or threshold, not both"),
    ],
)
def test_wrong_arguments_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        AvUCLoss(**options)
    assert str(caught.value).startswith("AvUCLoss: ")
    assert "\n" not in str(caught.value)


def test_numbers_of_other_kinds_are_accepted() -> None:
    assert AvUCLoss(beta=np.float32(2), warmup_epochs=np.int64(1)).beta == 2.0
    assert AvUCLoss(threshold=torch.tensor(0.5)).threshold == 0.5
    assert AvUCLoss(threshold=0).threshold == 0
    assert AvUCLoss(warmup_steps=1, warmup_epochs=5).warming_up


# ---- state


def test_a_state_of_version_0_1_0_loads() -> None:
    """Buffers `threshold` (float32) and `gathered` (float64), and the epoch as extra state."""
    first, second = batch(0), batch(1)
    probe = AvUCLoss(warmup_epochs=2)
    probe(*first)
    old = {"threshold": torch.tensor(math.nan), "gathered": probe.gathered.clone(), "_extra_state": torch.tensor(1)}
    module = AvUCLoss(warmup_epochs=2)
    module.load_state_dict(old, strict=True)
    module(*second)
    module.epoch_end()
    assert module.threshold.item() == pytest.approx(midpoint([first, second]), rel=1e-6)
    done = {"threshold": torch.tensor(0.7), "gathered": torch.zeros(2, 2), "_extra_state": torch.tensor(9)}
    module = AvUCLoss(warmup_epochs=2, beta=1.0)
    module.load_state_dict(done)
    assert not module.warming_up
    assert module(*first) == avuc_loss(*first, 0.7)
    parent = nn.Sequential(nn.Linear(1, 1), AvUCLoss(warmup_epochs=2))
    parent.load_state_dict({**parent[0].state_dict(prefix="0."), **{f"1.{key}": value for key, value in done.items()}})
    assert parent[1].threshold == torch.tensor(0.7)


def test_a_wrong_state_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key.*gathered"):
        AvUCLoss().load_state_dict({"threshold": torch.tensor(0.5), "_extra_state": torch.tensor(3)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        AvUCLoss().load_state_dict({**AvUCLoss().state_dict(), "other": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"gathered has shape \(2,\), not \(2, 2\)"):
        AvUCLoss().load_state_dict({**AvUCLoss().state_dict(), "gathered": torch.ones(2)})


@pytest.mark.parametrize("options", [{"warmup_epochs": 2}, {"threshold": 0.5}])
def test_half_a_warm_up_is_no_threshold(options: dict[str, Any]) -> None:
    """The threshold was NaN here, and every prediction certain."""
    long = AvUCLoss(warmup_epochs=5)
    for seed in range(3):
        long(*batch(seed))
        long.epoch_end()
    with pytest.raises(InputError, match="before its warm-up ended"):
        AvUCLoss(**options).load_state_dict(long.state_dict())


@pytest.mark.parametrize("options", [{"warmup_epochs": 2}, {"warmup_steps": 2}])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_independent(copied: Any, options: dict[str, Any]) -> None:
    one = AvUCLoss(**options)
    one(*batch(0))
    one.epoch_end()
    two = copied(one)
    for module in (one, two):
        module(*batch(1))
        module.epoch_end()
        assert module.threshold.item() == pytest.approx(midpoint([batch(0), batch(1)]), rel=1e-6)
    two.threshold.fill_(0.1)
    assert one.threshold != two.threshold


def test_a_pickled_module_of_version_0_1_0_works() -> None:
    now = warmed()
    state = dict(now.__dict__)
    buffers = {name: state.pop(name) for name in ("threshold", "gathered")}
    for name in ("pooled", "steps", "warmup_steps", "_warming_up"):
        state.pop(name)
    state["_buffers"] = buffers
    old = AvUCLoss.__new__(AvUCLoss)
    old.__setstate__(state)
    assert old(*batch(3)) == now(*batch(3))
    assert not list(old.buffers())


# ---- bad batches


def test_nan_in_one_warm_up_batch_does_not_reach_the_threshold() -> None:
    module = AvUCLoss(warmup_epochs=1)
    module(*batch(0))
    bad, labels = batch(1)
    bad[3, 2] = math.nan
    with pytest.raises(InputError, match="logits contain NaN"):
        module(bad, labels)
    module(*batch(2))
    module.epoch_end()
    assert module.threshold.item() == pytest.approx(midpoint([batch(0), batch(2)]), rel=1e-6)


def test_nan_that_a_compiled_step_gathered_is_an_error() -> None:
    module = AvUCLoss(warmup_epochs=1)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    bad, labels = batch(1)
    bad[3, 2] = math.nan
    compiled(bad, labels)
    with pytest.raises(InputError, match="contained NaN"):
        module.epoch_end()
    assert module.warming_up
    compiled(*batch(0))
    module.epoch_end()
    assert module.threshold.item() == pytest.approx(midpoint([batch(0)]), rel=1e-6)


def test_it_shows_its_settings() -> None:
    module = AvUCLoss(beta=2, warmup_epochs=1)
    assert repr(module) == "AvUCLoss(beta=2, variant='monotone', threshold=not learned yet)"
    module(*batch())
    module.epoch_end()
    assert repr(module) == f"AvUCLoss(beta=2, variant='monotone', threshold={float(module.threshold):.4g})"


def test_probabilities_in_place_of_logits_are_reported() -> None:
    logits, labels = batch()
    with pytest.warns(UserWarning, match="like probabilities; pass logits"):
        AvUCLoss(warmup_epochs=1)(logits.softmax(-1), labels)
    with pytest.warns(UserWarning, match="like probabilities; pass logits") as caught:
        AvUCLoss(threshold=0.5)(logits.softmax(-1), labels)
    assert caught[0].filename == __file__
    AvUCLoss(warmup_epochs=1)(logits.log_softmax(-1), labels)  # log-probabilities are logits
    AvUCLoss(warmup_epochs=1)(torch.ones(3, 1), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_and_autocast(dtype: torch.dtype) -> None:
    module, reference = AvUCLoss(warmup_epochs=1), AvUCLoss(warmup_epochs=1)
    logits, labels = batch(dtype=dtype)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = module(logits, labels)
        assert inside.dtype == torch.float32
        assert inside == reference(logits.float(), labels)
        module.epoch_end()
        reference.epoch_end()
    assert inside > 0
    assert torch.equal(module.threshold, reference.threshold)


@pytest.mark.parametrize("rows", [0, 7])
def test_empty_and_ignored_batches_change_nothing(rows: int) -> None:
    module, reference = AvUCLoss(warmup_epochs=1), AvUCLoss(warmup_epochs=1)
    for one in (module, reference):
        one(*batch())
    nothing = torch.zeros(rows, 5, requires_grad=True), torch.full((rows,), -100)
    assert module(*nothing) == 0
    for one in (module, reference):
        one.epoch_end()
    assert torch.equal(module.threshold, reference.threshold)
    loss = module(*nothing)
    loss.backward()
    assert loss == 0
    assert nothing[0].grad is not None
    assert not nothing[0].grad.any()


@pytest.mark.parametrize("options", [{"warmup_epochs": 12}, {"warmup_steps": 24}])
def test_compiled_module_switches_once(options: dict[str, Any]) -> None:
    """Many epochs are one compilation for the warm-up and one after it; eager and compiled agree."""
    torch._dynamo.reset()
    eager, module = AvUCLoss(**options), AvUCLoss(**options)
    count = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=count, fullgraph="warmup_epochs" in options)
    frames = []
    for step in range(30):
        torch.testing.assert_close(compiled(*batch(step)), eager(*batch(step)))
        frames.append(count.frame_count)
        if step % 2:
            eager.epoch_end()
            module.epoch_end()
    assert not module.warming_up
    assert compiled(*batch(0)) > 0
    torch.testing.assert_close(module.threshold, eager.threshold)
    # nothing is compiled after the first steps of either phase
    assert frames[2] == frames[22]
    assert frames[25] == frames[29]
    assert "warmup_epochs" not in options or frames[-1] == 2


def test_statistics_count_for_the_threshold_as_logits_do() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(2, 50, 4, generator=generator), torch.randint(0, 4, (2, 50), generator=generator)
    labels[0, :7] = -100
    by_logits, by_statistics = (AvUCLoss(warmup_steps=2) for _ in range(2))
    for rows, classes in zip(logits, labels, strict=True):
        by_logits(rows, classes)
        probs = rows.softmax(dim=-1)
        u = -(probs * probs.log()).sum(dim=-1)
        by_statistics.eval()
        by_statistics.observe(u, rows.argmax(dim=-1) == classes, classes != -100)  # does not count
        by_statistics.train()
        by_statistics.observe(u, rows.argmax(dim=-1) == classes, classes != -100)
    assert not by_statistics.warming_up
    torch.testing.assert_close(by_statistics.threshold, by_logits.threshold)
