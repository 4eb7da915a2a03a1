"""Does AvUC or UA-CLM make a language model's uncertainty better? A small GPT, fine-tuned with each loss.

    python reproduction/language_models.py texts CLONES TEXTS          # once: texts from clones of public repositories
    python reproduction/language_models.py tokens TEXTS TOKENS         # once: tokenizer and tokens
    python reproduction/language_models.py all TOKENS OUT              # all commands below, one after another
    python reproduction/language_models.py pretrain TOKENS OUT --seeds 0 1 2 3 4
    python reproduction/language_models.py choose TOKENS OUT           # rate and strengths, by validation text only
    python reproduction/language_models.py tune TOKENS OUT             # test figures with the chosen rate and strengths
    python reproduction/language_models.py tune TOKENS OUT --every-strength
    python reproduction/language_models.py table OUT RESULTS           # the CSV files of reproduction/results

Every run writes one JSON file when it ends. A run whose file exists is skipped, so the same command continues a stopped
study. `--losses` and `--seeds` divide the work among processes. `reproduction/README.md` lists the texts.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from language_models_figures import figures, write_tables
from language_models_gpt import GPT, Loss, Schedule, Size, hidden_states, train
from language_models_text import collect, load_tokens, tokenise
from torch import Tensor

import avuc
from avuc.calibration import TemperatureScaling
from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError
from avuc.metrics.statistics import prediction_statistics
from avuc.uncertainty import midpoint_threshold

PLAIN = "cross-entropy"
# arguments of avuc.linear_avuc; all losses but the last are added to the cross-entropy with a chosen strength
LOSSES: dict[str, dict[str, Any]] = {
    PLAIN: {"kind": "plain"},
    "UA-CLM": {"kind": "ua_clm", "variant": "paper"},
    "UA-CLM repaired": {"kind": "ua_clm", "variant": "monotone"},
    "AvUC": {"kind": "avuc", "variant": "paper"},
    "AvUC monotone": {"kind": "avuc", "variant": "monotone"},
    "UA-CLM alone": {"kind": "ua_clm", "variant": "paper", "nll_weight": 0.0},
}
FIXED = {PLAIN: 0.0, "UA-CLM alone": 1.0}  # strengths that are not chosen
CHOICE_SEED = 0


@dataclass(frozen=True)
class Settings:
    """Size of the networks and how they are trained. The defaults are those of the published study."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    pretrain_steps: int = 1000
    pretrain_batch: int = 64
    pretrain_rate: float = 1e-3
    steps: int = 300
    batch: int = 32
    dropout: float = 0.1
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    strengths: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    test_tokens: int = 40_000  # predicted tokens of each text
    backend: str = "chunked"  # `backend` of linear_avuc


@dataclass(frozen=True)
class Study:
    """The settings, the tokens and the folder that the results are written to."""

    settings: Settings
    tokens: Mapping[str, np.ndarray]
    out: Path
    device: torch.device
    revision: str

    @property
    def size(self) -> Size:
        """Return the size of the networks."""
        s, vocabulary = self.settings, 1 + max(int(part.max()) for part in self.tokens.values())
        return Size(vocabulary, s.layers, s.width, s.heads, s.context)

    def part(self, name: str) -> Tensor:
        """Return the tokens of a part of the text, on the device."""
        return torch.from_numpy(self.tokens[name]).to(self.device)

    def record(self, path: Path, **content: Any) -> None:
        """Write a finished run to a JSON file, with the settings, the revision and the hardware."""
        machine = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()
        about = {"revision": self.revision, "device": machine, "torch": torch.__version__, **asdict(self.settings)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**content, "about": about}))


def pretrained(study: Study, seed: int) -> GPT:
    """Return the network that fine-tuning starts from; train it with cross-entropy if it has no file yet."""
    path = study.out / "models" / f"pretrain-{seed}.pt"
    torch.manual_seed(seed)
    model = GPT(study.size).to(study.device)
    if not path.exists():
        s = study.settings
        schedule = Schedule(s.pretrain_steps, s.pretrain_batch, s.pretrain_rate)
        trained = train(model, study.part("pretrain"), loss_of(PLAIN, 0.0, 0.0, s.backend), schedule, seed=seed)
        save(model, path)
        study.record(study.out / "pretrain" / f"seed{seed}.json", seed=seed, **asdict(trained))
        print(f"pretrained, seed {seed}: loss {trained.final_loss:.3f}, {trained.seconds:.0f} s", flush=True)
    model.load_state_dict(torch.load(path, map_location=study.device, weights_only=True))
    return model.eval()


