"""The kernels of the loss compute what autograd computes on the chunked path, in Triton's interpreter and on a GPU."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from avuc.core.errors import InputError, NonFiniteError
from avuc.gpu import linear
from avuc.gpu.kernels import linear_loss, linear_softmax
from avuc.losses import linear_avuc
from avuc.losses.linear import fused
from avuc.losses.linear.tiles import Coefficients, Options, Partial

KINDS: list[tuple[Any, Any]] = [
    ("avuc", "paper"), ("avuc", "stopgrad"), ("avuc", "monotone"), ("avuc", "soft"), ("ua_clm", "paper"),
    ("ua_clm", "monotone"), ("plain", "paper"),
]  # fmt: skip

INTERPRETED = """
import math, sys, torch
from avuc.core.errors import InputError, NonFiniteError
from avuc.gpu import linear
from avuc.gpu.kernels import linear_loss
from avuc.losses import linear_avuc
from avuc.losses.linear import fused

linear.unsupported_reason = lambda hidden, weight: None
linear_loss.TOKENS_PER_PROGRAM = 16

def both(hidden, weight, bias, labels, **options):
    found = []
    for backend, dtype in (("triton", torch.float32), ("chunked", torch.float64)):
        of = [value.to(dtype).requires_grad_() for value in (hidden, weight, bias)]
        result = linear_avuc(of[0], of[1], labels, bias=of[2], beta=2.5, nll_weight=0.7, backend=backend, **options)
        gradients = torch.autograd.grad(result.loss + 0.3 * result.nll - 0.2 * result.avuc, of)
        found.append([*result[:3], *result.quadrants, *result[4:], *gradients])
    for place, (one, other) in enumerate(zip(*found)):
        torch.testing.assert_close(
            one.double(), other.double(), rtol=1e-4, atol=1e-5, msg=lambda text: f"{options} {place}: {text}"
        )

torch.manual_seed(0)
hidden, weight, bias = 1.5 * torch.randn(19, 8), torch.randn(29, 8), torch.randn(29)
labels = torch.where(torch.rand(19) < 0.5, (hidden @ weight.t() + bias).argmax(1), torch.randint(0, 29, (19,)))
labels[::7] = -100
for kind, variant in KINDS:
    both(hidden, weight, bias, labels, kind=kind, variant=variant, threshold=1.1)
    both(hidden, weight, bias, torch.full_like(labels, -100), kind=kind, variant=variant, threshold=1.1)
both(hidden, weight, bias, labels, threshold=torch.tensor(1.1, dtype=torch.float64))
both(hidden, weight, bias, labels, threshold=None, variant="soft")
both(hidden, weight, bias, labels, threshold=torch.tensor(1.1), variant="soft")
# entropies from 1e-4 to 1e-12
logits = torch.zeros(5, 12)
logits[:, 7], logits[:, 3] = torch.tensor([12.0, 17.3, 21.1, 25.7, 30.3]), -1.3
for variant in ("paper", "monotone"):
    found = []
    for backend, dtype in (("triton", torch.float32), ("chunked", torch.float64)):
        at = logits.to(dtype).requires_grad_()
        result = linear_avuc(at, torch.eye(12, dtype=dtype), torch.full((5,), 2), threshold=None, kind="ua_clm",
                             variant=variant, nll_weight=0, backend=backend)
        found.append([result.loss, result.entropy, *torch.autograd.grad(result.loss, at)])
    for one, other in zip(*found):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-30)
for error, change in (
    (NonFiniteError, {"hidden": hidden * math.nan}), (InputError, {"labels": labels + 29}),
    (InputError, {"threshold": torch.tensor(math.nan)}),
):
    try:
        linear_avuc(**{"hidden": hidden, "weight": weight, "labels": labels, "threshold": 1.0} | change)
    except error:
        continue
    raise AssertionError(change.keys())
