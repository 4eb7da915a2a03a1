"""The calibrator that chooses a calibrator: what it takes, when it does nothing, and what it writes."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from avuc.calibration import AutoCalibrator, Calibrator, SmoothedTemperatureScaling, TemperatureScaling
from avuc.calibration import auto as module
from avuc.calibration.metric_change import Figures
from avuc.calibration.race import TITLES
from avuc.core.errors import InputError


def rows(number: int, classes: int = 3, scale: float = 4.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits with labels drawn from softmax(logits/scale): the best temperature is `scale`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(number, classes, generator=generator)
    return scale * logits, torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def test_a_temperature_is_found_and_the_sentence_says_why() -> None:
    auto = AutoCalibrator(["temperature", "vector"], standard_errors=1).fit(*rows(600))
    assert auto.chosen_.name == "temperature"
    assert auto.temperature_ == pytest.approx(TemperatureScaling().fit(*rows(600)).temperature_, rel=1e-5)
    assert auto.reason_.startswith("temperature: NLL of held-out rows falls from ")
    table = {row.method: row for row in auto.table_}
    assert list(table) == ["none", "temperature", "vector"]
    assert table["none"].change == 0
    assert table["temperature"].low < table["temperature"].change < table["temperature"].high < 0
    assert auto.rows_ == 600


def test_class_biases_need_more_than_a_temperature() -> None:
    logits, labels = rows(3000, scale=1.0)
    auto = AutoCalibrator(blend=False).fit(logits + torch.tensor([2.0, 0.0, -2.0]), labels)
    assert auto.chosen_.name in ("structured-vector", "matrix")
    table = {row.method: row.nll for row in auto.table_}
    assert table[auto.chosen_.name] <= min(table.values()) + 0.01


def test_one_standard_error_prefers_the_first() -> None:
    names = ["temperature", "vector", "structured-vector", "matrix"]
    lowest, simple = (AutoCalibrator(names, standard_errors=errors).fit(*rows(150, seed=1)) for errors in (0, 3))
    assert simple.chosen_.name == "temperature"
    assert lowest.chosen_.name != "temperature"
    assert f"{lowest.chosen_.name} is 0.0" in simple.reason_
    assert simple.reason_.endswith("and temperature is preferred.")


def test_calibrated_rows_hardly_change() -> None:
    logits, labels = rows(4000, scale=1.0)
    auto = AutoCalibrator().fit(logits, labels)
    assert (auto.predict_proba(logits) - logits.softmax(-1)).abs().max() < 0.05


class Harmful(TemperatureScaling):
    """Lowers the confidence by far too much."""

    name = "harmful"

    def _apply(self, logits: Tensor) -> Tensor:
        return logits / 50


def test_if_every_method_is_worse_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "calibrators", {"harmful": Harmful})
    auto = AutoCalibrator(["harmful"]).fit(*rows(500, scale=1.0))
    assert auto.chosen_.name == "temperature"
    assert auto.temperature_ == 1
    assert auto.table_[1].change > 0
    assert auto.reason_ == "Nothing is changed: every calibrator would make held-out rows worse."


class Trade(TemperatureScaling):
    """Lowers the confidence from 1 to .73."""

    name = "trade"

    def _apply(self, logits: Tensor) -> Tensor:
        return logits / 27


class Same(TemperatureScaling):
    """Changes nothing."""

    name = "same"

    def _apply(self, logits: Tensor) -> Tensor:
        return logits


@pytest.mark.parametrize("metric", ["nll", "brier", "ece"])
def test_the_guard_looks_at_each_of_three_metrics(monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    """98 % of the rows are right, with a confidence of 1: NLL .54 → .33, Brier score .04 → .16 and ECE .02 → .25; each
    of the last two alone is enough. NLL counts as well, if it is the figure that is worse."""
    monkeypatch.setattr(Calibrator, "calibrators", {"trade": Trade, "same": Same})
    true = Figures.worse
    monkeypatch.setattr(Figures, "worse", lambda one, than: [name for name in true(one, than) if name == metric])
    auto = AutoCalibrator(["trade", "same"]).fit(torch.tensor([27.0, 0.0]).repeat(500, 1), torch.arange(500) % 50 == 0)
    table = {row.method: row for row in auto.table_}
    assert table["none"].nll == pytest.approx(0.54, abs=1e-3)
    assert table["trade"].nll == pytest.approx(0.333, abs=1e-3)
    assert auto.chosen_.name == ("trade" if metric == "nll" else "same")
    if metric != "nll":
        assert auto.reason_.endswith("; trade would make held-out rows worse.")
        assert table["trade"].note == f"refused: it makes {TITLES[metric]} worse"


def never_worse(auto: AutoCalibrator) -> None:
    """Check NLL, Brier score and ECE of held-out rows of what is used."""
    used = [row for row in auto.table_ if row.note.startswith("used")]
    assert len(used) == (not auto.reason_.startswith("Nothing is changed"))
    for row in used:
        assert all(getattr(row, metric) <= getattr(auto.table_[0], metric) for metric in ("nll", "brier", "ece"))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("number", [40, 300])
def test_held_out_rows_never_get_worse(number: int, scale: float, weighted: bool) -> None:
    for seed in range(3):
        logits, labels = rows(number, scale=scale, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            auto = AutoCalibrator().fit(logits, labels, torch.rand(number) + 0.5 if weighted else None)
        never_worse(auto)


def test_a_simpler_method_within_one_standard_error_is_preferred_to_the_mixture() -> None:
    logits, labels = rows(300, scale=1.0)
    logits += torch.tensor([0.7, 0.0, -0.7])
    auto = AutoCalibrator().fit(logits, labels)
    table = {row.method: row for row in auto.table_}
    assert list(table) == ["none", "matrix", "loose-matrix", "blend"]
    assert table["blend"].nll < table["matrix"].nll
    assert auto.chosen_.name == "matrix"
    assert "; blend is 0.00" in auto.reason_
    assert auto.reason_.endswith(", and matrix is preferred.")
    lowest = AutoCalibrator(standard_errors=0).fit(logits, labels)
    assert lowest.chosen_.name == AutoCalibrator(blend=True).fit(logits, labels).chosen_.name == "blend"
    assert [row[:7] for row in lowest.table_] == [row[:7] for row in auto.table_]


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
@pytest.mark.parametrize(("number", "share"), [(700, 1.0), (539, 0.5)])
def test_if_the_others_do_harm_temperature_and_smoothing_are_found_together(number: int, share: float) -> None:
    """Nearest neighbours on digits: a few rows give their label a probability of 0, and most others are right."""
    pixels, digits = load_digits(return_X_y=True)
    model = KNeighborsClassifier(5).fit(pixels[number:], digits[number:])
    logits, labels = np.log(np.clip(model.predict_proba(pixels[:number]), 1e-12, None)), digits[:number]
    auto = AutoCalibrator().fit(logits, labels)
    table = {row.method: row for row in auto.table_}
    assert table["matrix"].note.startswith("refused: it makes ")
    assert table["blend"].note.startswith("refused: it makes ")
    assert table["joint-smoothed"].note.startswith("used")
    assert auto.reason_.endswith("matrix and blend would make held-out rows worse.")
    never_worse(auto)
    assert table["joint-smoothed"].nll < 0.6 * table["none"].nll
    joint = SmoothedTemperatureScaling(joint=True).fit(logits, labels).predict_proba(logits)
    mixed = share * joint + (1 - share) * np.exp(logits)
    np.testing.assert_allclose(auto.predict_proba(logits), mixed, atol=1e-4)


def test_it_saves_the_chosen_calibrator(tmp_path: Path) -> None:
    logits, labels = rows(300)
    auto = AutoCalibrator().fit(logits, labels)
    auto.class_names_ = ("a", "b", "c")
    auto.save(tmp_path / "auto.json")
    loaded = Calibrator.load(tmp_path / "auto.json")
    assert type(loaded) is type(auto.chosen_)
    assert loaded.class_names_ == ("a", "b", "c")
    assert torch.equal(loaded.transform(logits), auto.transform(logits))
    with pytest.raises(InputError, match="not fitted"):
        AutoCalibrator().to_json()


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (AutoCalibrator(seed=3).fit(*rows(400)) for _ in range(2))
    assert [row[:7] for row in one.table_[:3]] == [row[:7] for row in two.table_[:3]]
    assert one.to_json() == two.to_json()
    other = AutoCalibrator(seed=4).fit(*rows(400))
    assert other.table_[1].nll != one.table_[1].nll
    assert AutoCalibrator(blend=False).fit(*rows(400)).chosen_.name in ("matrix", "structured-vector", "smoothed")


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1 row is too few"), (19, "19 rows are too few to choose a calibrator; give at least 20")]
)
def test_very_few_rows_change_nothing(number: int, said: str) -> None:
    auto = AutoCalibrator().fit(*rows(number))
    assert auto.temperature_ == 1
    assert said.split()[0] in auto.reason_
    assert auto.table_ == ()


def test_one_class_changes_nothing() -> None:
    logits, _ = rows(200)
    auto = AutoCalibrator().fit(logits, torch.ones(200, dtype=torch.int64))
    assert auto.temperature_ == 1
    assert "have the same label" in auto.reason_


@pytest.mark.parametrize("kind", ["right", "wrong", "zero", "half", "impossible"])
def test_extremes_give_finite_logits_and_a_sentence(kind: str) -> None:
    logits, labels = rows(150)
    if kind in ("right", "wrong"):
        labels = logits.argmax(-1) if kind == "right" else (logits.argmax(-1) + 1) % 3
    if kind == "zero":
        logits = torch.zeros_like(logits)
    if kind == "half":
        logits = logits.half()
    if kind == "impossible":
        logits[:, 2], labels = -math.inf, labels % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto = AutoCalibrator().fit(logits, labels)
    assert auto.reason_.endswith(".")
    possible = torch.isfinite(logits)
    assert torch.isfinite(auto.transform(logits)[possible]).all()
    never_worse(auto)


def test_few_rows_take_few_parameters() -> None:
    """A class bias needs a scale per class; a matrix is tried from 200 rows, and 20 per class, on."""
    tried = {}
    for number, classes in ((199, 3), (200, 3), (399, 20), (400, 20)):
        auto = AutoCalibrator(blend=False).fit(*rows(number, classes))
        tried[number] = [row.method for row in auto.table_ if row.nll > 0]
        if number in (199, 399):
            assert auto.table_[-1].note.startswith(f"not tried: {number} rows are fewer than 20")
    simple = ["none", "smoothed", "structured-vector"]
    all_three = [*simple, "matrix"]
    assert tried == {199: simple, 200: all_three, 399: simple, 400: all_three}
    assert [row.method for row in AutoCalibrator(["matrix"]).fit(*rows(100)).table_] == ["none", "matrix"]


class Doubtful(TemperatureScaling):
    """A temperature that is a little too high: NLL rises, but with few rows not significantly."""

    name = "doubtful"

    def _apply(self, logits: Tensor) -> Tensor:
        return logits / 1.1


def test_the_guard_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "calibrators", {"doubtful": Doubtful})
    logits, labels = torch.tensor([2.0, 0.0, 0.0]).repeat(300, 1), (torch.arange(300) % 5 == 0).long()
    auto = AutoCalibrator(["doubtful"]).fit(logits, labels)  # confidence .79, accuracy .8
    assert auto.table_[1].low < 0 < auto.table_[1].change
    assert auto.chosen_.is_identity


def test_draws_binary_and_dense_logits() -> None:
    logits, labels = rows(240)
    draws = logits + torch.randn(4, 240, 3, generator=torch.Generator().manual_seed(1))
    assert AutoCalibrator(["temperature", "vector"]).fit(draws, labels).transform(draws).shape == draws.shape
    two, which = rows(240, classes=2)
    binary = AutoCalibrator(["temperature"]).fit(two[:, 1] - two[:, 0], which)
    assert binary.temperature_ == pytest.approx(AutoCalibrator(["temperature"]).fit(two, which).temperature_, rel=1e-3)
    dense = logits.reshape(12, 20, 3).movedim(-1, 1)
    images = AutoCalibrator(["temperature"]).fit(dense, labels.reshape(12, 20))
    assert images.temperature_ == pytest.approx(
        AutoCalibrator(["temperature"]).fit(logits, labels, groups=torch.arange(240) // 20).temperature_
    )
    assert images.table_ == AutoCalibrator(["temperature"]).fit(logits, labels, groups=np.arange(240) // 20).table_
    names = [f"patient {row // 20:02}" for row in range(240)]
    assert images.table_ == AutoCalibrator(["temperature"]).fit(logits, labels, groups=names).table_
    assert images.transform(dense, class_dim=1).shape == dense.shape


def test_few_groups_change_nothing() -> None:
    logits, labels = rows(400)
    auto = AutoCalibrator().fit(logits, labels, groups=torch.arange(400) % 9)
    assert "9 groups are too few" in auto.reason_
    with pytest.raises(InputError, match="groups must have one value for each of 400 rows"):
        AutoCalibrator().fit(logits, labels, groups=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="groups: some are missing"):
        AutoCalibrator().fit(logits, labels, groups=["a", None] * 200)


def test_weights_and_ignored_rows() -> None:
    logits, labels = rows(300)
    weight = torch.ones(300)
    weight[:100] = 0
    some = AutoCalibrator(["temperature"]).fit(logits, labels, weight)
    kept = AutoCalibrator(["temperature"]).fit(logits[100:], labels[100:])
    assert some.temperature_ == pytest.approx(kept.temperature_, rel=1e-5)
    labels[:100] = -100
    assert AutoCalibrator(["temperature"]).fit(logits, labels).table_ == kept.table_


def test_many_classes_leave_out_what_takes_too_long() -> None:
    auto = AutoCalibrator(["temperature", "matrix"]).fit(*rows(200, classes=1000))
    assert auto.table_[-1].note == "not tried: its time grows with classes², and 1000 are more than 32"


def test_samples_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RACE_ROWS", 100)
    monkeypatch.setattr(module, "FIT_ELEMENTS", 600)
    logits, labels = rows(900, scale=1.0)
    auto = AutoCalibrator(["vector"]).fit(logits + torch.tensor([3.0, 0.0, -3.0]), labels)
    assert auto.rows_ == 100
    assert auto.chosen_.name == "vector"
    grouped = AutoCalibrator(["temperature"]).fit(*rows(900), groups=torch.arange(900) // 3)
    assert 100 <= grouped.rows_ <= 102


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["magic"]}, "methods must be names of"),
        ({"methods": []}, "methods must be names of"),
        ({"methods": ["multilabel"]}, "methods must be names of"),
        ({"methods": ["blend"]}, "methods must be names of"),
        ({"blend": 1}, "blend must be True, False or None"),
        ({"folds": 1}, "folds must be a whole number, at least 2"),
        ({"standard_errors": -1.0}, "standard_errors must be a number, at least 0"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_wrong_parameters_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AutoCalibrator(**options).fit(*rows(50))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinite_logits_are_refused(bad: float) -> None:
    logits, labels = rows(50)
    logits[3, 1] = bad
    with pytest.raises(InputError):
        AutoCalibrator().fit(logits, labels)


def test_the_table_as_a_data_frame_and_as_html() -> None:
    auto = AutoCalibrator(["temperature"]).fit(*rows(100))
    assert list(auto.to_frame()["method"]) == ["none", "temperature"]
    assert "AutoCalibrator" in auto._repr_html_()
