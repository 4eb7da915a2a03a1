"""Files of predictions are .safetensors, and no name says otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores
from avuc.predictions import MultiLabelPredictions, Predictions

PREDICTIONS = {
    "multiclass": Predictions([[0.9, 0.1], [0.6, 0.4]], [0, 1]),
    "multilabel": MultiLabelPredictions([[0.9, 0.2], [0.1, 0.3]], [[1, 0], [0, 1]]),
}


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize("name", ["p.npz", "p.npy", "p.csv", "P.CSV", "p.parquet", "p.json", "p.pt", "a.b/p.pkl"])
def test_names_of_other_formats_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "a.b").mkdir()
    with pytest.raises(
        InputError, match=r"save writes the format .safetensors, not \.\w+; pass '.*/[pP].safetensors'"
    ) as caught:
        PREDICTIONS[kind].save(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize(
    "name", ["p", "p.safetensors", "p.SAFETENSORS", "dropout-0.5", "a.npz/p", "p.v1", "p.predictions"]
)
def test_other_names_stay(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "a.npz").mkdir()
    predictions = PREDICTIONS[kind]
    predictions.save(tmp_path / name)
    assert np.array_equal(type(predictions).load(tmp_path / name).probs, predictions.probs)


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    PREDICTIONS["multiclass"].save(tmp_path / "p")
    (tmp_path / "p").rename(tmp_path / "p.npz")
    assert len(Predictions.load(tmp_path / "p.npz")) == 2


def test_the_remedy_for_npz_works(tmp_path: Path) -> None:
    p = Predictions([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    np.savez(tmp_path / "p.npz", probs=p.probs.cpu(), labels=p.labels.cpu())
    assert np.allclose(read_scores(tmp_path / "p.npz").predictions().probs, p.probs)
