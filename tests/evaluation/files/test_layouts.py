"""Binary and dense scores, and text labels without class names: the same figures as rows (N, C), or one line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.evaluation.files import open_scores, read_scores, write_scores
from avuc.evaluation.files.decision.find_layout import find_layout
from avuc.evaluation.files.layout import Layout
from avuc.evaluation.files.multilabel import read_multilabel

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 60)
LOGITS = (RNG.normal(size=60) * 1.5 + 2 * (2 * LABELS - 1)).astype(np.float32)
PROBS = 1 / (1 + np.exp(-LOGITS))
TEXT = np.array(["ham", "spam"])[LABELS]
MAPS = RNG.integers(0, 3, (5, 4, 6))
DENSE = (RNG.normal(size=(5, 3, 4, 6)) + 2 * np.moveaxis(np.eye(3)[MAPS], -1, 1)).astype(np.float32)
ROWS = np.moveaxis(DENSE, 1, -1).reshape(-1, 3)


def save(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def same(file, probs, labels):
    torch.testing.assert_close(file.predictions().probs.numpy(), np.asarray(probs, np.float32), rtol=1e-4, atol=1e-6)
    assert file.predictions().labels.tolist() == np.asarray(labels).tolist()


def in_blocks(path, monkeypatch, **options):
    """The file as a stream of small blocks, put together again."""
    monkeypatch.setattr("avuc.evaluation.files.score_file.BLOCK", 13)
    stream = open_scores(path, most_scores=0, **options)
    parts = list(stream.parts())
    assert len(parts) > 3
    assert stream.num_rows == sum(part.num_rows for part in parts)
    return stream, torch.cat([part.scores for part in parts], -2), torch.cat([part.labels for part in parts])


# ---- binary


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(bool), LABELS[:, None], LABELS.astype(np.float64), TEXT])
@pytest.mark.parametrize(("name", "values"), [("logits", LOGITS), ("probs", PROBS), ("scores", PROBS)])
def test_one_number_per_row(tmp_path, monkeypatch, shape, labels, name, values):
    path = save(tmp_path, **{name: values.reshape(shape), "labels": labels})
    file = read_scores(path)
    same(file, np.stack([1 - PROBS, PROBS], 1), LABELS)
    assert "of class 1" in file.notes[-1] or "of class 'spam'" in file.notes[-1]
    assert file.class_names == (("ham", "spam") if labels is TEXT else None)
    _, scores, found = in_blocks(path, monkeypatch)
    assert torch.equal(scores, file.scores)
    assert torch.equal(found, file.labels)


def table(path, columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""]))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("name", ["p", "logits", "prob_dog"])
def test_true_and_false_as_labels_of_a_table(tmp_path, monkeypatch, suffix, name):
    path = table(tmp_path / f"a{suffix}", {name: LOGITS if name == "logits" else PROBS, "label": LABELS == 1})
    file = read_scores(path)
    same(file, np.stack([1 - PROBS, PROBS], 1), LABELS)
    assert file.class_names == ("False", "True")
    same(read_scores(path, positive="False"), np.stack([1 - PROBS, PROBS], 1), 1 - LABELS)
    if suffix == ".parquet":
        assert torch.equal(in_blocks(path, monkeypatch)[2], file.labels)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_true_and_false_as_labels_are_names_of_columns_and_no_numbers(tmp_path, monkeypatch, suffix):
    path = table(tmp_path / f"a{suffix}", {"prob_True": PROBS, "prob_False": 1 - PROBS, "label": LABELS == 1})
    options = {"columns": "prob_True,prob_False"}
    file = read_scores(path, **options)
    same(file, np.stack([PROBS, 1 - PROBS], 1), 1 - LABELS)
    if suffix == ".parquet":
        assert torch.equal(in_blocks(path, monkeypatch, **options)[2], file.labels)
    path = table(tmp_path / f"b{suffix}", {"prob_0": 1 - PROBS, "prob_1": PROBS, "label": LABELS == 1})
    with pytest.raises(InputError, match=r"'False', 'True' is neither a number nor a class name .*0 … C−1"):
        read_scores(path)


def test_empty_cells_among_true_and_false_are_refused(tmp_path):
    labels = pa.array([None, *(LABELS[1:] == 1).tolist()])
    for options in ({}, {"most_scores": 0}):
        with pytest.raises(InputError, match="column 'label' has empty cells; label every row"):
            open_scores(table(tmp_path / "a.parquet", {"p": PROBS, "label": labels}), **options)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_spaces_around_labels_of_a_table_do_not_count(tmp_path, monkeypatch, suffix):
    spaced = [word + " " * (row % 3) for row, word in enumerate(TEXT.tolist())]
    for columns in ({"p": PROBS}, {"prob_ham": 1 - PROBS, "prob_spam": PROBS}):
        path = table(tmp_path / f"a{suffix}", columns | {"label": spaced})
        file = read_scores(path)
        same(file, np.stack([1 - PROBS, PROBS], 1), LABELS)
        assert file.class_names == ("ham", "spam")
        if suffix == ".parquet":
            assert torch.equal(in_blocks(path, monkeypatch)[2], file.labels)


def test_percentages_and_draws(tmp_path):
    file = read_scores(save(tmp_path, scores=100 * PROBS, labels=LABELS), kind="percent")
    same(file, np.stack([1 - PROBS, PROBS], 1), LABELS)
    draws = np.stack([LOGITS, LOGITS + 1, LOGITS - 1])[..., None]
    file = read_scores(save(tmp_path, logits=draws, labels=LABELS))
    assert file.samples == 3
    mean = (1 / (1 + np.exp(-draws[..., 0]))).mean(0)
    same(file, np.stack([1 - mean, mean], 1), LABELS)


@pytest.mark.parametrize(
    ("arrays", "options", "says"),
    [
        ({"scores": PROBS, "labels": RNG.normal(size=60)}, {}, "not regression"),
        ({"scores": PROBS, "labels": np.arange(60) % 3}, {}, "one number per row, a binary score"),
        ({"scores": LABELS, "labels": LABELS}, {}, "may be the predicted class"),
        ({"predictions": LABELS.astype(float), "labels": LABELS}, {}, "may be the predicted class"),
        ({"logits": PROBS, "labels": LABELS}, {}, "--kind probs, or --kind logits"),
        ({"probs": LOGITS, "labels": LABELS}, {}, "--kind logits"),
        ({"scores": 100 * PROBS, "labels": LABELS}, {}, "--kind percent"),
        ({"scores": 300 * PROBS, "labels": LABELS}, {}, "odds"),
        ({"scores": np.log(PROBS), "labels": LABELS}, {}, "logarithms"),
        ({"scores": LOGITS, "labels": LABELS}, {}, "--kind logits"),
        ({"scores": np.maximum(PROBS, 1 - PROBS), "labels": LABELS}, {}, "confidences of the predicted class"),
        ({"probs": np.maximum(PROBS, 1 - PROBS), "labels": LABELS}, {}, "confidences of the predicted class"),
        ({"scores": PROBS, "labels": LABELS + 1}, {}, "--first-label 1"),
        ({"scores": PROBS, "labels": 2 * LABELS - 1}, {}, "--positive 1"),
        ({"scores": PROBS, "labels": TEXT}, {"positive": "eggs"}, "is not among"),
        ({"scores": PROBS, "labels": LABELS}, {"positive": "2"}, "is not among"),
        ({"scores": PROBS, "labels": np.array(["ham"] * 60)}, {}, "--positive ham"),
        ({"scores": PROBS, "labels": np.array(["a", "b", "c"])[np.arange(60) % 3]}, {}, "3 classes"),
        ({"scores": 1 - PROBS, "labels": TEXT}, {}, "--positive spam or --positive ham"),
        ({"probs": np.ones((60, 1)), "labels": 0 * LABELS}, {"kind": "probs"}, r"the shape \(N,\)"),
        ({"scores": np.append(PROBS[1:], np.nan), "labels": LABELS}, {}, "contains nan"),
        ({"scores": np.zeros(0), "labels": np.zeros(0, int)}, {}, "is empty"),
        ({"scores": PROBS[:30], "labels": LABELS}, {}, "one number per label"),
        ({"logits": ROWS, "labels": MAPS.ravel()}, {"positive": "1"}, "leave out --positive"),
        ({"logits": ROWS, "labels": MAPS.ravel()}, {"task": "binary"}, "leave out --task binary"),
        ({"logits": ROWS, "labels": MAPS.ravel()}, {"task": "multilabel"}, "unknown task"),
    ],
)
def test_doubtful_numbers_are_refused(tmp_path, arrays, options, says):
    with pytest.raises(InputError, match=says):
        read_scores(save(tmp_path, **arrays), **options)


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (LABELS + 1, {"first_label": 1}),
        (2 * LABELS - 1, {"positive": "1"}),
        (1 - LABELS, {"positive": "0"}),
        (TEXT, {"positive": "spam"}),
        (np.array(["spam", "ham"])[LABELS], {"positive": "ham"}),
        (TEXT, {"classes": ["ham", "spam"]}),
    ],
)
def test_which_class_is_meant(tmp_path, labels, options):
    same(read_scores(save(tmp_path, probs=PROBS, labels=labels), **options), np.stack([1 - PROBS, PROBS], 1), LABELS)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("id,prob_spam,class\n", {}),
        ("file,probability,Y_True\n", {}),
        ("x,my number,label\n", {"columns": "my number"}),
        ("x,prob_ham,label\n", {"positive": "spam"}),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_one_column_of_a_table(tmp_path, table, options, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(table + "".join(f"r{i},{PROBS[i]:.9g},{TEXT[i]}\n" for i in range(60)))
    else:
        import pyarrow
        from pyarrow import parquet

        first, second, third = table.strip().split(",")
        cells = {first: [f"r{i}" for i in range(60)], second: PROBS, third: TEXT}
        parquet.write_table(pyarrow.table(cells), path)
    file = read_scores(path, **options)
    same(file, np.stack([1 - PROBS, PROBS], 1), LABELS)
    write_scores(file, file.scores**2 / (file.scores**2).sum(1, keepdim=True), tmp_path / f"b{suffix}")
    again = read_scores(tmp_path / f"b{suffix}", **options)
    new = PROBS**2 / (PROBS**2 + (1 - PROBS) ** 2)
    same(again, np.stack([1 - new, new], 1), LABELS)


def test_a_column_of_class_0_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prob_0,label\n" + "".join(f"{p!r},{k}\n" for p, k in zip(PROBS.tolist(), LABELS, strict=True)))
    with pytest.raises(InputError, match="--positive 0 or --positive 1"):
        read_scores(path)
    same(read_scores(path, positive="0"), np.stack([1 - PROBS, PROBS], 1), 1 - LABELS)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_written_logits_stay_one_number(tmp_path, dtype):
    path = save(tmp_path, logits=(1e3 * LOGITS).astype(dtype)[:, None], labels=LABELS)
    file = read_scores(path)
    write_scores(file, file.scores * 100, tmp_path / "b.npz")
    found = np.load(tmp_path / "b.npz")["logits"]
    assert found.shape == (60, 1)
    assert found.dtype == dtype
    expected = np.clip(1e5 * LOGITS.astype(np.float64), np.finfo(dtype).min, np.finfo(dtype).max)
    np.testing.assert_allclose(found[:, 0], expected, rtol=2e-3 if dtype == np.float16 else 1e-5)


# ---- dense

LAYOUTS = {
    "(N, C, H, W)": (DENSE, MAPS, {}),
    "(N, C, L)": (DENSE.reshape(5, 3, 24), MAPS.reshape(5, 24), {}),
    "(N, H, W, C)": (np.moveaxis(DENSE, 1, -1), MAPS, {"class_dim": -1}),
    "(N, H, C, W)": (np.moveaxis(DENSE, 1, 2), MAPS, {"class_dim": 2}),
    "labels (N, 1, H, W)": (DENSE, MAPS[:, None], {}),
    "in Fortran order": (np.asfortranarray(DENSE), np.asfortranarray(MAPS), {}),
}


@pytest.mark.parametrize("case", LAYOUTS)
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_dense_scores_are_rows(tmp_path, monkeypatch, case, suffix):
    scores, labels, options = LAYOUTS[case]
    labels = labels.copy()
    labels.reshape(-1)[::7] = -100
    path = tmp_path / f"logits{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, logits=scores, labels=labels)
    elif suffix == ".npy":
        np.save(path, scores)
        np.save(tmp_path / "labels.npy", labels)
    else:
        from safetensors.numpy import save_file

        save_file({"logits": np.ascontiguousarray(scores), "labels": np.ascontiguousarray(labels)}, path)
    keep = labels.reshape(-1) != -100
    file = read_scores(path, **options)
    np.testing.assert_array_equal(file.scores, ROWS[keep])
    assert file.labels.tolist() == MAPS.ravel()[keep].tolist()
    assert "18 of 120 positions have the label -100 and were left out" in file.notes
    stream, found, known = in_blocks(path, monkeypatch, **options)
    assert torch.equal(found, file.scores)
    assert torch.equal(known, file.labels)
    assert stream.shape == (102, 3)
    unlabelled = read_scores(path, needs_labels=False, **options)
    write_scores(unlabelled, 2 * unlabelled.scores, tmp_path / f"to_logits{suffix}")
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(tmp_path / "to_logits.npy"), 2 * scores)
    else:
        again = read_scores(tmp_path / f"to_logits{suffix}", needs_labels=False, **options)
        np.testing.assert_array_equal(again.scores, 2 * ROWS)
    with pytest.raises(InputError, match="needs_labels=False"):
        write_scores(file, file.scores, tmp_path / f"never{suffix}")


@pytest.mark.parametrize("scale", [1, 100])
def test_probabilities_near_1_keep_their_distance(tmp_path, scale):
    """1 − p is taken in float64: in float32 it is 0 here, and a mistake would cost the clamp of NLL, 27.6."""
    near = np.array([1e-9, 1e-4, 0.3])
    file = save(tmp_path, probs=scale * (1 - near), labels=[1, 0, 0])
    kind = "percent" if scale > 1 else "probs"
    read = read_scores(file, kind=kind)
    np.testing.assert_allclose(read.predictions().probs[:, 0], near, rtol=1e-6)
    write_scores(read, read.scores, tmp_path / "b.npz")
    np.testing.assert_allclose(1 - np.load(tmp_path / "b.npz")["probs"] / scale, near, rtol=1e-6)
    many = save(tmp_path, probs=scale * (1 - near)[:, None], labels=[[1], [0], [0]])
    loose = read_multilabel(many, kind=kind)
    np.testing.assert_allclose(loose.logits()[:, 0], np.log((1 - near) / near), rtol=1e-6)
    np.testing.assert_allclose(1 - loose.probs()[:, 0], near, rtol=1e-6)


def test_equal_probabilities_stay_equal(tmp_path):
    """Rows of a forest sum to 1 but for rounding; divided by that sum, 0.3 would be two numbers."""
    votes = RNG.multinomial(10, np.full(10, 0.1), size=200) / 10
    file = read_scores(save(tmp_path, probs=votes, labels=votes.argmax(1)))
    np.testing.assert_array_equal(file.scores, votes.astype(np.float32))


def test_dense_draws_and_binary(tmp_path):
    draws = np.stack([DENSE, DENSE + RNG.normal(size=DENSE.shape)]).astype(np.float32)
    file = read_scores(save(tmp_path, logits=draws, labels=MAPS))
    assert file.scores.shape == (2, 120, 3)
    np.testing.assert_array_equal(file.scores[1], np.moveaxis(draws[1], 1, -1).reshape(-1, 3))
    one = DENSE[:, 1:2]
    truth = (MAPS == 1).astype(int)
    for labels in (truth, truth[:, None]):
        file = read_scores(save(tmp_path, logits=one, labels=labels))
        p = 1 / (1 + np.exp(-one.ravel()))
        same(file, np.stack([1 - p, p], 1), truth.ravel())
    with pytest.raises(InputError, match="--task binary"):
        read_scores(save(tmp_path, logits=one[:, 0], labels=truth))
    same(read_scores(tmp_path / "a.npz", task="binary"), np.stack([1 - p, p], 1), truth.ravel())


@pytest.mark.parametrize(
    ("scores", "labels", "options", "says"),
    [
        ((5, 4, 6, 3), (5, 4, 6), {}, "pass --class-dim 3"),
        ((5, 4, 4), (5, 4), {}, "pass --class-dim 1 or --class-dim 2"),
        ((5, 3, 4, 6), (5, 6, 4), {}, "does not fit labels of shape"),
        ((5, 3, 4, 6), (5, 4, 6), {"class_dim": 2}, "needs labels of shape"),
        ((5, 3, 4, 6), (5, 4, 6), {"class_dim": 4}, "is no dimension of its classes"),
        ((5, 3, 4, 6), (5, 4, 6), {"class_dim": 0}, "is no dimension of its classes"),
        ((5,), (5,), {"class_dim": 1}, "leave out --class-dim"),
        ((5, 3, 4), (5, 3, 4), {}, "--task multilabel .* or --task binary"),
        ((5, 3), (5, 3), {}, "--task multilabel"),
        ((5, 3, 4, 6), None, {}, None),
        ((2, 5, 3, 4, 6), None, {}, "--class-dim 1 for"),
        ((5, 3, 0, 6), (5, 0, 6), {}, "is empty"),
    ],
)
def test_shapes(scores, labels, options, says):
    from pathlib import Path

    known = None if labels is None else ("labels", labels, torch.int64)
    if says is None:
        assert find_layout(Path("a"), "key 'a'", (scores, torch.float32), known).axis == 1
        return
    with pytest.raises(InputError, match=says):
        find_layout(Path("a"), "key 'a'", (scores, torch.float32), known, **options)


def test_labels_outside_say_how_to_leave_them_out(tmp_path):
    labels = MAPS.copy()
    labels[0, 0] = 255
    with pytest.raises(InputError, match="--ignore-index 255"):
        read_scores(save(tmp_path, logits=DENSE, labels=labels))
    assert read_scores(tmp_path / "a.npz", ignore_index=255).num_rows == 114
    labels[:] = -100
    with pytest.raises(InputError, match="every label is -100"):
        read_scores(save(tmp_path, logits=DENSE, labels=labels))
    with pytest.raises(InputError, match="every label is -100"):
        open_scores(tmp_path / "a.npz", most_scores=0)
    flat = MAPS.ravel().copy()
    flat[3] = -100
    with pytest.raises(InputError, match="remove the rows without a label"):
        read_scores(save(tmp_path, logits=ROWS, labels=flat))
    assert read_scores(tmp_path / "a.npz", ignore_index=-100).num_rows == 119


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.data())
def test_back_undoes_rows(sides, data):
    draws = data.draw(st.booleans()) and len(sides) > 2
    axis = data.draw(st.one_of(st.none(), st.integers(int(draws) + 1, len(sides) - 1)))
    layout = Layout(tuple(sides), draws, axis)
    array = torch.arange(float(np.prod(sides))).reshape(sides)
    rows = layout.rows(array)
    assert tuple(rows.shape) == layout.flat
    assert torch.equal(layout.back(rows), array)


# ---- text labels

NAMES = np.array(["ant", "bee", "cow"])


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv"])
def test_text_labels_without_class_names(tmp_path, monkeypatch, suffix):
    """As scikit-learn orders classes; another order is seen in the scores and refused."""
    path, options = tmp_path / "logits.npz", {}
    texts = NAMES[MAPS.ravel()]
    if suffix == ".npz":
        np.savez(path, logits=ROWS, labels=texts)
    elif suffix == ".npy":
        path = tmp_path / "logits.npy"
        np.save(path, ROWS)
        np.save(tmp_path / "labels.npy", texts)
    else:
        np.savez(path, logits=ROWS)
        (tmp_path / "b.csv").write_text("Target\n" + "\n".join(texts) + "\n")
        options = {"labels": tmp_path / "b.csv"}
    file = read_scores(path, **options)
    assert file.labels.tolist() == MAPS.ravel().tolist()
    assert file.class_names == tuple(NAMES)
    assert "alphabetical order: 'ant', 'bee', 'cow'" in file.notes[-1]
    _, _, labels = in_blocks(path, monkeypatch, **options)
    assert labels.tolist() == MAPS.ravel().tolist()


def test_class_names_in_the_file_and_given(tmp_path):
    texts, order = NAMES[MAPS.ravel()], [2, 0, 1]
    path = save(tmp_path, logits=ROWS[:, order], labels=texts)
    with pytest.raises(InputError, match=r"not in alphabetical order.*--classes"):
        read_scores(path)
    expected = [order.index(k) for k in MAPS.ravel()]
    assert read_scores(path, classes=NAMES[order].tolist()).labels.tolist() == expected
    path = save(tmp_path, logits=ROWS[:, order], labels=texts, class_names=NAMES[order])
    assert read_scores(path).labels.tolist() == expected
    with pytest.raises(InputError, match="--classes names 2 different classes"):
        read_scores(save(tmp_path, logits=ROWS, labels=MAPS.ravel()), classes=["a", "b"])
    with pytest.raises(InputError, match=r"2 names .* for 3 scores per row"):
        read_scores(save(tmp_path, logits=ROWS, labels=np.where(texts == "ant", "bee", texts)))
    with pytest.raises(InputError, match="have no label"):
        read_scores(save(tmp_path, logits=ROWS, labels=np.where(texts == "ant", "", texts)))


def test_dense_text_labels_and_numbers_as_text(tmp_path):
    assert read_scores(save(tmp_path, logits=DENSE, labels=NAMES[MAPS])).labels.tolist() == MAPS.ravel().tolist()
    path = save(tmp_path, logits=ROWS, labels=MAPS.ravel().astype(str))
    assert read_scores(path).labels.tolist() == MAPS.ravel().tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_the_ignored_label_is_not_wrapped_to_the_type_of_the_labels(tmp_path, dtype):
    labels = RNG.integers(0, 160, (4, 3, 5))
    labels[0] = 156  # −100 as a byte
    scores = (RNG.normal(size=(4, 160, 3, 5)) + 9 * np.moveaxis(np.eye(160)[labels], -1, 1)).astype(np.float32)
    path = save(tmp_path, logits=scores, labels=labels.astype(dtype))
    assert read_scores(path).labels.tolist() == labels.reshape(-1).tolist()
    stream = open_scores(path, most_scores=0)
    assert stream.num_rows == sum(part.num_rows for part in stream.parts()) == 60
    # 255 of --ignore-index, as masks have it
    masked = np.where(labels == 156, 255, labels).astype(np.uint8)
    assert read_scores(save(tmp_path, logits=scores, labels=masked), ignore_index=255).num_rows == (masked != 255).sum()


def test_unknown_decisions_in_bytes(tmp_path):
    labels = RNG.integers(0, 2, (30, 3))
    labels[4, 1] = 255
    path = save(tmp_path, probs=RNG.random((30, 3)), labels=labels.astype(np.uint8))
    known = read_multilabel(path, ignore_index=255).labels
    assert known.tolist() == np.where(labels == 255, -100, labels).tolist()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_integer_class_labels_of_a_file_number_the_scores(tmp_path, suffix):
    from safetensors.numpy import save_file

    labels = RNG.integers(0, 3, 40)
    probs = RNG.dirichlet(np.ones(3), 40)
    path = tmp_path / f"a{suffix}"

    def read(known, given):
        arrays = {"probs": probs[: len(given)], "labels": given, "classes": known}
        np.savez(path, **arrays) if suffix == ".npz" else save_file(arrays, path)
        in_memory, (part,) = read_scores(path), open_scores(path, most_scores=0).parts()
        assert in_memory.labels.tolist() == part.labels.tolist()
        return in_memory.labels.tolist()

    for known in ([0, 2, 3], [1, 2, 3], [3, 5, 7], [0, 1, 2]):  # predict_proba and classes_ of scikit-learn
        assert read(np.array(known), np.array(known)[labels]) == labels.tolist()
        assert read(np.array(known), labels) == labels.tolist()  # the labels may be positions already
    assert read(np.arange(40), labels) == labels.tolist()  # something else: one number for each row
    # 0 and 2 may be classes 0 and 1, or positions 0 and 2
    with pytest.raises(InputError, match=r"the numbers of the columns .* else save positions"):
        read(np.array([0, 2, 3]), 2 * (labels[:30] % 2))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("form", ["dense", "channels last", "a column of labels", "labels in another file"])
def test_integer_class_labels_number_scores_of_every_form(tmp_path, monkeypatch, suffix, form):
    from safetensors.numpy import save_file

    path, other = tmp_path / f"a{suffix}", tmp_path / "other.npz"
    scores, places, options = {
        "dense": (DENSE, MAPS, {}),
        "channels last": (np.moveaxis(DENSE, 1, -1), MAPS, {"class_dim": -1}),
        "a column of labels": (ROWS, MAPS.reshape(-1, 1), {}),
        "labels in another file": (ROWS, MAPS.reshape(-1), {"labels": other}),
    }[form]

    def read(known):
        labels = (np.array(known)[places] if len(known) == 3 else places).astype(np.int64)
        arrays = {"logits": np.ascontiguousarray(scores), "labels": labels, "classes": np.array(known)}
        if "labels" in options:
            np.savez(other, labels=arrays.pop("labels"))
        np.savez(path, **arrays) if suffix == ".npz" else save_file(arrays, path)
        file = read_scores(path, **options)
        _, rows, found = in_blocks(path, monkeypatch, **options)
        assert torch.equal(found, file.labels)
        torch.testing.assert_close(rows.numpy(), ROWS)
        return file

    for known in ([3, 5, 7], [7, 3, 5], [1, 2, 3], [0, 5, 1], [0, 1, 2], [9, 8, 7, 6], [9, 8, 7, 6, 5]):
        file = read(known)
        assert file.labels.tolist() == MAPS.reshape(-1).tolist()
        numbered = len(known) == 3 and known != [0, 1, 2]
        assert file.class_names == (tuple(map(str, known)) if numbered else None)
    for known in ([2, 0, 1], [0, 2, 1]):  # the labels were read as positions: an accuracy of 0 instead of 0.9
        with pytest.raises(InputError, match=r"the numbers of the columns .* else save positions"):
            read(known)


def test_objects_as_classes_are_no_reason_to_refuse_a_file(tmp_path):
    np.savez(tmp_path / "a.npz", probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1], classes=np.array(["a", {}], object))
    assert read_scores(tmp_path / "a.npz").labels.tolist() == [0, 1]
