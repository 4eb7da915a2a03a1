"""Evaluation with memory of fixed size: within its bounds of the exact evaluation, and nothing grows with the rows."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.evaluation import EvaluationResult, evaluate, evaluate_streaming
from avuc.evaluation.files import open_scores, read_scores, score_file
from avuc.evaluation.files.formats import parquet_labels
from avuc.evaluation.streaming import memory_note
from avuc.metrics import selective
from avuc.metrics.detection import DETECTION

ORDERED = {"avu_auc", "adaptive_ece", "aurc"}
AUTO = ORDERED | {"avu", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A block has 400 scores, so that every file has several blocks."""
    monkeypatch.setattr(score_file, "BLOCK", 400)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def made(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores, called logits or probs by their shape and values, and labels."""
    rng = np.random.default_rng(len(name))
    classes = {"2 classes": 2, "100 classes": 100}.get(name, 10)
    rows = 1 if name == "one row" else 700
    labels = rng.integers(0, classes, rows)
    logits = 2 * rng.normal(size=(3 if name == "samples" else 1, rows, classes))
    logits[:, np.arange(rows), labels] += 4
    logits = logits.astype(np.float32) if name == "samples" else logits[0].astype(np.float32)
    if name == "all right":
        labels = logits.argmax(1)
    if name == "all wrong":
        labels = (logits.argmax(1) + 1) % classes
    if name == "zeros and ones":
        logits = softmax(logits)
        logits[::2] = np.eye(classes)[rng.integers(0, classes, len(logits[::2]))]
    if name == "above 1":
        logits = np.where(softmax(logits) > 0.5, 1 + 0.004 * rng.random((rows, 1)), 0) + 1e-4
        logits = logits / np.where(logits.max(1, keepdims=True) > 0.5, 1, logits.sum(1, keepdims=True))
    if name == "ties":
        logits = softmax(logits)[rng.integers(0, 5, rows)]
    if name == "uniform":
        logits = np.full((rows, classes), 1 / classes, np.float32)
    return logits, labels


CASES = [
    "2 classes",
    "10 classes",
    "100 classes",
    "samples",
    "all right",
    "all wrong",
    "one row",
    "zeros and ones",
    "above 1",
    "ties",
    "uniform",
]


def save(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a case, and other rows of the same kind without labels."""
    scores, labels = made(name)
    kind = "probs" if scores.ndim == 2 and scores.min() >= 0 else "logits"
    np.savez(folder / "test.npz", **{kind: scores}, labels=labels)
    np.savez(folder / "outside.npz", **{kind: scores[..., ::-1, :] if kind == "probs" else scores[..., ::2, :] / 3})
    return folder / "test.npz", folder / "outside.npz"


def check(found: EvaluationResult, exact: EvaluationResult, *, ordered: set[str]) -> None:
    assert set(found.bounds) == ordered | set(exact.detection)
    assert list(found.metrics) == list(exact.metrics)
    assert list(found.detection) == list(exact.detection)
    for name, value in (exact.metrics | exact.detection).items():
        got = (found.metrics | found.detection)[name]
        if name in found.bounds and not math.isnan(value):
            low, high = found.bounds[name]
            assert low - 1e-9 <= value <= high + 1e-9, name
            assert low <= got <= high, name
        else:
            assert got == pytest.approx(value, abs=1e-9, nan_ok=True), name
    assert found.intervals == found.detection_intervals == {}
    for name in ("n", "num_classes", "samples", "bins", "outside", "replicates"):
        assert getattr(found, name) == getattr(exact, name), name
    for name in ("threshold", "confidence", "expected_entropy", "mutual_information"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), abs=1e-6), name


@pytest.mark.parametrize("threshold", ["auto", 0.4])
@pytest.mark.parametrize("name", CASES)
def test_the_exact_figures_lie_within_the_bounds(tmp_path, name, threshold):
    path, other = save(tmp_path, name)
    options: dict[str, Any] = {"threshold": threshold, "bins": 12}
    ordered = AUTO if threshold == "auto" else ORDERED
    file = read_scores(path)
    exact = evaluate(file.predictions(), replicates=0, **options)
    check(evaluate_streaming(path, **options), exact, ordered=ordered)
    entropy = read_scores(other, needs_labels=False).entropy()
    exact = evaluate(file.predictions(), outside_entropy=entropy, replicates=0, **options)
    found = evaluate_streaming(path, outside=other, **options)
    check(found, exact, ordered=ordered)
    right = file.predictions().correct.numpy()
    inside = file.predictions().entropy.numpy()
    groups = {"right": inside[right], "wrong": inside[~right], "outside": entropy.numpy()}
    check_curves(found.curves, exact.curves, groups)


