"""The accelerators' folder: there, missing, or broken."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avuc.core import accelerators

ALL: dict[str, Callable[[], object]] = {
    "prediction_backends": accelerators.prediction_backends,
    "training_steps": accelerators.training_steps,
    "augmix_kernel": accelerators.augmix_kernel,
}


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    accelerators._offered.cache_clear()
    yield
    accelerators._offered.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the place of avuc/gpu."""
    made = tmp_path / "other_accelerators"
    made.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(accelerators, "FOLDER", "other_accelerators")
    yield made
    sys.modules.pop("other_accelerators", None)


def test_the_folder_of_this_package() -> None:
    from avuc.gpu.fused_resnet import FusedResNetBackend
    from avuc.gpu.kernels import augmix
    from avuc.gpu.stacked.steps import StackedSteps

    assert list(accelerators.prediction_backends()) == [FusedResNetBackend]
    steps = accelerators.training_steps()
    assert steps is not None
    assert steps.steps is StackedSteps
    assert accelerators.augmix_kernel() is augmix


@pytest.mark.parametrize("name", ALL)
def test_no_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "FOLDER", "avuc.no_such_folder")
    assert not ALL[name]()


@pytest.mark.parametrize("name", ALL)
def test_a_folder_without_code_is_no_folder(name: str, folder: Path) -> None:
    """Python leaves __pycache__ behind when a version control system deletes the sources."""
    (folder / "__pycache__").mkdir()
    assert not ALL[name]()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def {name}():\n    raise OSError('no driver')", "OSError: no driver"),
        ("", "AttributeError: .*{name}"),
    ],
)
def test_a_broken_folder_warns_once(name: str, code: str, reason: str, folder: Path) -> None:
    (folder / "__init__.py").write_text(code.replace("{name}", name))
    with pytest.warns(RuntimeWarning, match=rf"without other_accelerators \({name}\).*{reason.format(name=name)}"):
        assert not ALL[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not ALL[name]()
