"""The language-model study: the whole of it in small on generated text, its figures, its rows and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import language_models as study
import language_models_figures as figures
import language_models_gpt as gpt
import language_models_text as text
import make_language_models as page
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from avuc.report.markers import block_names

SMALL = "--layers 1 --width 16 --heads 2 --context 16 --pretrain-steps 30 --pretrain-batch 8 --pretrain-rate 0.01"
SMALL += " --steps 6 --batch 4 --dropout 0 --rates 0.001 0.01 --strengths 0.3 1 --test-tokens 400 --revision made-up"
LINES = ["the cat sat on the mat", "a dog saw the cat", "the mat was red", "one dog sat", "we saw a red cat on the mat"]


def write_texts(folder: Path) -> None:
    rng = np.random.default_rng(0)

    def made(lines: int) -> str:
        return "\n".join(rng.choice(LINES, lines)) + "\n"

    for name, lines in {"pretrain/a.txt": 300, "pretrain/b.txt": 300, "tune.txt": 800, "other/news.txt": 100}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made(lines), encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The networks are tiny: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Tokens, a finished study, and its tables."""
    base = tmp_path_factory.mktemp("language")
    write_texts(base / "texts")
    tokens, out, results = base / "tokens", base / "out", base / "results"
    assert study.main(["tokens", str(base / "texts"), str(tokens), "--vocabulary", "270"]) == 0
    assert study.main(["all", str(tokens), str(out), "--seeds", "0", "1", *SMALL.split(), "--device", "cpu"]) == 0
    assert study.main(["table", str(out), str(results)]) == 0
    return tokens, out, results


# text


def test_parts_of_the_tuning_text_do_not_overlap_and_are_whole(tmp_path):
    write_texts(tmp_path)
    parts = text.read_parts(tmp_path)
    joined = "".join(parts[name][0] for name in ("train", "validation", "test"))
    assert joined == (tmp_path / "tune.txt").read_text(encoding="utf-8")
    assert len(parts["train"][0]) == pytest.approx(0.8 * len(joined), abs=40)
    assert all(parts[name][0].endswith("\n") for name in ("train", "validation", "test"))


def test_tokens_are_the_text_and_the_tokenizer_saw_training_text_only(folders, tmp_path):
    from tokenizers import Tokenizer

    tokens, _, _ = folders
    tokenizer = Tokenizer.from_file(str(tokens / "tokenizer.json"))
    parts = text.read_parts(tokens.parent / "texts")
    for name in ("test", "news"):
        assert tokenizer.decode(np.load(tokens / f"{name}.npy")[1:].tolist()) == parts[name][0]
    # other test text, the same tokenizer
    write_texts(tmp_path / "texts")
    (tmp_path / "texts" / "other" / "news.txt").write_text("zebra " * 500, encoding="utf-8")
    text.tokenise(tmp_path / "texts", tmp_path / "tokens", vocabulary=270)
    assert (tmp_path / "tokens" / "tokenizer.json").read_text() == (tokens / "tokenizer.json").read_text()


