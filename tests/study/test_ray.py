"""The Ray engine: the rows of the local one, whoever is killed on the way."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from avuc.core.errors import MissingExtra
from avuc.study import run_study

try:
    import ray
except ImportError:
    ray = None

needs_ray = pytest.mark.skipif(ray is None, reason="ray is not installed here: pip install 'avuc[ray]'")
# Ray warns about its own future; nothing of that comes from avuc
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def cluster():
    """A small cluster of its own, which the drivers join."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    os.environ.pop("RAY_ADDRESS") if before is None else os.environ.update(RAY_ADDRESS=before)
    made.shutdown()


def workers() -> list[int]:
    """Processes that run a task of a study now; Ray names them by it."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            title = (folder / "cmdline").read_bytes()
            if title.startswith((b"ray::_train", b"ray::_evaluate")):
                found.append(int(folder.name))
    return found


@needs_ray
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds Ray's workers by /proc, which this system has not")
def test_sigkill_of_workers_and_drivers(cluster, process, same_study):
    """Four workers and a driver are killed at random points; nothing finished is lost or done twice."""
    chance = random.Random(1)
    # processes are forked from a server that must know the cluster
    os.environ["RAY_ADDRESS"] = cluster.address
    killed = {"worker": 0, "driver": 0}
    running = None
    for what in ("worker", "worker", "driver", "worker", "worker"):
        running = running if running is not None and running.is_alive() else process.start("ray")
        target = len(process.cells()) + chance.randint(0, 6) if len(process.models()) == 4 else 0
        end = time.monotonic() + 180  # a busy machine starts workers slowly
        while running.is_alive() and time.monotonic() < end:
            if (busy := workers()) and len(process.cells()) >= target:
                break
            time.sleep(0.002)
        cells = process.cells()
        if what == "worker":
            os.kill(chance.choice(busy), signal.SIGKILL)
            killed["worker"] += 1
        else:
            running.kill()
            running.join()
            killed["driver"] += running.exitcode == -signal.SIGKILL
        assert all(process.cells().get(key) == told for key, told in cells.items())
    if running.is_alive():
        running.join(120)
    if running.exitcode != 0:
        assert process.finish("ray") == 0
    assert killed == {"worker": 4, "driver": 1}
    same_study(process.folder)


@needs_ray
def test_bad_input_of_a_task_is_one_line(cluster, recipe, tmp_path):
    import dataclasses

    from avuc.core.errors import InputError

    broken = dataclasses.replace(recipe, net=dataclasses.replace(recipe.net, weights="missing.safetensors"))
    with pytest.raises(InputError, match=r"missing\.safetensors") as said:
        run_study(broken, tmp_path, engine="ray", device="cpu", progress=False)
    assert "\n" not in str(said.value)


def test_without_ray(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as good as not installed
    with pytest.raises(MissingExtra, match=r"--engine ray needs 'ray'.*pip install 'avuc\[ray\]'"):
        run_study(recipe, tmp_path, engine="ray", device="cpu", progress=False)


def test_unknown_engine(recipe, tmp_path):
    with pytest.raises(ValueError, match="engine must be one of local, ray, found 'slurm'"):
        run_study(recipe, tmp_path, engine="slurm", device="cpu", progress=False)


def test_a_process_begins_anew_for_another_run(recipe, tmp_path):
    """Ray keeps its processes: a second run in an emptied folder got the models and data of the first."""
    import torch

    from avuc.study.engines.ray import _WORKERS, _worker

    common = recipe.to_toml(), str(tmp_path), "cpu", torch.get_num_threads(), (os.getcwd(), ""), ({}, {})
    try:
        first = _worker(*common, "one run")
        assert _worker(*common, "one run") is first
        assert _worker(*common, "another run") is not first
        assert list(_WORKERS) == ["another run"]
    finally:
        _WORKERS.clear()
