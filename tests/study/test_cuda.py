"""The study on a GPU: models of a group train together, shifts are made there, nothing is done twice."""

from __future__ import annotations

import math

import pytest

from avuc.study import load_recipe, run_study
from avuc.study.grid import Plan
from avuc.study.worker import StudyWorker

pytestmark = pytest.mark.gpu


def test_whole_study(recipe_file, tmp_path, undisturbed, monkeypatch):
    recipe = load_recipe(recipe_file, ["study.seeds=[0, 1]", "study.precision=bfloat16"])
    together = []
    real = StudyWorker.train

    def train(self, keys):
        together.append(len(keys))
        return real(self, keys)

    monkeypatch.setattr(StudyWorker, "train", train)
    store = run_study(recipe, tmp_path, device="cuda", progress=False)
    assert len(store.done()) == Plan(recipe).evaluations
    assert max(together) > 1
    on_gpu = {row[:5]: row[5] for row in store.rows()}
    from avuc.study import Store

    on_cpu = {row[:5]: row[5] for row in Store(undisturbed).rows()}
    # other rounding, other noise: the same study in broad strokes
    for key, value in on_cpu.items():
        if key[4] == "accuracy" and key[0] in ("Vanilla", "TS"):
            assert math.isclose(on_gpu[key], value, abs_tol=0.1), key
    monkeypatch.setattr(StudyWorker, "evaluate", lambda *_: pytest.fail("judged again"))
    run_study(recipe, tmp_path, device="cuda", progress=False)
