"""`avuc train`: train one model, or the networks of one ensemble, from a recipe; alone or under torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.core.errors import InputError

if TYPE_CHECKING:
    from avuc.data import Dataset
    from avuc.study.recipe.parser import TrainingRecipe
    from avuc.training.fitted import Fitted

TEXT = """\
Train one model from a recipe: a TOML file with the tables [data], [net], [method], [objective] and [train].

Without [method] and [objective] the default is trained: the best method of our study cifar10-best
(docs/guide/training.md). It is a network, a posterior around it, and a temperature learned on the validation images. It
takes only epochs and flip from [train]; set flip = false if a mirrored image means something else (digits, text).

  [data]       name = "mnist5k" (or a path), validation = 500 (images held out of the training set), other options
  [net]        name = "small_cnn", and its options
  [method]     name = "svi", and its options
  [objective]  kind = "avuc", variant = "monotone", beta = 3.0, …
  [train]      epochs = 20, batch_size = 107, …

Checkpoints and log.jsonl go to --out. The default writes them to the folders first and second, next to calibrator.json
and model.safetensors, which avuc.train.Calibrated.load reads in Python.
If the training is interrupted, the same command resumes it."""
EXAMPLES = """\
examples:
  printf '%s\\n' '[data]' 'name = "mnist5k"' 'validation = 400' '[net]' 'name = "mlp"' \\
    '[train]' 'epochs = 4' 'flip = false' > digits.toml
  avuc train digits.toml --out runs/digits
  avuc train recipe.toml --out runs/svi --seed 1
  torchrun --nproc-per-node 4 -m avuc train recipe.toml --out runs/svi --device cuda"""


def arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a TOML file")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for checkpoints and the log")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random number (default: 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: a GPU if there is one")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="how long a process waits for the others"
    )


def run(args: Namespace) -> int:
    import torch

    from avuc.study.engines.run import devices_for
    from avuc.study.recipe.load import load_training
    from avuc.training.fit import fit
    from avuc.training.launch import launched

    recipe = load_training(args.recipe)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device != "auto":
        device, *others = devices_for(args.device)
        if others:
            raise InputError(f"--device {args.device}: one device trains here; start several processes with torchrun")
    if recipe.is_default:
        run_default(args, recipe, device)
        return 0
    with launched(device, timeout_seconds=args.timeout) as rank_device:
        data, validation = data_of(recipe, args.seed)
        net = net_of(recipe, data, args.recipe)
        fitted = fit(
            recipe.method,
            net,
            data,
            objective=recipe.objective,
            settings=recipe.settings,
            validation=validation,
            seed=args.seed,
            device=rank_device,
            directory=args.out,
        )
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if is_first:
        show(recipe.method.name, fitted)
        Console().line(f"wrote {args.out}")
    return 0


def run_default(args: Namespace, recipe: TrainingRecipe, device: str) -> None:
    """Train a recipe without [method] and [objective] with `fit_calibrated`."""
    from avuc.training.default import fit_calibrated

    where, otherwise = args.recipe, "or give [method] to train another way"
    if others := [key for key in recipe.train_keys if key not in ("epochs", "flip")]:
        raise InputError(f"{where}: train: the default takes epochs and flip only; remove {others[0]}, {otherwise}")
    if not recipe.validation:
        raise InputError(f"{where}: data: the default needs held-out images; give validation = 500, {otherwise}")
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise InputError(f"{where}: the default trains in one process, found {ranks}; start one, {otherwise}")
    data, validation = data_of(recipe, args.seed)
    assert validation is not None
    net = net_of(recipe, data, where)
    console = Console()
    console.line("no [method]: training the default: network, posterior and temperature (see docs/guide/training.md)")
    fitted = fit_calibrated(
        net,
        data,
        validation,
        epochs=recipe.settings.epochs if "epochs" in recipe.train_keys else None,
        flip=recipe.settings.flip,
        seed=args.seed,
        device=device,
        directory=args.out,
    )
    assert fitted.network_fit is not None
    assert fitted.posterior_fit is not None
    show("first, the network", fitted.network_fit)
    show("second, its posterior", fitted.posterior_fit)
    console.line(f"temperature {fitted.calibrator.temperature_:.4f}, from {len(validation)} held-out images")
    path = Path(args.out) / "model.safetensors"
    fitted.save(path)
    console.line(f"wrote {args.out}; in Python: avuc.train.Calibrated.load({str(path)!r}, net).predict(images)")


def show(name: str, fitted: Fitted) -> None:
    last = fitted.history[-1]
    values = {key: last.get(key) for key in ("nll", "accuracy", "avu", "validation_nll", "validation_accuracy")}
    texts = [f"{key.replace('_', ' ')} {value:.4f}" for key, value in values.items() if value is not None]
    Console().line(f"{name}: {fitted.epochs} epochs in {fitted.seconds:.0f} s; {', '.join(texts)}")


def net_of(recipe: TrainingRecipe, data: Dataset, source: str) -> Callable[[Any], Any]:
    """Return the network as a function of a random generator; refuse options that the network does not have."""
    from avuc.nets import NETS

    make, shape, options = NETS[recipe.net], tuple(data.images.shape[1:]), recipe.net_options
    try:
        make(data.num_classes, shape, **options)
    except TypeError as error:
        raise InputError(f"{source}: net: {error}") from error
    return lambda generator: make(data.num_classes, shape, generator=generator, **options)


def data_of(recipe: TrainingRecipe, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return the training images, and the validation images if the recipe holds some out."""
    from avuc.data import load_dataset, split_dataset

    options = dict(recipe.data_options)
    data = load_dataset(recipe.data, options.pop("root", None), options.pop("split", "train"), **options)
    held_out = recipe.validation
    return split_dataset(data, held_out, seed=seed).apply(data) if held_out else (data, None)


COMMAND = Command(
    summary="train one model from a recipe; on several devices with torchrun",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