def check_curves(found: dict[str, Any], exact: dict[str, Any], groups: dict[str, np.ndarray]) -> None:
    assert set(found) == set(exact)
    for name in ("reliability", "uncertainty"):
        for axis, values in exact[name].items():
            assert found[name][axis] == pytest.approx(values, abs=1e-6, nan_ok=True), (name, axis)
    assert found["avu"]["threshold"] == pytest.approx(exact["avu"]["threshold"], abs=1e-6)
    # every point is one of the exact curve, which has more points, unless it was thinned out
    risk = dict(zip(exact["risk"]["coverage"], exact["risk"]["risk"], strict=True))
    assert found["risk"]["coverage"][-1] == 1
    if len(risk) < 400:
        assert all(risk[x] == pytest.approx(y) for x, y in zip(*found["risk"].values(), strict=True))
    assert found["entropy"]["edges"] == exact["entropy"]["edges"]
    inner = np.array(exact["entropy"]["edges"])[1:-1]
    for group, entropies in groups.items():
        counts = np.array(found["entropy"][group])
        assert counts.sum() == len(entropies)
        # only entropies within 1/1024 of an edge may be on its other side; 1e-6 is float32 rounding
        ordered, below = np.sort(entropies), np.cumsum(counts)[:-1]
        assert (np.searchsorted(ordered, inner * (1 - 1 / 1024) - 1e-6) <= below).all(), group
        assert (below <= np.searchsorted(ordered, inner * (1 + 1 / 1024) + 1e-6, side="right")).all(), group


def test_the_bounds_are_narrow(tmp_path):
    result = evaluate_streaming(*save(tmp_path, "10 classes")[:1], outside=tmp_path / "outside.npz")
    assert all(high - low < 0.01 for low, high in result.bounds.values())


