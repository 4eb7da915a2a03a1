"""A whole study on real digits: what is stored, that it repeats, grows, and refuses another recipe."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import sqlite3

import numpy as np
import pytest
import torch

from avuc import metrics, predict
from avuc.calibration import Calibrator
from avuc.cli import main
from avuc.conformal import ConformalClassifier
from avuc.core.errors import InputError
from avuc.methods import SWAG
from avuc.prediction.logits import kept_logits
from avuc.predictions import Predictions
from avuc.study import Store, load_recipe, run_study
from avuc.study.engines.local import LocalRun
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, Plan, TestSet
from avuc.study.recipe.config import MethodConfig
from avuc.study.recipe.load import recipe_names
from avuc.study.worker import StudyWorker


@pytest.fixture(scope="module")
def work(recipe, undisturbed):
    """The models of the undisturbed study, read back."""
    return StudyWorker(recipe, undisturbed, "cpu", progress=False)


@pytest.fixture
def store(undisturbed):
    opened = Store(undisturbed)
    yield opened
    opened.close()


def value(store, method, shift, severity, metric, seed=0):
    return {row[:5]: row[5] for row in store.rows()}[(method, seed, shift, severity, metric)]


def test_every_cell_has_every_row(recipe, store):
    plan = Plan(recipe)
    done = store.done()
    assert len(done) == plan.evaluations == 7 * (2 + 4 + 1)
    assert {row[0] for row in store.rows()} == {row.name for row in recipe.methods}
    for method, seed, shift, severity in done:
        found = {row[4] for row in store.rows() if row[:4] == (method, seed, shift, severity)}
        if not shift.startswith("ood:"):
            assert set(metrics.METRICS) <= found
        if shift not in ("validation", "clean"):
            assert {"auroc", "wasserstein"} <= found
        assert ("threshold" in found) == (shift == "validation")


@pytest.mark.parametrize("method", ["Vanilla", "Ensemble", "SVI", "SVI-AvUC"])
@pytest.mark.parametrize("test_set", [CLEAN, TestSet("contrast", 5)])
def test_rows_equal_predict_and_evaluate(work, store, method, test_set):
    """The naive way: one predict for one row, all metrics of it."""
    data = work.data.images(test_set)
    found = predict(work.posterior(ModelKey(method, 0)), data.images, data.labels, samples=4, seed=0, progress=False)
    threshold = value(store, method, "validation", 0, "threshold")
    for name, expected in metrics.evaluate(found, threshold=threshold).items():
        assert value(store, method, test_set.shift, test_set.severity, name) == pytest.approx(
            expected, nan_ok=True, abs=0
        )


def test_variants_equal_their_own_pass(work, store):
    """Rows that share a model's draws equal a predict with that calibrator, or with fewer draws."""
    data = work.data.images(TestSet("gaussian_noise", 5))
    posterior = work.posterior(ModelKey("SVI", 0))
    scaler = Calibrator.from_json(store.calibrator("SVI-AvUTS", 0))
    scaled = predict(posterior, data.images, data.labels, samples=4, calibrator=scaler, seed=0, progress=False)
    fewer = predict(posterior, data.images, data.labels, samples=2, seed=0, progress=False)
    for method, found in (("SVI-AvUTS", scaled), ("SVI, 2 draws", fewer)):
        expected = metrics.nll(found.probs, found.labels)
        assert value(store, method, "gaussian_noise", 5, "nll") == pytest.approx(expected, abs=0)


def test_calibrator_and_threshold_come_from_validation_data(recipe, work, store):
    logits, labels = kept_logits(work.posterior(ModelKey("SVI", 0)), work.data.validation, 4, seed=0)
    assert logits.shape == (4, 150, 10)
    again = recipe.row("SVI-AvUTS").calibrator.make().fit(logits, labels)
    stored = Calibrator.from_json(store.calibrator("SVI-AvUTS", 0))
    assert stored.temperature_ == again.temperature_ == value(store, "SVI-AvUTS", "validation", 0, "temperature")
    found = Predictions.from_samples(logits, labels, calibrator=again)
    expected = metrics.auto_threshold(found.probs, found.labels)
    assert value(store, "SVI-AvUTS", "validation", 0, "threshold") == pytest.approx(expected, rel=1e-6)
    # no test image is among them
    held = {image.numpy().tobytes() for image in work.data.validation.images}
    assert not held & {image.numpy().tobytes() for image in work.data.test.images}
    assert not held & {image.numpy().tobytes() for image in work.data.train(50, 0).images}


def test_kept_logits_stay_in_bounds(work, monkeypatch):
    from avuc.prediction import logits as logits_module

    monkeypatch.setattr(logits_module, "MOST_KEPT_NUMBERS", 40 * 10 * 8)
    logits, labels = kept_logits(work.posterior(ModelKey("SVI", 0)), work.data.validation, 20, seed=0)
    assert logits.shape == (8, 40, 10)
    assert len(labels) == 40


