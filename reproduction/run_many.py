"""Run several studies side by side on one GPU until a common end time, and export each as soon as it is finished.

    python reproduction/run_many.py PLAN.toml --out out/many --minutes 25 --mps --export out/small
    python reproduction/run_many.py PLAN.toml --out out/many --end-file end.txt
    python reproduction/run_many.py PLAN.toml --out out/many --export out/small --export-only

A plan has queues. The studies of one queue run one after another, the queues at the same time:

    [[study]]
    queue = "images"                    # any name
    recipe = "tiny-imagenet"            # a folder of reproduction/studies, a .toml file, or a recipe of the package
    out = "tiny-imagenet"               # folder below --out; several entries may continue one study
    data = "/data/tiny"                 # data.root of the recipe
    only = ["SVI", "SVI-AvUC"]          # methods; all by default
    set = ["methods.SVI.seeds=[0]"]     # other changes of the recipe
    least = 3.0                         # minutes: it is not begun if less time is left (default 1)
    seed_from = "results/factorial"     # begin with a copy of this published study if `out` has none
    low_priority = true                 # with --mps: its kernels wait for those of the other queues (default false)

Relative paths are relative to the plan. With --end-file the end time is read from a file (seconds since 1970), again
and again, so that you can change it while the studies run. A study that runs at the end stops itself and keeps
everything finished; after --grace seconds it is interrupted, after ten more it is killed. The same command resumes.

--export writes a small copy of a study whenever one of its entries ends, and of all of them at the end. Fetch these
copies while the other queues run: a rented machine can go away, and everything that is only there goes with it.

--mps starts NVIDIA's Multi-Process Service: the kernels of several processes then run at the same time, where otherwise
the processes take turns. Small networks leave most of a large GPU idle, so this is worth it for ResNet-20 and CIFAR.

It prints a line when a study begins and ends. OUT/status.json says what became of each entry, OUT/logs has what each of
them printed. The exit code is 0 if everything is finished, 75 if the time is over, 1 if a study failed; a failed study
does not stop its queue.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO

from mps import LOW_PRIORITY, multi_process_service

from avuc.core.atomic import write_text
from avuc.core.errors import InputError, run_script
from avuc.study.store.export import export_study

HOME = Path(__file__).parents[1]
FOLDERS = HOME / "reproduction" / "studies"
OUT_OF_TIME = 75
LOOK_SECONDS = 0.2
KILL_SECONDS = 10.0
# states of an entry
WAITING, RUNNING, FINISHED, STOPPED, FAILED, NOT_BEGUN = (
    *("waiting", "running", "finished", "out of time", "failed", "not begun: too little time"),
)


@dataclass(frozen=True)
class Entry:
    """One study of a plan, or a part of one. The keys of `[[study]]`; see above."""

    queue: str
    recipe: str
    out: str
    data: str = ""
    only: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    least: float = 1.0
    seed_from: str = ""
    device: str = ""
    low_priority: bool = False
    base: Path = Path()

    def command(self, out: Path, minutes: float) -> tuple[list[str], Path]:
        """The command, and the folder to run it in: import paths of a recipe are found there."""
        own = FOLDERS / self.recipe / "recipe.toml"
        path = own if own.is_file() else (self.base / self.recipe).resolve()
        recipe, folder = (path.name, path.parent) if path.is_file() else (self.recipe, self.base.resolve())
        command = [sys.executable, "-m", "avuc", "study", recipe, "--out", str((out / self.out).resolve())]
        command += ["--minutes", f"{minutes:.4g}", "--no-report"]
        if self.data:
            command += ["--set", f"data.root={(self.base / self.data).resolve()}"]
        for name, values in (("--set", self.set), ("--only", self.only), ("--device", (self.device,))):
            command += [part for value in values if value for part in (name, value)]
        return command, folder


@dataclass
class Queue:
    """The entries of a queue, and the process of the one that runs."""

    entries: list[Entry]
    place: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None
    states: list[str] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)  # begin and end
    signals: int = 0

    def __post_init__(self) -> None:
        self.states = [WAITING] * len(self.entries)
        self.times = [[] for _ in self.entries]

    @property
    def ended(self) -> bool:
        return self.process is None and self.place >= len(self.entries)


def read_plan(path: Path) -> list[Entry]:
    """Return the entries of a plan."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a plan in TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not a plan in TOML ({error})") from error
    known = {one.name for one in fields(Entry)} - {"base"}
    entries = []
    for number, table in enumerate(tables.get("study", []), start=1):
        wrong = sorted(set(table) - known) + [f"no {name}" for name in ("queue", "recipe", "out") if name not in table]
        if wrong:
            raise InputError(f"{path}: entry {number}: {', '.join(wrong)}; keys are {', '.join(sorted(known))}")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        entries.append(Entry(**values, base=path.parent))
    if not entries:
        raise InputError(f"{path}: no [[study]]")
    return entries


