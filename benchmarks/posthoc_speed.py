"""CPU seconds of fits for bench_posthoc.py: ours and the peers on the same logits, and `auto` for many sizes."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from bench_temperature import netcal, network_like, scikit_learn

from avuc.calibration import CALIBRATORS, AutoCalibrator, TemperatureScaling

# a fit must be so many times faster than the peer, and auto take at most so many temperature fits
FASTER, MOST_FITS = 3.0, 20.0
ROWS, CLASSES = (200, 1_000, 5_000, 50_000), (2, 10, 100, 1_000)


def peer_table(
    rows: int,
    classes: int,
    ours: Sequence[str],
    peers: Mapping[str, str],
    fits: Mapping[str, Callable[[np.ndarray, np.ndarray], Any]],
    limit: int,
) -> str:
    """Return a table of the CPU seconds of one fit of each method that a peer has, too.

    Args:
        rows: number of rows.
        classes: number of classes.
        ours: names of our methods.
        peers: name of ours for each name of probmetrics.
        fits: the fits of probmetrics by name.
        limit: a fit is given up after so many CPU seconds.
    """
    logits, labels = network_like(rows, classes)
    probs = torch.from_numpy(logits).double().softmax(dim=1).numpy()
    CALIBRATORS["vector"]().fit(logits[:50, :5], labels[:50] % 5)  # imports
    seconds: dict[str, float] = {}
    lines = [f"| {rows:,} × {classes:,}, CPU seconds of one thread | ours | peer | ratio |", "|---|---|---|---|"]

    def measure(name: str, run: Callable[[], object]) -> str:
        seconds[name] = limited(run, limit)
        text = "failed"
        if not np.isnan(seconds[name]):
            text = f"{seconds[name]:.2f} s" if seconds[name] < np.inf else f"not finished in {limit} s"
        print(f"{name:32}{text}", flush=True)
        return text

    print(f"one fit on {rows:,} × {classes:,} logits, CPU seconds on one thread", flush=True)
    own = {
        name: measure(name, lambda name=name: CALIBRATORS[name]().fit(logits, labels))
        for name in peers.values()
        if name in ours
    }
    own["auto"] = measure("auto", lambda: AutoCalibrator().fit(logits, labels))
    others: dict[str, tuple[str, Callable[[], object]]] = {
        "scikit-learn": ("temperature", lambda: scikit_learn(logits, labels)),
        "netcal": ("temperature", lambda: netcal(probs, labels)),
    }
    for name, same in peers.items():
        if same and name in fits:
            others[f"probmetrics `{name}`"] = (same, lambda name=name: fits[name](logits, labels))
    for name, (same, run) in others.items():
        text = measure(name, run)
        verdict = compared(seconds[same], seconds[name], limit)
        lines.append(f"| `{same}` | {own[same]} | {name} {text} | {verdict} |")
        print(f"  {same}: {verdict}", flush=True)
    lines.append(f"| `auto` | {own['auto']} | | {seconds['auto'] / seconds['temperature']:.1f} temperature fits |")
    return "\n".join([*lines, "", ""])


def compared(ours: float, peer: float, limit: int) -> str:
    """Return how many times as long as ours the fit of a peer takes.

    >>> compared(10.0, np.inf, 20), compared(10.0, np.nan, 20), compared(10.0, 20.0, 20), compared(10.0, 90.0, 99)
    ('more than 2.0, goal of 3 not shown', '–', '2.0, goal of 3 missed', '9.0')
    """
    if not ours < np.inf or np.isnan(peer):
        return "–"
    ratio, done = min(peer, limit) / ours, peer < np.inf
    short = "" if ratio >= FASTER else f", goal of {FASTER:g} {'missed' if done else 'not shown'}"
    return f"{'' if done else 'more than '}{ratio:.1f}{short}"


def limited(run: Callable[[], object], limit: int) -> float:
    """Return the CPU seconds of a call in a process of its own; infinite beyond `limit`, NaN if it fails.

    >>> limited(lambda: None, 5) < 5
    True
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(run, limit, there))
    process.start()
    process.join()
    if here.poll():
        return float(here.recv())
    return np.inf if process.exitcode == -signal.SIGXCPU else np.nan


def _timed(run: Callable[[], object], limit: int, answer: Connection) -> None:
    # the second number is that of SIGKILL, which does not say why
    resource.setrlimit(resource.RLIMIT_CPU, (limit + 1, limit + 5))
    start = time.process_time()
    run()
    answer.send(time.process_time() - start)


def auto_table() -> str:
    """Return a table of the CPU time of `auto` in units of one temperature fit on the same rows."""
    lines = [
        "| rows | " + " | ".join(f"{classes:,} classes" for classes in CLASSES) + " |",
        "|---" * (len(CLASSES) + 1) + "|",
    ]
    worst = 0.0
    for rows in ROWS:
        cells = []
        for classes in CLASSES:
            logits, labels = network_like(rows, classes)
            repeats = 1 if logits.size > 5_000_000 else 3
            one = fastest(lambda: TemperatureScaling().fit(logits, labels), 3)  # noqa: B023
            auto = fastest(lambda: AutoCalibrator().fit(logits, labels), repeats)  # noqa: B023
            worst = max(worst, auto / one)
            cells.append(f"{auto / one:.1f} ({auto:.2f} s)")
            print(f"{rows:,} × {classes:,}: temperature {one:.4f} s, auto {auto:.4f} s, {auto / one:.1f}×", flush=True)
        lines.append(f"| {rows:,} | {' | '.join(cells)} |")
    verdict = "met" if worst <= MOST_FITS else "GOAL MISSED"
    return "\n".join(
        [*lines, "", f"Goal (at most {MOST_FITS:g} temperature fits): {verdict}; the most is {worst:.1f}.", ""]
    )


def fastest(run: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)