def test_missing_texts_are_said_in_one_line(tmp_path, capsys):
    assert study.main(["tokens", str(tmp_path), str(tmp_path / "tokens")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert study.main(["all", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "pretrain.npy" in capsys.readouterr().err


# network


def test_a_position_does_not_see_later_tokens():
    torch.manual_seed(0)
    model = gpt.GPT(gpt.Size(vocabulary=20, layers=2, width=16, heads=2, context=8)).eval()
    first = torch.randint(20, (1, 8))
    second = first.clone()
    second[0, 5:] = (first[0, 5:] + 1) % 20
    one, other = model(first), model(second)
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


def test_labels_are_the_next_tokens():
    model = gpt.GPT(gpt.Size(vocabulary=20, layers=1, width=16, heads=2, context=4)).eval()
    tokens = torch.arange(14) % 20
    hidden, labels = gpt.hidden_states(model, tokens, 12)
    assert labels.tolist() == list(range(1, 13))
    assert torch.allclose(hidden[4:8], model(tokens[None, 4:8])[0], atol=1e-6)


def test_a_diverged_training_stops_and_says_so():
    model = gpt.GPT(gpt.Size(vocabulary=20, layers=1, width=16, heads=2, context=4))
    with torch.no_grad():
        model.position.fill_(math.nan)
    schedule = gpt.Schedule(steps=5, batch=2, rate=1e-3)
    trained = gpt.train(model, torch.arange(30) % 20, study.loss_of("AvUC", 1.0, 1.0), schedule, seed=0)
    assert math.isnan(trained.final_loss)


# figures


def test_figures_are_those_of_loops():
    torch.manual_seed(1)
    logits, labels = 3 * torch.randn(60, 7, dtype=torch.float64), torch.randint(7, (60,))
    labels[:30] = logits[:30].argmax(1)
    found = figures.figures(logits, labels)
    p = logits.softmax(1)
    u = -(p * p.log()).sum(1)
    right = (p.argmax(1) == labels).tolist()
    order = sorted(range(60), key=lambda i: float(u[i]))
    errors, area = 0, 0.0
    for place, i in enumerate(order, 1):
        errors += not right[i]
        area += errors / place / 60
    pairs = [(float(u[i]), float(u[j])) for i in range(60) for j in range(60) if right[i] and not right[j]]
    assert found["aurc"] == pytest.approx(area)
    assert found["auroc"] == pytest.approx(sum(j > i for i, j in pairs) / len(pairs))
    assert found["accuracy_50"] == pytest.approx(sum(right[i] for i in order[:30]) / 30)
    assert found["accuracy_80"] == pytest.approx(sum(right[i] for i in order[:48]) / 48)
    assert found["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)))
    assert found["accuracy"] == pytest.approx(sum(right) / 60)


def test_without_a_mistake_there_is_no_auroc():
    assert math.isnan(figures.figures(9 * torch.eye(3), torch.arange(3))["auroc"])


# the study


def test_every_loss_seed_and_text_has_a_row(folders):
    rows = page.read_results(folders[2])
    assert rows is not None
    assert rows.losses == list(study.LOSSES)
    for loss in study.LOSSES:
        for place in ("validation", "test", "news"):
            for scaling in page.SCALINGS:
                assert sorted(rows.by_seed(loss, place, "nll", scaling)) == [0, 1], (loss, place, scaling)
    about = {"revision", "seconds", "tokens_per_second", "seed", "steps", "batch", "threshold", "device"}
    assert about <= rows.runs[-1].keys()
    assert rows.runs[-1]["revision"] == "made-up"
    assert {row["loss"] for row in rows.runs if row["part"] == "test"} == set(study.LOSSES)


def test_the_choice_sees_validation_text_only_and_takes_the_lowest_nll(folders):
    _, out, results = folders
    rows = page.read_results(results)
    assert {row["text"] for row in rows.choice} == {"validation"}
    plain = {row["rate"]: row["nll"] for row in rows.choice if row["loss"] == page.PLAIN and row["scaling"] == "none"}
    assert rows.chosen["rate"] == min(plain, key=plain.get)
    found = {r["strength"]: r["nll"] for r in rows.choice if r["loss"] == "AvUC" and r["scaling"] == "none"}
    assert len(found) == 2
    assert rows.chosen["strengths"]["AvUC"] == min(found, key=found.get)
    chosen, first = out / "choice.json", min((out / "test").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
    assert chosen.stat().st_mtime_ns < first.stat().st_mtime_ns


def test_temperature_lowers_the_validation_nll_and_keeps_accuracy(folders):
    rows = page.read_results(folders[2])
    for loss in rows.losses:
        before, after = (rows.by_seed(loss, "validation", "nll", scaling) for scaling in page.SCALINGS)
        assert all(after[seed] <= before[seed] + 1e-6 for seed in before)
        before, after = (rows.by_seed(loss, "news", "accuracy", scaling) for scaling in page.SCALINGS)
        assert before == pytest.approx(after, abs=2e-3)


def test_finished_runs_are_skipped_and_other_settings_refused(folders, capsys):
    tokens, out, _ = folders
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "choice.json"}
    command = ["all", str(tokens), str(out), "--seeds", "0", "1", *SMALL.split(), "--device", "cpu"]
    assert study.main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert study.main([*command, "--steps", "7"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_losses_differ_and_the_same_run_gives_the_same_figures(folders):
    tokens, out, _ = folders
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    settings |= {name: tuple(settings[name]) for name in ("rates", "strengths")}
    small = study.Study(study.Settings(**settings), text.load_tokens(tokens), out, torch.device("cpu"), "made-up")
    nll = []
    for loss, strength in (("AvUC", 1.0), ("AvUC", 1.0), ("AvUC monotone", 1.0), ("UA-CLM", 1.0)):
        model, _ = study.tuned(small, study.Run(loss, strength, 0.0123, 1), keep=False)
        nll.append(next(study.evaluate(small, model, ["test"]))["nll"])
    assert nll[0] == pytest.approx(nll[1], rel=1e-6)
    assert len({round(value, 6) for value in nll}) == 3


# the page


def test_intervals_are_those_of_paired_seeds():
    from scipy import stats

    def row(loss: str, strength: float, seed: int, value: float) -> page.Row:
        return {"loss": loss, "strength": strength, "seed": seed, "text": "test", "scaling": "none", "nll": value}

    pairs = [(2.0, 1.9), (2.1, 2.05), (2.3, 2.1), (2.2, 2.12), (2.4, 2.2)]
    test = [row(page.PLAIN, 0.0, s, a) for s, (a, _) in enumerate(pairs)]
    test += [row("AvUC", 1.0, s, b) for s, (_, b) in enumerate(pairs)] + [row("AvUC", 3.0, 0, 9.0)]
    rows = page.Results(test, [], [], {"strengths": {page.PLAIN: 0.0, "AvUC": 1.0}})
    effect = rows.effect("AvUC", "test", "nll", "none")
    low, high = stats.ttest_rel([b for _, b in pairs], [a for a, _ in pairs]).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((low, high))
    assert page.figure(rows, ["effect", "AvUC", "test", "nll", "none"]).startswith("−0.126 ±")
    assert page.figure(rows, [page.PLAIN, "test", "nll", "none"]) == "2.200"


def test_the_page_is_made_from_the_committed_rows():
    guide, study = (path.read_text(encoding="utf-8") for path in page.PAGES)
    rows = page.read_results(page.RESULTS)
    assert page.filled(guide, rows) == guide
    assert page.filled(study, rows) == study
    assert set(page.BLOCKS) == set(block_names(study))


def test_every_block_can_be_made_of_a_small_study(folders):
    rows = page.read_results(folders[2])
    for name, make in page.BLOCKS.items():
        assert len(make(rows).splitlines()) > 4, name