def write(folder: Path, suffix: str, rows: int = 500, seed: int = 0, classes: str = "abcd") -> Path:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    logits = (rng.normal(size=(rows, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    path = folder / f"{seed}logits{suffix.split()[0]}"
    words = np.array(list(classes))[labels]
    if suffix == ".npz":
        np.savez(path, logits=logits, labels=labels)
    elif suffix == ".npy":
        np.save(path, logits)
        np.save(folder / f"{seed}labels.npy", labels)
    elif suffix == ".csv":
        lines = [",".join(map(str, [label, *row])) for label, row in zip(labels, logits.tolist(), strict=True)]
        path.write_text("\n".join(["label,logits_0,logits_1,logits_2,logits_3", *lines]) + "\n")
    else:
        columns: dict[str, Any] = {f"logits_{classes[k]}": logits[:, k] for k in range(4)}
        columns["label"] = words if "names" in suffix else labels
        pq.write_table(pa.table(columns), path, row_group_size=170)
    return path


SUFFIXES = [".npz", ".npy", ".csv", ".parquet", ".parquet names"]


def document(out: Path, *words: str) -> dict[str, Any]:
    assert main(["evaluate", *words, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_command(tmp_path, suffix, capsys):
    path, other = write(tmp_path, suffix), write(tmp_path, suffix, rows=333, seed=1)
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    exact = document(out, str(path), "--ood", str(other), "--replicates", "0")
    assert "bounds" not in exact  # the document of 0.1.0 is unchanged
    capsys.readouterr()
    found = document(out, str(path), "--ood", str(other), "--fixed-memory", "--report", str(page))
    assert [key for key in found if key != "bounds"] == list(exact)
    assert found["intervals"] == found["detection_intervals"] == {}
    assert (found["replicates"], found["bootstrap"], found["detection_bootstrap"]) == (0, None, None)
    assert set(found["bounds"]) == AUTO | set(DETECTION)
    for name, value in (exact["metrics"] | exact["detection"]).items():
        low, high = found["bounds"].get(name, [value - 1e-9, value + 1e-9])
        got = (found["metrics"] | found["detection"])[name]
        assert low - 1e-9 <= value <= high + 1e-9, name
        assert low <= got <= high, name
    said = " ".join(capsys.readouterr().out.split())
    for text in (said, page.read_text()):
        assert text.count("No bootstrap intervals: no rows are kept that could be resampled.") == 1
        assert "A metric with bounds is exact to within these bounds" in text
        assert "95 % interval" not in text
    assert page.read_text().count("<svg") == 6
    # what is in memory after all is said
    noted = "read into memory as a whole" in " ".join(found["notes"])
    assert noted == ("read into memory as a whole" in said) == (suffix == ".csv")


def test_no_mistakes_and_a_fixed_threshold(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.eye(3) * 5, labels=[0, 1, 2])
    found = document(tmp_path / "out.json", str(tmp_path / "a.npz"), "--fixed-memory")
    assert found["metrics"]["p_uncertain_given_inaccurate"] is None
    assert found["bounds"]["p_uncertain_given_inaccurate"] == [None, None]
    found = document(tmp_path / "out.json", str(tmp_path / "a.npz"), "--fixed-memory", "--threshold", "0.3")
    assert found["threshold"] == 0.3
    assert set(found["bounds"]) == ORDERED


def test_refusals(tmp_path, capsys):
    path = str(write(tmp_path, ".npz"))
    assert main(["evaluate", path, "--fixed-memory", "--replicates", "100"]) == 2
    assert "there are no intervals; leave out one of the two" in capsys.readouterr().err
    assert main(["evaluate", path, "--fixed-memory", "--replicates", "0"]) == 0
    with pytest.raises(SystemExit):
        main(["calibrate", path, "--method", "temperature", "--out", "a.json", "--fixed-memory"])
    assert "--fixed-memory" in capsys.readouterr().err
    np.savez(tmp_path / "wide.npz", logits=np.zeros((3, 7)))
    with pytest.raises(InputError, match=r"has 7 classes, but .* has 4"):
        evaluate_streaming(path, outside=tmp_path / "wide.npz")
    with pytest.raises(InputError, match="contains no labels"):
        evaluate_streaming(tmp_path / "wide.npz")


def sparse(folder: Path, rows: int, classes: int = 10) -> Path:
    """Zeros that take no space on the disk."""
    path = folder / "logits.npy"
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, classes)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * classes * 4)
    np.save(folder / "labels.npy", np.zeros(min(rows, 10**6), np.int8))
    return path


def test_the_refusal_names_the_option_where_it_helps(tmp_path, capsys):
    path = sparse(tmp_path, 2_500_000_000)
    words = ["evaluate", str(path), "--labels", str(path)]
    # more than 8 GB for 12 bytes of each row
    with pytest.raises(InputError, match="raise the limit with --max-gb or AVUC_MAX_GB, or evaluate it with --fixed-m"):
        open_scores(path, needs_labels=False)
    with pytest.raises(InputError, match=r"with --max-gb or AVUC_MAX_GB$"):
        open_scores(path, needs_labels=False, max_gb=0.05)
    assert main([*words, "--fixed-memory", "--max-gb", "0.05"]) == 2
    assert "--fixed-memory" not in capsys.readouterr().err
    path = sparse(tmp_path, 90_000, 1000)
    assert main(["evaluate", str(path), "--max-gb", "0.2"]) == 2
    assert "or evaluate it with --fixed-memory" in capsys.readouterr().err


def test_no_memory_left(tmp_path, capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("avuc.evaluation.evaluate", full)
    assert main(["evaluate", str(write(tmp_path, ".npz"))]) == 2
    assert "not enough memory to evaluate it; use --fixed-memory" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".parquet names"])
def test_memory_does_not_grow_with_the_rows(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(score_file, "BLOCK", 1 << 13)
    # a table of harmonic numbers grows up to half a million rows, and no further
    monkeypatch.setattr(selective, "TABLE", 0)
    peaks = []
    for seed, rows in enumerate((20_000, 20_000, 200_000)):  # the first fills caches
        path = write(tmp_path, suffix, rows=rows, seed=seed)
        assert memory_note(open_scores(path, most_scores=0)) is None
        tracemalloc.start()
        evaluate_streaming(path, outside=path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # one byte per row would be 180,000
    assert peaks[2] - peaks[1] < 60_000


@pytest.mark.parametrize("suffix", [".parquet", ".parquet names"])
def test_memory_of_arrow_does_not_grow_with_the_rows(tmp_path, suffix, monkeypatch):
    """tracemalloc does not see it. A label has 8 bytes as a number, 4 as a text."""
    monkeypatch.setattr(score_file, "BLOCK", 1 << 13)
    # both files have many batches; below one batch of labels, memory does grow with the rows
    monkeypatch.setattr(parquet_labels, "BATCH_ROWS", 1 << 11)
    peaks = []
    for rows in (20_000, 200_000):
        path = write(tmp_path, suffix, rows=rows)
        usual = pa.default_memory_pool()
        counted = pa.proxy_memory_pool(usual)
        pa.set_memory_pool(counted)
        try:
            evaluate_streaming(path)
        finally:
            pa.set_memory_pool(usual)
        peaks.append(counted.max_memory())
    # one byte per row
    assert peaks[1] - peaks[0] < 180_000


def test_labels_of_a_parquet_table_are_read_in_blocks(tmp_path):
    """Texts and numbers, matched to the scores in blocks of another size."""
    for suffix, classes in ((".parquet", "0123"), (".parquet names", "abcd"), (".parquet names", "3210")):
        path = write(tmp_path, suffix, rows=901, classes=classes)
        whole = read_scores(path)
        parts = list(open_scores(path, most_scores=0).parts())
        assert len(parts) > 5
        assert np.concatenate([part.labels for part in parts]).tolist() == whole.labels.tolist()
    columns = {"a": [0.5] * 3, "b": [0.5] * 3}
    for labels, message in (
        (["a", None, "b"], "empty cells"),
        (["a", "b", "c"], "'c' is neither a number nor a class"),
    ):
        pq.write_table(pa.table(columns | {"label": labels}), tmp_path / "a.parquet")
        for reader in (read_scores, lambda path: open_scores(path, most_scores=0)):
            with pytest.raises(InputError, match=message):
                reader(tmp_path / "a.parquet", **({"columns": "a,b"} if reader is read_scores else {}))
