"""Several CIFAR ResNets as one stacked network: each ends as it would have alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.core.accelerators import TrainingSteps
from avuc.data import Dataset
from avuc.gpu.stacked import steps as stacked
from avuc.gpu.stacked.choice import signature, unsupported_reason
from avuc.gpu.stacked.layers import block_gradient, norm, norm_gradient
from avuc.gpu.stacked.steps import StackedSteps
from avuc.methods import METHODS, SVI, SWAG, Ensemble, Method, Objective, Vanilla
from avuc.nets import small_cnn
from avuc.nets.resnet_cifar import CifarResNet
from avuc.train import Fitted, Job, TrainSettings, fit_many
from avuc.training import fit as fit_module
from avuc.training.captured import Captured
from avuc.training.checkpoint import load_trainer, trainer_tensors
from avuc.training.compiled import attach, compiling
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import Diverged, EagerSteps, Steps, unchanged

SETTINGS = TrainSettings(epochs=3, batch_size=12, pad=1, learning_rate=1e-3, checkpoint_seconds=0.0)
AVUC = Objective("avuc", variant="paper", threshold=1.0, warmup_epochs=0, kl_weight=0.1)
MIXED: list[tuple[Method, Objective]] = [
    (Vanilla(), Objective("avuc", variant="paper", warmup_epochs=1)),
    (SVI(), AVUC),
    (METHODS["radial"](), Objective("auavuc", warmup_epochs=0)),
    (METHODS["ll_svi"](), Objective()),
    (SVI(prior_std=0.3, moped=True), Objective(kl_gradient=False)),
    (SWAG(), Objective()),
]
ALIKE: list[tuple[Method, Objective]] = [(SVI(), AVUC), (SVI(), Objective("avuc", variant="paper", warmup_epochs=1))]
DROPPED: list[tuple[Method, Objective]] = [
    (METHODS["dropout"](rate=0.3), AVUC),
    (Ensemble(members=2, member=METHODS["dropout"]()), Objective()),
]
LAST_DROPPED: list[tuple[Method, Objective]] = [(METHODS["ll_dropout"](), AVUC), (METHODS["ll_dropout"](), Objective())]
PLAIN: list[tuple[Method, Objective]] = [(Vanilla(), Objective()), (Vanilla(), AVUC)]


def net(generator: torch.Generator) -> nn.Module:
    return CifarResNet(1, 10, (8, 8, 3), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), generator=generator)


def made(
    cases: Sequence[tuple[Method, Objective]],
    settings: TrainSettings = SETTINGS,
    factory: Callable[[torch.Generator], nn.Module] = net,
    device: str = "cpu",
) -> list[ModelTrainer]:
    return [
        ModelTrainer(
            method,
            factory,
            objective,
            settings,
            num_train=60,
            num_classes=10,
            seed=seed,
            index=0,
            device=torch.device(device),
            ranks=Ranks(),
        )
        for seed, (method, objective) in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 8, 8, 3), generator=generator, dtype=torch.uint8)
    return Dataset(images, torch.randint(10, (60,), generator=generator), 10, "pictures")


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def silent(line: str) -> None:
    raise AssertionError(line)


def epochs(steps: Steps, count: int, first: int = 0, sizes: Sequence[int] = (8, 5)) -> list[list[dict[str, Any]]]:
    """Epochs of batches of these sizes; the records of each model."""
    records: list[list[dict[str, Any]]] = [[] for _ in steps.trainers]
    for epoch in range(first, first + count):
        steps.prepare(sizes)
        orders = [trainer.order(60, epoch) for trainer in steps.trainers]
        for trainer in steps.trainers:
            trainer.begin(epoch)
        for indices in torch.stack(orders)[:, : sum(sizes)].split(list(sizes), 1):
            steps(indices.to(steps.trainers[0].device))
        for own, trainer in zip(records, steps.trainers, strict=True):
            own.append(trainer.end(epoch))
    return records


def everything(trainer: ModelTrainer) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer_tensors(trainer).items()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float, rtol: float = 1e-4) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], atol=atol, rtol=rtol, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize(
    "cases",
    [MIXED, ALIKE, PLAIN, DROPPED, LAST_DROPPED, [*LAST_DROPPED[:1], *DROPPED]],
    ids=["mixed", "alike", "plain", "dropout", "ll_dropout", "dropout in different places"],
)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": "sgd", "clip_norm": 0.5, "weight_decay": 1e-2, "ema_decay": 0.9, "kl_anneal_epochs": 3},
        {"reset_optimizer": True},
    ],
    ids=["adam", "sgd", "new adam each epoch"],
)
def test_stacked_is_eager(
    cases: list[tuple[Method, Objective]], change: dict[str, Any], pictures: Dataset, double: None
) -> None:
    """Weights, posteriors, running statistics, moments, moving averages, thresholds and meters, with partial batches
    and the end of a warm-up in between. In double precision: Adam makes a rounding of a tiny gradient a share of the
    rate."""
    settings = replace(SETTINGS, **change)
    alone, together = made(cases, settings), made(cases, settings)
    expected = epochs(EagerSteps(alone, pictures), 2)
    found = epochs(StackedSteps(together, pictures, silent), 2)
    for one, other in zip(alone, together, strict=True):
        assert_close(everything(other), everything(one), atol=1e-9, rtol=1e-7)
    for ours, theirs in zip(found, expected, strict=True):
        for record, other_record in zip(ours, theirs, strict=True):
            assert {k: v for k, v in record.items() if v is None} == {
                k: v for k, v in other_record.items() if v is None
            }
            told = {k: v for k, v in record.items() if v is not None}
            assert told == pytest.approx({k: other_record[k] for k in told}, rel=1e-6)


def test_objectives_of_the_family(pictures: Dataset, double: None) -> None:
    """Each model's objective sees its own logits. A network with a Dirichlet head trains outside of the stack."""
    cases: list[tuple[Method, Objective]] = [
        (Vanilla(), Objective("sb_ece", warmup_epochs=1)),
        (SVI(), Objective("ua_clm", warmup_epochs=0, variant="monotone")),
    ]
    alone, together = made(cases, SETTINGS), made(cases, SETTINGS)
    expected = epochs(EagerSteps(alone, pictures), 2)
    found = epochs(StackedSteps(together, pictures, silent), 2)
    for one, other in zip(alone, together, strict=True):
        assert_close(everything(other), everything(one), atol=1e-9, rtol=1e-7)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[1]["avuc"] == pytest.approx(theirs[1]["avuc"])
        assert ours[1]["avuc"] != 0
    (evidential,) = made([(Vanilla(), Objective("euc"))])
    assert "not a CIFAR ResNet" in str(unsupported_reason(evidential, pictures))


