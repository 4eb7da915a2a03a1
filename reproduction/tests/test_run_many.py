"""Several studies side by side: queues, a common end time, what fails, what hangs, MPS, and the small copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mps
import pytest
import run_many

from avuc.core.errors import InputError
from avuc.study import load_recipe
from avuc.study.grid import Plan
from avuc.study.store.store import Store

RECIPE = """
[study]
name = "small"
seeds = [0]
samples = 2
shifts = []
ood = []
[data]
source = "mnist5k"
validation = 100
train_images = 100
test_images = 100
[net]
name = "mlp"
hidden = [8]
[train]
epochs = 1
milestones = []
factors = []
pad = 0
[[methods]]
name = "Plain, first"
method = "vanilla"
[[methods]]
name = "Second"
method = "vanilla"
objective = { kind = "confidence_penalty", beta = 0.1 }
"""
PLAN = """
[[study]]
queue = "a"
recipe = "small.toml"
out = "one"
only = ["Plain, first"]
device = "cpu"
[[study]]
queue = "b"
recipe = "small.toml"
out = "two"
only = ["Missing"]
device = "cpu"
[[study]]
queue = "b"
recipe = "small.toml"
out = "two"
set = ["train.epochs=2"]
least = 1e9
[[study]]
queue = "a"
recipe = "small.toml"
out = "copy"
only = ["Second"]
device = "cpu"
seed_from = "out/one"
"""


def states(out: Path) -> list[str]:
    return [row["state"] for row in json.loads((out / "status.json").read_text())]


def test_queues_run_and_small_copies_are_made(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "plan.toml").write_text(PLAN)
    out, small = tmp_path / "out", tmp_path / "exported"
    arguments = [str(tmp_path / "plan.toml"), "--out", str(out), "--minutes", "5", "--export", str(small)]
    assert run_many.main(arguments) == 1  # one failed
    assert states(out) == ["finished", "finished", "failed", "not begun: too little time"]
    assert "Missing: the recipe has no such method" in (out / "logs" / "b-0.log").read_text()
    said = capsys.readouterr().out
    assert "one: copied, 0." in said
    assert f"b: two: begins; {out / 'logs' / 'b-0.log'}\n" in said
    assert "b: two: failed after " in said
    expected = {"one": {"Plain, first"}, "copy": {"Plain, first", "Second"}}  # a copy begins with what it is a copy of
    for name, methods in expected.items():
        store = Store(small / name, create=False)
        assert {row[0] for row in store.done()} == methods
        store.close()
    assert not (small / "two").exists()


def test_a_study_is_copied_as_soon_as_its_entry_ends(tmp_path, monkeypatch, capsys):
    copied = tmp_path / "copied"
    waits = f"""
import pathlib, sys, time
begin = time.monotonic()
while not pathlib.Path({str(copied)!r}).exists():
    if time.monotonic() - begin > 60:
        sys.exit("no copy while this queue runs")
    time.sleep(0.05)
"""
    path, out = (
        plan_of(tmp_path, monkeypatch, {"quick": "", "waits": waits, "fails": "raise SystemExit(1)"}),
        tmp_path / "out",
    )
    calls = []

    def export_study(source: Path, target: Path) -> Path:
        calls.append((source, target))
        copied.touch()
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return copied

    for name in ("quick", "waits", "fails"):
        (out / name).mkdir(parents=True)
        (out / name / "study.sqlite").touch()
    monkeypatch.setattr(run_many, "export_study", export_study)
    small = tmp_path / "small"
    assert run_many.main([str(path), "--out", str(out), "--minutes", "5", "--export", str(small)]) == 1
    assert states(out) == ["finished", "finished", "failed"]
    names = [source.name for source, _ in calls]
    assert names == ["quick", "waits", "quick", "waits", "fails"]  # two of them while the queues run, all at the end
    assert all(target == small / source.name for source, target in calls)
    assert "quick: quick: no copy: [Errno 28] No space left" in capsys.readouterr().err


def test_a_missing_study_to_begin_with_fails_alone(tmp_path, monkeypatch, capsys):
    path = plan_of(tmp_path, monkeypatch, {"a": "", "b": ""})
    path.write_text(path.read_text().replace('out = "a"\n', 'out = "a"\nseed_from = "nowhere"\n'))
    out = tmp_path / "out"
    assert run_many.main([str(path), "--out", str(out), "--minutes", "1"]) == 1
    assert states(out) == ["failed", "finished"]
    said = capsys.readouterr()
    assert "a: a: failed\n" in said.out
    assert f"a: a: seed_from: [Errno 2] No such file or directory: '{tmp_path}/nowhere/study.sqlite'" in said.err


def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> Path:
    """A plan with one queue for each program; `recipe` is its Python code."""

    def command(self: run_many.Entry, out: Path, minutes: float) -> tuple[list[str], Path]:
        return [sys.executable, "-S", "-c", programs[self.recipe], f"{minutes:.4g}"], tmp_path

    monkeypatch.setattr(run_many.Entry, "command", command)
    path = tmp_path / "plan.toml"
    tables = [f'[[study]]\nqueue = "{name}"\nrecipe = "{name}"\nout = "{name}"\nleast = 0.0\n' for name in programs]
    path.write_text("".join(tables))
    return path


def test_what_goes_on_after_the_end_is_interrupted_then_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_many, "KILL_SECONDS", 6.0)  # a busy machine is slow to print why it was interrupted
    end, ready = tmp_path / "end", tmp_path / "ready"
    end.write_text(f"{time.time() + 6000}")
    ignores = f"import pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); file = {str(ready)!r}; "
    ignores += "pathlib.Path(file).touch(); time.sleep(100)"
    # the end comes when both have begun, however slow the machine is
    hangs = f"""
