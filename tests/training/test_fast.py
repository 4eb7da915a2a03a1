"""The compiled pieces trace whole and compute what the eager ones do; on a GPU the captured step does too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from avuc.data import Dataset
from avuc.methods import METHODS, SVI, SWAG, Ensemble, Method, Objective, Vanilla
from avuc.train import Fitted, Job, TrainSettings, fit_many
from avuc.training import compiled
from avuc.training.compiled import LEVELS, attach, compiling
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import unchanged

SETTINGS = TrainSettings(epochs=4, batch_size=107, learning_rate=1e-3, pad=1, flip=True, checkpoint_seconds=0.0)
AVUC = Objective("avuc", warmup_epochs=1, kl_weight=0.1)
Factory = Callable[[torch.Generator], nn.Module]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whole graphs as on a GPU, but run without the code generator: that alone would take minutes here."""
    made: dict[Callable[..., object], Callable[..., object]] = {}

    def quickly(function: Callable[..., object]) -> Callable[..., object]:
        if function not in made:
            made[function] = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")
        return made[function]

    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "compiled", quickly)
    yield
    torch._dynamo.reset()


def trainer(method: Method, net: Factory, objective: Objective, rows: int, seed: int = 0) -> ModelTrainer:
    return ModelTrainer(
        method,
        net,
        objective,
        SETTINGS,
        num_train=rows,
        num_classes=10,
        seed=seed,
        index=0,
        device=torch.device("cpu"),
        ranks=Ranks(),
    )


CASES: dict[str, tuple[Method, Objective]] = {
    "vanilla-avuc": (Vanilla(), AVUC),
    "svi-avuc": (SVI(), AVUC),
    "svi-avuc soft": (SVI(), Objective("avuc", warmup_epochs=1, variant="soft")),
    "svi-auavuc": (SVI(), Objective("auavuc", warmup_epochs=1)),
    "vanilla-sb_ece": (Vanilla(), Objective("sb_ece", warmup_epochs=1)),
    "vanilla-ua_clm": (Vanilla(), Objective("ua_clm", warmup_epochs=1)),
    "vanilla-euc": (Vanilla(), Objective("euc", warmup_epochs=1)),
    "radial, two draws": (METHODS["radial"](train_draws=2), Objective()),
    "swag": (SWAG(), Objective()),
    "ensemble": (Ensemble(members=2), Objective()),
    "dropout": (METHODS["dropout"](), AVUC),
    "flipout": (SVI(estimator="flipout"), AVUC),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "objective"), CASES.values(), ids=CASES.keys())