def test_stacked_is_eager_in_single_precision(pictures: Dataset) -> None:
    # without AvUC: its cells jump where an uncertainty crosses the threshold, by whatever rounding
    cases, settings = [*PLAIN[:1], *MIXED[3:]], replace(SETTINGS, optimizer="sgd", learning_rate=0.01)
    alone, together = made(cases, settings), made(cases, settings)
    epochs(EagerSteps(alone, pictures), 1)
    epochs(StackedSteps(together, pictures, silent), 1)
    for one, other in zip(alone, together, strict=True):
        assert_close(everything(other), everything(one), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cases", [MIXED[:3], DROPPED], ids=["mixed", "dropout"])
def test_stacked_is_eager_in_bfloat16(cases: list[tuple[Method, Objective]], pictures: Dataset) -> None:
    """The roundings of autocast, not its exact ones: the losses of a few steps."""
    settings = replace(SETTINGS, optimizer="sgd", learning_rate=0.01, precision="bfloat16")
    expected = epochs(EagerSteps(made(cases, settings), pictures), 1)
    found = epochs(StackedSteps(made(cases, settings), pictures, silent), 1)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0]["nll"] == pytest.approx(theirs[0]["nll"], rel=5e-3)
        assert ours[0]["gradient_norm"] == pytest.approx(theirs[0]["gradient_norm"], rel=2e-2)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_models_go_on_alone_and_come_back(optimizer: str, pictures: Dataset, double: None) -> None:
    """Checkpoint in the middle, other tensors after it, and models that leave the stack."""
    settings = replace(SETTINGS, optimizer=optimizer)
    whole = made(MIXED, settings)
    epochs(StackedSteps(whole, pictures, silent), 3)
    first = made(MIXED, settings)
    steps = StackedSteps(first, pictures, silent)
    epochs(steps, 1)
    saved = [everything(trainer) for trainer in first]
    epochs(steps, 1, 1)  # what was saved is no view
    resumed = made(MIXED, settings)
    for trainer, tensors in zip(resumed, saved, strict=True):
        load_trainer(trainer, tensors)
    assert len({signature(trainer) for trainer in resumed}) == 1
    half = StackedSteps(resumed[:3], pictures, silent)
    other = EagerSteps(resumed[3:], pictures)
    for epoch in (1, 2):
        epochs(half, 1, epoch)
        epochs(other, 1, epoch)
        half.release()
        half = StackedSteps(resumed[:3], pictures, silent)
    for one, expected in zip(resumed, whole, strict=True):
        assert_close(everything(one), everything(expected), atol=1e-8, rtol=1e-6)