def test_detection_is_against_clean_images(work, store):
    posterior = work.posterior(ModelKey("SVI", 0))
    entropies = [
        predict(posterior, work.data.images(one).images, samples=4, seed=0, progress=False).entropy
        for one in (CLEAN, TestSet("ood:photographs"))
    ]
    assert value(store, "SVI", "ood:photographs", 0, "auroc") == metrics.detection(*entropies)["auroc"]
    assert np.array_equal(store.clean_entropy("SVI", 0), entropies[0].numpy())


def test_curves_and_history(recipe, store):
    curves = store.curves("SVI", 0, "contrast", 5)
    assert set(curves) == {"reliability", "uncertainty", "avu", "entropy", "confidence", "conformal"}
    assert sum(curves["reliability"]["rows"]) == sum(curves["entropy"]["right"] + curves["entropy"]["wrong"]) == 120
    accuracy = value(store, "SVI", "contrast", 5, "accuracy")
    assert sum(curves["confidence"]["right"]) == round(accuracy * 120)
    assert set(store.curves("SVI", 0, "ood:photographs", 0)) == {"entropy", "confidence"}
    history = store.history("Ensemble", 0)
    assert [(record["epoch"], record["member"]) for record in history] == [(e, m) for e in range(4) for m in (0, 1)]
    assert all(math.isfinite(record["nll"]) for record in history)


def test_run_is_described(recipe, store):
    (run,) = store.runs()
    assert run["engine"] == "local"
    assert run["versions"]["torch"] == torch.__version__
    assert run["hardware"]["processors"] >= 1
    assert run["finished"] >= run["started"]
    assert run["seconds"] > 0
    assert store.recipe() == recipe
    assert store.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_started_row_starts_from_the_other(recipe, work):
    job = work._job(ModelKey("SVI-AvUC", 0))
    net = job.net(torch.Generator())
    vanilla = work._fitted[ModelKey("Vanilla", 0)].models[0]
    assert torch.equal(net.state_dict()["layers.0.weight"], vanilla.state_dict()["layers.0.weight"])


def test_again_does_nothing(recipe, undisturbed, store, monkeypatch):
    before = store.rows()
    monkeypatch.setattr(StudyWorker, "train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(StudyWorker, "evaluate", lambda *_: pytest.fail("judged again"))
    run_study(recipe, undisturbed, device="cpu", progress=False).close()
    assert repr(store.rows()) == repr(before)


def test_grows_and_equals_one_made_at_once(recipe_file, tmp_path):
    """First few rows, shifts and seeds, then more; the same rows as all at once."""
    whole = load_recipe(recipe_file, ["study.seeds=[0, 5]", "train.epochs=1"])
    rows = tuple(row for row in whole.methods if row.name in ("Vanilla", "SVI"))
    part = dataclasses.replace(
        whole, study=dataclasses.replace(whole.study, seeds=(0,), shifts=("contrast",), ood=()), methods=rows
    )
    run_study(part, tmp_path / "grown", device="cpu", progress=False).close()
    grown = run_study(whole, tmp_path / "grown", device="cpu", progress=False)
    at_once = run_study(whole, tmp_path / "once", device="cpu", progress=False)
    assert repr(grown.rows()) == repr(at_once.rows())
    assert len(grown.done()) == Plan(whole).evaluations
    grown.close()
    at_once.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.epochs=9", r"methods\.Vanilla\.train\.epochs was 4, now 9"),
        ("study.samples=9", r"study\.samples was 4, now 9"),
        ("methods.SVI.objective.kl_weight=1.0", r"methods\.SVI\.objective\.kl_weight was"),
        ("data.split_seed=4", r"data\.split_seed was 3, now 4"),
    ],
)
def test_another_recipe_is_refused(recipe_file, undisturbed, store, change, message):
    before = store.rows()
    with pytest.raises(InputError, match=message):
        run_study(load_recipe(recipe_file, [change]), undisturbed, device="cpu", progress=False)
    assert repr(store.rows()) == repr(before)


def test_a_row_that_was_left_out_must_come_back_as_it_was(recipe_file, tmp_path):
    """Its results are still in the file: under another definition they would be somebody else's."""
    changes = ["train.epochs=1", "study.shifts=[]", "study.ood=[]"]
    whole = load_recipe(recipe_file, changes)
    run_study(whole, tmp_path, device="cpu", progress=False).close()
    without = dataclasses.replace(whole, methods=tuple(row for row in whole.methods if not row.name.startswith("SVI")))
    run_study(without, tmp_path, device="cpu", progress=False).close()
    other = load_recipe(recipe_file, [*changes, "methods.SVI.objective.kl_weight=1.0"])
    with pytest.raises(InputError, match=r"holds another study: methods\.SVI\.objective\.kl_weight was .*, now 1\.0"):
        run_study(other, tmp_path, device="cpu", progress=False)
    run_study(whole, tmp_path, device="cpu", progress=False).close()


