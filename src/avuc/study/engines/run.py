"""`run_study`: prepare a study's folder, hand the work to an engine, and record what ran where."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avuc import __version__
from avuc.core.errors import InputError
from avuc.study.data.own import forget
from avuc.study.engines.local import run as run_local
from avuc.study.engines.ray import run as run_ray
from avuc.study.grid import Done, Plan
from avuc.study.recipe.config import Recipe
from avuc.study.store.store import Store
from avuc.study.trial.run import try_own_code
from avuc.training.fit import OutOfTime

# name -> run(plan, store, directory, devices, progress, until)
ENGINES: dict[str, Callable[..., None]] = {"local": run_local, "ray": run_ray}
"""Every engine by name: "local" runs in this process or one per device, "ray" on a Ray cluster."""


def run_study(
    recipe: Recipe,
    directory: str | Path,
    *,
    engine: str = "local",
    device: str = "auto",
    progress: bool = True,
    minutes: float | None = None,
    only: Sequence[str] = (),
) -> Store:
    """Run what is missing of a study and return the results. After an interruption the same call resumes the study.

    Args:
        recipe: the study; see `load_recipe`.
        directory: its folder; made if it does not exist.
        engine: "local" or "ray".
        device: "auto" for every GPU, or the CPU if there is none; or devices with commas ("cuda:0,cuda:1"), one
            process for each; a device that is named twice is shared by two processes.
        progress: show progress on stderr.
        minutes: stop after that long, at the end of an epoch or of an evaluation; `OutOfTime` says what is missing.
        only: names of methods to train and evaluate now; empty for all.

    >>> import tempfile
    >>> from avuc.study import load_recipe
    >>> small = ["study.shifts=[]", "study.ood=[]", "data.train_images=100", "data.test_images=50", "train.epochs=1"]
    >>> recipe = load_recipe("demo", [*small, "train.milestones=[]", "train.factors=[]"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = run_study(recipe, folder, device="cpu", progress=False, only=["Vanilla"])
    ...     done = store.done()
    ...     store.close()
    >>> sorted(done)
    [('Vanilla', 0, 'clean', 0), ('Vanilla', 0, 'validation', 0)]
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    plan = Plan(recipe, tuple(only))
    plan.check_epochs()
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, found {engine!r}")
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be used as a folder ({error.strerror}); choose another --out") from error
    devices = devices_for(device)
    try:
        prints = try_own_code(recipe, devices[0], plan.unfinished_sets(_evaluated(folder)))
        return _run(plan, folder, engine, devices, prints, progress=progress, until=until)
    finally:
        forget()  # the next study loads its data again, because files and objects may have changed


def _run(
    plan: Plan,
    folder: Path,
    engine: str,
    devices: list[str],
    prints: Mapping[str, str],
    *,
    progress: bool,
    until: float | None,
) -> Store:
    store, recipe = Store(folder), plan.recipe
    try:
        if store.lost:
            print(f"avuc: {store.damage()}; what is missing is computed again", file=sys.stderr)
        store.adopt(recipe, prints)
        began = time.monotonic()
        store.begin(engine=engine, device=",".join(devices), recipe=recipe, about=about_here(devices))
        try:
            ENGINES[engine](plan, store, folder, devices, progress, until)
        except OutOfTime as error:
            store.finish(time.monotonic() - began)
            raise OutOfTime(_left(plan, store)) from error
        store.finish(time.monotonic() - began)
        store.still_there()
    except OSError as error:
        store.close()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"{folder}: no room left on the disk; everything finished before is kept: make room and run the same "
                "command again"
            ) from error
        store.still_there()
        raise
    except BaseException:
        store.close()
        raise
    return store


def _evaluated(folder: Path) -> Done:
    """Return the finished evaluations of the study in `folder`, if there is one that can be read."""
    try:
        store = Store(folder, create=False, check=False)
    except InputError:  # `_run` says what is wrong with it
        return set()
    try:
        return store.done()
    finally:
        store.close()


def _left(plan: Plan, store: Store) -> str:
    trained, done = store.trained(), store.done()
    there = sum(key in trained for key in plan.models)
    missing = sum(len(plan.pending(key, test_set, done)) for key in plan.models for test_set in plan.sets)
    return (
        f"time is over: {there} of {len(plan.models)} models are trained, {plan.evaluations - missing:,} of "
        f"{plan.evaluations:,} evaluations are finished, {missing:,} are missing; run the same command to resume"
    )


def devices_for(device: str) -> list[str]:
    """Return the devices that `--device` names.

    >>> devices_for("cpu")
    ['cpu']
    """
    if device == "auto":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [f"cuda:{index}" for index in range(count)] or ["cpu"]
    chosen = [name.strip() for name in device.split(",")]
    for name in chosen:
        try:
            kind = torch.device(name).type
        except RuntimeError as error:
            raise InputError(f"--device {name}: expected auto, cpu or cuda:NUMBER") from error
        if kind == "cuda" and not torch.cuda.is_available():
            raise InputError(f"--device {name}: this machine has no CUDA device that torch can use; try --device cpu")
        if kind == "cuda" and (torch.device(name).index or 0) >= torch.cuda.device_count():
            raise InputError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return chosen


def about_here(devices: list[str]) -> dict[str, Any]:
    """Return the versions and the hardware, for the record of a run."""
    # several processes may share a GPU
    gpus = [torch.cuda.get_device_name(name) for name in dict.fromkeys(devices) if name.startswith("cuda")]
    versions = {"avuc": __version__, "torch": torch.__version__, "numpy": np.__version__}
    versions |= {"python": platform.python_version(), "cuda": torch.version.cuda or ""}
    hardware: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "gpus": gpus,
    }
    hardware |= {"processors": os.cpu_count(), "threads": torch.get_num_threads()}
    return {"versions": versions, "revision": _revision(), "hardware": hardware}


def _processor() -> str:
    try:  # Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _revision() -> str | None:
    """Return the commit of this checkout, with + if files differ from it; None for an installed package."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(tracked, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
