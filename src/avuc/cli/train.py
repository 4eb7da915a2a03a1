"""`avuc train`: one model, or the members of one ensemble, by a recipe; alone or under torchrun."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.core.errors import InputError
from avuc.core.files import read_text

if TYPE_CHECKING:
    from avuc.data import Dataset
    from avuc.methods import Method
    from avuc.train import Fitted

__all__ = ["COMMAND"]

T = TypeVar("T")
TABLES = ("data", "net", "method", "objective", "train")
TEXT = """\
Train by a recipe: a TOML file with the tables [data], [net], [method], [objective] and [train].

Without [method] and [objective] it trains the default, the best single model of our studies (docs/training.md): a
network, a posterior around it, and a temperature learned on the validation images. Of [train] that takes epochs and
flip only (flip = false where a mirrored image shows something else: digits, text).

  [data]       name = "mnist5k" (or a path), validation = 500 (images held out of the training set), other options
  [net]        name = "small_cnn", and its options
  [method]     name = "svi", and its options
  [objective]  kind = "avuc", beta = 3.0, …
  [train]      epochs = 20, batch_size = 107, …

Checkpoints and log.jsonl go to --out (of the default: to its folders first and second, and calibrator.json beside
them); the same command goes on where it was stopped."""
EXAMPLES = """\
examples:
  printf '[data]\\nname = "cifar10"\\nvalidation = 5000\\n[net]\\nname = "resnet20"\\n' > default.toml
  avuc train default.toml --out runs/default
  avuc train recipe.toml --out runs/svi
  torchrun --nproc-per-node 4 -m avuc train recipe.toml --out runs/svi --device cuda"""


def arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a TOML file")
    parser.add_argument("--out", metavar="DIR", required=True, help="where checkpoints and the log go")
    parser.add_argument("--seed", type=int, default=0, help="everything random follows from it (default 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="how long a rank waits for the others"
    )


def run(args: Namespace) -> int:
    import torch

    from avuc.methods import Objective
    from avuc.train import TrainSettings, fit
    from avuc.training.launch import launched

    given = read(Path(args.recipe))
    where = args.recipe
    tables = {name: given.get(name, {}) for name in TABLES}
    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if "method" not in given and "objective" not in given:
        run_default(args, tables, device)
        return 0
    method = method_of(tables["method"], where)
    objective = filled(Objective, tables["objective"], f"{where} [objective]")
    settings = filled(TrainSettings, tables["train"], f"{where} [train]")
    with launched(device, timeout_seconds=args.timeout) as place:
        data, validation = data_of(tables["data"], args.seed)
        net = net_of(tables["net"], data, where)
        fitted = fit(
            method,
            net,
            data,
            objective=objective,
            settings=settings,
            validation=validation,
            seed=args.seed,
            device=place,
            directory=args.out,
        )
        speaks = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if speaks:
        show(method.name, fitted)
        Console().line(f"wrote {args.out}")
    return 0


def run_default(args: Namespace, tables: dict[str, dict[str, Any]], device: str) -> None:
    """A recipe that does not say how to train: `fit_calibrated`."""
    from avuc.train import TrainSettings, fit_calibrated

    where, otherwise = args.recipe, "or give [method] to train otherwise"
    settings = filled(TrainSettings, tables["train"], f"{where} [train]")
    if others := [key for key in tables["train"] if key not in ("epochs", "flip")]:
        raise InputError(f"{where} [train]: the default takes epochs and flip only; take {others[0]} out, {otherwise}")
    if not tables["data"].get("validation"):
        raise InputError(f"{where} [data]: the default needs held-out images; give validation = 500, {otherwise}")
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise InputError(f"{where}: the default trains in one process, found {ranks}; start one, {otherwise}")
    data, validation = data_of(tables["data"], args.seed)
    assert validation is not None
    net = net_of(tables["net"], data, where)
    console = Console()
    console.line("no [method]: trains network, posterior and temperature, the default (why: docs/training.md)")
    found = fit_calibrated(
        net,
        data,
        validation,
        epochs=settings.epochs if "epochs" in tables["train"] else None,
        flip=settings.flip,
        seed=args.seed,
        device=device,
        directory=args.out,
    )
    show("first, the network", found.first)
    show("second, its posterior", found.second)
    console.line(f"temperature {found.calibrator.temperature_:.4f}, from {len(validation)} held-out images")
    console.line(f"wrote {args.out}")


def show(name: str, fitted: Fitted) -> None:
    last = fitted.history[-1]
    told = {key: last.get(key) for key in ("nll", "accuracy", "avu", "validation_nll", "validation_accuracy")}
    words = [f"{key.replace('_', ' ')} {value:.4f}" for key, value in told.items() if value is not None]
    Console().line(f"{name}: {fitted.epochs} epochs in {fitted.seconds:.0f} s; {', '.join(words)}")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The recipe's tables, those that it has."""
    try:
        content = tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from error
    for name, table in content.items():
        if name not in TABLES:
            raise InputError(f"{path}: no table [{name}]; {_nearest(name, TABLES)}")
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} must be a table, [{name}]")
    return content


def filled(kind: Callable[..., T], table: dict[str, Any], where: str) -> T:
    """A dataclass of settings from a table: unknown keys and wrong types are named, with the nearest valid key."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where}: no key {key!r}; {_nearest(key, list(known))}")
        default = known[key].default
        given: Any = tuple(value) if isinstance(value, list) else value
        if default is not MISSING and default is not None and not _fits(given, default):
            raise InputError(f"{where}: {key} is {type(default).__name__}, like {default!r}; found {value!r}")
        values[key] = float(given) if isinstance(default, float) else given
    return kind(**values)


def method_of(table: dict[str, Any], where: str) -> Method:
    from avuc.methods import METHODS

    name = str(table.pop("name", "vanilla"))
    if name not in METHODS:
        raise InputError(f"{where} [method]: no method {name!r}; {_nearest(name, list(METHODS))}")
    if "member" in table:
        table["member"] = method_of(dict(table["member"]), where)
    return filled(METHODS[name], table, f"{where} [method]")


def net_of(table: dict[str, Any], data: Dataset, where: str) -> Callable[[Any], Any]:
    from avuc.nets import NETS

    name = str(table.pop("name", "small_cnn"))
    if name not in NETS:
        raise InputError(f"{where} [net]: no net {name!r}; {_nearest(name, list(NETS))}")
    shape = tuple(data.images.shape[1:])
    try:
        NETS[name](data.num_classes, shape, **table)
    except TypeError as error:
        raise InputError(f"{where} [net]: {error}") from error
    return lambda generator: NETS[name](data.num_classes, shape, generator=generator, **table)


def data_of(table: dict[str, Any], seed: int) -> tuple[Dataset, Dataset | None]:
    from avuc.data import load_dataset, split_dataset

    name, held_out = str(table.pop("name", "mnist5k")), table.pop("validation", 0)
    data = load_dataset(name, table.pop("root", None), table.pop("split", "train"), **table)
    return split_dataset(data, held_out, seed=seed).apply(data) if held_out else (data, None)


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, (int, float) if isinstance(default, float) else type(default))


def _nearest(given: str, names: Any) -> str:
    close = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


COMMAND = Command(
    summary="train a model by a recipe; alone or on several devices with torchrun",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