# on a GPU these are refused in the backward pass: until then the loss must not look like one
fused._Check.start = lambda self, status, later: None
fused.checked_threshold = lambda threshold, variant: threshold
one = torch.where(torch.arange(19) == 3, 29, labels)
for kind, variant in KINDS:
    for name, value in (("hidden", hidden * math.nan), ("labels", one), ("labels", one - 30),
                        ("threshold", torch.tensor(math.nan))):
        options = {"hidden": hidden, "weight": weight, "labels": labels, "threshold": 1.0} | {name: value}
        result = linear_avuc(kind=kind, variant=variant, **options)
        assert result.loss.isnan() == (name != "threshold" or kind == "avuc"), (kind, variant, name)
        assert result.nll.isnan() == (name != "threshold"), (kind, variant, name)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which comes with torch for GPUs")
def test_kernels_in_tritons_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    source = f"KINDS = {KINDS!r}\n{INTERPRETED}"
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class Launches(TorchDispatchMode):
    """Counts operations that start a kernel on a GPU, matrix products left out."""

    FREE = {"view", "as_strided", "t", "select", "slice", "split", "split_with_sizes", "unbind", "detach", "alias"} | {
        "empty",
        "empty_like",
        "mm",
        "new_empty",
    }

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        self.names += [] if name in self.FREE else [name]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_at_most_ten_launches_besides_products_and_tiles(
    kind: Any, variant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes with kernels that do nothing but count."""
    started: list[str] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            return lambda *arguments, **options: started.append(self.name)

    monkeypatch.setattr(linear, "unsupported_reason", lambda hidden, weight: None)
    monkeypatch.setattr(linear, "add_product", lambda sums, dz, rows: None)
    monkeypatch.setattr(fused._Check, "start", lambda self, status, later: None)
    for module, names in (
        (linear_loss, ("_token_sums", "_loss_of_sums", "_token_coefficients")),
        (linear_softmax, ("_update_softmax", "_replace_by_gradient")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Kernel(name))
    hidden, weight = (torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((32, 16), (640, 16)))
    labels = torch.zeros(32, dtype=torch.long)
    options: dict[str, Any] = {"kind": kind, "variant": variant, "threshold": 1.0, "backend": "triton"}
    with Launches() as watch:
        linear_avuc(hidden, weight, labels, **options).loss.backward()
    assert started.count("_replace_by_gradient") > 3
    tiles = ("_update_softmax", "_replace_by_gradient")
    ours = [*watch.names, *(name for name in started if name not in tiles)]
    # and a copy of three numbers, for the check
    assert sorted(ours) == sorted(
        ["_token_sums", "sum", "_loss_of_sums", "ones_like", "mul", "_token_coefficients", "zero_", "copy_"]
    )


def test_the_second_start_of_a_kernel_has_the_arguments_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are started the second time with constants by position: in the order of the kernel's arguments."""
    started: list[tuple[str, Any]] = []

    class Kernel:
        """Compiles itself when it is first started, as Triton's kernels do."""

        def __init__(self, kernel: Any) -> None:
            self.names = list(inspect.signature(getattr(kernel, "fn", kernel)).parameters)

        def __getitem__(self, grid: Any) -> Any:
            def start(*arguments: Any, **options: Any) -> Any:
                del options["num_warps"]
                started.append(("first", dict(zip(self.names, arguments, strict=False)) | options))
                return Compiled(self.names)

            return start

    class Compiled(Kernel):
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def __getitem__(self, grid: Any) -> Any:
            assert len(grid) == 3
            return lambda *arguments: started.append(("again", dict(zip(self.names, arguments, strict=True))))

    monkeypatch.setattr(linear_softmax, "_COMPILED", {})
    for name in ("_update_softmax", "_replace_by_gradient"):
        monkeypatch.setattr(linear_softmax, name, Kernel(getattr(linear_softmax, name)))
    z, labels, column = torch.zeros(16, 32), torch.zeros(16, dtype=torch.long), torch.zeros(16)
    part, coefficients = Partial(column, column, column, column, labels), Coefficients(*[column] * 5)

    def start(width: int, options: Options, word: int = 0, bias: Tensor | None = None) -> list[str]:
        started.clear()
        tile = z[:, :width]
        linear_softmax.softmax_updater(z.dtype, bias, labels, part, options)(tile, word)
        linear_softmax.gradient_writer(z.dtype, bias, labels, labels, coefficients, options)(tile, word)
        for when, found in started:
            assert {"START", "HAS_BIAS", "HAS_CAP", "HAS_SCALE", "BLOCK"} - set(found) <= {"START"}
            assert (found["width"], found["first"], found["stride"]) == (width, options.first + word, z.stride(0))
            assert (found["HAS_CAP"], found["softcap"]) == (options.softcap is not None, options.softcap or 1.0)
            assert found["HAS_BIAS"] == (bias is not None)
            assert found.get("START", word == 0) == (word == 0)
            columns = dict(part._asdict() if "START" in found else coefficients._asdict(), labels=labels, z=tile)
            columns["bias"] = tile if bias is None else bias[word:]
            for name, tensor in columns.items():
                place = found[name] if when == "again" else found[name].data_ptr()
                assert place == tensor.data_ptr(), name
        return [when for when, _ in started]

    capped = Options(softcap=5.0)
    assert start(32, Options()) == ["first", "first"]
    assert start(32, Options(first=64)) == ["again", "again"]  # another multiple of 16
    assert start(32, Options(), 64) == ["first", "again"]  # not the first tile
    assert start(32, Options(first=16), 48) == ["again", "again"]
    assert start(32, Options(first=7)) == ["first", "first"]
    assert start(32, Options(first=9)) == ["again", "again"]
    assert start(32, capped) == ["first", "first"]
    assert start(31, Options()) == ["first", "first"]
    assert start(1, Options()) == start(1, Options()) == ["first", "first"]  # Triton makes a constant of 1
    assert start(16, capped) == ["first", "first"]  # another block
    bias = torch.zeros(64)
    assert start(32, Options(), 16, bias) == ["first", "first"]
    assert start(32, Options(), 32, bias) == ["again", "again"]
    assert start(32, Options(), 18, bias) == start(32, Options(), 18, bias) == ["first", "first"]  # 8 bytes farther
    z = torch.zeros(16 * 32 + 1)[1:].view(16, 32)  # not aligned
    assert start(32, Options()) == start(32, Options()) == ["first", "first"]
    z = torch.zeros(16, 40)[:, :32]  # rows of another length, no multiple of 16
    assert start(32, Options()) == ["first", "first"]
    assert start(32, Options()) == ["again", "again"]
    z = torch.zeros(16, 32, dtype=torch.bfloat16)
    assert start(32, Options()) == ["first", "first"]
    assert start(32, Options(), 16, bias) == ["first", "first"]  # of float32, as before, but z is not
    assert start(32, Options(), 16, bias.double()) == ["first", "first"]
    assert start(32, Options(), 16, bias.bfloat16()) == ["first", "first"]

    for module, name in (
        (linear_loss, "_token_sums"), (linear_loss, "_loss_of_sums"), (linear_loss, "_token_coefficients"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, Kernel(getattr(module, name)))
    sums = torch.zeros(8, dtype=torch.float64)
    for limit in (0.5, torch.tensor(0.5)):
        rule = fused.Rule("avuc", "paper", limit, 320, -100)
        for start_loss in (
            lambda tokens, rule=rule: linear_loss.token_sums(
                Partial(*(c[:tokens] for c in part)), labels[:tokens], rule
            ),
            lambda tokens, rule=rule: linear_loss.loss_of_sums(sums, rule, 1.0, float(tokens)),
            lambda tokens, rule=rule: linear_loss.token_coefficients(part, labels[:tokens], sums, rule),
        ):
            started.clear()
            start_loss(16)
            start_loss(16)
            (when, found), (then, again) = started
            assert (when, then) == ("first", "again")
            assert list(found) == list(again)
            for one, other in zip(found.values(), again.values(), strict=True):
                assert isinstance(other, int) and other > 1 << 16 if isinstance(one, Tensor) else one == other
    started.clear()
    for tokens in (15, 13, 1):  # no multiple of 16; the same; a constant
        linear_loss.token_sums(Partial(*(c[:tokens] for c in part)), labels[:tokens], rule)
    assert [when for when, _ in started] == ["first", "again", "first"]
    started.clear()
    for sums in (torch.zeros(9, dtype=torch.float64)[1:], torch.zeros(8)):  # not aligned; another type
        linear_loss.token_coefficients(part, labels, sums, rule)
    for other in (rule._replace(limit=0.5), rule._replace(limit=0.25), rule._replace(variant="soft"), rule):
        linear_loss.token_coefficients(part, labels, torch.zeros(8, dtype=torch.float64), other)
    assert [when for when, _ in started] == ["first", "first", "again", "again", "first", "again"]


def on_gpu() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((515, 64), (3_001, 64), (3_001,)))
    hidden *= torch.rand(515, 1, generator=generator)
    labels = torch.randint(0, 3_001, (515,), generator=generator)
    labels = torch.where(torch.rand(515, generator=generator) < 0.5, (hidden @ weight.t() + bias).argmax(1), labels)
    labels[::7] = -100
    return tuple(value.cuda() for value in (hidden, weight, bias, labels))  # type: ignore[return-value]


@pytest.mark.gpu
@pytest.mark.parametrize("threshold", [1.1, torch.tensor(1.1), "on the GPU"])
@pytest.mark.parametrize(("kind", "variant"), KINDS)
def test_kernels_on_a_gpu(kind: Any, variant: Any, threshold: Any) -> None:
    hidden, weight, bias, labels = on_gpu()
    limit = torch.tensor(1.1, device="cuda") if threshold == "on the GPU" else threshold
    options: dict[str, Any] = {"threshold": limit, "kind": kind, "variant": variant, "beta": 2.5}
    found = []
    for backend, dtype in (("triton", torch.float32), ("chunked", torch.float64)):
        of = [value.to(dtype).requires_grad_() for value in (hidden, weight, bias)]
        result = linear_avuc(of[0], of[1], labels, bias=of[2], backend=backend, **options)
        found.append([*result[:3], *result.quadrants, *result[4:], *torch.autograd.grad(result.loss, of)])
    for place, (one, other) in enumerate(zip(*found, strict=True)):
        one, other = one.detach().double(), other.detach().double()
        # tf32 is off, so only float32's rounding is left
        assert float((one - other).norm()) <= 2e-4 * float(other.norm()) + 1e-6, place


@pytest.mark.gpu
def test_refused_in_the_backward_pass_of_a_gpu() -> None:
    """Nobody waits for a GPU in the forward pass if the backward pass can check."""
    hidden, weight, _, labels = on_gpu()
    weight.requires_grad_()
    with torch.no_grad(), pytest.raises(NonFiniteError, match="hidden or weight contain NaN"):
        linear_avuc(hidden * torch.nan, weight, labels, threshold=1.1)
    result = linear_avuc(hidden * torch.nan, weight, labels, threshold=1.1)
    assert result.loss.isnan()
    with pytest.raises(NonFiniteError, match="hidden or weight contain NaN"):
        result.loss.backward()
    result = linear_avuc(hidden, weight, labels + 3_001, threshold=1.1)
    assert result.loss.isnan()
    with pytest.raises(InputError, match="labels must be 0 … 3000"):
        result.loss.backward()
    result = linear_avuc(hidden, weight, labels, threshold=torch.tensor(torch.nan, device="cuda"))
    assert result.loss.isnan()
    with pytest.raises(InputError, match="threshold is NaN"):
        result.loss.backward()
    assert weight.grad is None
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_few_launches_and_no_wait_on_a_gpu() -> None:
    hidden, weight, _, labels = on_gpu()
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    for _ in range(2):
        linear_avuc(hidden, weight, labels, threshold=1.1).loss.backward()
    hidden.grad = weight.grad = None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.cuda.set_sync_debug_mode("error")
        try:
            linear_avuc(hidden, weight, labels, threshold=1.1).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    tiles = ("gemm", "cutlass", "nvjet", "splitK", "_update_softmax", "_replace_by_gradient")
    others = [name for name in names if not any(part in name for part in tiles)]
    assert names
    assert len(others) <= 20, others