def loss_of(name: str, strength: float, threshold: float, backend: str = "auto") -> Loss:
    """Return the named loss with this strength."""
    arguments = {"beta": strength, "threshold": threshold, "backend": backend, **LOSSES[name]}
    return lambda hidden, weight, labels: avuc.linear_avuc(hidden, weight, labels, **arguments).loss


def threshold_of(study: Study, model: GPT) -> float:
    """Return the midpoint of the mean entropies of right and wrong tokens, on text that fine-tuning trains on."""
    hidden, labels = hidden_states(model, study.part("train"), study.settings.test_tokens)
    statistics = prediction_statistics(model.logits(hidden).softmax(-1), labels)
    u, right = statistics.entropy, statistics.correct
    return float(midpoint_threshold(u[right].sum(), u[~right].sum(), right.sum(), (~right).sum()))


@dataclass(frozen=True)
class Run:
    """One fine-tuning."""

    loss: str
    strength: float
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Return the run's name in file names."""
        return f"{self.loss.replace(' ', '-')}_b{self.strength:g}_r{self.rate:g}_s{self.seed}"


def tuned(study: Study, run: Run, *, keep: bool) -> tuple[GPT, dict[str, float]]:
    """Return the fine-tuned network and the numbers of its training. With `keep`, it is saved and not trained again."""
    weights_path, numbers_path = study.out / "models" / f"{run.name}.pt", study.out / "models" / f"{run.name}.json"
    model = pretrained(study, run.seed)
    if weights_path.exists() and numbers_path.exists():
        model.load_state_dict(torch.load(weights_path, map_location=study.device, weights_only=True))
        return model.eval(), json.loads(numbers_path.read_text(encoding="utf-8"))
    threshold = threshold_of(study, model)
    s = study.settings
    schedule = Schedule(s.steps, s.batch, run.rate, s.dropout)
    loss = loss_of(run.loss, run.strength, threshold, s.backend)
    trained = train(model, study.part("train"), loss, schedule, seed=1000 + run.seed)
    numbers = {**asdict(trained), "threshold": threshold}
    if keep:
        save(model, weights_path)
        write_text(numbers_path, json.dumps(numbers))
    return model, numbers


def save(model: GPT, path: Path) -> None:
    """Write the network's weights. An interrupted call leaves no partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary_path:
        torch.save(model.state_dict(), temporary_path)


def evaluate(study: Study, model: GPT, texts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each text, without and with a temperature that was fitted on the validation text."""
    max_tokens = study.settings.test_tokens
    hidden, labels = hidden_states(model, study.part("validation"), max_tokens)
    logits = model.logits(hidden)
    if not bool(torch.isfinite(logits).all()):  # diverged
        return
    temperature = float(TemperatureScaling().fit(logits, labels).temperature_)
    for text in texts:
        hidden, labels = hidden_states(model, study.part(text), max_tokens)
        logits = model.logits(hidden)
        for scaling, divisor in (("none", 1.0), ("validation", temperature)):
            about = {"text": text, "scaling": scaling, "temperature": divisor, "tokens": len(labels)}
            yield about | figures(logits / divisor, labels)


def choose(study: Study, losses: list[str]) -> dict[str, Any] | None:
    """Choose the learning rate of cross-entropy, then the strength of each loss: the lowest NLL on validation text.

    This reads no test text. It returns None while runs of losses that other processes train are missing.
    """
    nll = {rate: _validated(study, Run(PLAIN, 0.0, rate, CHOICE_SEED))["nll"] for rate in study.settings.rates}
    rate = min(nll, key=nll.__getitem__)
    chosen: dict[str, Any] = {"rate": rate, "strengths": dict(FIXED), "seed": CHOICE_SEED}
    missing = False
    for loss in LOSSES:
        if loss in FIXED:
            continue
        runs = [Run(loss, strength, rate, CHOICE_SEED) for strength in study.settings.strengths]
        if loss not in losses and not all((study.out / "choice" / f"{run.name}.json").exists() for run in runs):
            missing = True
            continue
        nll = {run.strength: _validated(study, run)["nll"] for run in runs}
        chosen["strengths"][loss] = min(nll, key=nll.__getitem__)
    if missing:
        return None
    write_text(study.out / "choice.json", json.dumps(chosen))
    print("chosen on validation text:", chosen, flush=True)
    return chosen


