"""The code of the guides that needs a finished study."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize("page", ["reference/report", "reference/study-files"])
def test_code_for_a_finished_study(
    page: str,
    guide_code: Callable[[str, str], str],
    study_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(study_folder, tmp_path / "out" / "demo")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(guide_code(page, "needs a finished study"), page, "exec"), namespace)
    if page == "reference/report":
        assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
        assert len(namespace["results"].names) == capsys.readouterr().out.count(".")
    else:
        assert namespace["store"].stored_recipe().methods
        namespace["store"].close()