import pathlib, time
while not pathlib.Path({str(ready)!r}).exists():
    time.sleep(0.05)
pathlib.Path({str(end)!r}).write_text(str(time.time()))
time.sleep(100)
"""
    programs = {"ends": "", "stops": "raise SystemExit(75)", "hangs": hangs, "ignores": ignores}
    path, out = plan_of(tmp_path, monkeypatch, programs), tmp_path / "out"
    began = time.monotonic()
    assert run_many.main([str(path), "--out", str(out), "--end-file", str(end), "--grace", "0.2"]) == 75
    assert time.monotonic() - began < 60  # not 100
    assert states(out) == ["finished", "out of time", "out of time", "out of time"]
    assert "KeyboardInterrupt" in (out / "logs" / "hangs-0.log").read_text()


@pytest.mark.parametrize("before", ["", "trap '' INT; "])  # as `command &` does in a script
def test_a_terminated_runner_takes_its_studies_with_it(tmp_path, before):
    """`timeout` and batch systems send SIGTERM; studies that went on would use the GPU beside the next run."""
    (tmp_path / "small.toml").write_text(RECIPE)
    plan = '[[study]]\nqueue = "a"\nrecipe = "small.toml"\nout = "one"\nset = ["train.epochs=100000"]\ndevice = "cpu"\n'
    (tmp_path / "plan.toml").write_text(plan)
    command = [sys.executable, run_many.__file__, "plan.toml", "--out", "out", "--minutes", "9"]
    log = tmp_path / "out" / "logs" / "a-0.log"
    shell = ["sh", "-c", f'{before}exec "$@"', "sh", *command]
    with subprocess.Popen(shell, cwd=tmp_path, stderr=subprocess.DEVNULL) as runner:
        wait_for(log, "training Plain, first")
        runner.terminate()
    wait_for(log, "interrupted")


def wait_for(log: Path, text: str) -> None:
    end = time.monotonic() + 60
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < end, text
        time.sleep(0.1)


def test_the_end_in_a_file_may_change(tmp_path, monkeypatch):
    end = tmp_path / "end"
    end.write_text(f"{time.time() + 6000}")
    soon = f"import pathlib, time; pathlib.Path({str(end)!r}).write_text(str(time.time())); time.sleep(100)"
    path = plan_of(tmp_path, monkeypatch, {"soon": soon})
    assert run_many.main([str(path), "--out", str(tmp_path / "out"), "--end-file", str(end), "--grace", "0"]) == 75
    runner = run_many.Runner([], tmp_path, end, 0, {})
    now = runner.end_time()
    end.write_text("")  # half written
    assert runner.end_time() == now


def test_mps_is_started_for_the_studies_alone_and_ended(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / mps.MPS
    program.write_text(
        f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $1" >> {tmp_path}/called\ncat >> {tmp_path}/called\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    path = plan_of(tmp_path, monkeypatch, {"asks": "import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])"})
    assert run_many.main([str(path), "--out", str(tmp_path / "out"), "--minutes", "1", "--mps"]) == 0
    said = (tmp_path / "out" / "logs" / "asks-0.log").read_text().split()[-1]
    assert (tmp_path / "called").read_text() == f"{said} -d\n{said} \nquit\n"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    path = plan_of(tmp_path, monkeypatch, {"asks": "import os; assert 'CUDA_MPS_PIPE_DIRECTORY' not in os.environ"})
    program.write_text("#!/bin/sh\nexit 1\n")
    assert run_many.main([str(path), "--out", str(tmp_path / "out"), "--minutes", "1", "--mps"]) == 0
    assert "did not start; the studies take turns" in capfd.readouterr().err
    program.unlink()
    assert run_many.main([str(path), "--out", str(tmp_path / "out"), "--minutes", "1", "--mps"]) == 0
    assert "not found; the studies take turns" in capfd.readouterr().err


def test_an_entry_of_low_priority_tells_mps(tmp_path, monkeypatch):
    program = "import os; print(os.environ.get('CUDA_MPS_CLIENT_PRIORITY'))"
    path = plan_of(tmp_path, monkeypatch, {"first": program, "last": program})
    path.write_text(path.read_text().replace('out = "last"\n', 'out = "last"\nlow_priority = true\n'))
    assert run_many.main([str(path), "--out", str(tmp_path / "out"), "--minutes", "1"]) == 0
    logs = [tmp_path / "out" / "logs" / f"{name}-0.log" for name in ("first", "last")]
    assert [log.read_text().split()[-1] for log in logs] == ["None", "1"]


def test_commands_of_all_kinds_of_recipes(tmp_path):
    given = {"queue": "a", "out": "x", "base": tmp_path}
    command, folder = run_many.Entry(recipe="tiny-imagenet", data="pictures", **given).command(tmp_path, 2.5)
    assert folder == run_many.FOLDERS / "tiny-imagenet"
    assert command[3:8] == ["study", "recipe.toml", "--out", str(tmp_path / "x"), "--minutes"]
    assert command[-2:] == ["--set", f"data.root={tmp_path / 'pictures'}"]
    shipped, _ = run_many.Entry(recipe="demo", only=("SVI", "TS"), device="cpu", **given).command(tmp_path, 1)
    assert shipped[4] == "demo"
    assert shipped[-6:] == ["--only", "SVI", "--only", "TS", "--device", "cpu"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[study]]\nqueue = 'a'\nrecipe = 'demo'\n", "entry 1: no out; keys are"),
        ("[[study]]\nqueue = 'a'\nrecipe = 'demo'\nout = 'x'\nonyl = []\n", "entry 1: onyl; keys are"),
        ("", r"no \[\[study\]\]"),
        ("[", "not a plan in TOML"),
    ],
)
def test_wrong_plans(tmp_path, text, message):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        run_many.read_plan(tmp_path / "plan.toml")


def test_a_missing_plan(tmp_path):
    with pytest.raises(InputError, match=r"plan\.toml: cannot be read \(No such file or directory\)"):
        run_many.read_plan(tmp_path / "plan.toml")


def test_one_end_time(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    for more in ([], ["--minutes", "1", "--end-file", "x"]):
        with pytest.raises(InputError, match="one of them"):
            run_many.main([str(tmp_path / "plan.toml"), "--out", str(tmp_path), *more])
    with pytest.raises(InputError, match="no such file; --end-file"):
        run_many.main([str(tmp_path / "plan.toml"), "--out", str(tmp_path), "--end-file", str(tmp_path / "x")])


def test_the_plan_of_what_is_left_names_what_has_no_results():
    entries = run_many.read_plan(run_many.HOME / "reproduction" / "remaining.toml")
    wanted: dict[str, set[str]] = {}
    for entry in entries:
        recipe = load_recipe(entry.base / entry.recipe)
        names = {method.name for method in recipe.methods}
        assert set(entry.only) <= names
        wanted.setdefault(entry.out, set()).update(entry.only or names)
        published = run_many.HOME / "reproduction" / "results" / "cifar10" / entry.out
        assert bool(entry.seed_from) == published.is_dir()
    for out, names in wanted.items():
        recipe = load_recipe(run_many.HOME / "reproduction" / "recipes" / f"{out}.toml")
        published, done = run_many.HOME / "reproduction" / "results" / "cifar10" / out, set()
        if published.is_dir():
            store = Store(published, create=False)
            cells = store.done()
            store.close()
            sets = [(one.shift, one.severity) for one in Plan(recipe).sets]
            planned = {row.name: [(row.name, seed) for seed in recipe.seeds(row)] for row in recipe.methods}
            # all seeds on all sets: a method that has some intensities only is not finished
            finished = {name: {(*model, *one) for model in models for one in sets} for name, models in planned.items()}
            done = {name for name, wanted in finished.items() if wanted <= cells}
        assert not names & done  # an entry that is finished leaves the plan
        if out != "past":  # candidates that are not chosen are not evaluated
            assert names | done == {method.name for method in recipe.methods}