def test_released_models_share_nothing(pictures: Dataset) -> None:
    trainers = made(MIXED)
    steps = StackedSteps(trainers, pictures, silent)
    epochs(steps, 1)
    before = [everything(trainer) for trainer in trainers]
    common = {leaf.untyped_storage().data_ptr() for leaf in (*steps.stack.leaves, steps.stack.statistics)}
    assert all(p.untyped_storage().data_ptr() in common for trainer in trainers for p in trainer.parameters)
    steps.release()
    steps.release()
    places = [t.untyped_storage().data_ptr() for trainer in trainers for t in trainer.state()]
    assert len(set(places)) == len(places)
    assert not common & set(places)
    for trainer, tensors in zip(trainers, before, strict=True):
        assert_close(everything(trainer), tensors, atol=0, rtol=0)


def test_trial_steps_leave_no_trace(pictures: Dataset) -> None:
    trainers, untouched = made(MIXED), made(MIXED)
    steps, expected = StackedSteps(trainers, pictures, silent), StackedSteps(untouched, pictures, silent)
    with unchanged(trainers):
        steps(torch.arange(12).expand(len(trainers), 12))
    epochs(steps, 1)
    epochs(expected, 1)
    for one, other in zip(trainers, untouched, strict=True):
        assert_close(everything(one), everything(other), atol=0, rtol=0)


def test_a_bad_model_is_named(pictures: Dataset) -> None:
    trainers = made(MIXED)
    steps = StackedSteps(trainers, pictures, silent)
    for trainer in trainers:
        trainer.begin(0)
    model = trainers[3].model
    assert isinstance(model, BayesianModule)
    with torch.no_grad():
        model.mu.fill_(torch.nan)
    with pytest.raises(Diverged) as caught:
        steps(torch.arange(12).expand(len(trainers), 12))
    assert caught.value.trainer is trainers[3]
    assert caught.value.term == "logits"