def test_compiled_pieces_compute_the_same(
    method: Method, objective: Objective, train: Dataset, normalised_net: Factory, traced: None
) -> None:
    # two batch sizes for one case; tracing takes most of the time
    data, curves = train.subset(range(250 if method == SVI() and objective == AVUC else 214)), {}
    for level in LEVELS:
        model = trainer(method, normalised_net, objective, len(data))
        attach(model, level)
        curve = []
        with compiling():
            for epoch in range(2):
                model.begin(epoch)
                for rows in model.order(len(data), epoch).split(107):
                    model.step(*model.batch(data, rows))
                curve.append(model.end(epoch))
        assert not {"run", "weights"} & set(model.model.__dict__)  # nothing stays behind in the model
        curves[level] = curve
    for level in LEVELS[:2]:
        for ours, eager in zip(curves[level], curves["none"], strict=True):
            assert ours["total"] == pytest.approx(eager["total"], rel=1e-3)
            assert ours["nll"] == pytest.approx(eager["nll"], rel=1e-3)
            assert ours["kl"] == pytest.approx(eager["kl"], rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_models_share_what_is_compiled(train: Dataset, normalised_net: Factory, traced: None) -> None:
    """Eight models must not be compiled eight times."""
    torch._dynamo.utils.counters.clear()
    counts = []
    for seed in range(4):
        model = trainer(SVI(), normalised_net, AVUC, len(train), seed)
        attach(model, "all")
        model.begin(0)
        model.step(*model.batch(train, torch.arange(107)))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts == [counts[0]] * 4


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("begun", [False, True])
def test_trial_steps_leave_no_trace(optimizer: str, begun: bool, train: Dataset, normalised_net: Factory) -> None:
    """Training after trial steps is bit for bit training without them, at the start as in the middle."""
    states = []
    for trials in (0, 3):
        settings = replace(SETTINGS, optimizer=optimizer, ema_decay=0.9)
        model = ModelTrainer(
            SVI(),
            normalised_net,
            AVUC,
            settings,  # type: ignore[arg-type]
            num_train=500,
            num_classes=10,
            seed=0,
            index=0,
            device=torch.device("cpu"),
            ranks=Ranks(),
        )
        model.begin(0)
        if begun:
            model.step(*model.batch(train, torch.arange(50)))
        model.model.train()
        with unchanged([model]):
            for _ in range(trials):
                model.step(*model.batch(train, torch.arange(107)))
        model.begin(1)
        for rows in model.order(500, 1).split(107):
            model.step(*model.batch(train, rows))
        states.append([tensor.detach().clone() for tensor in model.state()])
    for with_trials, without in zip(*states, strict=True):
        assert torch.equal(with_trials.nan_to_num(7), without.nan_to_num(7))


# on a GPU


def curves(fitted: list[Fitted]) -> list[float]:
    return [record["total"] for one in fitted for record in one.history]


def gpu_jobs(data: Dataset, net: Factory, settings: TrainSettings) -> list[Job]:
    cases = [(SVI(), AVUC), (Vanilla(), Objective()), (METHODS["dropout"](), AVUC), (SVI(train_draws=2), AVUC)]
    return [Job(method, net, data, objective, settings, seed=3) for method, objective in cases]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("compile_too", [False, True])
def test_captured_is_eager(
    optimizer: str, compile_too: bool, digits: Dataset, normalised_net: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same seed, the same loss curve: phases of the objective, partial batches and parallel streams included."""
    settings = replace(SETTINGS, optimizer=optimizer, clip_norm=5.0, kl_anneal_epochs=2, ema_decay=0.9)
    slow = replace(settings, capture=False, compile=False)
    fast = replace(settings, compile=compile_too)
    expected = curves(fit_many(gpu_jobs(digits, normalised_net, slow), device="cuda", progress=False))
    found = curves(fit_many(gpu_jobs(digits, normalised_net, fast), device="cuda", progress=False))
    assert capsys.readouterr().err == ""  # no slower way was taken
    # rounding grows from step to step
    assert found[::4] == pytest.approx(expected[::4], rel=2e-3)
    assert found == pytest.approx(expected, rel=2e-2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_captured_resumes(digits: Dataset, normalised_net: Factory, tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = replace(SETTINGS, compile=False)
    job = Job(SVI(), normalised_net, digits, AVUC, settings, seed=1, directory=tmp_path)
    whole = curves(fit_many([job], device="cuda", progress=False))
    (tmp_path / "checkpoint-000004.safetensors").unlink()
    assert curves(fit_many([job], device="cuda", progress=False)) == pytest.approx(whole, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_captured_runs_eagerly_and_says_so(
    digits: Dataset, normalised_net: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    class Reads(nn.Module):
        """Reads a value back to the host in the middle of its forward pass."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(images)
            return logits * 1.0 if float(logits.detach().sum().cpu()) > 0 else logits

    def jobs(settings: TrainSettings) -> list[Job]:
        return [Job(SVI(), lambda g: Reads(normalised_net(g)), digits, AVUC, settings, seed=0)]

    slow = replace(SETTINGS, capture=False, compile=False)
    expected = curves(fit_many(jobs(slow), device="cuda", progress=False))
    found = curves(fit_many(jobs(replace(SETTINGS, compile=False)), device="cuda", progress=False))
    said = capsys.readouterr().err
    assert "cannot be captured as a CUDA graph" in said
    assert said.count("\n") == 1
    assert found == pytest.approx(expected, rel=1e-3)
