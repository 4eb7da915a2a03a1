"""Refinement and calibration of NLL and Brier score; calibration within groups."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc import InputError, Predictions, metrics
from avuc.calibration import TemperatureScaling
from avuc.evaluation.decomposition import decompose, mean_intervals
from avuc.evaluation.files.group_column import read_groups
from avuc.evaluation.groups import METRICS, SIDES, evaluate_groups

sharp_probs = runpy.run_path(str(Path(__file__).with_name("make_decomposition_reference.py")))["sharp_probs"]
# what make_decomposition_reference.py printed
PROBMETRICS = {
    "nll_calibration": 0.1713907959980956,
    "brier_calibration": 0.04674533659025937,
    "nll_refinement": 0.9927833915097974,
    "brier_refinement": 0.5407020680990472,
}


def test_the_parts_are_those_of_probmetrics() -> None:
    found = decompose(Predictions(*sharp_probs()), folds=1, replicates=0)
    assert {name: each.value for name, each in found.items()} == pytest.approx(PROBMETRICS, abs=1e-8)


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_the_parts_add_up(folds: int) -> None:
    probs, labels = sharp_probs()
    found = decompose(Predictions(probs, labels), folds=folds, replicates=50)
    for name in ("nll", "brier"):
        total = found[f"{name}_refinement"].value + found[f"{name}_calibration"].value
        assert total == pytest.approx(getattr(metrics, name)(probs, labels))
    for each in found.values():
        assert each.low < each.value < each.high
    assert found["nll_calibration"].low > 0  # the model is overconfident


def test_refinement_does_not_depend_on_the_temperature_of_the_model() -> None:
    probs, labels = sharp_probs()
    softer = TemperatureScaling().fit(np.log(probs), labels).transform(np.log(probs))
    before = decompose(Predictions(probs, labels), folds=1, replicates=0)
    after = decompose(Predictions.from_logits(softer, labels), folds=1, replicates=0)
    assert after["nll_refinement"].value == pytest.approx(before["nll_refinement"].value, abs=1e-7)
    assert after["nll_calibration"].value == pytest.approx(0, abs=1e-7)


def test_mean_intervals_are_percentiles_of_resampled_means() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    (found,) = mean_intervals([values], 2000, 0.95, 0)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(InputError, match="folds"):
        decompose(Predictions([[0.5, 0.5]], [0]))
    with pytest.raises(InputError, match="folds"):
        decompose(Predictions(*sharp_probs()), folds=0)


@pytest.mark.parametrize("replicates", [0, 30])
def test_a_group_has_the_figures_of_its_rows(replicates: int) -> None:
    probs, labels = sharp_probs()
    names = np.array(["b", "a", "a", "c"])[np.arange(400) % 4]
    found = evaluate_groups(Predictions(probs, labels), names, replicates=replicates)
    assert [each.name for each in found] == ["a", "b", "c"]
    for each in found:
        rows = names == each.name
        assert each.rows == rows.sum()
        assert each.confidence == pytest.approx(probs[rows].max(1).mean())
        for name in (*METRICS, *SIDES):
            interval = each.metrics[name]
            assert interval.value == pytest.approx(getattr(metrics, name)(probs[rows], labels[rows]))
            assert math.isnan(interval.low) if not replicates else interval.low <= interval.value <= interval.high
        assert json.loads(json.dumps(each.as_json(), allow_nan=False))["metrics"]["ece"] == each.metrics["ece"].value
        assert bool(each.as_json()["intervals"]) == bool(replicates)


@pytest.mark.parametrize(
    ("groups", "order"),
    [
        (["10", "1", "2", ""], ["1", "2", "10", ""]),
        ([10, 1, 2, -3], ["-3", "1", "2", "10"]),
        (np.array(["ward 10", "ward 9", "7"], dtype=object), ["7", "ward 9", "ward 10"]),
        (np.array(["2024-01-05", "2023-12-31"], dtype="datetime64[ns]"), ["2023-12-31", "2024-01-05"]),
    ],
)
def test_groups_are_in_the_order_of_their_numbers(groups, order) -> None:
    probs, labels = sharp_probs()
    at = np.arange(len(labels)) % len(groups)
    values = np.asarray(groups)[at]
    found = evaluate_groups(Predictions(probs, labels), values, replicates=0)
    assert [each.name for each in found] == order
    for each in found:
        rows = [str(value).removesuffix("T00:00:00.000000000") == each.name for value in values]
        assert each.rows == sum(rows)
        assert each.confidence == pytest.approx(probs[rows].max(1).mean())


def test_missing_groups_are_refused() -> None:
    with pytest.raises(InputError, match="some are missing"):
        evaluate_groups(Predictions([[0.5, 0.5]] * 2, [0, 1]), ["a", None])


def test_groups_of_the_wrong_length_or_too_many_are_refused() -> None:
    predictions = Predictions(torch.full((1200, 2), 0.5), torch.zeros(1200, dtype=torch.long))
    with pytest.raises(InputError, match="one value for each"):
        evaluate_groups(predictions, ["a"])
    with pytest.raises(InputError, match="1,200 different values"):
        evaluate_groups(predictions, range(1200))


def test_groups_are_read_from_every_format(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet
    from safetensors.numpy import save_file

    np.savez(tmp_path / "a.npz", site=np.array(["x", "y"]), other=np.zeros((2, 2)))
    (tmp_path / "a.csv").write_text("site,label\nx,0\ny,1\n", encoding="utf-8-sig")
    (tmp_path / "a.tsv").write_text("site\tlabel\nx\t0\ny\t1\n")
    parquet.write_table(pyarrow.table({"site": ["x", "y"], "label": [0, 1]}), tmp_path / "a.parquet")
    save_file({"site": np.array([3, 4])}, tmp_path / "a.safetensors")
    for suffix in ("npz", "csv", "tsv", "parquet"):
        assert read_groups(tmp_path / f"a.{suffix}", "site", 2).tolist() == ["x", "y"]
    assert read_groups(tmp_path / "a.safetensors", "site", 2).tolist() == [3, 4]
    for suffix in ("npz", "csv", "tsv", "parquet", "safetensors"):
        with pytest.raises(InputError, match="has no column 'town'"):
            read_groups(tmp_path / f"a.{suffix}", "town", 2)
        with pytest.raises(InputError, match="3 rows are evaluated"):
            read_groups(tmp_path / f"a.{suffix}", "site", 3)
    np.save(tmp_path / "a.npy", np.zeros(2))
    with pytest.raises(InputError, match="one array only"):
        read_groups(tmp_path / "a.npy", "site", 2)
    np.savez(tmp_path / "objects.npz", site=np.array([{}, []], dtype=object))
    with pytest.raises(InputError, match="not objects"):
        read_groups(tmp_path / "objects.npz", "site", 2)


def test_spaces_around_the_cells_of_groups_do_not_count(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    sites = [" x", "y", "x  ", None]
    (tmp_path / "a.csv").write_text("label, site\n0, x\n1, y\n0, x \n1,\n")
    parquet.write_table(pyarrow.table({"site": sites}), tmp_path / "a.parquet")
    category = pyarrow.array(sites).dictionary_encode()
    parquet.write_table(pyarrow.table({"site": category}), tmp_path / "category.parquet")
    np.savez(tmp_path / "a.npz", site=np.array([site or "" for site in sites]))
    for name in ("a.csv", "a.parquet", "category.parquet", "a.npz"):
        assert read_groups(tmp_path / name, "site", 4).tolist() == ["x", "y", "x", ""], name