def _validated(study: Study, run: Run) -> dict[str, float]:
    """Return the figures of a run on validation text; run it if it has no file yet. The NLL is inf if it diverged."""
    path = study.out / "choice" / f"{run.name}.json"
    if not path.exists():
        model, training = tuned(study, run, keep=True)
        text_figures = list(evaluate(study, model, ["validation"]))
        study.record(path, run=asdict(run), trained=training, rows=text_figures)
        print("validated", run.name, f"{training['seconds']:.1f} s", flush=True)
    text_figures = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return text_figures[0] if text_figures else {"nll": math.inf}


def tune(study: Study, seeds: list[int], losses: list[str], *, every_strength: bool) -> None:
    """Fine-tune with each loss and seed, and write the figures of each run on all texts."""
    path = study.out / "choice.json"
    if not path.exists():
        raise InputError(f"{path}: not there yet; run 'choose' first")
    chosen = json.loads(path.read_text(encoding="utf-8"))
    texts = ["validation", "test", *sorted(study.tokens.keys() - {"pretrain", "train", "validation", "test"})]
    for seed in seeds:
        for loss in losses:
            best = chosen["strengths"][loss]
            strengths = study.settings.strengths if every_strength and loss not in FIXED else (best,)
            for strength in strengths:
                run = Run(loss, strength, chosen["rate"], seed)
                target = study.out / "test" / f"{run.name}.json"
                if target.exists():
                    continue
                model, training = tuned(study, run, keep=False)
                rows = list(evaluate(study, model, texts))
                study.record(target, run=asdict(run), trained=training, rows=rows)
                print("tested", run.name, f"{training['seconds']:.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a command of the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("texts", "tokens", "pretrain", "choose", "tune", "all", "table"))
    parser.add_argument("source", type=Path, help="clones, texts, tokens, or for 'table' the folder of the study")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--every-strength", action="store_true", help="tune: all strengths, not only the chosen ones")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens: size of the vocabulary")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--revision", help="revision of the code; default: that of this clone")
    for field in fields(Settings):
        is_list = field.name in ("rates", "strengths")
        kind = type(field.default[0]) if is_list else type(field.default)
        parser.add_argument("--" + field.name.replace("_", "-"), type=kind, nargs="+" if is_list else None)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.command == "texts":
        collect(options.source, options.out)
        return 0
    if options.command == "tokens":
        print(tokenise(options.source, options.out, vocabulary=options.vocabulary))
        return 0
    if options.command == "table":
        write_tables(options.source, options.out)
        return 0
    values = {field.name: getattr(options, field.name) for field in fields(Settings)}
    tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    settings = replace(Settings(), **{name: value for name, value in (values | tuples).items() if value is not None})
    revision = options.revision or _revision()
    study = Study(settings, load_tokens(options.source), options.out, torch.device(options.device), revision)
    _check_settings(settings, options.out)
    if options.command in ("pretrain", "all"):
        for seed in options.seeds:
            pretrained(study, seed)
    if options.command in ("choose", "all"):
        choose(study, options.losses)
    if options.command in ("tune", "all"):
        tune(study, options.seeds, options.losses, every_strength=options.every_strength)
    return 0


def _check_settings(settings: Settings, out: Path) -> None:
    """Raise `InputError` if the folder holds runs with other settings."""
    path, text = out / "settings.json", json.dumps(asdict(settings))
    out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_text(path, text)
    if path.read_text(encoding="utf-8") != text:
        raise InputError(f"{out}: holds runs with other settings (settings.json); use another folder")


def _revision() -> str:
    """Return the revision of this clone; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