def test_what_changes_nothing_is_allowed(recipe_file, undisturbed):
    run_study(load_recipe(recipe_file, ["train.capture=false"]), undisturbed, device="cpu", progress=False).close()


def test_one_process_for_each_device(recipe, undisturbed, store, tmp_path):
    """Two processes share the work of one folder; rows are those of one process."""
    shared = run_study(recipe, tmp_path, device="cpu,cpu", progress=False)
    assert repr(shared.rows()) == repr(store.rows())
    shared.close()
    assert not multiprocessing.active_children()


def test_processes_on_one_gpu_share_its_memory(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 36, 1 << 40))
    monkeypatch.setattr(StudyWorker, "posterior", lambda self, key: torch.nn.Linear(2, 2))
    alone, shared = (
        StudyWorker(recipe, tmp_path, "cuda", processes=count).predictor(ModelKey("Vanilla", 0))._runner.options.memory
        for count in (1, 4)
    )
    assert 0 < shared == alone // 4


@pytest.mark.parametrize("begin", [0.0, 0.6])
def test_processes_begin_at_different_sets(recipe, work, tmp_path, monkeypatch, begin):
    """Validation and clean data come first in each of them; a set is done for all models before the next one."""
    seen = []
    monkeypatch.setattr(work, "evaluate", lambda key, test_set, methods, fits: seen.append(test_set) or [])
    store = Store(tmp_path)
    run = LocalRun(Plan(recipe), store, work, False, begin)
    monkeypatch.setattr(store, "trained", lambda: set(run.plan.models))
    monkeypatch.setattr(store, "add_evaluations", lambda results: None)
    monkeypatch.setattr(type(run.plan), "ready", lambda *given: True)
    monkeypatch.setattr("avuc.study.engines.local.validation_fit", lambda *given: None)
    run._evaluate(None)
    run.claims.close()
    store.close()
    first, others = run.plan.sets[:2], run.plan.sets[2:]
    cut = round(begin * len(others))
    assert list(dict.fromkeys(seen)) == [*first, *others[cut:], *others[:cut]]
    assert len(seen) == len(run.plan.models) * len(run.plan.sets)


def test_predictions_on_request(recipe_file, tmp_path):
    changes = ["train.epochs=1", "study.predictions=true", 'study.shifts=["contrast"]', "study.severities=[5]"]
    recipe = load_recipe(recipe_file, changes)
    store = run_study(recipe, tmp_path, device="cpu", progress=False)
    files = sorted(path.name for path in (tmp_path / "predictions" / "svi-avuts-0").iterdir())
    assert files == [
        "clean.safetensors",
        "contrast-5.safetensors",
        "ood-photographs.safetensors",
        "validation.safetensors",
    ]
    found = Predictions.load(tmp_path / "predictions" / "svi-avuts-0" / "contrast-5.safetensors")
    assert metrics.nll(found.probs, found.labels) == value(store, "SVI-AvUTS", "contrast", 5, "nll")
    # conformal sets are fitted on validation predictions and nothing else
    held = Predictions.load(tmp_path / "predictions" / "svi-avuts-0" / "validation.safetensors")
    kept = store.curves("SVI-AvUTS", 0, "contrast", 5)["conformal"]
    for name, counts in kept["methods"].items():
        check = ConformalClassifier(name, kept["wanted"]).fit(held).check(found)
        assert counts["covered"] == round(check.coverage * check.rows)
        assert counts["size"] == round(check.mean_size * check.rows)
        assert (counts["low"], counts["high"]) == (round(check.low * check.rows), round(check.high * check.rows))
    store.close()


def test_predictions_that_come_too_late_are_named(recipe_file, undisturbed, capsys):
    words = ["study", str(recipe_file), "--out", str(undisturbed), "--device", "cpu", "--no-report", "--predictions"]
    assert main(words) == 0
    done = len(Store(undisturbed).done())
    said = " ".join(capsys.readouterr().out.split())
    assert f"note: {done} evaluations were finished without --predictions, so theirs are not saved" in said