class Runner:
    """Runs the queues until `end_time` says that the time is over.

    Args:
        entries: of the plan.
        out: folder of the studies.
        end: seconds since 1970, or a file that holds them.
        grace: seconds after the end until a process is interrupted.
        env: environment of the studies.
        copies: folder of the small copies; without one, none are made while the studies run.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        out: Path,
        end: float | Path,
        grace: float,
        env: dict[str, str],
        copies: Path | None = None,
    ):
        names = dict.fromkeys(entry.queue for entry in entries)
        self.queues = {name: Queue([one for one in entries if one.queue == name]) for name in names}
        self.out, self.end, self.grace, self.env, self.copies = out, end, grace, env, copies
        self.last_end = float("inf")

    def end_time(self) -> float:
        if isinstance(self.end, Path):
            with contextlib.suppress(OSError, ValueError):  # a file that is just being written keeps the last value
                self.last_end = float(self.end.read_text(encoding="utf-8"))
            return self.last_end
        return self.end

    def run(self) -> int:
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        try:
            while not all(queue.ended for queue in self.queues.values()):
                for name, queue in self.queues.items():
                    if queue.process is None:
                        self._begin(name, queue)
                    else:
                        self._look(name, queue)
                time.sleep(LOOK_SECONDS)
        finally:  # interrupted: they are, too
            for queue in self.queues.values():
                if queue.process is not None:
                    _signal(queue.process, signal.SIGINT)
            self._write()
        states = {state for queue in self.queues.values() for state in queue.states}
        return 1 if FAILED in states else OUT_OF_TIME if states & {STOPPED, NOT_BEGUN} else 0

    def _begin(self, name: str, queue: Queue) -> None:
        if queue.place >= len(queue.entries):
            return
        entry = queue.entries[queue.place]
        minutes = (self.end_time() - time.time()) / 60
        if minutes <= entry.least:
            self._end(name, queue, NOT_BEGUN)
            return
        try:
            self._seed(entry)
        except OSError as error:  # the other queues go on
            print(f"{name}: {entry.out}: seed_from: {error}", file=sys.stderr)
            self._end(name, queue, FAILED)
            return
        command, folder = entry.command(self.out, minutes)
        path = self.out / "logs" / f"{name}-{queue.place}.log"
        queue.log = path.open("ab")
        queue.log.write(f"{' '.join(command)}\n".encode())
        queue.log.flush()
        env = self.env | (LOW_PRIORITY if entry.low_priority else {})
        queue.process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=queue.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        queue.states[queue.place], queue.times[queue.place], queue.signals = RUNNING, [time.time()], 0
        print(f"{name}: {entry.out}: begins; {path}", flush=True)
        self._write()

    def _seed(self, entry: Entry) -> None:
        target = self.out / entry.out
        if entry.seed_from and not (target / "study.sqlite").exists():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(entry.base / entry.seed_from / "study.sqlite", target / "study.sqlite")

    def _look(self, name: str, queue: Queue) -> None:
        assert queue.process is not None
        assert queue.log is not None
        code, late = queue.process.poll(), time.time() - self.end_time() - self.grace
        if code is None:
            for step, (seconds, number) in enumerate(((0.0, signal.SIGINT), (KILL_SECONDS, signal.SIGKILL))):
                if late >= seconds and queue.signals == step:
                    _signal(queue.process, number)
                    queue.signals += 1
            return
        queue.log.close()
        if code == OUT_OF_TIME or queue.signals:
            state = STOPPED
        else:
            state = FAILED if code else FINISHED
        queue.times[queue.place].append(time.time())
        self._end(name, queue, state)

    def _end(self, name: str, queue: Queue, state: str) -> None:
        entry, times = queue.entries[queue.place], queue.times[queue.place]
        after = f" after {times[1] - times[0]:.0f} s" if times else ""
        print(f"{name}: {entry.out}: {state}{after}", flush=True)
        queue.states[queue.place] = state
        queue.place, queue.process = queue.place + 1, None
        self._write()
        if self.copies is not None and state in (FINISHED, STOPPED):
            try:
                export([entry], self.out, self.copies)
            except (InputError, OSError) as error:  # it is tried again at the end; the other queues go on
                print(f"{name}: {entry.out}: no copy: {error}", file=sys.stderr)

    def _write(self) -> None:
        rows = [
            {
                "queue": name,
                "recipe": entry.recipe,
                "out": entry.out,
                "only": list(entry.only),
                "state": state,
                "began": round(times[0], 1) if times else None,
                "seconds": round(times[1] - times[0], 1) if len(times) > 1 else None,
            }
            for name, queue in self.queues.items()
            for entry, state, times in zip(queue.entries, queue.states, queue.times, strict=True)
        ]
        write_text(self.out / "status.json", json.dumps(rows, indent=1) + "\n")


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)  # with the processes that it has started


def export(entries: Sequence[Entry], out: Path, target: Path) -> None:
    """Write a small copy of every study that has begun."""
    for name in dict.fromkeys(entry.out for entry in entries):
        if (out / name / "study.sqlite").is_file():
            size = export_study(out / name, target / name).stat().st_size
            print(f"{name}: copied, {size / 1e6:.1f} MB", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", type=Path, help="the studies, in TOML")
    parser.add_argument("--out", type=Path, required=True, help="folder of the studies")
    parser.add_argument("--minutes", type=float, help="the end, counted from now")
    parser.add_argument("--end-file", type=Path, help="a file with the end, in seconds since 1970")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds after the end until a study is interrupted")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's Multi-Process Service for the studies")
    parser.add_argument(
        "--export", type=Path, metavar="FOLDER", help="write small copies of finished studies to FOLDER"
    )
    parser.add_argument("--export-only", action="store_true", help="run nothing")
    args = parser.parse_args(arguments)
    entries = read_plan(args.plan)
    code = 0
    if not args.export_only:
        if (args.minutes is None) == (args.end_file is None):
            raise InputError("give --minutes or --end-file: one of them")
        if args.end_file is not None and not args.end_file.is_file():
            raise InputError(f"{args.end_file}: no such file; --end-file names a file with the end time")
        end = args.end_file if args.minutes is None else time.time() + 60 * args.minutes
        # modules of recipes/ are in this folder, those of studies/ in their own
        paths = [str(HOME / "src"), str(HOME / "reproduction"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with multi_process_service() if args.mps else contextlib.nullcontext({}) as own:
            code = Runner(entries, args.out, end, args.grace, env | own, args.export).run()
    if args.export is not None:
        export(entries, args.out, args.export)
    return code


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # its studies end with it; a shell's background job ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    run_script(main)