def test_whole_fits_and_resumes(pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fit_many` with stacked steps ends as without, also after an interruption, and stops models one by one."""
    settings = replace(SETTINGS, epochs=3, patience=1, learning_rate=1e-2, optimizer="sgd")
    held_out, pictures = pictures.subset(range(0, 60, 3)), pictures.subset(range(32))

    def fitted(directory: Path | None) -> list[Fitted]:
        jobs = [
            Job(method, net, pictures, objective, settings, held_out, seed, directory and directory / str(seed))
            for seed, (method, objective) in enumerate([*MIXED[:2], (Ensemble(members=2), Objective())])
        ]
        return fit_many(jobs, progress=False)

    expected = fitted(None)
    seen: list[StackedSteps] = []

    def stack_all(loop: fit_module.Loop, trainers: Sequence[ModelTrainer], data: Dataset) -> list[Steps]:
        seen.append(StackedSteps(trainers, data, silent))
        return [seen[-1]]

    monkeypatch.setattr(fit_module.Loop, "_new_steps", stack_all)
    whole = fitted(tmp_path / "whole")
    fitted(tmp_path / "cut")
    for checkpoint in (tmp_path / "cut").glob("*/checkpoint-000003.safetensors"):
        checkpoint.unlink()
    resumed = fitted(tmp_path / "cut")
    assert seen
    for one, two, three in zip(expected, whole, resumed, strict=True):
        assert one.epochs == two.epochs == three.epochs
        totals = [[record["total"] for record in fit.history] for fit in (one, two, three)]
        assert totals[1] == pytest.approx(totals[0], rel=1e-3)
        assert totals[2] == pytest.approx(totals[0], rel=1e-3)


# the way to a captured graph, with a stand-in for the graph


class Replayed:
    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Captures run their step again instead; the list has the batch size of each."""
    sizes: list[int] = []

    def taken(step: Callable[[], None], trainers: Sequence[ModelTrainer], indices: Tensor) -> Any:
        sizes.append(indices.shape[1])
        return Captured(Replayed(step), indices)  # type: ignore[arg-type]

    monkeypatch.setattr(stacked, "captured", taken)
    monkeypatch.setattr(stacked, "tried", lambda step, device: [step() for _ in range(2)])
    monkeypatch.setattr(stacked, "compiled", lambda piece: piece)
    monkeypatch.setattr(stacked, "attach", lambda trainer, level: None)
    return sizes


def test_captures_follow_sizes_and_phases(pictures: Dataset, without_gpu: list[int]) -> None:
    cases: list[tuple[Method, Objective]] = [
        (SVI(), Objective("avuc", variant="paper", warmup_epochs=2)),
        (Vanilla(), Objective()),
    ]
    settings = replace(SETTINGS, optimizer="sgd")
    alone, together = made(cases, settings), made(cases, settings)
    steps = StackedSteps(together, pictures, silent)
    steps.fast = True
    expected = epochs(EagerSteps(alone, pictures), 4)
    found = epochs(steps, 4)
    assert without_gpu == [8, 5, 8, 5]  # anew after the warm-up, and only then
    for ours, theirs in zip(found, expected, strict=True):
        assert [r["total"] for r in ours] == pytest.approx([r["total"] for r in theirs], rel=1e-3)


def test_a_piece_that_does_not_compile_runs_as_it_is(
    pictures: Dataset, without_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler(piece: Callable[..., Any]) -> Callable[..., Any]:
        def fails(*args: Any) -> Any:
            raise RuntimeError("too hard\nfor this compiler")

        return fails if piece is norm else piece

    monkeypatch.setattr(stacked, "compiled", compiler)
    said: list[str] = []
    steps = StackedSteps(made(PLAIN), pictures, said.append)
    steps.fast = True
    epochs(steps, 1)
    assert said == ["training: norm of the stacked step is not compiled (RuntimeError: too hard)"]


def test_what_cannot_be_captured_goes_on_otherwise(
    pictures: Dataset, without_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the weights as they were, in tensors of the models' own."""

    def fails(step: Callable[[], None], trainers: Sequence[ModelTrainer], indices: Tensor) -> Any:
        raise RuntimeError("no graphs here")

    monkeypatch.setattr(stacked, "captured", fails)
    monkeypatch.setattr(stacked, "fresh_generators", lambda trainers, device: None)
    monkeypatch.setattr(stacked, "CapturedSteps", lambda trainers, data, say: EagerSteps(trainers, data))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    alone, together = made(ALIKE), made(ALIKE)
    said: list[str] = []
    steps = StackedSteps(together, pictures, said.append)
    steps.fast = True
    epochs(steps, 2)
    epochs(EagerSteps(alone, pictures), 2)
    assert said == ["training: 2 models cannot train stacked (RuntimeError: no graphs here); now on streams"]
    for one, other in zip(alone, together, strict=True):
        assert_close(everything(other), everything(one), atol=0, rtol=0)


# what can be stacked


class Unknown(Vanilla):
    """May do anything."""


class Hooked(CifarResNet):
    pass


def hooked(generator: torch.Generator) -> nn.Module:
    found = net(generator)
    found.register_forward_hook(lambda *args: None)
    return found


def patched(generator: torch.Generator) -> nn.Module:
    found = net(generator)
    found.bn1.forward = lambda x: x
    return found


def frozen(generator: torch.Generator) -> nn.Module:
    found = net(generator)
    next(found.parameters()).requires_grad_(False)
    return found


REFUSED: dict[str, tuple[Method, Callable[[torch.Generator], nn.Module], str]] = {
    "other net": (SVI(), lambda g: small_cnn(10, (8, 8, 3), width=4, generator=g), "not a CIFAR ResNet"),
    "a net of the user's": (Vanilla(), lambda g: Hooked(1, 10, (8, 8, 3), generator=g), "not a CIFAR ResNet"),
    "option B": (Vanilla(), lambda g: CifarResNet(1, 10, (8, 8, 3), shortcut="B", generator=g), "option B"),
    "flipout": (SVI(estimator="flipout"), net, "one weight sample"),
    "several draws": (SVI(train_draws=2), net, "one weight sample"),
    "another method": (Unknown(), net, "method vanilla"),
    "hooks": (Vanilla(), hooked, "hooks"),
    "own forward": (Vanilla(), patched, "forward function of its own"),
    "frozen weights": (Vanilla(), frozen, "frozen"),
}


@pytest.mark.parametrize(("method", "factory", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_stacked(method: Method, factory: Callable[[torch.Generator], nn.Module], reason: str) -> None:
    (trainer,) = made([(method, Objective())], factory=factory)
    assert reason in str(unsupported_reason(trainer, pictures))


def test_what_can_be_stacked_together(pictures: Dataset) -> None:
    trainers = made([*MIXED, (Ensemble(members=2, member=SVI()), AVUC)])
    assert [unsupported_reason(trainer, pictures) for trainer in trainers] == [None] * len(trainers)
    assert len({signature(trainer) for trainer in trainers}) == 1
    deeper, other_constants = (
        made(PLAIN[:1], factory=factory)[0]
        for factory in (
            lambda g: CifarResNet(2, 10, (8, 8, 3), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), generator=g),
            lambda g: CifarResNet(1, 10, (8, 8, 3), generator=g),
        )
    )
    dropping = made([*DROPPED[:1], *LAST_DROPPED[:1]])
    assert [unsupported_reason(trainer, pictures) for trainer in dropping] == [None, None]
    assert len({signature(trainer) for trainer in (trainers[0], deeper, other_constants, *dropping)}) == 4


def test_who_trains_with_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of even sizes by signature; what cannot be stacked on streams; every model once."""

    class Noted:
        def __init__(self, trainers: Sequence[ModelTrainer], data: Dataset, say: Callable[[str], None]) -> None:
            self.trainers = trainers

    class NotedStack(Noted):
        pass

    monkeypatch.setattr(fit_module, "CapturedSteps", Noted)
    stacked = TrainingSteps(lambda name, data: "flipout" if name[0] == "f" else None, lambda name: name[0], NotedStack)
    monkeypatch.setattr(fit_module, "training_steps", lambda: stacked)
    loop = object.__new__(fit_module.Loop)
    loop.settings, loop.ranks, loop.say = replace(SETTINGS, models_per_step=4), Ranks(), silent
    data: Any = type("OnGPU", (), {"device": torch.device("cuda")})()
    names: list[Any] = ["f1", "a1", "b1", "a2", "f2", "a3", "a4", "a5", "a6"]
    steps = loop._new_steps(names, data)
    assert [(type(one), list(one.trainers)) for one in steps] == [
        (Noted, ["f1", "f2"]),
        (NotedStack, ["a1", "a2", "a3"]),
        (NotedStack, ["a4", "a5", "a6"]),
        (NotedStack, ["b1"]),
    ]


# the layers


@pytest.mark.parametrize("shape", [(8, 8, 4), (8, 8, 8), (7, 5, 8)], ids=["same", "pad", "odd"])
def test_layer_gradients(shape: tuple[int, int, int]) -> None:
    """Normalisation, relu and shortcut against autograd."""
    generator = torch.Generator().manual_seed(1)
    height, width, channels = shape
    small = shape if channels == 4 else ((height + 1) // 2, (width + 1) // 2, channels)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    x, before, affine = random(2, 3, *small), random(2, 3, height, width, 4), random(2, 2, channels)
    sums = torch.stack((x.sum((1, 2, 3)), x.square().sum((1, 2, 3))), 1)
    found = norm(x, sums, affine, 1e-5, before)
    grad = torch.randn(found.output.shape, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad(found.output, [x, affine, before], grad, retain_graph=True)
    entering, in_x, in_affine = block_gradient(grad, None, found.output, x, affine, found.kept)
    torch.testing.assert_close(in_x, expected[0])
    torch.testing.assert_close(in_affine, expected[1])
    # the block before: its output was read by the shortcut alone
    reached, of_before = torch.ones_like(before), (before, affine[..., :4], found.kept[..., :4])
    in_before, *_ = block_gradient(torch.zeros_like(before), entering, reached, *of_before)
    torch.testing.assert_close(in_before, expected[2])
    alone = norm(x, sums, affine, 1e-5)
    expected = torch.autograd.grad(alone.output, [x, affine], grad)
    in_x, in_affine = norm_gradient(grad, x, affine, alone.kept)
    torch.testing.assert_close(in_x, expected[0])
    torch.testing.assert_close(in_affine, expected[1])


@pytest.fixture
def traced() -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Whole graphs as on a GPU, but run without the code generator."""
    pieces: dict[Callable[..., Any], Callable[..., Any]] = {}

    def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
        if function not in pieces:
            pieces[function] = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")
        return pieces[function]

    torch._dynamo.reset()
    yield quickly
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_the_pieces_trace_whole(traced: Callable[..., Any], pictures: Dataset, double: None) -> None:
    cases = MIXED[:2]
    alone, together = made(cases), made(cases)
    steps = StackedSteps(together, pictures, silent)
    indices = torch.arange(24).view(2, 12)
    for trainer in (*alone, *together):
        trainer.begin(0)
    for trainer in together:
        attach(trainer, "none")
    EagerSteps(alone, pictures)(indices)
    with compiling():
        steps.joint(indices, traced)
    for one, other in zip(alone, together, strict=True):
        assert_close(everything(other), everything(one), atol=1e-9, rtol=1e-7)


# on a GPU


def coloured(generator: torch.Generator) -> nn.Module:
    return CifarResNet(1, 10, (32, 32, 3), mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), generator=generator)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[StackedSteps]:
    """Every stack that training makes."""
    found: list[StackedSteps] = []
    prepare = StackedSteps.prepare

    def noted(steps: StackedSteps, sizes: Sequence[int]) -> None:
        if steps not in found:
            found.append(steps)
        prepare(steps, sizes)

    monkeypatch.setattr(StackedSteps, "prepare", noted)
    return found


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_stacked_on_a_gpu(stacks: list[StackedSteps], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled and captured in bfloat16 against eager steps; the end of a warm-up, a partial batch, a resumed run."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (212, 32, 32, 3), generator=generator, dtype=torch.uint8)
    data = Dataset(images, images[:, :, :, 0].float().mean((1, 2)).long() % 10, 10, "pictures")
    settings = TrainSettings(epochs=4, batch_size=64, precision="bfloat16", learning_rate=5e-4, clip_norm=5.0)
    settings = replace(settings, checkpoint_seconds=0.0)
    cases = [
        (SVI(), Objective("avuc", variant="paper", warmup_epochs=2)),
        (Vanilla(), Objective()),
        (METHODS["ll_svi"](), AVUC),
    ]

    def totals(settings: TrainSettings, directory: Path | None = None) -> list[list[float]]:
        jobs = [
            Job(method, coloured, data, objective, settings, None, seed, directory and directory / str(seed))
            for seed, (method, objective) in enumerate(cases)
        ]
        return [[r["total"] for r in f.history] for f in fit_many(jobs, device="cuda", progress=False)]

    expected = totals(replace(settings, compile=False, capture=False))
    assert not stacks
    found = totals(settings, tmp_path)
    assert capsys.readouterr().err == ""  # no slower way was taken
    assert [len(one.trainers) for one in stacks] == [3]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2)
    for checkpoint in tmp_path.glob("*/checkpoint-000004.safetensors"):
        checkpoint.unlink()
    for ours, theirs in zip(totals(settings, tmp_path), found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_what_fails_goes_on_on_streams(
    stacks: list[StackedSteps], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no such kernel")

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (128, 32, 32, 3), generator=generator, dtype=torch.uint8)
    data = Dataset(images, torch.randint(10, (128,), generator=generator), 10, "pictures")
    settings = TrainSettings(epochs=1, batch_size=64, precision="bfloat16")
    jobs = [Job(Vanilla(), coloured, data, Objective(), settings, seed=seed) for seed in range(2)]
    monkeypatch.setattr(StackedSteps, "joint", broken)
    fitted = fit_many(jobs, device="cuda", progress=False)
    assert "cannot train stacked (RuntimeError: no such kernel)" in capsys.readouterr().err
    assert stacks[0].instead is not None
    assert all(one.history[-1]["total"] > 0 for one in fitted)