def test_command(recipe_file, undisturbed, capsys):
    assert main(["study", str(recipe_file), "--out", str(undisturbed), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "SVI-AvUTS" in said
    assert said.splitlines()[-1].endswith(str((undisturbed / "report.html").resolve()))
    page = (undisturbed / "report.html").read_text()
    (undisturbed / "report.html").unlink()
    assert main(["study", str(recipe_file), "--out", str(undisturbed), "--device", "cpu", "--no-report"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Figures and tables as files: avuc report {undisturbed}"
    assert not (undisturbed / "report.html").exists()
    assert "over 2 kinds of shift at 2 intensities it predicts best" in page
    assert all(f'data-chart="{name}"' in page for name in ("main", "maps", "reliability", "avu", "tempered"))


def test_dry_run(recipe_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(recipe_file), "--dry-run", "--device", "cpu"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 models to train (5 networks), 7 test sets, 49 evaluations" in said
    # 350 images × 4 epochs × 5 networks; (2·150 + 5·120 + 120 outside) × (1 + 2 + 4 + 4) draws
    assert "7,000 examples through training, 11,220 forward passes" in said
    assert "at least " in said  # the demo took ten times as long as the forward passes alone
    assert "Shifts, metrics and small batches come on top" in said
    assert list(tmp_path.iterdir()) == []
    assert main(["study", "imagenet-paper", "--dry-run", "--device", "cpu", "--set", "data.root=nowhere"]) == 0
    assert "no estimate of its time: nowhere" in capsys.readouterr().out


def test_dry_run_and_training_say_that_the_warm_up_never_ends(recipe_file, tmp_path, capsys):
    words = ["study", str(recipe_file), "--device", "cpu", "--only", "SVI", "--set", "methods.SVI.objective.kind=avuc"]
    words += ["--set", "methods.SVI.objective.warmup_epochs=4", "--set", "study.shifts=[]"]
    assert main([*words, "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "SVI: the avuc term is never used: its warm-up takes 4 epochs, and the training has 4;" in said
    assert main([*words, "--dry-run", "--set", "methods.SVI.objective.warmup_epochs=3"]) == 0
    assert "never used" not in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    both = capsys.readouterr()
    assert both.err.count("warning: the avuc term is never used") == 1
    assert "The AvUC term of SVI was 0 in all 4 epochs of the training" in " ".join(both.out.split())


@pytest.mark.parametrize("kind", ['kind = "swag"', 'kind = "ensemble", member = {kind = "swag"}'])
def test_too_few_epochs_for_swag_are_one_line_before_anything_is_trained(recipe_file, tmp_path, capsys, kind):
    changed = tmp_path / "swag.toml"
    changed.write_text(recipe_file.read_text() + f'\n[[methods]]\nname = "Late"\nmethod = {{{kind}}}\n')
    words, out = ["study", str(changed), "--device", "cpu"], tmp_path / "out"
    line = "avuc: methods.Late.train.epochs: swag: with start=0.75, 4 epochs collect fewer than the 2 sets of weights"
    for more in (["--dry-run"], ["--out", str(out)], ["--only", "Late", "--dry-run"]):
        assert main([*words, *more]) == 2
        said = capsys.readouterr()
        assert said.err.splitlines()[-1].startswith(line)
        assert not said.out
    assert not out.exists()
    assert main([*words, "--dry-run", "--only", "SVI"]) == 0  # what is not trained now may be wrong
    assert main([*words, "--dry-run", "--set", "methods.Late.train.epochs=8"]) == 0


def test_swag_without_training_is_refused(recipe):
    swag = MethodConfig("Given", SWAG(), skip_training=True)
    given = dataclasses.replace(recipe, net=dataclasses.replace(recipe.net, weights="a.pt"), methods=(swag,))
    with pytest.raises(InputError, match=r"methods\.Given\.skip_training: swag: .* 0 epochs collect fewer"):
        Plan(given).check_epochs()


def test_a_list_whose_quotes_the_shell_removed(recipe_file, capsys):
    assert main(["study", str(recipe_file), "--dry-run", "--set", "study.shifts=[fog]"]) == 2
    assert 'write --set \'study.shifts=["a", "b"]\'' in capsys.readouterr().err


def test_list_and_nothing(capsys):
    assert main(["study", "--list"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == recipe_names()
    assert all(20 < len(summary) < 100 for _, summary in lines)
    assert main(["study"]) == 2
    assert "name a recipe" in capsys.readouterr().err


def test_plan_groups_models_that_train_together(recipe):
    plan = Plan(load_recipe("cifar10-paper"))
    groups = plan.groups(plan.models)
    assert sorted(key for group in groups for key in group) == sorted(plan.models)
    for group in groups:
        settings = {plan.recipe.row(key.method).train for key in group}
        assert len(settings) == 1
    assert max(len(group) for group in groups) == 9  # and another has six, one of which are five
    assert plan.sets[:2] == [VALIDATION, CLEAN]


def test_rows_are_plain_sql(undisturbed):
    with sqlite3.connect(undisturbed / "study.sqlite") as db:
        names = [column[1] for column in db.execute("PRAGMA table_info(rows)")]
        assert names == ["method", "seed", "shift", "severity", "metric", "value"]
        (text,) = db.execute("SELECT data FROM curves LIMIT 1").fetchone()
    db.close()
    assert isinstance(json.loads(text), dict)
